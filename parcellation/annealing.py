r"""Annealed importance sampling: the evidence where draws from q are too far from the posterior (Neal 2001).

Everything happens in the space of the standard normal noise u that q makes its draws of, where q itself is Normal(0, I)
and the posterior is proportional to Normal(u; 0, I) w(u), w = p(x, theta(u)) / q(theta(u)). Between them lie

    f_b(u) = Normal(u; 0, I) w(u)^b,   b from 0 to 1,   log W = sum_k (b_k - b_{k-1}) log w(u_k),   E W = p(x)

u_k is moved from u_{k-1} by Hamiltonian dynamics that leave f_b as it is. They are integrated by exact rotations for
the normal part and kicks by b grad log w (Beskos et al. 2011): where q is good the kicks are small, so steps are long
in any number of dimensions. Steps are tuned by a pilot of other chains, so that the estimate of p(x) stays unbiased.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.importance import ImportanceEvidence

LogWeight = Callable[[Tensor], Tensor]
ACCEPTED = 0.8  # share of moves that steps are tuned for
LONGEST = math.pi / 2  # a rotation by this forgets where it started


@dataclass(frozen=True)
class Schedule:
    """How slowly to anneal: distributions from q to the posterior, chains, kicks between them, chains of the pilot."""

    temperatures: int = 120
    chains: int = 48
    kicks: int = 3
    pilot: int = 8


def annealed_evidence(
    log_weight: LogWeight, blank: Float[Tensor, " n"], generator: torch.Generator, schedule: Schedule
) -> ImportanceEvidence:
    """Log evidence by annealing; each chain is one draw of one member.

    log_weight: log w of noise of shape (chains, n), shape (chains,), differentiable; blank: says n, dtype and device.
    """
    _, steps = _anneal(log_weight, blank, generator, schedule, schedule.pilot, None)
    totals, _ = _anneal(log_weight, blank, generator, schedule, schedule.chains, steps)
    return ImportanceEvidence(totals[:, None])


def _anneal(log_weight, blank, generator, schedule: Schedule, chains: int, steps: list | None) -> tuple[Tensor, list]:
    """Log weights of the chains, and the steps taken: tuned on the way where none are given."""
    u = _normal(generator, chains, blank)
    state, tuned, step = (u, *_slope(log_weight, u)), [], 0.5
    total = state[1] / schedule.temperatures
    for k in range(1, schedule.temperatures):
        step = step if steps is None else steps[k - 1]
        state, accepted = _move(log_weight, state, k / schedule.temperatures, step, schedule.kicks, generator)
        total = total + state[1] / schedule.temperatures
        tuned.append(step)
        step = min(LONGEST, step * math.exp(0.5 * (accepted - ACCEPTED)))
    return total, tuned


def _move(log_weight, state: tuple, power: float, step: float, kicks: int, generator) -> tuple[tuple, float]:
    """One Metropolis move of every chain: new (noise, log w, its slope), and the share that was accepted."""
    u = state[0]
    momentum = _normal(generator, len(u), u[0])
    p, new = momentum, state
    cos, sin = math.cos(step), math.sin(step)
    for _ in range(kicks):
        p = p + 0.5 * step * power * new[2]
        position, p = cos * new[0] + sin * p, cos * p - sin * new[0]
        new = (position, *_slope(log_weight, position))
        p = p + 0.5 * step * power * new[2]
    gain = _energy(state, momentum, power) - _energy(new, p, power)
    chance = torch.where(gain.isfinite(), gain.clamp(max=0).exp(), 0.0)
    uniform = torch.rand(len(u), generator=generator, dtype=torch.float64).to(u)
    keep = uniform < chance
    state = tuple(torch.where(keep.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in zip(new, state, strict=True))
    return state, float(chance.mean())


def _energy(state: tuple, momentum: Tensor, power: float) -> Float[Tensor, " chains"]:
    return 0.5 * (state[0].square() + momentum.square()).sum(1) - power * state[1]


def _slope(log_weight: LogWeight, u: Float[Tensor, "chains n"]) -> tuple[Tensor, Tensor]:
    """log w and its gradient; the gradient is 0 where w is not finite, which no move is accepted to."""
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        value = log_weight(u)
        (slope,) = torch.autograd.grad(value.sum(), u)
    return value.detach(), slope.nan_to_num(0.0, 0.0, 0.0)


def _normal(generator: torch.Generator, chains: int, blank: Float[Tensor, " n"]) -> Float[Tensor, "chains n"]:
    return torch.randn(chains, len(blank), generator=generator, dtype=torch.float64).to(blank)
