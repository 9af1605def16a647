r"""One step that improves encodings on the evidence lower bound: Newton's for means, the natural gradient for widths.

A site with a `precision` flow is Gaussian given its parents, and its encoding (m, tau) a noisy observation beside the
prior Normal(mu, s^2):

    mean = mu + w (m - mu),   variance v = s^2 (1 - w),   w = tau s^2 / (1 + tau s^2)

With g = dL/dtheta along a draw theta = mean + delta, the natural gradient of L in (mean / v, 1 / v) is exact where the
model is conjugate, whatever the start (Khan & Lin 2017; with the path gradient it is then without noise as well):

    mean   <-  mean + rate v E[g]
    1 / v  <-  (1 - rate E[g delta]) / v

Both expectations follow from the gradient by the encoding, dL/dm = w E[g] and dL/dlog tau = w (1 - w) (m - mu) E[g] -
w/2 E[g delta], so one backward pass serves every template. What a precision flow has learned to correct is left out of
these derivatives: a step is then a little too long or short, and stops at the same place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parcellation.elbo import objective
from parcellation.encoding import SMALL, Encoding
from parcellation.family import Family
from parcellation.flows import PrecisionFlow
from parcellation.plates import Batch, Noise, Values

LONGEST = 3.0  # posterior sd's that a mean moves in one step: gradients are clipped
STEEPEST = 2.0  # factor that a precision changes by in one step
FARTHEST = 30.0  # prior sd's that an estimate moves in one step, where data say next to nothing
CHUNK = 1 << 22  # observations, times draws, in memory at a time


@dataclass(frozen=True)
class Slope:
    """What one site's draws say about its encoding.

    length: v g / sqrt v, how far the mean is to move, in posterior sd's, shape (draws, *plates, *event); excess:
    E[g delta], the share by which the precision is too large, shaped as log_precision; weight: w; prior_mean, prior_sd:
    mu and s, shape (draws, *plates, *event).
    """

    length: Tensor
    excess: Tensor
    weight: Tensor
    prior_mean: Tensor
    prior_sd: Tensor


@dataclass(frozen=True)
class Rates:
    """Shares of the full step: of what the draws agree on, of what is each draw's own, and of the precision's."""

    shared: float = 1.0
    own: float = 0.0
    precision: float = 1.0


def refinable(family: Family) -> list[str]:
    """Sites of the outermost plate's members that steps can improve: encoded ones with a precision flow."""
    unit = family.template.unit_plate
    sites = [site.name for site in family.template.sites if unit in site.plates and site.name not in family.free]
    return [name for name in sites if isinstance(family.flows[name], PrecisionFlow)]


def slopes(
    family: Family,
    batch: Batch,
    encodings: Mapping[str, Encoding],
    noise: Noise,
    draws: int,
    given: Values | None = None,
    differentiable: bool = False,
    path: bool = True,
) -> dict[str, Slope]:
    """The slope of every refinable site.

    encodings: of all sites that are drawn; an estimate may have a leading dimension of `draws`. given: values of sites
    that are not, (draws, ...) or broadcastable. differentiable: the slopes can be differentiated again. path: by the
    path gradient; its second derivatives lack those of log q, so slopes of a training are taken without.
    """
    names, whole = [name for name in refinable(family) if name not in (given or {})], _held(noise)
    leaves = {name: _leaves(encodings[name], draws, differentiable) for name in names}
    size = draws if differentiable else max(1, CHUNK // batch.scored.mask.numel())
    how = draws, given, differentiable, path
    found: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in names}
    for start in range(0, draws, size):
        part = slice(start, min(start + size, draws))
        for name, one in _part_slopes(family, batch, encodings, leaves, whole, part, *how).items():
            found[name].append(one)
    return {name: _slope(parts, leaves[name][1].shape) for name, parts in found.items()}


def _part_slopes(family, batch, encodings, leaves, noise, part, draws, given, differentiable, path) -> dict:
    """Of some of the draws: g, E[g delta] before it is weighed, w, mu and s of every site."""
    count = part.stop - part.start

    def some(value: Tensor) -> Tensor:
        return value[part] if len(value) == draws > 1 else value

    now = {name: (some(leaf[0]).contiguous() if count < draws else leaf[0], leaf[1]) for name, leaf in leaves.items()}
    trial = dict(encodings) | {
        name: replace(encodings[name], estimate=m, log_precision=t) for name, (m, t) in now.items()
    }
    known = None if given is None else {name: some(value) for name, value in given.items()}
    draw = family.draw(batch, lambda name, shape: noise(name, (draws, *shape[1:]))[part], trial, known, path, (count,))
    bound = objective(family, batch, draw) / family.template.weight((family.template.unit_plate,), batch)
    flat = [tensor for pair in now.values() for tensor in pair]
    gradients = torch.autograd.grad(bound, flat, create_graph=differentiable)
    result = {}
    for number, (name, (m, t)) in enumerate(now.items()):
        mean, sd = family.template.site(name).prior(draw.values, batch.scored)
        if not differentiable:
            m, t, mean, sd = (tensor.detach() for tensor in (m, t, mean, sd))
        by_m, by_t = gradients[2 * number : 2 * number + 2]
        w = (t + 2 * sd.log()).sigmoid().clamp_min(SMALL)
        pull = by_t - ((1 - w) * (m - mean) * by_m).sum_to_size(t.shape)  # -w/2 E[g delta], summed over draws
        result[name] = by_m / w, -2 * pull, *(tensor.expand(by_m.shape) for tensor in (w, mean, sd))
    return result


def _slope(parts: list[tuple[Tensor, ...]], shape: torch.Size) -> Slope:
    g, w, mean, sd = (torch.cat([part[i] for part in parts]) for i in (0, 2, 3, 4))
    excess = sum(part[1] for part in parts) * (shape.numel() / g.numel()) / meaned(w, shape)
    return Slope(g * sd * (1 - w).sqrt(), excess, w, mean, sd)


def moved(encoding: Encoding, slope: Slope, shared: Tensor, own: Tensor | None, precision: Tensor) -> Encoding:
    """The encoding after a move.

    shared, own: of means, in posterior sd's, of all draws alike and of each; precision: the share by which 1 / v falls.
    The mean's step is as long as the new precision makes it.
    """
    told = encoding.log_precision.exp()
    prior = meaned(slope.prior_sd, told.shape).square().reciprocal()
    wanted = ((prior + told) * (1 - precision) - prior).clamp_min(told / STEEPEST)
    log_precision = torch.minimum(wanted, told * STEEPEST).log()
    weight = (log_precision + 2 * slope.prior_sd.log()).sigmoid().clamp_min(SMALL)
    sd = slope.prior_sd * (1 - weight) / (1 - slope.weight).clamp_min(SMALL).sqrt()  # new variance over old sd
    step, farthest = sd / weight, FARTHEST * slope.prior_sd
    kept, middle = slope.weight / weight, slope.prior_mean
    if encoding.estimate.ndim == told.ndim:
        step, farthest, kept, middle = (value.mean(0) for value in (step, farthest, kept, middle))
    move = shared if own is None else shared + own
    move = torch.minimum(torch.maximum(move * step, -farthest), farthest)
    estimate = middle + kept * (encoding.estimate - middle) + move
    return replace(encoding, estimate=estimate, log_precision=log_precision)


def natural_step(encoding: Encoding, slope: Slope, rates: Rates) -> Encoding:
    """The encoding after so much of a natural step; `rates.own` is for estimates that draws have of their own."""
    common = slope.length.mean(0)
    shared = (rates.shared * common).clamp(-LONGEST, LONGEST)
    own = (rates.own * (slope.length - common)).clamp(-LONGEST, LONGEST) if rates.own else None
    excess = slope.excess.clamp(1 - STEEPEST, 1 - 1 / STEEPEST)
    return moved(encoding, slope, shared, own, rates.precision * excess)


def meaned(value: Tensor, shape: torch.Size) -> Tensor:
    """Mean over leading dimensions that `shape` does not have, and over those that are 1 in it."""
    return value.sum_to_size(shape) * (shape.numel() / value.numel())


def _leaves(encoding: Encoding, draws: int, history: bool) -> tuple[Tensor, Tensor]:
    """Estimate a draw and log precision, as something to differentiate by, each alone though both may have one history.

    history: that it is kept.
    """
    shape = torch.broadcast_shapes(encoding.estimate.shape, encoding.log_precision.shape)
    own = encoding.estimate.ndim > encoding.log_precision.ndim
    estimate = encoding.estimate if own else encoding.estimate.expand(draws, *shape)
    both = (estimate, encoding.log_precision)
    return tuple(x.view_as(x) if history and x.requires_grad else x.detach().requires_grad_() for x in both)


def _held(noise: Noise) -> Callable[[str, tuple[int, ...]], Tensor]:
    """The same noise, drawn once a site."""
    known: dict[str, Tensor] = {}

    def once(name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in known:
            known[name] = noise(name, shape)
        return known[name]

    return once


def antithetic(noise: Noise) -> Noise:
    """Half of the draws, and their opposites: what is odd in the noise has no part in a mean."""

    def both(name: str, shape: tuple[int, ...]) -> Tensor:
        half = noise(name, (shape[0] // 2, *shape[1:]))
        return torch.cat([half, -half])

    return both
