"""Pooling by network: invariance, masks as removal, coordinate ascent and population on data with a known answer."""

import pytest
import torch

from parcellation.family import Family
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Batch, Observed
from tests.conftest import draw_cohort, full, generator
from tests.test_encoding import PARTS, along, centre_of, close, reorder


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_network_pooling_does_not_depend_on_order(ragged, dimension):
    template, observed = ragged.template, ragged.observed
    encoder = NetworkPooling(template, template.sites)
    order = torch.randperm(observed.mask.shape[dimension], generator=generator(2))
    one = encoder(full(template, observed), {})
    other = encoder(full(template, reorder(observed, dimension, order)), {})
    assert set(one) == {site.name for site in template.sites}
    for name in one:
        assert close(other[name], along(one[name], dimension, order), 1e-10), name


def test_network_pooling_of_a_subject_does_not_depend_on_the_others(ragged):
    encoder = NetworkPooling(ragged.template, ragged.template.sites)
    together = encoder.subject_encodings(encoder.summarise(ragged.observed, centre_of(ragged)))
    for s in range(5):
        alone = encoder.subject_encodings(encoder.summarise(ragged.subject(s), centre_of(ragged)))
        for name in alone:
            assert close(along(together[name], 0, torch.tensor([s])), alone[name]), name


def test_twice_the_vertices_leave_the_estimates(ragged):
    encoder, centre = NetworkPooling(ragged.template, ragged.template.sites, passes=1), centre_of(ragged)
    observed = ragged.observed
    twice = observed.select(2, torch.arange(8).repeat(2))
    both = centre | {"logits_group": centre["logits_group"].repeat(1, 1, 2, 1)}
    one, other = encoder.summarise(observed, centre), encoder.summarise(twice, both)
    assert torch.allclose(other.average, one.average, atol=1e-12)
    assert torch.allclose(other.ambiguity, one.ambiguity, atol=1e-12)
    assert torch.allclose(other.count, 2 * one.count, atol=1e-12)
    share = [encoder.subject_encodings(s)["mu_session"].extra[..., 0] for s in (one, other)]
    assert torch.allclose(share[0], share[1], atol=1e-12)


def test_a_masked_vertex_or_session_is_a_removed_one(ragged):
    encoder, centre = NetworkPooling(ragged.template, ragged.template.sites), centre_of(ragged)
    assert not ragged.observed.mask.any(-1).all()  # sessions are missing, and vertex 4 of subject 2
    for s in range(5):
        subject = ragged.subject(s)
        there, keep = (subject.mask[0].any(d).nonzero()[:, 0] for d in (1, 0))
        less = subject.select(1, there).select(2, keep)
        part = centre | {"logits_group": centre["logits_group"][:, :, keep]}
        one = encoder.subject_encodings(encoder.summarise(subject, centre))
        other = encoder.subject_encodings(encoder.summarise(less, part))
        assert close(one["mu_subject"], other["mu_subject"])
        assert close(along(one["mu_session"], 1, there), other["mu_session"])
        assert close(along(one["log_kappa_session"], 1, there), other["log_kappa_session"])


def test_assignment_is_the_label_posterior_at_the_expected_log_likelihood(ragged):
    # E log N(x; m, kappa) over m ~ N(profile, variance): doubt about a network's profile counts against it.
    encoder, observed = NetworkPooling(ragged.template, ragged.template.sites), ragged.observed
    profiles = ragged.values["mu_session"][:, :, 0]
    variance = torch.rand(5, 3, 3, generator=generator(0), dtype=torch.float64)
    noise = ragged.values["log_kappa_session"].exp()[..., 0]
    log_map = ragged.template.log_map(ragged.values)
    expected = log_map.expand(5, 1, 8, 3).clone()
    for t in range(3):
        normal = torch.distributions.Normal(profiles[:, t, None], noise[:, t, None, None, None])
        log_p = normal.log_prob(observed.x[:, t, :, None]).sum(-1)  # (S, V, K)
        log_p = log_p - 0.5 * 5 * variance[:, t, None] / noise[:, t, None, None] ** 2
        expected[:, 0] += observed.mask[:, t, :, None] * log_p
    evidence = encoder.evidence(observed, (profiles, variance), noise)
    got, _ = encoder.labels.assign(evidence, encoder.labels.start(ragged.values, observed))
    assert torch.allclose(got, expected.softmax(-1), atol=1e-10)


def test_statistics_add_over_chunks_of_subjects(ragged):
    encoder, centre = NetworkPooling(ragged.template, ragged.template.sites), centre_of(ragged)

    def statistics(observed):
        return encoder.statistics(encoder.summarise(observed, centre), observed)

    whole = statistics(ragged.observed)
    parts = [statistics(reorder(ragged.observed, 0, index)) for index in torch.arange(5).split(2)]
    for name, value in whole.items():
        assert torch.allclose(sum(part[name] for part in parts), value, rtol=1e-12), name


def test_a_subject_without_any_data_does_not_change_the_population(ragged):
    template, observed = ragged.template, ragged.observed
    encoder, names = NetworkPooling(template, template.sites), [s.name for s in template.population_sites()]
    mask = observed.mask.clone()
    mask[4] = False
    empty = Observed(observed.x * mask[..., None], mask, observed.covariates)
    cards = dict(subject=4, session=3, vertex=8)
    one = encoder.population_of([Batch(empty, empty, {}, cards)], cards, names)
    without = observed.select(0, torch.arange(4))
    other = encoder.population_of([Batch(without, without, {}, cards)], cards, names)
    for name in names:
        assert close(one[name], other[name]), name


def test_one_session_a_subject_says_nothing_about_how_sessions_differ():
    drawn = draw_cohort((30, 1, 60), networks=3, features=8)
    names, cards = ["log_sigma", "log_epsilon"], drawn.batch.cards
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    found = encoder.population_of([drawn.batch], cards, names)
    # Less than a thousandth of an observation: a session is its subject's average, whatever its noise.
    assert (found["log_sigma"].log_precision < -6.9).all()
    assert (found["log_epsilon"].log_precision > 2).all()


def test_coordinate_ascent_recovers_planted_profiles():
    planted = {"log_kappa": -2.0, "log_epsilon": -1.0, "log_sigma": -2.5}
    drawn = draw_cohort((6, 2, 200), networks=3, features=8, planted=planted)
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    summaries = encoder.summarise(drawn.observed, centre_of(drawn))
    truth = drawn.values["mu_subject"][:, 0, 0]
    mean, variance = summaries.subject
    # Standard scores of the truth about coordinate ascent's own answer: of unit variance if mean and width are right.
    score = (mean - truth) / variance.sqrt()[..., None]
    assert float(score.square().mean()) == pytest.approx(1, abs=4 * (2 / score.numel()) ** 0.5)
    noise = drawn.values["log_kappa_session"].exp()[..., 0]
    assert torch.allclose(summaries.noise, noise, rtol=0.1)  # 1600 numbers a session: 4 / sqrt(2 * 1600)
    agree = summaries.assignment[:, 0].argmax(-1) == drawn.labels
    assert agree.double().mean() > 0.99


def test_population_is_read_off_the_data():
    planted = {"log_kappa": -2.0, "log_epsilon": -1.0, "log_sigma": -2.0}
    drawn = draw_cohort((40, 3, 60), networks=3, features=8, planted=planted)
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    names = [site.name for site in drawn.template.population_sites()]
    encodings = encoder.population_of([drawn.batch], drawn.batch.cards, names)
    assert set(encodings) == set(names)
    # Two passes from the reference are not converged: near enough for the flows' correction to start from.
    assert torch.allclose(encodings["log_epsilon"].estimate, torch.tensor(-1.0).double(), atol=0.3)
    assert torch.allclose(encodings["log_sigma"].estimate, torch.tensor(-2.0).double(), atol=0.3)
    off = [(m - drawn.values["mu"]).norm() for m in (encodings["mu"].estimate, drawn.template.reference)]
    assert off[0] < 0.15 * off[1]


def test_widths_of_the_scales_are_those_of_the_likelihood():
    """Of sessions' averages with the subjects' profiles integrated out, where labels are clear: by autograd.

    That of log sigma is what is known of it whatever epsilon is (sessions against each other), that of log epsilon what
    is known of it given sigma.
    """
    planted = {"log_kappa": -2.0, "log_epsilon": -1.0, "log_sigma": -1.5}
    drawn = draw_cohort((60, 3, 30), networks=2, features=10, planted=planted, seed=4)
    encoder, names = NetworkPooling(drawn.template, drawn.template.sites), ["log_epsilon", "log_sigma", "mu"]
    found = encoder.population_of([drawn.batch], drawn.batch.cards, names)
    member = torch.nn.functional.one_hot(drawn.labels, 2).double()  # (S, V, K)
    count = member.sum(1).clamp_min(1e-9)
    average = member[:, None].mT @ drawn.observed.x / count[:, None, :, None]  # (S, T, K, D)
    noise = drawn.values["log_kappa_session"].exp()[..., 0] ** 2  # (S, T)

    def likelihood(scales, k):
        between, within = (2 * scales).exp()
        own = torch.diag_embed(within + noise / count[:, k, None])  # (S, T, T)
        covariance = between + own
        away = (average[:, :, k] - found["mu"].estimate[0, 0, 0, k]).mT  # (S, D, T)
        normal = torch.distributions.MultivariateNormal(torch.zeros(3).double(), covariance[:, None])
        return normal.log_prob(away)[count[:, k] > 0.5].sum()

    for k in range(2):
        at = torch.stack([found[name].estimate[0, 0, 0, k] for name in names[:2]])
        information = -torch.autograd.functional.hessian(lambda scales, k=k: likelihood(scales, k), at)
        epsilon, sigma = (found[name].log_precision[0, 0, 0, k].exp() for name in names[:2])
        # Observed and expected information differ by chance: 600 averages, 1200 differences.
        assert float(epsilon / information[0, 0]) == pytest.approx(1, abs=0.15)
        assert float(sigma / (information[1, 1] - information[0, 1] ** 2 / information[0, 0])) == pytest.approx(
            1, abs=0.15
        )


@pytest.mark.parametrize("networks", [2, 17])
def test_an_empty_network_gives_finite_encodings(networks):
    drawn = draw_cohort((2, 2, 6), networks)  # six vertices cannot fill 17 networks
    x = drawn.observed.to("cpu", torch.float32)
    encodings = Family(drawn.template, drawn.batch.cards, "encoded").encodings(full(drawn.template, x))
    for name, encoding in encodings.items():
        for part in PARTS:
            assert getattr(encoding, part).isfinite().all(), (name, part)


def test_an_empty_network_of_a_session_has_no_say():
    drawn = draw_cohort((1, 1, 6), 3)
    centre = centre_of(drawn)
    centre["logits_group"] = centre["logits_group"] * 0 + 100 * drawn.template.basis[:, 0]  # all of network 0
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    summaries = encoder.summarise(drawn.observed, centre)
    assert torch.allclose(summaries.subject[0][0, 1:], centre["mu"][0, 0, 0, 1:], atol=1e-4)
    between = (2 * centre["log_epsilon"]).exp()[0, 0, 0, 1:]
    assert torch.allclose(summaries.subject[1][0, 1:], between, rtol=1e-4)
