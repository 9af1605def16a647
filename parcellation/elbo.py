"""The evidence lower bound, and the plate-weighted objective of one training step, which is not one.

    objective = E_q[ sum_i w_i sum_n (log p_i - log q_i) + w_x sum log p(x) ],   w = full / reduced over the plates

An `Elbo` is computed with all data and unit weights only; a `TrainingLoss` comes from a reduced batch. They are
different types, so that one can never be reported as the other.

Three estimators of the gradient differ in variance, not in expectation:

    sgvb_a         every term at the draw, total gradient (Kingma & Welling 2014, estimator A)
    sgvb_b         divergences in closed form given the drawn parents (Kingma & Welling 2014, estimator B)
    path_gradient  the same, gradient through the draw only (Roeder et al. 2017): no variance where q is exact
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import AffineTransform, Normal, kl_divergence

from parcellation.approximation import Approximation
from parcellation.family import Draw, Family
from parcellation.flows import sum_event
from parcellation.plates import Batch, Noise


@dataclass(frozen=True)
class TrainingLoss:
    """Minus the weighted objective of one batch, in nats; `tensor` carries the gradient."""

    tensor: Float[Tensor, ""]


@dataclass(frozen=True)
class Elbo:
    """Evidence lower bound in nats: mean over draws and its Monte-Carlo standard error.

    Raises TypeError for anything but numbers, a training loss or its tensor among it.
    """

    mean: float
    standard_error: float

    def __post_init__(self):
        if not isinstance(self.mean, float) or not isinstance(self.standard_error, float):
            got = ", ".join(type(part).__name__ for part in (self.mean, self.standard_error))
            raise TypeError(f"an ELBO is made by `elbo`, of two floats; got {got}")


Estimator = Callable[[Approximation, Batch, Noise], TrainingLoss]


def path_gradient(family: Approximation, batch: Batch, noise: Noise) -> TrainingLoss:
    """The loss of one step on a batch of reduced cardinality; log q has no gradient but through the draw."""
    return TrainingLoss(-objective(family, batch, family.draw(batch, noise)))


def sgvb_a(family: Approximation, batch: Batch, noise: Noise) -> TrainingLoss:
    """The same loss with its total gradient."""
    return TrainingLoss(-objective(family, batch, family.draw(batch, noise, path=False)))


def sgvb_b(family: Family, batch: Batch, noise: Noise) -> TrainingLoss:
    """The loss with KL(q || p) of a site, given its drawn parents, in closed form.

    Both are Gaussian where the flow is affine, element by element; a site with another flow is sampled, as in `sgvb_a`.
    """
    encodings = family.encodings(batch)
    draw = family.draw(batch, noise, encodings, path=False)
    ratios = log_ratios(family, batch, draw)
    for site in family.template.sites:
        mean, sd = site.prior(draw.values, batch.scored)
        transform = family.flows[site.name](encodings[site.name], mean, sd)
        if isinstance(transform, AffineTransform):
            divergence = kl_divergence(Normal(transform(mean), sd * transform.scale.abs()), Normal(mean, sd))
            divergence = divergence.expand(family.template.shape(site, batch.scored))
            ratios[site.name] = -sum_event(divergence, len(site.event))
    return TrainingLoss(-_weighted(family, batch, draw, ratios))


training_loss: Estimator = path_gradient  # what a study is trained with


def elbo(family: Approximation, batch: Batch, noise: Noise, draws: int = 100) -> Elbo:
    """The evidence lower bound with all data; raises ValueError for a reduced batch, or draws too few for an error."""
    check_whole(batch, "an ELBO")
    if draws < 2:
        raise ValueError(f"an ELBO has a standard error: expected draws >= 2, got {draws}")
    with torch.no_grad():
        encodings = family.encodings(batch)
        totals = torch.stack(
            [objective(family, batch, family.draw(batch, noise, encodings, path=False)) for _ in range(draws)]
        )
    return Elbo(float(totals.mean()), float(totals.std() / draws**0.5))


def check_whole(batch: Batch, what: str) -> None:
    """Raises ValueError for a reduced batch, which `what` cannot be computed from."""
    if batch.index or tuple(batch.scored.mask.shape) != tuple(batch.cards.values()):
        raise ValueError(f"{what} needs the full data: expected {batch.cards}, got {tuple(batch.scored.mask.shape)}")


def log_ratios(family: Approximation, batch: Batch, draw: Draw) -> dict[str, Tensor]:
    """log p - log q of every drawn site, shape (*draws, *plates)."""
    ratios = {}
    for site in family.template.sites:
        if site.name in draw.log_q:
            mean, sd = site.prior(draw.values, batch.scored)
            density = Normal(mean, sd, validate_args=False)  # a look at values would have a GPU wait
            log_p = sum_event(density.log_prob(draw.values[site.name]), len(site.event))
            ratios[site.name] = log_p - draw.log_q[site.name]
    return ratios


def objective(family: Approximation, batch: Batch, draw: Draw) -> Float[Tensor, ""]:
    """log p - log q with every plate's weight, summed over all that is drawn, in nats; given sites have no part."""
    return _weighted(family, batch, draw, log_ratios(family, batch, draw))


def _weighted(family: Approximation, batch: Batch, draw: Draw, ratios: Mapping[str, Tensor]) -> Float[Tensor, ""]:
    template = family.template
    total = template.weight(template.plates, batch) * template.log_likelihood(draw.values, batch.scored).sum()
    for site in (template.site(name) for name in ratios):
        ratio = torch.where(template.present(site, batch), ratios[site.name], 0.0)
        total = total + template.weight(site.plates, batch) * ratio.sum()
    return total
