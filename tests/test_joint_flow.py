"""The flow with a full covariance: a transform by its laws, and the posterior of a Gaussian model exactly."""

import pytest
import torch

from parcellation.encoding import Encoding
from parcellation.flows import log_density
from parcellation.joint_flow import JointFlow
from tests.conftest import generator


def problem(seed: int = 0) -> tuple[Encoding, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """An encoding of two vectors of three, the prior's mean and sd, and the observation and information behind it."""
    g = generator(seed)
    root = torch.randn(2, 3, 3, generator=g, dtype=torch.float64)
    information, seen = root @ root.mT, torch.randn(2, 3, generator=g, dtype=torch.float64)
    d = information.diagonal(dim1=-2, dim2=-1).sqrt()
    joint = information / (d[..., None] * d[..., None, :])
    mean, sd = torch.randn(2, 3, generator=g, dtype=torch.float64), torch.rand(2, 3, generator=g).double() + 0.5
    return Encoding(seen, 2 * d.log(), seen.new_zeros(2, 3, 0), joint=joint), mean, sd, seen, information


def test_it_is_exact_in_a_gaussian_model():
    encoding, mean, sd, seen, information = problem()
    precision = information + torch.diag_embed(sd**-2)
    expected = torch.linalg.solve(precision, (information @ seen[..., None])[..., 0] + mean / sd**2)
    assert torch.allclose(encoding.combined(mean, sd), expected)
    transform = JointFlow()(encoding, mean, sd)
    assert torch.allclose(transform(mean), expected)
    value = expected + 0.3
    normal = torch.distributions.MultivariateNormal(expected, precision_matrix=precision)
    assert torch.allclose(log_density(transform, mean, sd, value, 2), normal.log_prob(value).sum())


def test_the_inverse_and_the_jacobian_are_those_of_the_transform():
    encoding, mean, sd, *_ = problem(1)
    u = torch.randn(2, 3, generator=generator(2), dtype=torch.float64)
    transform = JointFlow()(encoding, mean, sd)
    assert torch.allclose(transform.inv(transform(u)), u)
    whole = torch.autograd.functional.jacobian(lambda flat: transform(flat.reshape(2, 3)).flatten(), u.flatten())
    found = transform.log_abs_det_jacobian(u, transform(u)).sum()
    assert torch.allclose(found, torch.linalg.slogdet(whole)[1])


def test_without_a_correlation_elements_are_told_one_by_one():
    encoding, mean, sd, *_ = problem()
    alone = Encoding(encoding.estimate, encoding.log_precision, encoding.extra)
    eye = Encoding(*list(alone.parts().values()), joint=torch.eye(3, dtype=torch.float64).expand(2, 3, 3))
    assert torch.allclose(eye.combined(mean, sd), alone.combined(mean, sd))


def test_an_observation_about_a_mode_leads_back_to_it_whatever_is_added():
    _, _, sd, mode, information = problem(3)
    slope = mode / sd**2  # what the prior, centred on 0, is held against with
    for least in (0.01, 1.0):
        encoding = Encoding.about(mode, slope, information, least / sd**2, 2)
        assert torch.allclose(encoding.combined(torch.zeros_like(mode), sd), mode)
        assert encoding.extra.shape == (2, 3, 2)


@pytest.mark.parametrize("draws", [1, 5])
def test_parents_may_be_many_draws(draws):
    encoding, mean, sd, *_ = problem()
    spread = sd * torch.linspace(0.5, 2, draws, dtype=torch.float64)[:, None, None]
    transform = JointFlow()(encoding, mean, spread)
    one = JointFlow()(encoding, mean, spread[-1])
    u = torch.randn(draws, 2, 3, generator=generator(4), dtype=torch.float64)
    assert torch.allclose(transform(u)[-1], one(u[-1]))
    assert transform.log_abs_det_jacobian(u, u).shape == (draws, 2)
