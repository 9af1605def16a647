"""What labels say about smooth maps: modes and information that are known, and layouts that are found again."""

import copy
import itertools

import numpy as np
import pytest
import torch

from parcellation.amortization_gap import Budget, diagnose_member
from parcellation.annealing import Schedule
from parcellation.elbo import elbo
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.label_pooling import SharedLabels
from parcellation.model_file import LabelPower, TrainedModel, load_model, save_model
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Batch, Observed, Template
from parcellation.population import permuted, reinfer
from parcellation.posterior import Posterior
from parcellation.refinement import Ascent, LocalProblem
from parcellation.refitted_map import refit_map
from parcellation.smooth_labels import SmoothLabels, labels_of
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.training import Plan, Whole, fit, settle_population, warm_start
from pipelines.benchmarks.side_by_side import fit_all
from tests.conftest import draw_cohort, generator, noise

VERTICES, MODES = 60, 6


def cosines(vertices: int = VERTICES, modes: int = MODES) -> tuple[torch.Tensor, torch.Tensor]:
    """Modes of vertices in a row, and their eigenvalues."""
    at = (torch.arange(vertices, dtype=torch.float64) + 0.5) / vertices
    phi = torch.stack([torch.ones_like(at), *(2**0.5 * (torch.pi * j * at).cos() for j in range(1, modes))], 1)
    return phi, torch.arange(modes, dtype=torch.float64) ** 2


def smooth(networks: int = 2, features: int = 5, subjects: bool = True) -> FunctionalParcellation:
    phi, eigenvalues = cosines()
    reference = 1.5 * torch.randn(networks, features, generator=generator(5), dtype=torch.float64)
    return FunctionalParcellation(reference, 400.0, phi, eigenvalues, deviations=subjects)


def test_what_all_vertices_tell_together_is_encoded_and_has_its_own_flow():
    template, cards = smooth(), {"subject": 3, "session": 2, "vertex": VERTICES}
    with pytest.raises(UsageError, match="encoded, as it is told by all vertices together, got it free"):
        Family(template, cards, "free")
    with pytest.raises(UsageError, match="topography has a flow of its own, got 'spline' for it; leave it out"):
        Family(template, cards, "hybrid", {"topography": "spline"})


PLANTED = {"log_kappa": 0.7, "log_epsilon": -2.0, "log_sigma": -2.0, "slope": 0.0, "log_residual": -3.0}
SPECTRA = {"spectrum_group": (0.0, 1.0, 1.5), "spectrum_subject": (0.0, 0.7, 1.5)}


def drawn(
    template: Template, subjects: int, sd: float | None = None, sessions: int = 2
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """A cohort from the template with planted scales; sd: log sd's of subjects' deviations instead."""
    shape = (subjects, sessions, VERTICES)
    frames = torch.full((subjects, sessions, 1), 400.0, dtype=torch.float64)
    blank = Observed(torch.zeros(*shape, 1).double(), torch.ones(shape, dtype=torch.bool), {"frames": frames})
    random, values = noise(3), {}
    planted = SPECTRA | ({} if sd is None else {"spectrum_subject": (sd, sd, 1.5)})
    for site in template.sites:
        mean, spread = site.prior(values, blank)
        value = mean + spread * random(site.name, template.shape(site, blank))
        if site.name in PLANTED:
            value = torch.full_like(value, PLANTED[site.name])
        elif site.name in planted:
            value = torch.tensor(planted[site.name], dtype=torch.float64).expand_as(value)
        values[site.name] = value
    observed = template.observations(values, blank, random)
    return Batch.full(template.plates, observed), values


def started(template: Template, batch: Batch) -> Family:
    family = Family(template, batch.cards).double()
    warm_start(family, Whole(template, batch), len(batch.seen.x), 24)
    return family


@pytest.fixture(scope="module")
def cohort() -> tuple[Batch, dict[str, torch.Tensor], Family]:
    """Twenty subjects whose layouts deviate, and a family near its answer."""
    template = smooth()
    batch, values = drawn(template, 20)
    return batch, values, started(template, batch)


def at_mode(labels: SmoothLabels, centre: dict, evidence: torch.Tensor, observed: Observed) -> dict:
    state = labels.start(centre, observed)
    for _ in range(100):  # several networks are slow: steps go by a bound of the curvature
        _, state = labels.assign(evidence, state)
    return state


def test_a_free_map_s_labels_are_pooled_as_ever():
    assert type(labels_of(draw_cohort((1, 1, 2)).template)) is SharedLabels


def test_one_weight_has_the_mode_that_is_known():
    # All labels seen: with the constant alone, n1 - n p = weight / sd^2 in the contrast of two networks.
    template = FunctionalParcellation(torch.eye(2).double(), 1.0, torch.ones(10, 1).double(), torch.zeros(1).double(),
                                      deviations=True)  # fmt: skip
    batch = draw_cohort((1, 1, 10), 2, 2).batch
    centre = NetworkPooling(template, template.sites).start(batch.seen)
    evidence = 50.0 * torch.stack([torch.arange(10) < 7, torch.arange(10) >= 7], -1).double()[None, None]
    state = at_mode(SmoothLabels(template), centre, evidence, batch.seen)
    weight, sd, half = float(state["weights"].sum()), float(state["sd"].sum()), 2**-0.5
    contrast = float(template.basis[0, 0])
    p = 1 / (1 + np.exp(-2 * contrast * weight))
    assert abs(contrast) == pytest.approx(half)
    assert 2 * contrast * (7 - 10 * p) == pytest.approx(weight / sd**2, abs=1e-8)


@pytest.mark.parametrize("networks", [2, 4])
def test_slope_and_information_are_those_of_the_likelihood(networks):
    template = smooth(networks)
    batch, values = drawn(template, 2)
    labels = SmoothLabels(template)
    evidence = 3 * torch.randn(2, 2, VERTICES, networks, generator=generator(8), dtype=torch.float64)
    state = at_mode(labels, values, evidence, batch.seen)

    def likelihood(weights):
        logits = values["logits_group"] + template.topography.field(weights)
        return ((logits @ template.basis).log_softmax(-1) + evidence.sum(1, True)).logsumexp(-1).sum()

    weights = state["weights"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(likelihood(weights), weights)
    assert torch.allclose(labels._slope(state), slope, atol=1e-10)
    assert torch.allclose(slope, state["weights"] / state["sd"] ** 2, atol=1e-3)  # a mode, found
    contrasts = networks - 1
    hessian = torch.autograd.functional.hessian(likelihood, state["weights"])
    hessian = hessian.reshape(2, contrasts, MODES, 2, contrasts, MODES)
    found = labels._information(state)[:, 0, 0]
    for s, c in itertools.product(range(2), range(contrasts)):
        # Equal but for vertices that say less than nothing, whose information is kept above 0.
        assert torch.linalg.eigvalsh(found[s, c] + hessian[s, c, :, s, c]).min() > -1e-8
        assert torch.linalg.eigvalsh(found[s, c]).min() > 0


def test_a_patch_that_only_together_says_otherwise_is_found():
    # Ten vertices with 3 nats each against a map that is sure of the other network by 6: neighbours settle it.
    template = smooth()
    batch, values = drawn(template, 1)
    logits = torch.full_like(values["logits_group"], 6.0) * torch.sign(template.basis[0, 0])
    evidence = torch.zeros(1, 1, VERTICES, 2, dtype=torch.float64)
    evidence[..., :20, 1] = 3.0
    evidence[..., 20:, 0] = 3.0
    spectrum = torch.tensor([1.0, 1.5, 3.0], dtype=torch.float64)[None, None, None]
    centre = values | {"logits_group": logits, "spectrum_subject": spectrum}
    assignment = at_mode(SmoothLabels(template), centre, evidence, batch.seen)["assignment"][0, 0]
    assert (assignment.argmax(-1) == (torch.arange(VERTICES) < 20)).float().mean() > 0.9


def test_planted_layouts_are_found_again(cohort):
    batch, values, family = cohort
    template = family.template
    centre = family.centre(batch.seen)
    state = family.encoder.summarise(batch.seen, centre).labels
    field, true = (template.topography.field(one).flatten() for one in (state["weights"], values["topography"]))
    assert float(torch.corrcoef(torch.stack([field, true]))[0, 1]) > 0.75
    found, expected = (template.topography.log_sd(one["spectrum_subject"]).exp() for one in (centre, values))
    assert torch.allclose(
        found.square().sum().sqrt(), expected.square().sum().sqrt(), rtol=0.5
    )  # Laplace's is too small
    error = (template.log_map(centre) - template.log_map(values)).exp().sub(1).abs().median()
    assert float(error) < 0.2


def test_nobody_deviates_where_nobody_did():
    template = smooth()
    batch, _ = drawn(template, 16, sd=-6.0)
    sd = template.topography.log_sd(started(template, batch).centre(batch.seen)["spectrum_subject"]).exp()
    assert float(sd.square().sum().sqrt()) < 0.4


def test_probabilities_are_better_than_those_of_a_free_map_and_training_keeps_them(cohort):
    batch, values, family = cohort
    free = FunctionalParcellation(family.template.reference, 400.0)
    found = [joint(one, batch) for one in (started(free, batch), family)]
    truth = family.template.log_joint(values, batch.seen).softmax(-1)[:, 0]
    losses = [float(-(truth * one.log()).sum(-1).mean()) for one in found]
    assert losses[1] < 0.8 * losses[0]
    trained = copy.deepcopy(family)
    fit(trained, Whole(family.template, batch), Plan(20, 10, 0.02, 0, {}))
    again = joint(trained, batch)
    assert float(-(truth * again.log()).sum(-1).mean()) < 0.85 * losses[0]
    bounds = [elbo(one, batch, noise(9), 4).mean for one in (started(free, batch), trained)]
    assert bounds[1] > bounds[0]


def joint(family: Family, batch: Batch) -> torch.Tensor:
    """Label probabilities (S, V, K), means over draws."""
    values = family.draw(batch, noise(7), path=False, draws=(32,)).values
    return family.template.log_joint(values, batch.seen).softmax(-1).mean(0)[:, 0].detach()


def test_parts_of_the_vertices_add_up_to_all(cohort):
    batch, values, family = cohort
    whole = family.template.log_likelihood(values, batch.scored).sum()
    total = 0.0
    for part in torch.randperm(VERTICES, generator=generator(1)).split(25):
        reduced = family.template.reduce(batch, {"vertex": part})
        own = values | {"logits_group": values["logits_group"][:, :, part]}
        total = total + family.template.log_likelihood(own, reduced.scored).sum()
        assert family.draw(reduced, noise(2)).values["logits_group"].shape[2] == len(part)
    assert torch.allclose(total, whole)


def test_a_model_on_disk_is_the_same_and_serves_new_subjects(cohort, tmp_path):
    _, _, family = cohort
    again = save_model(tmp_path, TrainedModel(family, {}, {}, {}))
    assert load_model(tmp_path).digest == again.digest
    new, _ = drawn(family.template, 1)
    one, other = (Posterior(TrainedModel(f, {}, {}, {}, "x"), 16) for f in (family, again.family))
    said = [p.subject("s", ("1", "2"), new.seen, lambda x: x).probability for p in (one, other)]
    assert (said[0] == said[1]).all()
    answer = one.of_population(None, lambda x: x)
    expected = family.template.log_map(one.population)[:, 0, 0].exp().mean(0)
    assert np.allclose(answer.probability, expected, atol=1e-6)


def test_at_a_label_power_deviations_are_told_by_what_is_believed(cohort):
    batch, _, family = cohort
    weak = TrainedModel(copy.deepcopy(family), {}, {}, {}, "x", LabelPower(0.05))
    posterior = Posterior(weak, 16)
    one = Observed(batch.seen.x[:1], batch.seen.mask[:1], {"frames": batch.seen.covariates["frames"][:1]})
    believed = posterior.draw("s", ("1", "2"), one)["topography"]
    full = Posterior(TrainedModel(family, {}, {}, {}, "x"), 16).draw("s", ("1", "2"), one)["topography"]
    assert float(believed.mean(0).abs().sum()) < float(full.mean(0).abs().sum())
    assert torch.allclose(posterior.labels(posterior.draw("s", ("1", "2"), one), one).sum(-1), torch.ones(1).double())
    refit_map(weak, Whole(family.template, batch), 1)
    assert all(value.isfinite().all() for value in weak.family.centre(weak.blank()).values())


def test_a_population_is_inferred_again_and_networks_are_put_back(cohort):
    batch, values, family = cohort
    found = reinfer(TrainedModel(family, {}, {}, {}, "x"), Whole(family.template, batch), "y").family
    before, after = (family.template.log_map(one.centre(batch.seen)).exp() for one in (family, found))
    assert float((before - after).abs().mean()) < 0.05
    assert found.draw_population(batch.seen.select(0, torch.tensor([0])), noise(1), 3)["topography_group"].shape[0] == 3
    turned = permuted(values, [1, 0], family.template.basis)
    assert torch.allclose(turned["topography_group"], -values["topography_group"])
    assert torch.allclose(turned["logits_group"], -values["logits_group"])


def test_every_population_site_may_be_encoded():
    template = smooth(subjects=False)
    batch, _ = drawn(template, 8)
    family = Family(template, batch.cards, "encoded").double()
    source = Whole(template, batch)
    settle_population(family, source, 8, warm_start(family, source, 8, 20))
    assert set(family.fixed) == {site.name for site in template.population_sites()}
    assert np.isfinite(fit(family, source, Plan(2, 8, 0.02, 0, {}))).all()


@pytest.mark.slow
def test_a_subject_is_diagnosed(cohort):
    batch, _, family = cohort
    one = batch.seen.select(0, torch.tensor([0]))
    population = {site.name: family.centre(one)[site.name] for site in family.template.population_sites()}
    problem = LocalProblem.seeded(family.template.plates, one, population, 0)
    budget = Budget(1, 64, 200, 8, Ascent(10), Schedule(20, 8, 2, 4))
    found = diagnose_member(family, [problem], budget)
    assert found.draws[0].amortization_gap.value > -1.0
    assert np.isfinite(found.draws[0].elbo["encoder"].value)


def test_a_free_scheme_may_have_a_smooth_map_without_deviations():
    template = smooth(subjects=False)
    batch, _ = drawn(template, 4)
    family, source = Family(template, batch.cards, "free").double(), Whole(template, batch)
    warm_start(family, source, 4, 8)
    assert np.isfinite(fit(family, source, Plan(2, 4, 0.02, 0, {}))).all()


def test_what_cannot_be_is_refused():
    template = smooth()
    batch, _ = drawn(template, 3)
    with pytest.raises(UsageError, match=r"expected topography encoded, as .* by all vertices together, got it free"):
        Family(template, batch.cards, "free")
    with pytest.raises(UsageError, match="topography_group has a flow of its own"):
        Family(template, batch.cards, flow={"topography_group": "coupling"})
    with pytest.raises(ValueError, match="smooth map"):
        fit_all([Family(template, batch.cards)], [Whole(template, batch)], Plan(1, 3, 0.02, 0, {}))
