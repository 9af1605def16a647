r"""Tail of importance weights: the shape k of a generalised Pareto distribution fitted to the largest of them.

Weights whose tail has shape k have finite moments below order 1/k only. A mean of them is reliable for k below 0.7, and
no number of draws in reach helps above (Vehtari et al. 2024). The fit is the empirical Bayes one of Zhang & Stephens
(2009), drawn a little towards 0.5 where the tail is short, as Vehtari et al. do.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

FEWEST = 5  # weights in a tail, to fit it at all
PRIOR_DRAWS, PRIOR_SHAPE = 10, 0.5  # what the shape is drawn towards, and how many weights that is worth


def pareto_shape(log_weights: Float[Tensor, " draws"]) -> float:
    """Shape k of the upper tail of these weights, given as logarithms; minus infinity where the largest are equal.

    The tail is the largest 3 sqrt(draws) of them, at most a fifth. NaN where that is fewer than five, or a weight is
    not finite.
    """
    S = len(log_weights)
    count = math.ceil(min(0.2 * S, 3 * math.sqrt(S)))
    if count < FEWEST or not bool(log_weights.isfinite().all()):
        return math.nan
    weights = (log_weights.double() - log_weights.max()).exp().sort().values
    excess = weights[-count:] - weights[-count - 1]
    if float(excess[-1]) < 1e-12:
        return -math.inf
    shape = generalised_pareto(excess.clamp_min(1e-300))
    return (count * shape + PRIOR_DRAWS * PRIOR_SHAPE) / (count + PRIOR_DRAWS)


def generalised_pareto(excess: Float[Tensor, " n"]) -> float:
    """Shape of a generalised Pareto distribution from a sorted positive sample (Zhang & Stephens 2009).

    A mean, by their likelihood, over a grid of values of theta = -shape / scale, on a data-dependent prior.
    """
    n = len(excess)
    grid = 30 + math.isqrt(n)
    place = torch.arange(1, grid + 1, dtype=excess.dtype, device=excess.device) - 0.5
    quartile = excess[max(int(n / 4 + 0.5) - 1, 0)]
    theta = 1 / excess[-1] + (1 - (grid / place).sqrt()) / (3 * quartile)
    shape = torch.log1p(-theta[:, None] * excess).mean(1)
    likelihood = n * ((-theta / shape).log() - shape - 1)
    theta = (likelihood.softmax(0) * theta).sum()
    return float(torch.log1p(-theta * excess).mean())
