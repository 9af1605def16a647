"""Flows: inverse, Jacobian, gradients, and the cases that have a known answer."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal

from parcellation import flows
from parcellation.encoders import Encoding
from parcellation.errors import UsageError
from parcellation.flows import FLOWS, CentredFlow, PrecisionFlow, log_density, make_flow
from tests.conftest import generator


def shaken(name: str, extra: int = 1) -> torch.nn.Module:
    """A flow with arbitrary weights, float64."""
    flow = make_flow(name, extra).double()
    g = generator(1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return flow


@pytest.fixture
def inputs():
    g = generator(0)
    estimate, mean, u = (torch.randn(4, 3, generator=g, dtype=torch.float64) for _ in range(3))
    log_precision = torch.randn(4, 1, generator=g, dtype=torch.float64)
    extra = torch.randn(4, 1, 1, generator=g, dtype=torch.float64)
    sd = torch.rand(4, 3, generator=g, dtype=torch.float64) + 0.2
    centre = torch.randn(4, 3, generator=g, dtype=torch.float64)
    return Encoding(estimate, log_precision, extra, centre), mean, sd, u


@pytest.mark.parametrize("name", FLOWS)
def test_the_inverse_undoes_the_flow(name, inputs):
    encoding, mean, sd, u = inputs
    transform = shaken(name)(encoding, mean, sd)
    assert torch.allclose(transform.inv(transform(u)), u, atol=1e-12)


@pytest.mark.parametrize("name", FLOWS)
def test_the_jacobian_is_autograd_s(name, inputs):
    encoding, mean, sd, u = inputs
    flow = shaken(name)
    transform = flow(encoding, mean, sd)
    jacobian = torch.autograd.functional.jacobian(lambda one: flow(encoding, mean, sd)(one).flatten(), u)
    diagonal = jacobian.reshape(u.numel(), u.numel())
    assert torch.allclose(diagonal, diagonal.diag().diag())  # elementwise
    got = transform.log_abs_det_jacobian(u, transform(u))
    assert torch.allclose(got.flatten(), diagonal.diag().abs().log(), atol=1e-10)


@pytest.mark.parametrize("name", FLOWS)
def test_the_density_is_that_of_a_normal(name, inputs):
    encoding, mean, sd, _ = inputs
    transform = shaken(name)(encoding, mean, sd)
    theta = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)
    expected = Normal(transform(mean), sd * transform.scale).log_prob(theta)
    assert torch.allclose(log_density(transform, mean, sd, theta, 0), expected, atol=1e-10)
    assert torch.allclose(log_density(transform, mean, sd, theta, 1), expected.sum(-1), atol=1e-10)


@pytest.mark.parametrize("name", FLOWS)
def test_every_parameter_has_a_gradient_from_the_first_step_on(name, inputs):
    encoding, mean, sd, u = inputs
    flow = make_flow(name, 1).double()
    transform = flow(encoding, mean, sd)
    theta = transform(u)
    (theta.square().sum() + transform.log_abs_det_jacobian(u, theta).sum()).backward()
    for parameter_name, parameter in flow.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_does_not_depend_on_the_order_of_ground_variables(name, inputs):
    encoding, mean, sd, u = inputs
    flow, order = shaken(name), torch.tensor([2, 0, 3, 1])
    shuffled = encoding.map(lambda part: part[order])
    assert torch.allclose(flow(shuffled, mean[order], sd[order])(u[order]), flow(encoding, mean, sd)(u)[order])


def conjugate(flow: torch.nn.Module) -> torch.nn.Module:
    """The same flow with its correction set to nothing."""
    with torch.no_grad():
        for parameter in flow.correct.parameters():
            parameter.zero_()
    return flow


def test_the_precision_flow_is_exact_for_a_gaussian_observation(inputs):
    encoding, mean, sd, _ = inputs
    transform = conjugate(PrecisionFlow(1).double())(encoding, mean, sd)
    precision = encoding.log_precision.exp() + sd**-2
    expected = (encoding.log_precision.exp() * encoding.estimate + sd**-2 * mean) / precision
    assert torch.allclose(transform(mean), expected, atol=1e-12)
    assert torch.allclose((transform.scale * sd).expand(4, 3), precision.rsqrt(), atol=1e-12)


def test_the_centred_flow_is_the_precision_flow_of_the_observation_that_its_answer_is_of(inputs):
    seen, mean, sd, _ = inputs
    share = (seen.log_precision + 2 * sd.log()).sigmoid()
    answer = replace(seen, estimate=seen.centre + share * (seen.estimate - seen.centre))
    one = conjugate(PrecisionFlow(1).double())(seen, mean, sd)
    other = conjugate(CentredFlow(1).double())(answer, mean, sd)
    assert torch.allclose(other.loc, one.loc, atol=1e-12)
    assert torch.allclose(other.scale, one.scale, atol=1e-12)


def test_the_estimate_of_a_centred_flow_is_the_median_at_the_centre_whatever_its_weights(inputs):
    encoding, _, sd, _ = inputs
    transform = shaken("centred")(encoding, encoding.centre, sd)
    assert torch.allclose(transform(encoding.centre), encoding.estimate, atol=1e-12)


def test_without_information_the_posterior_is_the_prior(inputs):
    _, mean, sd, u = inputs
    nothing = Encoding(torch.zeros(4, 3).double(), torch.full((4, 1), -60.0).double(), torch.zeros(4, 1, 1).double())
    transform = conjugate(PrecisionFlow(1).double())(nothing, mean, sd)
    assert torch.allclose(transform(u), u, atol=1e-10)


@torch.no_grad()
def test_single_precision_stands_sharp_posteriors():
    # 1200 vertices at kappa .1 are a precision of 1.2e5 against a prior of sd 2. Rounding theta to float32 moves it by
    # 1e-7 x 1.5 / 2.9e-3, some 1e-4 of its standard deviation.
    flow = conjugate(PrecisionFlow(0))
    estimate, mean, sd = torch.tensor([1.5]), torch.tensor([-0.5]), torch.tensor([2.0])
    transform = flow(Encoding(estimate, torch.tensor([1.2e5]).log(), torch.zeros(1, 0)), mean, sd)
    theta = transform(mean + sd * torch.tensor([1.7]))
    precision = 1.2e5 + 0.25
    expected = Normal((1.2e5 * estimate.double() + 0.25 * mean) / precision, precision**-0.5).log_prob(theta.double())
    assert float(log_density(transform, mean, sd, theta, 0)) == pytest.approx(float(expected), abs=5e-4)


def test_an_unknown_flow_is_refused_with_the_names_there_are():
    with pytest.raises(UsageError, match="flow: expected one of precision, centred, affine, got 'planar'"):
        make_flow("planar", 0)


@pytest.mark.parametrize("flow", [PrecisionFlow, CentredFlow])
@pytest.mark.parametrize("extra", [(1, 1, 90, 1, 2), (1, 1, 1, 1, 2), (90, 1, 2)])
def test_many_elements_are_corrected_part_by_part_as_all_together(flow, extra, monkeypatch):
    one = flow(2).double()
    torch.nn.init.normal_(next(one.parameters()), generator=generator(1))
    draw = lambda *shape: torch.randn(shape, generator=generator(2), dtype=torch.float64)  # noqa: E731
    encoding = Encoding(draw(1, 1, 90, 5), draw(1, 1, 90, 5), draw(*extra), draw(1, 1, 90, 5))
    with torch.no_grad():
        whole = one(encoding, *torch.ones(2, 1, 1, 90, 5).double())
        monkeypatch.setattr(flows, "PART", 64)
        parts = one(encoding, *torch.ones(2, 1, 1, 90, 5).double())
    assert torch.allclose(parts.loc, whole.loc, rtol=1e-12)
    assert torch.allclose(parts.scale, whole.scale, rtol=1e-12)
    assert parts.loc.requires_grad is False
