"""Tails of importance weights: planted shapes come back."""

import math

import pytest
import torch

from parcellation.pareto import generalised_pareto, pareto_shape
from tests.conftest import generator


def generalised(shape: float, count: int, seed: int = 0) -> torch.Tensor:
    """A sorted sample of the generalised Pareto distribution of scale 2."""
    u = torch.rand(count, generator=generator(seed), dtype=torch.float64)
    return (2 * ((1 - u) ** -shape - 1) / shape).sort().values


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.5, 0.9, 1.5])
def test_a_planted_shape_is_found(shape):
    sample = generalised(shape, 4000)
    # Standard error of a maximum likelihood fit: (1 + k) / sqrt(n).
    assert generalised_pareto(sample) == pytest.approx(shape, abs=4 * (1 + shape) / 4000**0.5)
    assert generalised_pareto(5 * sample) == pytest.approx(generalised_pareto(sample), abs=1e-9)  # of any unit


@pytest.mark.parametrize("shape", [0.3, 0.7, 1.2])
def test_the_tail_of_weights_has_their_shape(shape):
    """The largest 213 of 5,000 weights, drawn a little towards 0.5."""
    got = [pareto_shape((1 + generalised(shape, 5000, seed)).log() + 3) for seed in range(8)]
    drawn = (213 * shape + 10 * 0.5) / 223
    assert sum(got) / 8 == pytest.approx(drawn, abs=4 * (1 + shape) / (8 * 213) ** 0.5 + 0.02)


def test_lognormal_weights_pass_or_fail_by_their_spread():
    z = torch.randn(5000, generator=generator(0), dtype=torch.float64)
    assert pareto_shape(0.5 * z) < 0.5
    assert pareto_shape(4 * z) > 0.7


def test_equal_weights_have_no_tail_and_broken_ones_no_shape():
    assert pareto_shape(torch.full((500,), -3e5, dtype=torch.float64)) == -math.inf
    assert math.isnan(pareto_shape(torch.zeros(10, dtype=torch.float64)))
    assert math.isnan(pareto_shape(torch.tensor([0.0] * 99 + [math.nan], dtype=torch.float64)))
