"""The evidence lower bound, and the plate-weighted objective of one training step, which is not one.

    objective = E_q[ sum_i w_i sum_n (log p_i - log q_i) + w_x sum log p(x) ],   w = full / reduced over the plates

An `Elbo` is computed with all data and unit weights only; a `TrainingLoss` comes from a reduced batch. They are
different types, so that one can never be reported as the other.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from parcellation.family import Draw, Family
from parcellation.plates import Batch, Noise


@dataclass(frozen=True)
class TrainingLoss:
    """Minus the weighted objective of one batch, in nats; `tensor` carries the gradient."""

    tensor: Float[Tensor, ""]


@dataclass(frozen=True)
class Elbo:
    """Evidence lower bound in nats: mean over draws and its Monte-Carlo standard error."""

    mean: float
    standard_error: float


def training_loss(family: Family, batch: Batch, noise: Noise, path: bool = True) -> TrainingLoss:
    """The loss of one step on a batch of reduced cardinality, by the path gradient unless `path` is False."""
    draw = family.draw(batch, noise, path=path)
    return TrainingLoss(-_objective(family, batch, draw))


def elbo(family: Family, batch: Batch, noise: Noise, draws: int = 100) -> Elbo:
    """The evidence lower bound with all data; raises ValueError for a reduced batch."""
    if batch.index or tuple(batch.scored.mask.shape) != tuple(batch.cards.values()):
        raise ValueError(f"an ELBO needs the full data: expected {batch.cards}, got {tuple(batch.scored.mask.shape)}")
    with torch.no_grad():
        encodings = family.encodings(batch)
        totals = torch.stack(
            [_objective(family, batch, family.draw(batch, noise, encodings, path=False)) for _ in range(draws)]
        )
    return Elbo(float(totals.mean()), float(totals.std() / draws**0.5))


def _objective(family: Family, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
    template = family.template
    weight = template.weight(template.plates, batch)
    total = weight * template.log_likelihood(draw.values, batch.scored).sum()
    for site in template.sites:
        mean, sd = site.prior(draw.values, batch.scored)
        log_p = Normal(mean, sd).log_prob(draw.values[site.name])
        if site.event:
            log_p = log_p.sum(tuple(range(-len(site.event), 0)))
        present = template.present(site, batch)
        ratio = torch.where(present, log_p - draw.log_q[site.name], 0.0)
        total = total + template.weight(site.plates, batch) * ratio.sum()
    return total
