"""What labels say about their logits: information against autograd, and nothing said where nothing is seen."""

import math

import pytest
import torch

from parcellation.label_pooling import SessionLabels, SharedLabels, label_pooling, map_mode, spread
from parcellation.network_pooling import NetworkPooling
from parcellation.networks import contrast_basis
from parcellation.templates.functional_parcellation_logits import FunctionalParcellationLogits
from tests.conftest import draw_cohort, full, generator


def logits_template(drawn) -> FunctionalParcellationLogits:
    return FunctionalParcellationLogits(drawn.template.reference, drawn.template.frames_reference)


def centre(drawn, log_tau: float = 0.0) -> dict:
    return drawn.values | {"log_tau": torch.full((1, 1, 1), log_tau, dtype=torch.float64)}


def evidence_of(sizes, strength: float, seed: int = 1) -> torch.Tensor:
    return strength * torch.randn(sizes, generator=generator(seed), dtype=torch.float64)


def test_a_contrast_s_variance_is_that_of_a_label():
    basis, share = contrast_basis(3), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    for contrast, got in zip(basis, spread(share, basis), strict=True):
        assert float(got) == pytest.approx(float((share * contrast**2).sum() - (share * contrast).sum() ** 2))


def test_information_and_gradient_are_those_of_the_likelihood():
    drawn = draw_cohort((1, 2, 4))
    labels, evidence = SessionLabels(logits_template(drawn)), evidence_of((1, 2, 4, 3), 1.0)
    _, state = labels.assign(evidence, labels.start(centre(drawn), drawn.observed))
    basis = contrast_basis(3)

    def likelihood(logits):
        return ((logits @ basis).log_softmax(-1) + evidence).logsumexp(-1).sum()

    logits = state["logits"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(likelihood(logits), logits)
    assert torch.allclose(state["gradient"], gradient, atol=1e-12)
    hessian = torch.autograd.functional.hessian(likelihood, state["logits"]).reshape(8, 8)
    expected = -hessian.diagonal().reshape(1, 1, 4, 2)
    assert torch.allclose(state["certain"] - state["missing"], expected, atol=1e-10)


def test_steps_find_the_mode_and_the_encoding_leads_back_to_it():
    drawn = draw_cohort((2, 3, 5))
    labels, evidence = SessionLabels(logits_template(drawn)), evidence_of((2, 3, 5, 3), 3.0)
    state = labels.start(centre(drawn, 0.5), drawn.observed)
    for _ in range(60):
        _, state = labels.assign(evidence, state)
    slope = state["gradient"] - (state["logits"] - state["group"]) / state["variance"]
    assert torch.allclose(slope, torch.zeros_like(slope), atol=1e-6)
    encoding, variance = labels.subject_encodings(state)["label_logits"], math.exp(1.0)
    weight = (encoding.log_precision + math.log(variance)).sigmoid()
    mode = state["group"] + weight * (encoding.estimate - state["group"])
    assert torch.allclose(mode, state["logits"], atol=1e-5)


@pytest.mark.parametrize("kind", [SharedLabels, SessionLabels])
def test_where_nothing_is_seen_labels_say_nothing(kind):
    drawn = draw_cohort((2, 2, 5))
    template = drawn.template if kind is SharedLabels else logits_template(drawn)
    labels = label_pooling(template)
    assert isinstance(labels, kind)
    assignment, state = labels.assign(torch.zeros(2, 2, 5, 3).double(), labels.start(centre(drawn), drawn.observed))
    assert torch.allclose(assignment, drawn.template.log_map(drawn.values).exp().expand_as(assignment), atol=1e-12)
    for encoding in labels.subject_encodings(state).values():
        assert torch.allclose(encoding.estimate, state["group"].expand_as(encoding.estimate), atol=1e-9)
        assert (encoding.log_precision < -13).all()


@pytest.mark.parametrize("kind", [SharedLabels, SessionLabels])
def test_more_people_know_the_map_better(kind):
    drawn = draw_cohort((6, 2, 5))
    labels = label_pooling(drawn.template if kind is SharedLabels else logits_template(drawn))
    _, state = labels.assign(evidence_of((6, 2, 5, 3), 2.0), labels.start(centre(drawn), drawn.observed))
    sums = labels.statistics(state, torch.ones(6, dtype=torch.bool)) | {"subjects": torch.tensor(6.0)}
    one, ten = (labels.population(sums, full)["logits_group"] for full in (1.0, 10.0))
    more = ten.log_precision - one.log_precision
    assert (more > 0).all()
    assert float(more.mean()) == pytest.approx(math.log(10), abs=0.5)  # less where the mode moves to the map's edge


def test_missing_labels_widen_the_map():
    drawn = draw_cohort((50, 1, 5))
    labels, everyone = SharedLabels(drawn.template), torch.ones(50, dtype=torch.bool)
    known = []
    for strength in (100.0, 1.0):
        state = labels.start(drawn.values, drawn.observed)
        for _ in range(30):  # until the map is that of these labels
            _, state = labels.assign(evidence_of((50, 1, 5, 3), strength), state)
            sums = labels.statistics(state, everyone) | {"subjects": torch.tensor(50.0)}
            found = labels.population(sums, 1.0)["logits_group"]
            state = labels.start({"logits_group": found.estimate}, drawn.observed)
        known.append(found.extra[..., 0])
    assert (known[0] < 0.1).all()  # nearly all labels are seen
    assert (known[1] > 0.3).all()


def test_the_variance_between_people_settles_soon_where_expectation_maximisation_does():
    drawn = draw_cohort((20, 3, 60), networks=2, features=10, planted={"log_kappa": -0.3})
    template = logits_template(drawn)
    encoder, batch, centre, found = NetworkPooling(template, template.sites), full(template, drawn.observed), None, []
    for _ in range(16):
        _, centre = encoder._pass([batch], batch.cards, centre)
        found.append(float(centre["log_tau"]))
    assert found[7] == pytest.approx(found[-1], abs=0.01)
    assert abs(found[0] - found[-1]) > 0.05  # it began elsewhere
    labels = encoder.summarise(drawn.observed, centre).labels
    away, variance = labels["logits"] - labels["group"], labels["variance"]
    share = 1 - 1 / (1 + encoder.labels._precision(labels) * variance)
    assert float((away.square() + variance * (1 - share)).mean()) == pytest.approx(float(variance), rel=0.02)


@pytest.mark.parametrize("networks", [2, 3, 17])
def test_the_mode_of_a_map_has_no_gradient(networks):
    counts = 30 * torch.rand(40, networks, generator=generator(4), dtype=torch.float64) ** 4
    counts[0], counts[1] = 0.0, 0.0
    counts[1, 0] = 200.0  # nobody was seen; all agree
    basis = contrast_basis(networks)
    mode = map_mode(counts, basis, 2.5, steps=12).requires_grad_()
    density = (counts * (mode @ basis).log_softmax(-1)).sum() - 0.5 * (mode / 2.5).square().sum()
    (gradient,) = torch.autograd.grad(density, mode)
    assert torch.allclose(gradient, torch.zeros_like(gradient), atol=1e-8)
    assert (mode[0] == 0).all()
    few = map_mode(counts.float(), basis, 2.5)  # as many steps as are taken, in single precision
    assert torch.allclose(few.double(), mode, atol=1e-3)
