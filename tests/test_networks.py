"""What models of networks share: contrasts, and a session's density against scipy's."""

import pytest
import scipy.stats
import torch

from parcellation.networks import (
    add_evidence,
    close_anchors,
    constant,
    contrast_basis,
    heavy_tailed,
    profile_spread,
    separation,
    session_density,
    session_square,
    weighted_sessions,
)
from parcellation.plates import Observed
from tests.conftest import generator


@pytest.mark.parametrize("networks", [2, 5])
def test_contrasts_span_all_differences(networks):
    basis = contrast_basis(networks)
    centring = torch.eye(networks, dtype=torch.float64) - 1 / networks
    assert torch.allclose(basis.T @ basis, centring, atol=1e-14)


def test_a_session_s_density_is_normal(ragged):
    values, observed = ragged.values, ragged.observed
    got = session_density(values["mu_session"], values["log_kappa_session"], observed, 1)
    assert got.shape == (5, 1, 8, 3)
    s, v, k = 0, 3, 2
    mean, sd = values["mu_session"][s, 1, 0, k].numpy(), float(values["log_kappa_session"][s, 1, 0].exp())
    expected = scipy.stats.norm(mean, sd).logpdf(observed.x[s, 1, v].numpy()).sum()
    assert float(got[s, 0, v, k]) == pytest.approx(expected if observed.mask[s, 1, v] else 0.0, rel=1e-10)
    assert (got[~observed.mask[:, 1][:, None]] == 0).all()


def ten_bits(value: torch.Tensor) -> torch.Tensor:
    """What a GPU's product makes of a factor."""
    return (value.contiguous().view(torch.int32) + (1 << 12) >> 13 << 13).view(torch.float32)


def test_rounded_factors_prefer_no_network(monkeypatch):
    """What is of a network alone is hundreds of nats: rounded as the other factors it errs by .03 at all vertices."""
    K, D, V, kappa, power = 17, 400, 500, 0.5, 0.33
    mu = torch.randn(K, D, generator=generator(0)) * torch.linspace(0.3, 0.7, K)[:, None]
    x = mu[torch.arange(V) % K] + kappa * torch.randn(1, 1, V, D, generator=generator(1))
    observed, log_kappa = Observed(x, torch.ones(1, 1, V, dtype=torch.bool)), torch.full((1, 1, 1), kappa).log()
    exact = Observed(x.double(), observed.mask)
    expected = power * session_density(mu.double()[None, None, None], log_kappa.double(), exact, 0)[0, 0]
    product = torch.addmm
    monkeypatch.setattr(torch, "addmm", lambda start, *factors: product(start, *map(ten_bits, factors)))
    scores = add_evidence(torch.zeros(1, K, V), mu[None, None, None], log_kappa, weighted_sessions(observed, power))
    error = scores[0].mT.double() - expected
    error = (error - error.mean(-1, keepdim=True)).mean(0).abs().max()
    assert 0 < error < 0.005  # what is left is of the products with the data, of each vertex its own


def test_the_spread_is_the_anchors_own():
    reference = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert profile_spread(reference) == pytest.approx(1.0)
    assert profile_spread(reference[:1]) == pytest.approx(1e-3)  # one network has no differences: still a scale


def test_a_constant_prior_is_the_same_everywhere(ragged):
    mean, sd = constant(ragged.observed, (0.5, 2.0), (3,))
    assert mean.shape == sd.shape == (1, 1, 1, 3)
    assert (mean == 0.5).all()
    assert (sd == 2).all()


def test_squares_are_what_densities_of_networks_differ_by(ragged):
    values, observed = ragged.values, ragged.observed
    known = values["mu_session"], values["log_kappa_session"], observed, 0
    square, density = session_square(*known), session_density(*known)
    assert torch.allclose(density - density[..., :1], -0.5 * (square - square[..., :1]), atol=1e-10)
    assert (square[~observed.mask[:, 0][:, None]] == 0).all()


def test_tails_go_to_the_gaussian_and_make_the_distant_unsure():
    square = torch.tensor([0.0, 3.0, 40.0, 400.0], dtype=torch.float64)
    assert torch.allclose(heavy_tailed(square, 0.7, 1e9), -0.35 * square, rtol=1e-6)
    # Student's t of one dimension with 20 degrees of freedom, whose density has 21 in place of 22 twice.
    t = scipy.stats.t(20).logpdf((square * 20 / 22).sqrt().numpy())
    assert heavy_tailed(square, 1.0, 20.0).numpy() == pytest.approx((t - t[0]) * 22 / 21)
    near, far = heavy_tailed(torch.tensor([[1.0, 11.0], [400.0, 410.0]]), 1.0, 20.0).diff(dim=-1).abs()
    assert far < near / 10


def test_anchors_that_cost_nothing_to_swap_are_named():
    reference = torch.zeros(3, 50, dtype=torch.float64)
    reference[0], reference[1], reference[2] = 1.0, -1.0, -1.3
    # spread^2 is the mean square about the mean, 0.78 in each of 50 features; 50 x 0.09 / 1.03 is 4 nats.
    assert close_anchors(reference) == [(1, 2)]
    assert close_anchors(torch.randn(4, 50, generator=torch.Generator().manual_seed(0))) == []


def test_separation_is_the_share_of_the_anchors_variance_that_is_left():
    reference = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert separation(reference, reference) == pytest.approx(1)
    assert separation(7 + 0.1 * reference, reference) == pytest.approx(0.01)
