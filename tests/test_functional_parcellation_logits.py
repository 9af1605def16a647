"""The template with a subject's own logits: enumeration in every session, what may be reduced, and training."""

import itertools

import pytest
import torch

from parcellation.elbo import elbo
from parcellation.family import Family
from parcellation.model_file import TrainedModel, load_model, save_model
from parcellation.plates import Observed, template_class
from parcellation.posterior import Posterior
from parcellation.templates.functional_parcellation_logits import FunctionalParcellationLogits
from parcellation.training import Plan, Whole, fit, warm_start
from tests.conftest import Drawn, draw_cohort, full, generator, noise
from tests.test_elbo import average_over_batches
from tests.test_family import shaken


def with_logits(drawn: Drawn) -> tuple[FunctionalParcellationLogits, dict]:
    """The template over the same profiles, and values of all its sites."""
    template = FunctionalParcellationLogits(drawn.template.reference, drawn.template.frames_reference)
    g = generator(1)
    own = torch.randn(template.shape(template.site("label_logits"), drawn.observed), generator=g, dtype=torch.float64)
    tau = torch.full((1, 1, 1), 0.3, dtype=torch.float64)
    return template, {**drawn.values, "label_logits": drawn.values["logits_group"] + own, "log_tau": tau}


def test_it_is_found_by_name():
    assert template_class("functional_parcellation_logits") is FunctionalParcellationLogits


def test_the_likelihood_sums_over_labels_in_every_session(ragged):
    template, values = with_logits(ragged)
    got, observed = template.log_likelihood(values, ragged.observed), ragged.observed
    assert got.shape == observed.mask.shape
    share = (values["label_logits"] @ template.basis).softmax(-1)
    for s, t, v in itertools.product(*map(range, observed.mask.shape)):
        normal = torch.distributions.Normal(
            values["mu_session"][s, t, 0], values["log_kappa_session"][s, t, 0].exp()[..., None]
        )
        log_p = normal.log_prob(observed.x[s, t, v]).sum(-1) + share[s, 0, v].log()
        expected = float(log_p.logsumexp(-1)) if observed.mask[s, t, v] else 0.0
        assert float(got[s, t, v]) == pytest.approx(expected, rel=1e-9)


def test_the_map_is_the_mean_over_people():
    drawn = draw_cohort((1, 1, 6), networks=2)
    template, values = with_logits(drawn)
    draws = values["logits_group"] + values["log_tau"].exp()[..., None] * torch.randn(
        40000, 1, 1, 6, 1, generator=generator(0), dtype=torch.float64
    )
    expected = (draws @ template.basis).softmax(-1).mean(0)
    assert torch.allclose(template.log_map(values).exp(), expected, atol=0.02)  # .01 of the formula, .005 of the draws


def test_the_label_at_hand_is_a_session_s_own_and_without_data_anyone_s(ragged):
    template, values = with_logits(ragged)
    got = template.log_joint(values, ragged.observed).exp()
    assert torch.allclose(got.sum(-1), torch.ones_like(got[..., 0]))
    assert torch.allclose(got[2, 0, 4], template.log_labels(values).exp()[2, 0, 4])  # seen by no session
    subject = ragged.subject(0)
    one = {name: value[:1] if value.shape[0] > 1 else value for name, value in values.items()}
    parts = []
    for t in range(3):
        if subject.mask[0, t, 0]:
            only = Observed(subject.x[:, t : t + 1], subject.mask[:, t : t + 1])
            session = {n: v[:, t : t + 1] if v.shape[1] > 1 else v for n, v in one.items()}
            parts.append(template.log_joint(session, only)[0, 0, 0].exp())
    assert torch.allclose(got[0, 0, 0], torch.stack(parts).mean(0))


@pytest.mark.parametrize("scheme", ["free", "hybrid"])
@pytest.mark.parametrize(
    "reduced",
    [
        {"session": 2},
        {"subject": 4, "session": 1},
        {"vertex": 7, "session": 2},
        {"subject": 4, "vertex": 7},
        {"subject": 4, "session": 2, "vertex": 7},
    ],
    ids=str,
)
def test_batches_of_every_plate_average_to_the_full_objective(ragged, scheme, reduced):
    template, _ = with_logits(ragged)
    family = shaken(Family(template, ragged.batch.cards, scheme).double(), 0.2)
    whole, average, parts = average_over_batches(family, template, ragged.observed, reduced)
    assert average == pytest.approx(whole, rel=1e-10)
    assert max(parts) - min(parts) > 1


@pytest.mark.parametrize("scheme", ["free", "hybrid"])
def test_it_starts_warm_trains_and_is_kept(scheme, tmp_path):
    drawn = draw_cohort((6, 2, 20), planted={"log_kappa": -1.5})
    template, _ = with_logits(drawn)
    batch = full(template, drawn.observed)
    source = Whole(template, batch)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        family = Family(template, batch.cards, scheme).double()
    cold = elbo(family, batch, noise(0), draws=5).mean
    warm_start(family, source, 4)
    warm = elbo(family, batch, noise(0), draws=5).mean
    fit(family, source, Plan(25, 3, 0.03, 0, {"session": 1}))
    trained = elbo(family, batch, noise(0), draws=5).mean
    assert warm > cold + 100
    # Free rows that see half of their sessions need more than these few steps to settle again.
    assert trained > (warm if scheme == "hybrid" else cold + 100)
    model = save_model(tmp_path, TrainedModel(family, {}, {}, {}))
    assert torch.equal(
        load_model(tmp_path).family.centre(model.blank())["log_tau"], family.centre(model.blank())["log_tau"]
    )
    if scheme == "hybrid":
        answers = [Posterior(model, 16).subject("x", ("a", "b"), drawn.subject(s), lambda p: p) for s in range(6)]
        right = [(a.probability.argmax(-1) == drawn.labels[s].numpy()).mean() for s, a in enumerate(answers)]
        assert sum(right) / 6 > 0.85
