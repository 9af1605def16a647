"""Warped flows: inverse, Jacobian and density by brute force; near the identity at first; more than affine."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from parcellation.encoding import Encoding
from parcellation.errors import UsageError
from parcellation.flows import log_density
from parcellation.warped_flows import WARPS, build_flow
from tests.conftest import generator

EVENTS = {"coupling": [(3,), (2, 2)], "autoregressive": [(3,), (2, 2)], "spline": [(3,), (2, 2), (1,), ()]}
CASES = [(name, event) for name, events in EVENTS.items() for event in events]
VECTOR = 5


def built(name: str, event: tuple[int, ...], shake: float = 0.3, centred: bool = False) -> torch.nn.Module:
    """A flow with arbitrary weights, float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flow = build_flow(name, 1, "site", event, VECTOR, centred).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(shake * torch.randn(parameter.shape, generator=generator(1), dtype=torch.float64))
    return flow


def conditions(event: tuple[int, ...]) -> tuple[Encoding, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Encodings of four variables, and two draws of prior mean, sd and base of each."""
    g = generator(0)
    estimate, log_precision = torch.randn(2, 4, *event, generator=g, dtype=torch.float64)
    extra = torch.randn(4, *event, 1, generator=g, dtype=torch.float64)
    vector = torch.randn(4, VECTOR, generator=g, dtype=torch.float64)
    mean, u = torch.randn(2, 2, 4, *event, generator=g, dtype=torch.float64)
    sd = torch.rand(4, *event, generator=g, dtype=torch.float64) + 0.2
    return Encoding(estimate, log_precision, extra, centre=estimate, vector=vector), mean, sd, mean + sd * u


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("name", "event"), CASES)
def test_the_inverse_undoes_the_flow(name, event, centred):
    encoding, mean, sd, u = conditions(event)
    transform = built(name, event, centred=centred)(encoding, mean, sd)
    assert transform(u).shape == u.shape
    assert torch.allclose(transform.inv(transform(u)), u, atol=1e-8)


@pytest.mark.parametrize(("name", "event"), CASES)
def test_the_jacobian_is_autograd_s(name, event):
    encoding, mean, sd, u = conditions(event)
    flow, size = built(name, event), math.prod(event)
    transform = flow(encoding, mean, sd)
    jacobian = torch.autograd.functional.jacobian(lambda one: flow(encoding, mean, sd)(one), u)
    jacobian = jacobian.reshape(8, size, 8, size)
    own = torch.stack([jacobian[n, :, n] for n in range(8)])
    assert float(jacobian.abs().sum()) == pytest.approx(float(own.abs().sum()))  # each variable by itself
    got = transform.log_abs_det_jacobian(u, transform(u)).flatten()
    assert torch.allclose(got, torch.linalg.slogdet(own).logabsdet, atol=1e-8)


@pytest.mark.parametrize("name", WARPS)
def test_the_density_integrates_to_one(name):
    encoding, mean, sd, _ = conditions((2,))
    one = encoding.map(lambda part: part[:1])
    transform = built(name, (2,), shake=0.1)(one, mean[0, :1], sd[:1])
    axis = torch.linspace(-10, 10, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)[:, None]  # (points, 1, 2)
    with torch.no_grad():
        density = log_density(transform, mean[0, :1], sd[:1], grid, 1).exp()
    assert float(density.sum()) * (20 / 300) ** 2 == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(("name", "event"), CASES)
def test_a_new_flow_is_nearly_its_affine_part(name, event):
    encoding, mean, sd, u = conditions(event)
    flow = built(name, event, shake=0.0)
    difference = flow(encoding, mean, sd)(u) - flow.affine(encoding, mean, sd)(u)
    assert 0 < float(difference.detach().abs().max()) < 0.2


@pytest.mark.parametrize(("name", "event"), CASES)
def test_draws_in_one_pass_and_each_variable_by_its_own_encoding(name, event):
    encoding, mean, sd, u = conditions(event)
    flow = built(name, event)
    whole = flow(encoding, mean, sd)(u)
    alone = flow(encoding.map(lambda part: part[2:3]), mean[:, 2:3], sd[2:3])(u[:, 2:3])
    assert torch.allclose(whole[:, 2:3], alone, atol=1e-12)


@pytest.mark.parametrize(("name", "event"), CASES)
def test_parents_and_vector_move_the_warp(name, event):
    encoding, mean, sd, u = conditions(event)
    flow = built(name, event)
    z = (u - mean) / sd

    def warped(encoding: Encoding, mean: torch.Tensor) -> torch.Tensor:
        transform = flow(encoding, mean, sd)
        return (transform.affine.inv(transform(mean + sd * z)) - mean) / sd

    moved = Encoding(encoding.estimate, encoding.log_precision, encoding.extra, encoding.centre, encoding.vector + 1)
    assert not torch.allclose(warped(encoding, mean), warped(moved, mean), atol=1e-3)
    assert not torch.allclose(warped(encoding, mean), warped(encoding, mean + 1), atol=1e-3)


@pytest.mark.parametrize("name", ["coupling", "autoregressive"])
def test_elements_that_hang_together_are_fitted(name):
    # The target has a correlation of .9, which no elementwise flow can have: its best is log(1 - .81) / 2 = -.83 off.
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    target = MultivariateNormal(torch.zeros(2), covariance)
    nothing = Encoding(torch.zeros(1, 2), torch.full((1, 2), -20.0), torch.zeros(1, 2, 0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flow = build_flow(name, 0, "site", (2,))
    mean, sd, g = torch.zeros(1, 2), torch.ones(1, 2), generator(2)
    optimiser = torch.optim.Adam(flow.parameters(), lr=0.01)

    def divergence(count: int) -> torch.Tensor:
        transform = flow(nothing, mean, sd)
        theta = transform(torch.randn(count, 1, 2, generator=g))
        return (log_density(transform, mean, sd, theta, 1) - target.log_prob(theta)).mean()

    for _ in range(200):
        optimiser.zero_grad()
        divergence(128).backward()
        optimiser.step()
    assert float(divergence(4000).detach()) < 0.05


def test_a_name_or_an_event_that_does_not_go_is_refused():
    with pytest.raises(UsageError, match=r"flow of mu: expected one of precision, .*, spline, got 'planar'"):
        build_flow("planar", 0, "mu", (3,))
    with pytest.raises(UsageError, match="coupling needs two elements or more, which move each other; expected spline"):
        build_flow("coupling", 0, "log_kappa", ())
