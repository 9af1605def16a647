"""The objective: averaged over all batches it is the full evidence lower bound; an ELBO is never of a part."""

import itertools
import math

import pytest
import torch

from parcellation.elbo import Elbo, elbo, path_gradient, sgvb_a, sgvb_b, training_loss
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.flows import FLOWS
from parcellation.plates import Batch, Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Whole, settle_population
from parcellation.warped_flows import WARPS
from tests.conftest import draw_cohort, full, generator, noise
from tests.test_encoders import exact_encoder
from tests.test_family import exact_family, shaken
from tests.test_training import moments


def common_noise(template, observed, seed: int):
    """Noise of the full model by ground variable: `of(batch)` hands every batch its own variables' part."""
    g = generator(seed)
    whole = {
        site.name: torch.randn(template.shape(site, observed), generator=g, dtype=torch.float64)
        for site in template.sites
    }

    def of(batch: Batch):
        def part(name, shape):
            values = whole[name]
            for d, plate in enumerate(template.plates):
                if plate in batch.index and values.shape[d] > 1:
                    values = values.index_select(d, batch.index[plate])
            assert values.shape == shape
            return values

        return part

    return of


def all_batches(template, batch: Batch, reduced: dict[str, int]):
    """Every choice of so many members of each plate."""
    choices = [
        [(plate, torch.tensor(c)) for c in itertools.combinations(range(batch.cards[plate]), size)]
        for plate, size in reduced.items()
    ]
    return [template.reduce(batch, dict(one)) for one in itertools.product(*choices)]


def objective(family, batch, of) -> float:
    return -float(training_loss(family, batch, of(batch)).tensor.detach())


ESTIMATORS = [path_gradient, sgvb_a, sgvb_b]


def gradient(estimator, family, batch, noise) -> torch.Tensor:
    """The loss of one draw, then its gradient with respect to every parameter, as one vector."""
    family.zero_grad()
    loss = estimator(family, batch, noise).tensor
    loss.backward()
    parts = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in family.parameters()]
    return torch.cat([loss.detach()[None], *(part.flatten() for part in parts)])


def average_over_batches(family, template, observed, reduced) -> tuple[float, float, list[float]]:
    whole, of = full(template, observed), common_noise(template, observed, 5)
    parts = [objective(family, batch, of) for batch in all_batches(template, whole, reduced)]
    return objective(family, whole, of), sum(parts) / len(parts), parts


@pytest.mark.parametrize("reduced", [{"group": 2}, {"sample": 2}, {"group": 1, "sample": 3}], ids=str)
def test_nested_batches_average_to_the_full_objective(effects, reduced):
    template, observed = effects  # ragged: groups of two to five samples
    family = shaken(exact_family(template, observed), 0.3)
    whole, average, parts = average_over_batches(family, template, observed, reduced)
    assert average == pytest.approx(whole, rel=1e-10)
    assert max(parts) - min(parts) > 1  # batches differ, their average does not


REDUCED = [{"subject": 2}, {"vertex": 1}, {"subject": 1, "vertex": 1}, {"subject": 4, "vertex": 7}]


@pytest.mark.parametrize("scheme", ["free", "hybrid"])
@pytest.mark.parametrize("reduced", REDUCED, ids=str)
def test_crossed_batches_of_subjects_and_vertices_average_to_the_full_objective(ragged, scheme, reduced):
    family = shaken(Family(ragged.template, ragged.batch.cards, scheme).double(), 0.2)
    whole, average, parts = average_over_batches(family, ragged.template, ragged.observed, reduced)
    assert average == pytest.approx(whole, rel=1e-10)
    assert max(parts) - min(parts) > 1


def test_an_encoded_population_makes_the_objective_another_thing(ragged):
    # PAVI-E is not an ELBO: q(mu; f(batch)) is another distribution in every batch.
    family = shaken(Family(ragged.template, ragged.batch.cards, "encoded").double(), 0.2)
    whole, average, _ = average_over_batches(family, ragged.template, ragged.observed, {"subject": 2})
    assert average != pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("reduced", [{"subject": 2}, {"vertex": 1}], ids=str)
def test_a_settled_population_makes_it_a_bound_again(ragged, reduced):
    family = shaken(Family(ragged.template, ragged.batch.cards, "encoded").double(), 0.2)
    settle_population(family, Whole(ragged.template, ragged.batch), 2)
    whole, average, parts = average_over_batches(family, ragged.template, ragged.observed, reduced)
    assert average == pytest.approx(whole, rel=1e-10)
    assert max(parts) - min(parts) > 1


def test_reducing_sessions_where_labels_are_enumerated_is_refused(ragged):
    with pytest.raises(UsageError, match="'session' may not be reduced"):
        all_batches(ragged.template, ragged.batch, {"session": 1})


def test_why_sessions_may_not_be_reduced():
    # A label is shared by a subject's sessions, so the sum over labels does not add over them.
    drawn = draw_cohort((2, 4, 6), planted={"log_kappa": 0.0})
    template, values = drawn.template, drawn.values
    whole = template.log_likelihood(values, drawn.observed).sum()

    def session(t):
        part = {n: v[:, t : t + 1] if n in ("mu_session", "log_kappa_session") else v for n, v in values.items()}
        return template.log_likelihood(part, drawn.observed.select(1, torch.tensor([t]))).sum()

    assert not torch.allclose(sum(session(t) for t in range(4)), whole, rtol=1e-3)


@pytest.mark.parametrize("reduced", [{"group": torch.tensor([0, 1, 2])}, {"sample": torch.tensor([1])}], ids=str)
def test_an_elbo_of_a_reduced_batch_is_refused(effects, reduced):
    template, observed = effects
    family = exact_family(template, observed)
    with pytest.raises(ValueError, match="an ELBO needs the full data"):
        elbo(family, template.reduce(full(template, observed), reduced), noise(0))


def test_an_elbo_of_part_of_the_cohort_is_refused_even_without_an_index(effects):
    template, observed = effects
    part = observed.select(0, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="an ELBO needs the full data"):
        elbo(exact_family(template, observed), Batch(part, part, {}, dict(group=4, sample=5)), noise(0))


def test_the_elbo_of_the_exact_posterior_is_the_evidence_without_error(effects):
    template, observed = effects
    got = elbo(exact_family(template, observed), full(template, observed), noise(0), draws=10)
    assert got.mean == pytest.approx(float(template.log_evidence(observed)), abs=1e-9)
    assert got.standard_error < 1e-9


def test_an_elbo_falls_short_of_the_evidence_by_the_divergence(effects):
    # One group's population encoding is off by d prior-free sd's: KL of two Gaussians of equal width, d^2 / 2 in each
    # dimension, computed here from the flow's own mean and scale.
    template, observed = effects
    family = exact_family(template, observed)
    with torch.no_grad():
        family.free["population"].rows.weight[0, :3] += 0.4
    mean, sd = template.posterior(observed)["population"]
    prior = torch.zeros(1, 1, 3, dtype=torch.float64), torch.full((1, 1, 3), template.sd_population).double()
    with torch.no_grad():
        moved = family.flows["population"](family.free["population"]({}), *prior)(prior[0])
    divergence = float((0.5 * ((moved - mean) / sd) ** 2).sum())
    got = elbo(family, full(template, observed), noise(0), draws=500)
    assert divergence > 0.2
    assert float(template.log_evidence(observed)) - got.mean == pytest.approx(divergence, abs=4 * got.standard_error)


def test_a_masked_session_changes_no_loss(ragged):
    template, observed = ragged.template, ragged.observed
    family = shaken(Family(template, ragged.batch.cards, "hybrid").double(), 0.2)
    missing = (~observed.mask.any(-1)).nonzero()[0]  # a subject and its missing session

    def other_frames(batch):
        frames = observed.covariates["frames"].clone()
        frames[missing[0], missing[1]] = 17.0
        return type(observed)(observed.x, observed.mask, {"frames": frames})

    of = common_noise(template, observed, 1)
    one = objective(family, ragged.batch, of)
    other = objective(family, full(template, other_frames(ragged.batch)), of)
    assert one == pytest.approx(other, rel=1e-12)


# What the objective of encoded populations is


def excess(template, observed: Observed, reduced: int) -> float:
    """Closed form of E[objective] - log p(x) over random batches of equal groups, q(population) being the batch's.

    The batch's posterior has the full one's width, and in the place of the mean A of all group averages the batch's
    own, of which the variance is V = S^2 G / (G - 1) (1/G' - 1/G), S^2 the averages' sum of squares / G. With Lambda =
    1 / (sd_group^2 + sd_sample^2 / N) and s the population's prior sd,

        excess = V/2 G Lambda  G Lambda s^2 / (1 + G Lambda s^2)  ~  D/2 (G/G' - 1)

    which is also the mean divergence of the batch's posterior from the full one.
    """
    average, spread = template._averages(observed)
    G, precision = len(average), float(1 / (template.sd_group**2 + spread[0, 0, 0]))
    variance = float(average.var(0, correction=1).sum()) * (1 / reduced - 1 / G)
    shrink = G * precision * template.sd_population**2
    return variance / 2 * G * precision * shrink / (1 + shrink)


def random_effects(groups: int, samples: int, **settings):
    template = GaussianRandomEffects(**settings)
    observed = template.simulate(groups, samples, generator(1))
    batch = full(template, observed)
    return template, observed, exact_encoder(Family(template, batch.cards, "encoded").double()), batch


@torch.no_grad()
def test_the_objective_of_the_batch_posterior_exceeds_the_evidence_as_predicted():
    template, observed, family, batch = random_effects(6, 4, dimensions=3, sd_population=1.3, sd_group=0.7)
    evidence, batches = float(template.log_evidence(observed)), all_batches(template, batch, {"group": 2})
    # No Monte-Carlo error: at the batch's exact posterior every draw gives the same number.
    parts = [objective(family, one, lambda one: noise(0)) for one in batches]
    assert objective(family, batches[0], lambda one: noise(1)) == pytest.approx(parts[0], abs=1e-9)
    assert sum(parts) / len(parts) - evidence == pytest.approx(excess(template, observed, 2), rel=1e-9)
    # On average the batch's posterior is as far from the full one as its objective is above the evidence.
    mean, sd = template.posterior(observed)["population"]
    found = [moments(family, one)["population"] for one in batches]
    assert all(torch.allclose(width, sd) for _, width in found)
    divergences = [float((0.5 * ((m - mean) / sd).square()).sum()) for m, _ in found]
    assert sum(divergences) / len(divergences) == pytest.approx(excess(template, observed, 2), rel=1e-9)
    # With all data the bound of that same posterior is as far below.
    family.fixed = {"population": family.encodings(batches[0])["population"]}
    got = elbo(family, batch, noise(0), draws=300)
    assert evidence - got.mean == pytest.approx(divergences[0], abs=4 * got.standard_error)
    assert got.standard_error < 0.2 * divergences[0]


@torch.no_grad()
def test_at_the_papers_size_the_excess_is_two_hundred_nats_and_the_elbo_has_none():
    settings = dict(dimensions=8, sd_population=1.0, sd_group=1.0, sd_sample=1.0)
    template, observed, family, batch = random_effects(100, 50, **settings)
    evidence, g = float(template.log_evidence(observed)), generator(0)
    chosen = [torch.randperm(100, generator=g)[:2] for _ in range(100)]
    parts = [objective(family, template.reduce(batch, {"group": two}), lambda one: noise(0)) for two in chosen]
    over = torch.tensor(parts) - evidence
    predicted = excess(template, observed, 2)
    assert float(over.mean()) == pytest.approx(predicted, abs=4 * float(over.std()) / 100**0.5)
    assert predicted == pytest.approx(8 / 2 * (100 / 2 - 1), rel=0.15)  # squares of 792 numbers: 5 %
    assert elbo(family, batch, noise(0), draws=3).mean == pytest.approx(evidence, abs=1e-8)


def test_a_training_loss_cannot_be_passed_off_as_an_elbo(effects):
    template, observed = effects
    batch = full(template, observed)
    loss = training_loss(exact_family(template, observed), batch, noise(0))
    assert not isinstance(loss, Elbo)
    assert not {"mean", "standard_error"} & set(dir(loss))
    with pytest.raises(TypeError):
        float(loss)
    for wrong in (loss, loss.tensor, -loss.tensor.detach()):
        with pytest.raises(TypeError):
            Elbo(wrong, 0.0)


@pytest.mark.parametrize("draws", [0, 1])
def test_an_elbo_without_a_standard_error_is_refused(draws, effects):
    template, observed = effects
    with pytest.raises(ValueError, match=f"expected draws >= 2, got {draws}"):
        elbo(exact_family(template, observed), full(template, observed), noise(0), draws)


# Estimators


def test_the_study_is_trained_with_the_path_gradient():
    assert training_loss is path_gradient


def test_estimators_a_and_path_have_the_same_value(ragged):
    family = shaken(Family(ragged.template, ragged.batch.cards, "hybrid").double(), 0.2)
    values = [float(e(family, ragged.batch, noise(0)).tensor.detach()) for e in ESTIMATORS]
    assert values[0] == values[1]
    assert values[2] != pytest.approx(values[1], rel=1e-6)


def sigma_points(template, batch: Batch):
    """Noises whose average is the expectation of every polynomial of degree two: +-sqrt(n) along each of n axes."""
    sizes = {site.name: template.shape(site, batch.scored) for site in template.sites}
    total = sum(math.prod(shape) for shape in sizes.values())
    for point in total**0.5 * torch.cat([torch.eye(total), -torch.eye(total)]).double():
        parts = point.split([math.prod(shape) for shape in sizes.values()])
        values = {name: part.reshape(sizes[name]) for name, part in zip(sizes, parts, strict=True)}
        yield lambda name, shape, values=values: values[name]


@pytest.mark.parametrize("groups", [None, [3, 1]], ids=["all groups", "two of four"])
def test_estimators_have_the_same_expectation_exactly(groups, effects):
    # With Gaussian flows that are linear in their parents, losses and gradients are quadratic in the noise.
    template, observed = effects
    family, batch = shaken(exact_family(template, observed), 0.3), full(template, observed)
    if groups is not None:
        batch = template.reduce(batch, {"group": torch.tensor(groups)})
    rows = {
        e: torch.stack([gradient(e, family, batch, of) for of in sigma_points(template, batch)]) for e in ESTIMATORS
    }
    for other in (path_gradient, sgvb_b):
        assert torch.allclose(rows[other].mean(0), rows[sgvb_a].mean(0), rtol=1e-9, atol=1e-9)
        assert float((rows[other] - rows[sgvb_a]).std(0).max()) > 1  # they are three estimators


def check_same_expectation(family, batch, draws: int) -> None:
    """Value and gradient of sgvb_a against the others, paired: the same draws."""
    rows = {e: torch.stack([gradient(e, family, batch, noise(seed)) for seed in range(draws)]) for e in ESTIMATORS}
    for other in (path_gradient, sgvb_b):
        difference = rows[other] - rows[sgvb_a]
        # A path gradient has the same value, and rows without data have no gradient: no difference at all.
        score = difference.mean(0) / (difference.std(0) / draws**0.5).clamp_min(1e-9)
        assert float(score.abs().max()) < 5  # the largest of a few hundred standard scores


@pytest.mark.parametrize(("flow", "draws"), [(name, 60) for name in FLOWS] + [(name, 20) for name in WARPS])
def test_estimators_have_the_same_expectation_with_every_flow(flow, draws, effects):
    # A site with a warped flow has no divergence in closed form: sgvb_b samples it.
    template, observed = effects
    family = shaken(Family(template, full(template, observed).cards, "hybrid", flow).double(), 0.3)
    check_same_expectation(family, template.reduce(full(template, observed), {"group": torch.tensor([3, 1])}), draws)


def test_estimators_have_the_same_expectation_where_labels_are_enumerated():
    drawn = draw_cohort((3, 2, 4))
    family = shaken(Family(drawn.template, drawn.batch.cards, "hybrid").double(), 0.2)
    batch = drawn.template.reduce(drawn.batch, {"subject": torch.tensor([2, 0]), "vertex": torch.tensor([1, 3])})
    check_same_expectation(family, batch, 30)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reduced", [{"group": 2}, {"group": 1, "sample": 3}], ids=str)
def test_gradients_of_batches_average_to_the_full_one(estimator, reduced, effects):
    # The mini-batch factor N / M, exactly: every batch has its part of the same noise.
    template, observed = effects
    family, whole = shaken(exact_family(template, observed), 0.3), full(template, observed)
    of = common_noise(template, observed, 5)
    parts = [gradient(estimator, family, batch, of(batch)) for batch in all_batches(template, whole, reduced)]
    expected = gradient(estimator, family, whole, of(whole))
    assert torch.allclose(torch.stack(parts).mean(0), expected, rtol=1e-9, atol=1e-9)
    assert float(torch.stack(parts).std(0).max()) > 1


def test_the_closed_divergence_of_a_population_is_not_random(effects):
    # Without data and with groups at their prior, the only term left is KL(q(population) || prior).
    template, observed = effects
    nothing = Observed(torch.zeros_like(observed.x), torch.zeros_like(observed.mask))
    family = shaken(exact_family(template, observed), 0.3)
    with torch.no_grad():
        one, other = (float(sgvb_b(family, full(template, nothing), noise(seed)).tensor) for seed in (0, 1))
        sampled = [float(sgvb_a(family, full(template, nothing), noise(seed)).tensor) for seed in range(200)]
    assert one == other > 0
    deviation = torch.tensor(sampled).std() / 200**0.5
    assert one == pytest.approx(sum(sampled) / 200, abs=4 * float(deviation))


def test_only_the_path_gradient_vanishes_at_the_exact_posterior(effects):
    template, observed = effects
    family, batch = exact_family(template, observed), full(template, observed)
    rows = {e: torch.stack([gradient(e, family, batch, noise(seed))[1:] for seed in range(5)]) for e in ESTIMATORS}
    assert float(rows[path_gradient].abs().max()) < 1e-9
    assert float(rows[sgvb_a].std(0).max()) > 0.1
    assert float(rows[sgvb_b].std(0).max()) > 0.1
