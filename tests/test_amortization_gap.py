"""Gaps: worked examples to 1e-6 by the code that also serves a study, and estimates that must be refused."""

import json
import math

import pytest
import torch
from torch import nn

from parcellation.amortization_gap import (
    Budget,
    Diagnosis,
    Estimate,
    answers,
    at_draw,
    diagnose_member,
    evidence,
    map_change,
    refusal,
)
from parcellation.annealing import Schedule
from parcellation.encoding import Encoding
from parcellation.errors import BadData
from parcellation.family import Family
from parcellation.importance import log_weights
from parcellation.model_file import LabelPower
from parcellation.plates import Batch, Observed, Site, Template
from parcellation.posterior import Posterior
from parcellation.refinement import Answer, Ascent, LocalProblem, encoder_answer, refine_encodings
from tests.conftest import draw_cohort
from tests.test_posterior import model_of
from tests.test_refinement import group_problem

QUICK = Budget(2, 100, 500, 16, Ascent(12, 4, 0.4), Schedule(10, 16, 2, 4), 4)
TINY = Budget(1, 20, 100, 16, Ascent(2, 2, 0.2), Schedule(4, 4, 1, 2), 1)


class Line(Template):
    """z ~ Normal(0, sd^2), x ~ Normal(slope z, noise^2): one latent number a datum."""

    plates = ("datum",)
    reducible = frozenset({"datum"})
    features = 1

    def __init__(self, sd: float, slope: float, noise: float):
        self.sd, self.slope, self.noise = sd, slope, noise
        self.sites = (Site("z", ("datum",), (1,), self._z),)

    def _z(self, values, observed):
        zero = observed.x.new_zeros(1, 1)
        return zero, torch.full_like(zero, self.sd)

    def hyperparameters(self):
        return dict(sd=self.sd, slope=self.slope, noise=self.noise)

    def log_likelihood(self, values, observed):
        normal = torch.distributions.Normal(self.slope * values["z"], self.noise)
        return normal.log_prob(observed.x)[..., 0]

    def log_evidence(self, x: float) -> float:
        """The observation is normal about 0."""
        variance = (self.slope * self.sd) ** 2 + self.noise**2
        return -0.5 * (x**2 / variance + math.log(2 * math.pi * variance))


class Rule(nn.Module):
    """The shared rule: posterior mean a x + b and one variance for every x; the flow halves, or more, an estimate."""

    def __init__(self, a: float, b: float, variance: float, prior: float):
        super().__init__()
        self.a, self.b = a, b
        self.weight = 1 - variance / prior  # of the estimate, the prior's mean being 0
        self.log_precision = math.log(1 / variance - 1 / prior)

    def forward(self, batch, centre):
        x = batch.seen.x
        estimate = (self.a * x + self.b) / self.weight
        return {"z": Encoding(estimate, torch.full_like(x, self.log_precision), x.new_zeros(*x.shape, 0))}


def rule_family(template: Line, a: float, b: float, variance: float, flow: str = "precision") -> Family:
    family = Family(template, {"datum": 1}, "encoded", flow, encoder="recognition").double()
    family.encoder = Rule(a, b, variance, template.sd**2)
    with torch.no_grad():
        for parameter in family.flows.parameters():
            parameter.zero_()
    return family


def two_points(*purpose):
    """Noise of -1 and 1 in turn: the two-point quadrature, exact for the quadratic terms of normal models."""
    return lambda name, shape: (1 - 2 * (torch.arange(shape[0]) % 2)).double().reshape(-1, 1, 1).expand(shape).clone()


def data_problem(template: Line, *x: float) -> LocalProblem:
    observed = Observed(torch.tensor(x, dtype=torch.float64)[:, None], torch.ones(len(x), dtype=torch.bool))
    return LocalProblem(Batch.full(template.plates, observed), {}, two_points)


def decompose(template: Line, family: Family, *x: float) -> tuple[float, list[float]]:
    """Approximation gap of these data, and the amortization gap of each; they add up to the total one, by algebra."""
    problem, budget = data_problem(template, *x), Budget(1, 10, 200, 2, Ascent(100, 2, 0.2))
    encoder, refined, best = answers(family, problem, budget)
    found = at_draw(problem, encoder, refined, best, budget)
    total = sum(map(template.log_evidence, x)) - found.elbo["encoder"].value
    assert found.evidence.refused == ""
    assert found.approximation_gap.value + found.amortization_gap.value == pytest.approx(total, abs=1e-6)
    assert found.encoder_gap.value + found.sharing_gap.value == pytest.approx(found.amortization_gap.value, abs=1e-9)
    first, last = (
        log_weights(one.family, problem.batch, one.draw(problem, two_points(), 2), len(x)).mean(0).detach()
        for one in (encoder, best)
    )
    assert float((last - first).sum()) == pytest.approx(found.amortization_gap.value, abs=1e-9)
    return found.approximation_gap.value, (last - first).tolist()


# The worked examples


def test_the_rule_half_x_is_exact_and_both_gaps_are_zero():
    """z ~ N(0, 1), x ~ N(z, 1): the posterior is N(x / 2, 1 / 2)."""
    template = Line(1.0, 1.0, 1.0)
    approximation, amortization = decompose(template, rule_family(template, 0.5, 0.0, 0.5), -3.0, 0.0, 1.7)
    assert approximation == pytest.approx(0, abs=1e-6)
    assert amortization == pytest.approx([0, 0, 0], abs=1e-6)


def test_a_constant_rule_loses_one_nat_at_each_of_two_observations():
    """One mean m for x = -2 and 2; m = 0 is the best of them."""
    template = Line(1.0, 1.0, 1.0)
    approximation, amortization = decompose(template, rule_family(template, 0.0, 0.0, 0.5), -2.0, 2.0)
    assert approximation == pytest.approx(0, abs=1e-6)
    assert amortization == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize("b", [0.0, 1.0])
def test_a_rule_of_fixed_slope_loses_half_of_one_plus_b_squared(b):
    """The posterior is N(2x, 1), the rule N(x + b, 1): z ~ N(0, 2), x ~ N(z / 4, 1 / 8)."""
    template = Line(math.sqrt(2), 0.25, math.sqrt(1 / 8))
    approximation, amortization = decompose(template, rule_family(template, 1.0, b, 1.0), -1.0, 1.0)
    assert approximation == pytest.approx(0, abs=1e-6)
    assert amortization == pytest.approx([(b + 1) ** 2 / 2, (b - 1) ** 2 / 2], abs=1e-6)
    assert sum(amortization) / 2 == pytest.approx((1 + b**2) / 2, abs=1e-6)


class FixedWidth(nn.Module):
    """theta = estimate + 0.5 (u - mean): a family that cannot have the posterior's width."""

    centred = False

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, encoding, mean, sd):
        return torch.distributions.AffineTransform(encoding.estimate - 0.5 * mean + 0 * self.nothing, 0.5)


def test_a_family_too_narrow_has_an_approximation_gap_and_no_other():
    """KL(N(m, 1/4) || N(m, 1/2)) = (1/2 - 1 + log 2) / 2, whatever the rule; the rule's own loss is apart."""
    template = Line(1.0, 1.0, 1.0)
    family = rule_family(template, 0.25, 0.0, 0.5)  # estimates x / 2: right, so the rule loses nothing
    family.flows["z"] = FixedWidth()
    problem, budget = data_problem(template, 1.2), Budget(1, 10, 200, 2, Ascent(30, 2, 0.2))
    found = at_draw(problem, *answers(family, problem, budget), budget)
    best = template.log_evidence(1.2) - found.elbo["flows refined"].value
    assert best == pytest.approx((math.log(2) - 0.5) / 2, abs=1e-6)
    assert found.amortization_gap.value == pytest.approx(0, abs=1e-6)


# The evidence, and when it is refused


def shifted(answer: Answer, shift: float, narrower: float) -> Answer:
    moved = {
        name: Encoding(one.estimate + shift, one.log_precision + narrower, one.extra)
        for name, one in answer.encodings.items()
    }
    return Answer(answer.family, moved, "shifted")


def test_importance_and_annealing_give_the_known_evidence(effects):
    problem, family, truth = group_problem(effects)
    best = refine_encodings(problem, encoder_answer(problem, family), Ascent(100, 4))
    found = evidence(problem, shifted(best, 0.05, 0.2), QUICK, always_anneal=True)
    assert found.refused == ""
    for one in (found.importance, found.annealed, found.log_evidence):
        assert one.error < 0.3
        assert one.value == pytest.approx(float(truth), abs=max(4 * one.error, 0.01))


def test_an_importance_estimate_that_must_be_refused_is_and_annealing_takes_over(effects):
    """q is five of its sd's beside the posterior: a few weights have everything, and the estimate is too low."""
    problem, family, truth = group_problem(effects)
    best = refine_encodings(problem, encoder_answer(problem, family), Ascent(100, 4))
    found = evidence(problem, shifted(best, 0.8, 0.0), Budget(1, 100, 1000, 2, Ascent(1), Schedule(60, 24, 3, 4)))
    assert "draws, fewer than 100" in found.refused
    assert found.pareto_k > 0.7
    # Believed, it would make the approximation gap far too small, and its error does not say so.
    assert found.importance.value < float(truth) - 3
    assert found.importance.error < 1
    assert found.log_evidence == found.annealed
    assert found.annealed.value == pytest.approx(float(truth), abs=4 * found.annealed.error)


def test_where_annealing_fails_too_nothing_is_claimed(effects):
    problem, family, _ = group_problem(effects)
    hasty = Budget(1, 100, 1000, 2, Ascent(1), Schedule(2, 16, 1, 2))
    found = evidence(problem, encoder_answer(problem, family), hasty)
    assert found.refused
    assert found.log_evidence is None


def test_each_reason_for_refusal_has_its_words():
    assert refusal(500.0, 1.0, 0.5) == ""
    assert refusal(500.0, 1.0, -math.inf) == ""
    assert "worth 99 draws" in refusal(99.0, 1.0, 0.5)
    assert "sd of 2.5" in refusal(500.0, 2.5, 0.5)
    assert "Pareto k is 0.80" in refusal(500.0, 1.0, 0.8)
    assert refusal(math.nan, math.nan, math.nan)


# A member of a hierarchy


def problems_of(posterior: Posterior, observed, draws: int) -> list[LocalProblem]:
    populations = [{name: value[m] for name, value in posterior.population.items()} for m in range(draws)]
    return [
        LocalProblem.seeded(posterior.template.plates, observed, population, "member", m)
        for m, population in enumerate(populations)
    ]


@pytest.fixture(scope="module")
def member():
    """A diagnosis of one subject of a small cohort, with what it was made of."""
    drawn = draw_cohort((6, 2, 40), features=4, planted={"log_kappa": 0.0}, seed=2)
    posterior = Posterior(model_of(drawn, power=LabelPower(0.5)), draws=8)
    observed = drawn.subject(2)

    def made(budget: Budget) -> Diagnosis:
        found = problems_of(posterior, observed, budget.population_draws)
        return diagnose_member(posterior.family, found, budget, lambda values: posterior.labels(values, observed))

    return made


def test_gaps_add_up_and_refinement_does_not_lose(member):
    diagnosis = member(QUICK)
    assert len(diagnosis.draws) == 2
    assert diagnosis.observations == 2 * 40
    for draw in diagnosis.draws:
        parts = draw.encoder_gap.value + draw.sharing_gap.value
        assert parts == pytest.approx(draw.amortization_gap.value, abs=1e-9)
        assert draw.amortization_gap.value > -3 * draw.amortization_gap.error
        if draw.approximation_gap is not None:
            total = draw.approximation_gap.value + draw.amortization_gap.value
            believed = draw.evidence.log_evidence.value - draw.elbo["encoder"].value
            assert total == pytest.approx(believed, abs=1e-9)
    # Flows were shaken by hand, so there is a gap.
    assert any(draw.amortization_gap.certain for draw in diagnosis.draws)


def test_equal_seeds_give_the_same_diagnosis_to_the_bit(member):
    one, other = (json.dumps(member(TINY).to_json(), sort_keys=True, allow_nan=False) for _ in range(2))
    assert one == other


def test_an_answer_that_is_not_finite_is_bad_data():
    drawn = draw_cohort((3, 1, 8), features=3)
    posterior = Posterior(model_of(drawn), draws=2)
    broken = Observed(drawn.subject(0).x * float("nan"), drawn.subject(0).mask, drawn.subject(0).covariates)
    with pytest.raises(BadData, match="evidence lower bounds of its answers that are finite numbers of nats"):
        diagnose_member(posterior.family, problems_of(posterior, broken, 1), QUICK)


# Near the prior


def test_a_posterior_near_the_prior_is_told_apart():
    """x = 4 through an encoder that answers with the prior, and x that says nothing since its slope is nearly 0."""
    told, silent = Line(1.0, 1.0, 0.5), Line(1.0, 0.01, 1.0)
    verdicts, flags = [], []
    for template in (told, silent):
        family = rule_family(template, 0.0, 0.0, 0.999)
        problem = data_problem(template, 4.0)
        found = diagnose_member(family, [problem], Budget(1, 10, 200, 2, Ascent(20, 2, 0.5)))
        verdicts.append(found.near_prior)
        flags.append(found.flags)
        assert found.changes is None
    assert verdicts == [{"z": "the encoder missed it"}, {"z": "data say nothing"}]
    assert flags == [["refinement changes the map", "encoder missed z"], []]


def test_an_encoder_that_listens_is_not_near_the_prior():
    template = Line(1.0, 1.0, 0.5)
    found = diagnose_member(rule_family(template, 0.8, 0.0, 0.2), [data_problem(template, 4.0)], TINY)
    assert found.near_prior == {}
    assert found.average("amortization_gap").value == pytest.approx(0, abs=1e-6)


# Maps, averages, flags


def test_a_changed_map():
    one = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
    other = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.5, 0.5]])
    change = map_change([one, one], [other, one])
    assert (change.flips, change.share) == (0, 0)
    change = map_change([one], [other])
    assert (change.flips, change.share) == (1, 0.25)
    assert change.mean_change == pytest.approx(0.3 / 4)
    assert change.largest_change == pytest.approx(0.2)


def test_an_average_has_the_larger_of_its_two_errors():
    steady = Estimate.average([Estimate(1.0, 0.4), Estimate(1.0, 0.3)])
    assert (steady.value, steady.error) == pytest.approx((1.0, 0.25))
    scattered = Estimate.average([Estimate(0.0, 0.01), Estimate(2.0, 0.01)])
    assert scattered.error == pytest.approx(1.0)
    assert Estimate(3.0, 0.3).certain
    assert not Estimate(3.0, 1.1).certain
