"""The functional parcellation template: enumeration, symmetry, masks, and the noise of short sessions."""

import itertools
import math

import pytest
import torch

from parcellation.plates import Observed
from parcellation.templates.functional_parcellation import FunctionalParcellation, contrast_basis
from tests.conftest import draw_cohort, generator, noise


@pytest.mark.parametrize("networks", [2, 3, 7, 17])
def test_contrasts_are_orthonormal_and_orthogonal_to_the_constant(networks):
    basis = contrast_basis(networks)
    assert basis.shape == (networks - 1, networks)
    assert torch.allclose(basis @ basis.T, torch.eye(networks - 1, dtype=torch.float64), atol=1e-14)
    assert torch.allclose(basis.sum(1), torch.zeros(networks - 1, dtype=torch.float64), atol=1e-14)


def test_the_prior_of_the_map_treats_networks_alike():
    # Logits are basis' contrasts with contrasts iid, so their covariance must not change when networks are permuted.
    basis = contrast_basis(4)
    covariance = basis.T @ basis
    for order in itertools.permutations(range(4)):
        assert torch.allclose(covariance[list(order)][:, list(order)], covariance, atol=1e-14)


def test_a_map_is_a_probability(ragged):
    log_map = ragged.template.log_map(ragged.values)
    assert log_map.shape == (1, 1, 8, 3)
    assert torch.allclose(log_map.exp().sum(-1), torch.ones(1, 1, 8, dtype=torch.float64))


def brute_force(drawn) -> torch.Tensor:
    """log p(x | sites) of every (subject, vertex) by summing p(z) prod_t p(x_t | z) over labels, term by term."""
    values, observed = drawn.values, drawn.observed
    share = (values["logits_group"][0, 0] @ drawn.template.basis).softmax(-1)
    S, T, V = observed.mask.shape
    result = torch.zeros(S, V, dtype=torch.float64)
    for s, v in itertools.product(range(S), range(V)):
        terms = []
        for z in range(drawn.template.networks):
            log_p = share[v, z].log()
            for t in range(T):
                if observed.mask[s, t, v]:
                    kappa = values["log_kappa_session"][s, t, 0].exp()
                    normal = torch.distributions.Normal(values["mu_session"][s, t, 0, z], kappa)
                    log_p = log_p + normal.log_prob(observed.x[s, t, v]).sum()
            terms.append(log_p)
        if observed.mask[s, :, v].any():
            result[s, v] = torch.stack(terms).logsumexp(0)
    return result


def test_the_likelihood_is_the_sum_over_labels(ragged):
    got = ragged.template.log_likelihood(ragged.values, ragged.observed)
    assert got.shape == (5, 1, 8, 1)[:3]
    assert torch.allclose(got[:, 0], brute_force(ragged), rtol=1e-10)


def test_label_probabilities_are_exact_given_the_sites(ragged):
    # Bayes for one vertex: p(z | x) from the joint of the enumeration, normalised.
    joint = ragged.template.log_joint(ragged.values, ragged.observed)
    evidence = ragged.template.log_likelihood(ragged.values, ragged.observed)
    seen = ragged.observed.mask.any(1, keepdim=True)
    posterior = (joint - evidence[..., None]).exp()
    assert torch.allclose(posterior.sum(-1)[seen], torch.ones(int(seen.sum()), dtype=torch.float64), rtol=1e-10)
    # A vertex that no session saw has the population's probability, exactly.
    assert torch.equal(joint[2, 0, 4], ragged.template.log_map(ragged.values)[0, 0, 4])


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_scores_are_the_joint_density_up_to_what_all_labels_have(ragged, power):
    template, values, observed = ragged.template, ragged.values, ragged.observed
    expected = template.log_joint(values, observed, power).softmax(-1)
    assert torch.allclose(template.scorer(observed, power)(values).softmax(-1), expected, rtol=1e-9)
    by_vertex = power * torch.ones(5, 1, 8, dtype=torch.float64)
    assert torch.allclose(template.scorer(observed, by_vertex)(values).softmax(-1), expected, rtol=1e-9)
    tailed = template.log_joint(values, observed, power, 20.0).softmax(-1)
    assert torch.allclose(template.scorer(observed, power, 20.0)(values).softmax(-1), tailed, rtol=1e-9)


def test_scores_of_many_draws_of_one_subject_and_with_a_map_in_place_of_the_population_s(ragged):
    template, one = ragged.template, ragged.subject(1)
    values = {name: value[1:2] if len(value) == 5 else value for name, value in ragged.values.items()}
    draws = {name: torch.stack([value, value + 0.1, value - 0.2]) for name, value in values.items()}
    got = template.scorer(one)(draws)
    assert got.shape == (3, 1, 1, 8, 3)
    assert torch.allclose(got.softmax(-1), template.log_joint(draws, one).softmax(-1), rtol=1e-9)
    log_map = torch.randn(8, 3, generator=generator(1), dtype=torch.float64).log_softmax(-1)
    instead = template.log_joint(draws, one) + log_map - template.log_map(draws)
    assert torch.allclose(template.scorer(one)(draws, log_map).softmax(-1), instead.softmax(-1), rtol=1e-9)


def test_a_session_without_data_adds_exactly_nothing_to_scores(ragged):
    template, one = ragged.template, ragged.subject(1)
    values = {name: value[1:2] if len(value) == 5 else value for name, value in ragged.values.items()}
    present = one.mask.any(-1)[0]
    assert not present.all()
    kept = torch.nonzero(present)[:, 0]
    some = {n: v[:, kept] if n in ("mu_session", "log_kappa_session") else v for n, v in values.items()}
    assert torch.equal(template.scorer(one)(values), template.scorer(one.select(1, kept))(some))


def test_a_masked_session_adds_exactly_nothing(ragged):
    template, observed, values = ragged.template, ragged.observed, ragged.values
    more = Observed(
        torch.cat([torch.zeros_like(observed.x[:, :1]), observed.x], 1),
        torch.cat([torch.zeros_like(observed.mask[:, :1]), observed.mask], 1),
    )
    padded = {
        **values,
        "mu_session": torch.cat([torch.randn_like(values["mu_session"][:, :1]), values["mu_session"]], 1),
        "log_kappa_session": torch.cat([values["log_kappa_session"][:, :1], values["log_kappa_session"]], 1),
    }
    assert torch.equal(template.log_likelihood(padded, more), template.log_likelihood(values, observed))


def test_a_vertex_without_data_contributes_nothing(ragged):
    assert float(ragged.template.log_likelihood(ragged.values, ragged.observed)[2, 0, 4]) == 0


def test_draws_lead_the_plates(ragged):
    template, values = ragged.template, ragged.values
    many = {name: torch.stack([value, value + 0.1]) for name, value in values.items()}
    got = template.log_likelihood(many, ragged.observed)
    assert got.shape == (2, 5, 1, 8)
    assert torch.allclose(got[0], template.log_likelihood(values, ragged.observed), rtol=1e-12)


def test_half_the_frames_are_noisier_by_half_a_log_two():
    drawn = draw_cohort((1, 3, 2))
    frames = torch.tensor([400.0, 200.0, 100.0], dtype=torch.float64)[None, :, None]
    observed = Observed(drawn.observed.x, drawn.observed.mask, {"frames": frames})
    prior = drawn.template.site("log_kappa_session").prior
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    certain = {"log_kappa": -1.5 * one, "slope": 40 * one}  # sigmoid(40) is 1
    expected = -1.5 + 0.5 * math.log(2) * torch.arange(3, dtype=torch.float64)
    assert torch.allclose(prior(certain, observed)[0].flatten(), expected, atol=1e-12)
    none = {"log_kappa": -1.5 * one, "slope": -40 * one}
    assert torch.allclose(prior(none, observed)[0].flatten(), torch.full((3,), -1.5, dtype=torch.float64), atol=1e-12)


def test_a_session_without_frames_has_a_finite_prior():
    drawn = draw_cohort((2, 2, 2))
    observed = Observed(drawn.observed.x, drawn.observed.mask, {"frames": torch.zeros(2, 2, 1, dtype=torch.float64)})
    mean, _ = drawn.template.site("log_kappa_session").prior(drawn.values, observed)
    assert mean.isfinite().all()


def test_scales_of_subjects_and_sessions_are_each_network_s_own():
    drawn = draw_cohort((2, 2, 2))
    values = {**drawn.values, "log_epsilon": torch.tensor([[[[-1.0, -2.0, -3.0]]]], dtype=torch.float64)}
    mean, sd = drawn.template.site("mu_subject").prior(values, drawn.observed)
    assert torch.equal(mean, values["mu"])
    assert torch.equal(sd[0, 0, 0, :, 0].log().round(decimals=12), values["log_epsilon"][0, 0, 0])


def test_only_subjects_and_vertices_may_be_reduced():
    assert FunctionalParcellation.reducible == {"subject", "vertex"}
    assert FunctionalParcellation.likelihood_only == {"vertex"}


@pytest.mark.parametrize(("networks", "features"), [(2, 8), (17, 256)])
def test_single_precision_is_enough_for_labels(networks, features):
    # |x|^2 - 2 x m + |m|^2 cancels: with float32, an error of about 1e-7 |x|^2 / kappa^2 nats, against label evidence
    # of many nats. Labels' log odds must agree to a hundredth of a nat at the noise of good data.
    drawn = draw_cohort((1, 2, 40), networks, features, planted={"log_kappa": -1.0})
    single = drawn.observed.to("cpu", torch.float32)
    values = {name: value.float() for name, value in drawn.values.items()}
    template = FunctionalParcellation(drawn.template.reference, drawn.template.frames_reference)
    exact = template.log_joint(drawn.values, drawn.observed)
    near = template.log_joint(values, single).double()
    plausible = exact - exact.amax(-1, keepdim=True) > -20
    error = (near - near.amax(-1, keepdim=True)) - (exact - exact.amax(-1, keepdim=True))
    assert float(error[plausible].abs().max()) < 0.02


def test_observations_lie_about_the_profile_of_a_label_that_sessions_share():
    """Many subjects: labels as often as the map says, and what is left of x is noise of each session's own size."""
    drawn = draw_cohort((400, 2, 6), seed=5)
    mask = drawn.observed.mask.clone()
    mask[3, 1, 2] = False
    blank = Observed(torch.zeros(400, 2, 6, 1, dtype=torch.float64), mask, drawn.observed.covariates)
    template, values = drawn.template, drawn.values
    x = template.observations(values, blank, noise(3)).x
    labels = template.labels(values, blank, noise(3))  # the first thing that is drawn
    assert labels.shape == (400, 1, 6)
    share = torch.nn.functional.one_hot(labels[:, 0], 3).double().mean(0)
    assert torch.allclose(share, template.log_map(values)[0, 0].exp(), atol=4 * 0.5 / 400**0.5)
    at = labels[..., None].expand(400, 2, 6, 5)
    left = (x - values["mu_session"][:, :, 0].gather(2, at)) / values["log_kappa_session"].exp()[..., None]
    assert float(left[mask].mean()) == pytest.approx(0, abs=4 / (400 * 60) ** 0.5)
    assert float(left[mask].square().mean()) == pytest.approx(1, abs=4 * (2 / (400 * 60)) ** 0.5)
    assert not bool(x[3, 1, 2].any())
