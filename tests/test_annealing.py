"""Annealed importance sampling against evidences in closed form."""

import math

import pytest
import torch

from parcellation.annealing import Schedule, annealed_evidence
from parcellation.importance import ImportanceEvidence
from tests.conftest import generator

QUICK = Schedule(temperatures=60, chains=32, kicks=2, pilot=4)


def blank(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.float64)


def gaussian(n: int, shift: float, sd: float):
    """log of Normal(u; shift, sd^2) / Normal(u; 0, 1) times e^7: the evidence is e^7 whatever the distance."""

    def log_weight(u):
        far, near = ((u - shift) / sd).square().sum(1), u.square().sum(1)
        return 7 - 0.5 * (far - near) - u.shape[1] * math.log(sd)

    return log_weight


@pytest.mark.parametrize(("n", "shift", "sd"), [(2, 1.0, 0.5), (300, 0.3, 0.9), (600, 0.0, 1.15)])
def test_known_evidence(n, shift, sd):
    """In 300 dimensions the posterior is five standard deviations away; in 600 q is too narrow, which weights hate."""
    got = annealed_evidence(gaussian(n, shift, sd), blank(n), generator(1), QUICK)
    assert got.log_weights.shape == (32, 1)
    error = float(got.standard_error)
    assert error < 0.4
    assert float(got.log_evidence) == pytest.approx(7, abs=4 * error)


def test_it_is_right_where_plain_weights_are_not():
    log_weight, n = gaussian(600, 0.0, 1.15), 600
    u = torch.randn(5000, n, generator=generator(0), dtype=torch.float64)
    plain = ImportanceEvidence(log_weight(u)[:, None])
    annealed = annealed_evidence(log_weight, blank(n), generator(1), QUICK)
    assert abs(float(annealed.log_evidence) - 7) < 0.5 * abs(float(plain.log_evidence) - 7)


def test_an_exact_answer_gives_the_evidence_without_error():
    got = annealed_evidence(lambda u: -5 + 0 * u.sum(1), blank(3), generator(0), Schedule(5, 4, 1, 2))
    assert torch.allclose(got.log_weights, torch.full((4, 1), -5.0, dtype=torch.float64))


def test_equal_seeds_give_equal_estimates_and_more_temperatures_smaller_errors():
    one, other, more = (
        annealed_evidence(gaussian(40, 0.5, 0.7), blank(40), generator(3), Schedule(temperatures, 24, 1, 4))
        for temperatures in (8, 8, 80)
    )
    assert torch.equal(one.log_weights, other.log_weights)
    assert float(more.log_weights.std()) < 0.6 * float(one.log_weights.std())


def test_a_wall_is_never_crossed():
    """The posterior is Normal(0, 1) where the first coordinate is positive: half of it."""

    def log_weight(u):
        return torch.where(u[:, 0] > 0, 0.0, -60.0) + 0 * u.sum(1)

    got = annealed_evidence(log_weight, blank(2), generator(0), Schedule(80, 400, 2, 8))
    assert float(got.log_evidence) == pytest.approx(math.log(0.5), abs=4 * float(got.standard_error))
