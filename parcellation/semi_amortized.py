"""Semi-amortized inference: an encoder's answer is a start, which a few steps for this member alone improve.

After Kim et al. (2018). *At test time* the population is frozen at the draws that a posterior is made with. Each has an
estimate of its own, since what a member's data say depends a little on the population they are seen against, and all
share a precision. Two steps visit one half of the draws and the next two the other, which goes along with the first
on average; noise comes in pairs of opposite signs, a step after the other, so that what is odd in it does not move a
mean, and precisions move in the first of a pair only, when estimates do not know
the noise yet. The answer that is worse on draws of its own is not used: the encoder's is the worst there is.

*In training* (`semi_amortized`) the loss is that of the encodings after the steps:

    full          differentiated through the steps, second derivatives included (Kim et al.)
    first order   steps are constants: cheaper, and the encoder and what its steps depend on do not know of each other

Gradients are clipped twice: a step is never longer than some posterior standard deviations (`natural_step`), and what
comes back through a step is never larger than what came back to the answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.elbo import Estimator, TrainingLoss, objective
from parcellation.encoding import Encoding
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.importance import log_weights
from parcellation.natural_step import Rates, Slope, antithetic, natural_step, refinable, slopes
from parcellation.plates import Batch, Noise, Values

Rule = Callable[[str, int, Encoding, Slope], Encoding]  # site, step, encoding, slope -> the next encoding
INNER_DRAWS = 2  # of a step within training: a pair of opposite noise


def pair_rates(step: int) -> Rates:
    """Shares of a step whose noise is that of the step before with its sign changed, or new in even steps."""
    return Rates(1 / (1 + 0.3 * step), 1 / (2 + step / 2), 2 / (4 + step) if step % 2 == 0 else 0.0)


def plain_rates(step: int) -> Rates:
    """Shares of a step whose draws come in pairs of opposite noise."""
    return Rates(1 / (1 + 0.3 * step), 0.0, 1 / (4 + step))


def natural_rule(name: str, step: int, encoding: Encoding, slope: Slope) -> Encoding:
    """What is done by default: a natural step."""
    return natural_step(encoding, slope, pair_rates(step))


def check_refinable(family: Family) -> None:
    """Refuse a family of which no site of a member can be refined; raises UsageError."""
    if not refinable(family):
        unit = family.template.unit_plate
        flows = {s.name: type(family.flows[s.name]).__name__ for s in family.template.sites if unit in s.plates}
        raise UsageError(
            f"refine: expected a {unit}'s sites encoded and with precision flows, which steps are known for, got "
            f"{', '.join(f'{name}: {flow}' for name, flow in flows.items()) or 'no such sites'}; use --refine 0"
        )


def refine(
    family: Family,
    batch: Batch,
    encodings: Mapping[str, Encoding],
    population: Values,
    noise: Callable[..., Noise],
    steps: int,
    rule: Rule = natural_rule,
) -> dict[str, Encoding]:
    """Encodings of one member after some steps, or the given ones where these are better; no gradient.

    encodings: of the member's sites; population: draws of the other sites, (draws, ...), which estimates get a leading
    dimension for. noise: of a purpose, in words and numbers.
    """
    draws = len(next(iter(population.values())))
    start = {name: one.detach() for name, one in encodings.items() if name not in population}
    own = [name for name in refinable(family) if name in start]
    found = start | {name: own_estimates(start[name], draws) for name in own}
    for step in range(steps):
        part = slice(step // 2 % 2, None, 2) if draws > 1 else slice(None)
        some = {name: value[part] for name, value in population.items()}
        seen = {name: one if name not in own else _visited(one, part) for name, one in found.items()}
        drawn = partial(_signed, noise("refine", step // 2), 1 - 2 * (step % 2))
        with torch.enable_grad():
            slope = slopes(family, batch, seen, drawn, len(next(iter(some.values()))), some)
        found |= {name: _merged(found[name], part, rule(name, step, seen[name], slope[name])) for name in own}
    before, after = (bounds(family, batch, one, population, noise("choose"), draws) for one in (start, found))
    return found if float((after - before).mean()) >= 0 else start


@torch.no_grad()
def bounds(
    family: Family, batch: Batch, encodings: Mapping[str, Encoding], population: Values, noise: Noise, draws: int
) -> Float[Tensor, " draws"]:
    """log p(x, theta | population draw) - log q(theta), one draw of the member's sites at each of the population's."""
    draw = family.draw(batch, noise, encodings, population, path=False, draws=(draws,))
    return log_weights(family, batch, draw, 1)[:, 0]


def semi_amortized(steps: int, first_order: bool = False) -> Estimator:
    """The loss of a training step after so many steps of refinement of the batch's members, population drawn with them.

    first_order: the approximation that takes what a step adds as a constant.
    """

    def estimator(family: Family, batch: Batch, noise: Noise) -> TrainingLoss:
        encodings, limits = family.encodings(batch), {}
        for step in range(steps):
            pair = antithetic(noise)
            slope = slopes(family, batch, encodings, pair, INNER_DRAWS, differentiable=not first_order, path=False)
            for name, one in slope.items():
                encodings[name] = _clipped(natural_step(encodings[name], one, plain_rates(step)), name, limits)
        return TrainingLoss(-objective(family, batch, family.draw(batch, noise, encodings)))

    estimator.__name__ = f"semi_amortized {steps} {'first_order' if first_order else 'full'}"  # what a checkpoint is of
    return estimator


def _visited(encoding: Encoding, part: slice) -> Encoding:
    return replace(encoding, estimate=encoding.estimate[part])


def _merged(before: Encoding, part: slice, after: Encoding) -> Encoding:
    """All draws' encoding after a step of some of them: the others' estimates move as these do on average."""
    change = after.estimate - before.estimate[part]
    estimate = before.estimate + change.mean(0)
    estimate[part] = after.estimate
    return replace(after, estimate=estimate)


def at_draw(encodings: Mapping[str, Encoding], number: int) -> dict[str, Encoding]:
    """Refined encodings at one of the population draws."""

    def one(encoding: Encoding) -> Encoding:
        own = encoding.estimate.ndim > encoding.log_precision.ndim
        return replace(encoding, estimate=encoding.estimate[number]) if own else encoding

    return {name: one(encoding) for name, encoding in encodings.items()}


def own_estimates(encoding: Encoding, draws: int) -> Encoding:
    """The encoding with an estimate a draw, equal ones at first."""
    shape = torch.broadcast_shapes(encoding.estimate.shape, encoding.log_precision.shape)
    return replace(encoding, estimate=encoding.estimate.expand(draws, *shape))


def _signed(noise: Noise, sign: int, name: str, shape: tuple[int, ...]) -> Tensor:
    return sign * noise(name, shape)


def _clipped(encoding: Encoding, name: str, limits: dict) -> Encoding:
    """The encoding, whose gradient is scaled down to the norm of the first that comes back, which is the answer's."""

    def scaled(part: str, gradient: Tensor) -> Tensor:
        norm = gradient.norm()
        limit = limits.setdefault((name, part), norm.detach())
        return gradient * (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)

    for part in ("estimate", "log_precision"):
        tensor = getattr(encoding, part)
        if tensor.requires_grad:
            tensor.register_hook(partial(scaled, part))
    return encoding
