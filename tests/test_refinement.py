"""Refinement of one member's answer: what is known in closed form is reached, and nothing else is touched."""

import copy

import pytest
import torch

from parcellation.encoding import Encoding
from parcellation.family import Family
from parcellation.refinement import (
    Answer,
    Ascent,
    LocalProblem,
    ascent_answer,
    best_answer,
    encoder_answer,
    neutral_answer,
    noise_weight,
    own_flows,
    refine_encodings,
    refine_flows,
)
from tests.conftest import draw_cohort, full, generator
from tests.test_posterior import model_of

QUICK = Ascent(steps=30, draws=4, rate=0.2)


def group_problem(effects, g: int = 0) -> tuple[LocalProblem, Family, torch.Tensor]:
    """One group of the random effects with the population at 0.3, a family that is not trained, and its evidence."""
    template, observed = effects
    one = observed.select(0, torch.tensor([g]))
    population = {"population": torch.full((1, 1, 3), 0.3, dtype=torch.float64)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        family = Family(template, full(template, observed).cards, "hybrid").double()
    problem = LocalProblem.seeded(template.plates, one, population, "test", g)
    return problem, family, group_evidence(template, one, 0.3)


def group_evidence(template, one, population: float) -> torch.Tensor:
    """Exact log p(samples of one group | population): jointly normal in every dimension."""
    x = one.x[0][one.mask[0]]
    n = len(x)
    covariance = template.sd_sample**2 * torch.eye(n) + template.sd_group**2 * torch.ones(n, n)
    mean = torch.full((n,), population, dtype=torch.float64)
    return torch.distributions.MultivariateNormal(mean, covariance.double()).log_prob(x.T).sum()


def bound(problem: LocalProblem, answer: Answer) -> torch.Tensor:
    with torch.no_grad():
        return answer.log_weights(problem, problem.noise("evaluate"), 200)


@pytest.mark.parametrize("start", ["encoder", "prior"])
def test_encodings_reach_the_exact_posterior_from_any_start(effects, start):
    """The flow is exact for some encoding: then every draw's weight is the evidence."""
    problem, family, evidence = group_problem(effects)
    encoder = encoder_answer(problem, family)
    answer = encoder if start == "encoder" else neutral_answer(problem, encoder)
    assert answer.start == start
    before = bound(problem, answer).mean()
    refined = refine_encodings(problem, answer, Ascent(steps=120, draws=4))
    assert float(before) < float(evidence) - 0.05
    after = bound(problem, refined)
    assert float(after.mean()) == pytest.approx(float(evidence), abs=5e-3)
    assert float(after.std()) < 0.1


def test_only_the_members_own_encodings_move(effects):
    problem, family, _ = group_problem(effects)
    before = {name: value.clone() for name, value in family.state_dict().items()}
    answer = encoder_answer(problem, family)
    kept = copy.deepcopy(dict(answer.encodings))
    refined = refine_flows(problem, refine_encodings(problem, answer, QUICK), QUICK)
    assert all(torch.equal(value, before[name]) for name, value in family.state_dict().items())
    assert all(parameter.grad is None for parameter in family.parameters())
    assert torch.equal(answer.encodings["group"].estimate, kept["group"].estimate)
    assert refined.encodings.keys() == {"group"}
    assert refined.family.free is family.free
    assert refined.family.template is family.template
    own, shared = (dict(f.flows["group"].named_parameters()) for f in (refined.family, family))
    assert any(not torch.equal(own[name], shared[name]) for name in own)


def test_flows_of_ones_own_reach_what_encodings_cannot(effects):
    """A flow that ignores precisions: encodings alone cannot widen the posterior."""
    problem, family, evidence = group_problem(effects)
    family = own_flows(family)
    family.flows["group"] = stuck = StuckFlow()
    refined = refine_encodings(problem, encoder_answer(problem, family), QUICK)
    best = refine_flows(problem, refined, Ascent(steps=120, draws=4, rate=0.1, flow_rate=0.1))
    assert float(bound(problem, refined).mean()) < float(evidence) - 0.5
    assert float(bound(problem, best).mean()) > float(evidence) - 0.01
    assert float(stuck.log_width.detach()) == 0


class StuckFlow(torch.nn.Module):
    """theta = estimate + exp(log_width) (u - mean), one width for all."""

    centred = False

    def __init__(self):
        super().__init__()
        self.log_width = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, encoding: Encoding, mean, sd):
        scale = self.log_width.exp()
        return torch.distributions.AffineTransform(encoding.estimate - scale * mean, scale.expand(mean.shape))


@pytest.mark.parametrize("flow", ["affine", {"group": "coupling"}])
def test_every_flow_is_refined(effects, flow):
    problem, _, evidence = group_problem(effects)
    template, observed = effects
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        family = Family(template, full(template, observed).cards, "hybrid", flow).double()
    encoder, ascent = encoder_answer(problem, family), Ascent(steps=40, draws=4, rate=0.2, flow_rate=0.05)
    best = refine_flows(problem, encoder, ascent)
    assert float(bound(problem, encoder).mean()) + 5 < float(bound(problem, best).mean()) < float(evidence)


def test_equal_keys_give_equal_answers_to_the_bit_and_others_do_not(effects):
    problem, family, _ = group_problem(effects)
    one, other = (refine_encodings(problem, encoder_answer(problem, family), QUICK) for _ in range(2))
    assert torch.equal(one.encodings["group"].estimate, other.encodings["group"].estimate)
    keyed = LocalProblem.seeded(family.template.plates, problem.batch.seen, problem.population, "other")
    third = refine_encodings(keyed, encoder_answer(problem, family), QUICK)
    assert not torch.equal(one.encodings["group"].estimate, third.encodings["group"].estimate)


def test_the_best_is_kept_and_what_is_not_finite_is_not(effects):
    problem, family, _ = group_problem(effects)
    encoder = encoder_answer(problem, family)
    refined = refine_encodings(problem, encoder, QUICK)
    broken = Answer(family, {"group": encoder.encodings["group"].map(lambda part: part * float("nan"))}, "broken")
    assert best_answer(problem, [broken, encoder, refined], 50) is refined
    assert best_answer(problem, [encoder, encoder], 50) is encoder
    still = refine_encodings(problem, broken, QUICK)  # ends at once
    assert still.start == "broken"


def test_weights_of_noise_are_the_draws_own(effects):
    problem, family, _ = group_problem(effects)
    answer = encoder_answer(problem, family)
    log_weight, blank = noise_weight(problem, answer)
    u = torch.randn(5, 3, generator=generator(0), dtype=torch.float64)
    assert blank.shape == (3,)
    with torch.no_grad():
        expected = answer.log_weights(problem, lambda name, shape: u.reshape(shape), 5)
        assert torch.equal(log_weight(u), expected)


class TestNetworks:
    @pytest.fixture(scope="class")
    @staticmethod
    def subject():
        """One subject of a small cohort, at the true values of the population, and a family near an answer."""
        drawn = draw_cohort((4, 2, 30), features=4, planted={"log_kappa": 0.3}, seed=5)
        family = model_of(drawn).family
        population = {site.name: drawn.values[site.name] for site in drawn.template.population_sites()}
        return LocalProblem.seeded(drawn.template.plates, drawn.subject(1), population, "networks"), family

    def test_coordinate_ascent_is_a_good_start_and_refinement_a_better_one(self, subject):
        problem, family = subject
        encoder = encoder_answer(problem, family)
        start = ascent_answer(problem, encoder)
        refined = refine_encodings(problem, start, Ascent(steps=40, draws=8))
        prior, first, better = (bound(problem, one) for one in (neutral_answer(problem, encoder), start, refined))
        assert float(first.mean()) > float(prior.mean()) + 1
        gain = better - first
        assert float(gain.mean()) > 3 * float(gain.std()) / len(gain) ** 0.5

    def test_more_sweeps_than_needed_change_nothing(self, subject):
        problem, family = subject
        one, other = (bound(problem, ascent_answer(problem, encoder_answer(problem, family), n)) for n in (30, 60))
        assert float(one.mean()) == pytest.approx(float(other.mean()), abs=0.1)

    @pytest.mark.slow
    def test_all_starts_end_in_the_same_place(self, subject):
        problem, family = subject
        encoder = encoder_answer(problem, family)
        starts = [encoder, neutral_answer(problem, encoder), ascent_answer(problem, encoder)]
        ends = [bound(problem, refine_encodings(problem, one, Ascent(40, 4))).mean() for one in starts]
        assert float(max(ends) - min(ends)) < 0.5


def test_an_encoder_without_coordinate_ascent_has_no_such_start(effects):
    problem, family, _ = group_problem(effects)
    assert ascent_answer(problem, encoder_answer(problem, family)) is None
