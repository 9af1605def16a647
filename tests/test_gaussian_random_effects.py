"""Gaussian random effects: closed forms against dense Gaussian algebra."""

import numpy as np
import pytest
import torch

from parcellation.plates import Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from tests.conftest import full, generator, noise


def dense(template, observed):
    """Means and sds of population and groups given the samples, and the evidence, from the joint covariance."""
    groups, mask = len(observed.x), observed.mask.numpy()
    rows, cols = np.nonzero(mask)
    n = len(rows)
    design = np.zeros((1 + groups + n, 1 + groups + n))  # every variable as a sum of independent noises
    design[:, 0] = template.sd_population
    design[1 : 1 + groups, 1 : 1 + groups] = template.sd_group * np.eye(groups)
    design[1 + groups + np.arange(n), 1 + rows] = template.sd_group
    design[1 + groups :, 1 + groups :] = template.sd_sample * np.eye(n)
    covariance = design @ design.T
    latent, data = slice(0, 1 + groups), slice(1 + groups, None)
    y = observed.x.numpy()[rows, cols]  # (n, D)
    gain = np.linalg.solve(covariance[data, data], covariance[data, latent]).T
    mean = gain @ y
    variance = np.diag(covariance[latent, latent] - gain @ covariance[data, latent])
    solved = np.linalg.solve(covariance[data, data], y)
    log_evidence = -0.5 * (y * solved).sum() - 0.5 * y.shape[1] * (
        np.linalg.slogdet(covariance[data, data])[1] + n * np.log(2 * np.pi)
    )
    return mean, np.sqrt(variance), log_evidence


@pytest.mark.parametrize("lonely", [False, True], ids=["all groups have data", "one group has none"])
def test_posterior_and_evidence_are_those_of_dense_algebra(effects, lonely):
    template, observed = effects
    if lonely:
        mask = observed.mask.clone()
        mask[2] = False
        observed = Observed(observed.x * mask[..., None], mask)
    mean, sd, log_evidence = dense(template, observed)
    posterior = template.posterior(observed)
    assert np.allclose(posterior["population"][0].numpy().squeeze((0, 1)), mean[0], atol=1e-8)
    assert np.allclose(posterior["group"][0].numpy().squeeze(1), mean[1:], atol=1e-8)
    assert np.allclose(posterior["population"][1].numpy(), sd[0], atol=1e-8)
    assert np.allclose(posterior["group"][1].numpy().squeeze(1), sd[1:, None], atol=1e-8)
    assert float(template.log_evidence(observed)) == pytest.approx(log_evidence, abs=1e-8)


def test_masked_samples_and_what_they_hold_do_not_matter(effects):
    template, observed = effects
    mean, sd = template.posterior(observed)["group"]
    other = Observed(torch.where(observed.mask[..., None], observed.x, 7.0), observed.mask)
    assert torch.allclose(template.posterior(other)["group"][0], mean, rtol=0, atol=1e-12)
    assert torch.equal(template.posterior(other)["group"][1], sd)
    assert torch.equal(
        template.log_likelihood({"group": mean}, other) == 0, ~observed.mask
    )  # exactly nothing where masked


def test_log_likelihood_is_a_normal_density(effects):
    template, observed = effects
    group = torch.zeros(4, 1, 3, dtype=torch.float64)
    expected = torch.distributions.Normal(group, template.sd_sample).log_prob(observed.x).sum(-1) * observed.mask
    assert torch.allclose(template.log_likelihood({"group": group}, observed), expected, atol=1e-12)


def test_simulated_data_have_the_stated_standard_deviations():
    template = GaussianRandomEffects(2, sd_population=1.0, sd_group=0.5, sd_sample=0.1)
    x = template.simulate(4000, 3, generator(1)).x
    within, between = x.std(1).square().mean().sqrt(), x.mean(1).std(0)
    assert float(within) == pytest.approx(0.1, rel=4 / (2 * 4000 * 2 * 2) ** 0.5)
    assert torch.allclose(between, torch.full_like(between, (0.25 + 0.01 / 3) ** 0.5), rtol=4 / 8000**0.5)


def test_hyperparameters_rebuild_the_template(effects):
    template, observed = effects
    again = GaussianRandomEffects(**template.hyperparameters())
    assert torch.equal(again.log_evidence(observed), template.log_evidence(observed))
    assert template.weight(("group",), full(template, observed)) == 1


def test_draws_are_of_the_joint_posterior(effects):
    """Moments as in closed form, and groups that follow the population as far as their samples leave them."""
    template, observed = effects
    draws = template.posterior_draws(observed, noise(0), 4000)
    for name, (mean, sd) in template.posterior(observed).items():
        assert torch.allclose(draws[name].mean(0), mean.expand_as(draws[name][0]), atol=5 * float(sd.max()) / 4000**0.5)
        assert torch.allclose(draws[name].std(0), sd.expand_as(draws[name][0]), rtol=0.07)
    population, group = draws["population"], draws["group"]
    # Slope of a group in the population: the share of its precision that is the prior's.
    n = observed.mask.sum(1)[:, None].double()
    slope = template.sd_group**-2 / (template.sd_group**-2 + n / template.sd_sample**2)
    away = population - population.mean(0)
    found = (away * (group - group.mean(0))).mean(0)[:, 0] / away.square().mean(0)[:, 0]
    assert torch.allclose(found, slope.expand_as(found), atol=0.1)
