"""Refinement: the variational parameters of one member of the outermost plate, improved for this member alone.

A *local problem* is one member's whole data and one draw of the population's sites, which is frozen: what is to be
approximated is p(the member's sites | its data, the population draw), whose evidence is p(data | population draw). An
answer to it is q of the member's sites: flows and encodings. The encoder's answer is one; others start from the prior,
or from closed-form coordinate ascent; each can be improved by gradient ascent on the evidence lower bound,

    encodings alone, the flows frozen        what the encoder has missed
    encodings and the flows of this member   what sharing flows with all others costs (PAVI)

with the path gradient, by Adam, whose steps are bounded, over noise that is the same for every answer. Encodings of the
usual flows are also improved by natural steps, which end closer.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.encoding import Encoding
from parcellation.family import Draw, Family
from parcellation.importance import log_weights
from parcellation.natural_step import Rates, antithetic, natural_step, slopes
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Batch, Noise, Observed, Site, Values, gaussian_noise, seeded

SWEEPS = 30  # of coordinate ascent: what more of them change is far below a nat
BETAS = (0.8, 0.9)  # gradients have little noise near an optimum, and a long memory swings about it
NATURAL_DRAWS = 32  # of a natural step
CHUNK = 1 << 21  # observations, times draws, in memory at a time
FARTHEST = 30.0  # prior sd's: the longest unit that an estimate moves in, where data say next to nothing


@dataclass(frozen=True)
class LocalProblem:
    """One member's data, one draw of the population, shape (*plates, *event), and noise by what it is for.

    Equal arguments of `noise` give equal noise: answers are compared, and improved, by common random numbers. key: what
    other random numbers depend on.
    """

    batch: Batch
    population: Values
    noise: Callable[..., Noise]
    key: tuple[int | str, ...] = ()

    @classmethod
    def seeded(cls, plates: tuple[str, ...], observed: Observed, population: Values, *key: int | str) -> "LocalProblem":
        """The problem of the only member that is observed, with normal noise that depends on nothing but the key."""
        x = observed.x

        def noise(*purpose: int | str) -> Noise:
            return gaussian_noise(seeded(*key, *purpose), x.device, x.dtype)

        return cls(Batch.full(plates, observed), population, noise, key)

    def sites(self, family: Family) -> list[Site]:
        """The member's own sites, parents first."""
        return [site for site in family.template.sites if site.name not in self.population]

    def chunks(self, draws: int) -> list[int]:
        """So many draws in parts that fit into memory."""
        size = max(1, CHUNK // self.batch.scored.mask.numel())
        return [min(size, draws - start) for start in range(0, draws, size)]


@dataclass(frozen=True)
class Answer:
    """q of the member's sites: a family for its flows, and an encoding a site; `start` says where it began."""

    family: Family
    encodings: Mapping[str, Encoding]
    start: str

    def log_weights(self, problem: LocalProblem, noise: Noise, draws: int, path: bool = False) -> Tensor:
        """log p(x, theta) - log q(theta) of draws, shape (draws,): their mean is the evidence lower bound, in nats.

        path: with the path gradient (see `Family.draw`).
        """
        draw = self.draw(problem, noise, draws, path)
        return log_weights(self.family, problem.batch, draw, 1)[:, 0]

    def draw(self, problem: LocalProblem, noise: Noise, draws: int, path: bool = False) -> Draw:
        """Values of all sites, and log densities of the member's own."""
        return self.family.draw(problem.batch, noise, self.encodings, problem.population, path, (draws,))

    @torch.no_grad()
    def bounds(self, problem: LocalProblem, purpose: str, draws: int) -> Float[Tensor, " draws"]:
        """`log_weights` of many draws, by the noise for this purpose."""
        noise = problem.noise(purpose)
        return torch.cat([self.log_weights(problem, noise, part) for part in problem.chunks(draws)])


@dataclass(frozen=True)
class Ascent:
    """Gradient ascent: steps, draws a step, and rates, which fall to nothing by half a cosine.

    rate: in posterior sd's for an estimate, in logarithms for a precision; flow_rate: of a flow's weights.
    """

    steps: int = 100
    draws: int = 8
    rate: float = 0.2
    flow_rate: float = 0.01


@torch.no_grad()
def encoder_answer(problem: LocalProblem, family: Family) -> Answer:
    """What inference without refinement gives."""
    encodings = family.encodings(problem.batch)
    return Answer(family, {site.name: encodings[site.name].detach() for site in problem.sites(family)}, "encoder")


@torch.no_grad()
def neutral_answer(problem: LocalProblem, answer: Answer) -> Answer:
    """A start at the prior: an observation of each site's prior mean, as precise as the prior itself.

    Less precise, it would leave the ascent without a slope to follow.
    """
    values, encodings = dict(problem.population), {}
    for site in problem.sites(answer.family):
        mean, sd = site.prior(values, problem.batch.scored)
        values[site.name] = mean.expand(answer.family.template.shape(site, problem.batch.scored))
        log_precision = (-2 * sd.log()).expand(values[site.name].shape)
        neutral = replace(answer.encodings[site.name], estimate=values[site.name], log_precision=log_precision)
        encodings[site.name] = neutral
    return Answer(answer.family, encodings, "prior")


@torch.no_grad()
def ascent_answer(problem: LocalProblem, answer: Answer, sweeps: int = SWEEPS) -> Answer | None:
    """A start from coordinate ascent in closed form at the population draw; None for encoders without one."""
    family, encoder = answer.family, answer.family.encoder
    if not isinstance(encoder, NetworkPooling):
        return None
    pooling = type(encoder)(family.template, problem.sites(family), passes=sweeps)
    found = pooling.subject_encodings(pooling.summarise(problem.batch.seen, problem.population))
    encodings = {
        name: replace(
            old, estimate=found[name].estimate, log_precision=found[name].log_precision, joint=found[name].joint
        )
        for name, old in answer.encodings.items()
    }
    return Answer(family, encodings, "coordinate ascent")


@torch.no_grad()
def natural_answer(problem: LocalProblem, answer: Answer, steps: int, draws: int = NATURAL_DRAWS) -> Answer:
    """The answer with better encodings by natural steps (see `natural_step`), and the same flows."""
    encodings = dict(answer.encodings)
    for step in range(steps):
        noise = antithetic(problem.noise("natural", step))
        with torch.enable_grad():
            slope = slopes(answer.family, problem.batch, encodings, noise, draws, problem.population)
        rates = Rates(1 / (1 + 0.3 * step), precision=1 / (2 + step))
        encodings |= {name: natural_step(encodings[name], one, rates) for name, one in slope.items()}
    return replace(answer, encodings=encodings)


def refine_encodings(problem: LocalProblem, answer: Answer, ascent: Ascent) -> Answer:
    """The answer with better encodings, and the same flows."""
    return _legs(problem, answer, ascent, [])


def refine_flows(problem: LocalProblem, answer: Answer, ascent: Ascent) -> Answer:
    """The answer with better encodings and better flows, which are this member's own."""
    family, names = own_flows(answer.family), [site.name for site in problem.sites(answer.family)]
    weights = [weight for name in names for weight in family.flows[name].parameters()]
    return _legs(problem, replace(answer, family=family), ascent, weights)


def own_flows(family: Family) -> Family:
    """The family with flows of its own; everything else is shared with the given one."""
    shared = (family.template, family.free, family.encoder, family.bank, family.generative)
    return copy.deepcopy(family, {id(part): part for part in shared if part is not None})


def best_answer(problem: LocalProblem, answers: Sequence[Answer], draws: int) -> Answer:
    """The answer with the greatest lower bound, on draws that nothing else is measured with; the first of equals."""
    bounds = [float(one.bounds(problem, "choose", draws).mean()) for one in answers]
    return max(zip(bounds, answers, strict=True), key=lambda pair: pair[0] if math.isfinite(pair[0]) else -math.inf)[1]


def noise_weight(problem: LocalProblem, answer: Answer) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, " n"]]:
    """log w as a function of the noise that all sites are drawn from, shape (draws, n) -> (draws,), and noise 0."""
    template, scored = answer.family.template, problem.batch.scored
    shapes = {site.name: template.shape(site, scored) for site in problem.sites(answer.family)}
    sizes = [math.prod(shape) for shape in shapes.values()]

    def log_weight(u: Float[Tensor, "draws n"]) -> Float[Tensor, " draws"]:
        parts = dict(zip(shapes, u.split(sizes, 1), strict=True))
        return answer.log_weights(problem, lambda name, shape: parts[name].reshape(shape), len(u))

    return log_weight, scored.x.new_zeros(sum(sizes))


def _movable(problem: LocalProblem, answer: Answer) -> tuple[list[Tensor], Callable[[], dict[str, Encoding]]]:
    """Parameters that are 0 at the answer's encodings, and the encodings that they stand for.

    Every element has an estimate and a precision of its own, as rows of free encodings do.
    """
    units, moves = _units(problem, answer), {}
    for name, unit in units.items():
        moves[name] = torch.zeros_like(unit).requires_grad_(), torch.zeros_like(unit).requires_grad_()

    def encodings() -> dict[str, Encoding]:
        return {
            name: replace(
                old,
                estimate=old.estimate + units[name] * moves[name][0],
                log_precision=old.log_precision + moves[name][1],
            )
            for name, old in answer.encodings.items()
        }

    return [move for pair in moves.values() for move in pair], encodings


def _units(problem: LocalProblem, answer: Answer) -> dict[str, Tensor]:
    """How far an estimate has to move for its variable to move by one posterior sd, shape (*plates, *event)."""
    values, units, scored = dict(problem.population), {}, problem.batch.scored
    for site in problem.sites(answer.family):
        mean, sd = site.prior(values, scored)
        encoding, shape = answer.encodings[site.name], answer.family.template.shape(site, scored)
        estimate = encoding.estimate.expand(shape).clone().requires_grad_()
        transform = answer.family.flows[site.name](replace(encoding, estimate=estimate), mean, sd)
        middle = transform(mean.expand(shape))
        (slope,) = torch.autograd.grad(middle.sum(), estimate)
        with torch.no_grad():
            width = (transform((mean + sd).expand(shape)) - middle).abs()
            units[site.name] = torch.minimum((width / slope.abs()).nan_to_num(torch.inf), FARTHEST * sd.expand(shape))
        values[site.name] = middle.detach()
    return units


def _legs(problem: LocalProblem, answer: Answer, ascent: Ascent, weights: list[Tensor]) -> Answer:
    """Ascent in two legs: the first may have made the posterior much narrower, and steps are in its sd's."""
    for first in (0, ascent.steps // 2):
        moves, encodings = _movable(problem, answer)
        groups = [(moves, ascent.rate), (weights, ascent.flow_rate)] if weights else [(moves, ascent.rate)]
        steps = range(first, ascent.steps if first else max(1, ascent.steps // 2))
        answer = _ascend(problem, ascent.draws, steps, groups, partial(_with, answer, encodings))
    return answer


def _with(answer: Answer, encodings: Callable[[], dict[str, Encoding]]) -> Answer:
    return replace(answer, encodings=encodings())


def _ascend(problem: LocalProblem, draws: int, steps: range, groups: list, current: Callable[[], Answer]) -> Answer:
    """Maximise the lower bound over groups of parameters with their rates; stops where it is not finite any more."""
    parameters = [parameter for group, _ in groups for parameter in group]
    optimiser = torch.optim.Adam([{"params": group, "lr": rate} for group, rate in groups], betas=BETAS)
    for step in steps:
        bound = current().log_weights(problem, problem.noise("refine", step), draws, path=True).mean()
        gradients = torch.autograd.grad(bound, parameters, allow_unused=True)
        if not all(bool(one.isfinite().all()) for one in gradients if one is not None):
            break
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else -gradient
        for group, (_, rate) in zip(optimiser.param_groups, groups, strict=True):
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * (step - steps.start) / len(steps)))
        optimiser.step()
    answer = current()
    return replace(answer, encodings={name: one.detach() for name, one in answer.encodings.items()})
