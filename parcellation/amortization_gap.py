r"""The amortization gap of one member: what it loses by an encoder, and what by the family of approximations.

With everything generative frozen, and the population's sites at a few draws that are the same for every method, for
each draw (Cremer et al. 2018; the hierarchy and PAVI's split are ours):

    log p(x | draw) - ELBO(encoder) = [log p - ELBO(best)] + [ELBO(best) - ELBO(encoder)]
                                       approximation gap      amortization gap = encoder gap + sharing gap

best: the best answer that refinement finds (see `refinement`). What it gains is a *lower bound* of the amortization
gap; that it finds nothing does not show that there is nothing. log p is an importance-weighted estimate, or one by
annealing where that is refused, from the best answer. It is a stochastic lower bound itself, so the approximation gap
is an *estimate* and no bound: unfinished refinement makes it larger, a poor estimate of log p smaller.

Gaps are averaged over the population draws: a log of averaged evidences would count a Jensen gap that is nobody's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.annealing import Schedule, annealed_evidence
from parcellation.elbo import log_ratios
from parcellation.errors import BadData
from parcellation.family import Family
from parcellation.importance import ImportanceEvidence
from parcellation.natural_step import refinable
from parcellation.pareto import pareto_shape
from parcellation.plates import seeded
from parcellation.refinement import (
    Answer,
    Ascent,
    LocalProblem,
    ascent_answer,
    best_answer,
    encoder_answer,
    natural_answer,
    neutral_answer,
    noise_weight,
    refine_encodings,
    refine_flows,
)

FEWEST_EFFECTIVE = 100  # draws that an importance estimate must be worth
WIDEST = 2.0  # sd of log weights above which the estimate rests on draws that nobody has seen
HEAVIEST = 0.7  # Pareto shape above which no number of draws in reach is enough (Vehtari et al. 2024)
NEAR_PRIOR = 1.0  # nats: a site that has learned less than this from the data may just not have been told
CERTAIN = 3.0  # Monte-Carlo errors that a gap must exceed to be one
SEEN = 0.01  # share of labels that flip, or mean change of a probability, that a reader of maps would see
AVERAGED = ("amortization_gap", "encoder_gap", "sharing_gap", "approximation_gap", "log_evidence")
LabelDraws = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Budget:
    """How hard to look: population draws, draws of an evaluation and of a map, importance samples, and the searches:

    gradient ascent, annealing, natural steps.
    """

    population_draws: int = 4
    evaluation: int = 512
    samples: int = 5000
    map_draws: int = 64
    ascent: Ascent = field(default_factory=Ascent)
    schedule: Schedule = field(default_factory=Schedule)
    natural_steps: int = 30


@dataclass(frozen=True)
class Estimate:
    """A number of nats and its Monte-Carlo standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, draws: Float[Tensor, " draws"]) -> "Estimate":
        """The mean of some draws."""
        return cls(float(draws.mean()), float(draws.std() / len(draws) ** 0.5))

    @classmethod
    def average(cls, parts: Sequence["Estimate"]) -> "Estimate":
        """The mean over population draws; its error is theirs or that of their scatter, whichever is larger."""
        values = torch.tensor([part.value for part in parts], dtype=torch.float64)
        within = math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
        between = float(values.std() / len(parts) ** 0.5) if len(parts) > 1 else 0.0
        return cls(float(values.mean()), max(within, between))

    def less(self, other: "Estimate") -> "Estimate":
        """The difference of two independent estimates."""
        return Estimate(self.value - other.value, math.hypot(self.error, other.error))

    @property
    def certain(self) -> bool:
        """Whether it is above zero by more than its error allows."""
        return self.value > CERTAIN * self.error + 1e-9


@dataclass(frozen=True)
class Evidence:
    """log p(x | population draw), nats, by importance weights and, where these are refused, by annealing.

    refused: why the weights cannot be believed, empty where they can; spread: sd of log weights; annealed_spread: that
    of the chains'. log_evidence is None where neither can be believed.
    """

    importance: Estimate
    effective_draws: float
    pareto_k: float
    spread: float
    refused: str
    annealed: Estimate | None
    annealed_spread: float | None
    log_evidence: Estimate | None


@dataclass(frozen=True)
class AtDraw:
    """What is found at one population draw, in nats.

    elbo: of the encoder's answer, and of the best with its encodings, then with encodings and flows, refined; start:
    where the best began; learned: site -> KL(q || prior) of the encoder's and of the best answer.
    """

    start: str
    elbo: Mapping[str, Estimate]
    encoder_gap: Estimate
    sharing_gap: Estimate
    amortization_gap: Estimate
    evidence: Evidence
    approximation_gap: Estimate | None
    learned: Mapping[str, tuple[float, float]]

    @property
    def log_evidence(self) -> Estimate | None:
        """log p(x | population draw), where it is estimable."""
        return self.evidence.log_evidence


@dataclass(frozen=True)
class MapChange:
    """What refinement changes in a map of V vertices: labels that flip, and the change of probabilities."""

    flips: int
    share: float
    mean_change: float
    largest_change: float


@dataclass(frozen=True)
class Diagnosis:
    """A member's gaps at every population draw, and averaged; `observations` is what nats are shared by."""

    draws: tuple[AtDraw, ...]
    observations: int
    changes: MapChange | None

    def average(self, name: str) -> Estimate | None:
        """A gap averaged over the population draws; None where it is not estimable at one of them."""
        parts = [getattr(draw, name) for draw in self.draws]
        return None if any(part is None for part in parts) else Estimate.average(parts)

    @property
    def near_prior(self) -> dict[str, str]:
        """Sites whose posterior is near the prior, and why: what refinement finds tells the two cases apart."""
        gap, verdicts = self.average("amortization_gap"), {}
        for name in self.draws[0].learned:
            before, after = (sum(d.learned[name][i] for d in self.draws) / len(self.draws) for i in (0, 1))
            if before < NEAR_PRIOR:
                missed = gap.certain and after >= max(NEAR_PRIOR, 2 * before)
                verdicts[name] = "the encoder missed it" if missed else "data say nothing"
        return verdicts

    @property
    def flags(self) -> list[str]:
        """What to look at before the member is used: a gap that is certain, and that a reader would see."""
        flags, change = [], self.changes
        seen = change is None or max(change.share, change.mean_change) > SEEN
        if seen and self.average("amortization_gap").certain:
            flags.append("refinement changes the map")
        missed = [name for name, verdict in self.near_prior.items() if verdict == "the encoder missed it"]
        return flags + [f"encoder missed {name}" for name in missed]

    def to_json(self) -> dict:
        """Everything as plain values; a number that is not finite is None."""
        averages = {name: (found := self.average(name)) and asdict(found) for name in AVERAGED}
        return _plain(asdict(self) | {"averages": averages, "near_prior": self.near_prior, "flags": self.flags})


def diagnose_member(
    family: Family,
    problems: Sequence[LocalProblem],
    budget: Budget,
    labels: LabelDraws | None = None,
    given: Sequence[Answer] | None = None,
) -> Diagnosis:
    """Diagnose one member from its local problems, one a population draw.

    given: the answers in use, in the place of the encoder's, where they have been refined.
    labels: label probabilities (draws, V, K) of values of all sites, for a map; None where there are no labels. Raises
    BadData when a bound is not finite.
    """
    found, maps = [], ([], [])
    for problem, answer in zip(problems, given or [None] * len(problems), strict=True):
        encoder, refined, best = answers(family, problem, budget, answer)
        found.append(at_draw(problem, encoder, refined, best, budget))
        if labels is not None:
            for answer, collected in zip((encoder, best), maps, strict=True):
                collected.append(_labels(problem, answer, labels, max(1, budget.map_draws // len(problems))))
    observations = int(problems[0].batch.scored.mask.sum())
    return Diagnosis(tuple(found), observations, map_change(*maps) if labels is not None else None)


def answers(
    family: Family, problem: LocalProblem, budget: Budget, given: Answer | None = None
) -> tuple[Answer, Answer, Answer]:
    """The encoder's answer, or the one given, the best with its encodings refined, and with flows refined as well."""
    encoder = encoder_answer(problem, family) if given is None else given
    neutral, ascended = neutral_answer(problem, encoder), ascent_answer(problem, encoder)
    starts = [start for start in (encoder, ascended) if start is not None]
    refined = [refine_encodings(problem, start, budget.ascent) for start in starts]
    refined += [natural_answer(problem, start, budget.natural_steps) for start in starts if refinable(family)]
    further = replace(budget.ascent, rate=2 * budget.ascent.rate)  # from the prior it is a long way
    refined.append(refine_encodings(problem, neutral, further))
    refined = best_answer(problem, [*starts, *refined], budget.evaluation)
    best = best_answer(problem, [refined, refine_flows(problem, refined, budget.ascent)], budget.evaluation)
    return encoder, refined, best


@torch.no_grad()
def at_draw(problem: LocalProblem, encoder: Answer, refined: Answer, best: Answer, budget: Budget) -> AtDraw:
    """Bounds by common random numbers, the evidence, and the gaps between them."""
    first, second, last = (one.bounds(problem, "evaluate", budget.evaluation) for one in (encoder, refined, best))
    if not bool(torch.stack([first, second, last]).isfinite().all()):
        raise BadData("expected evidence lower bounds of its answers that are finite numbers of nats, got others")
    found = evidence(problem, best, budget)
    bound = Estimate.of(last)
    return AtDraw(
        start=best.start,
        elbo={"encoder": Estimate.of(first), "encodings refined": Estimate.of(second), "flows refined": bound},
        encoder_gap=Estimate.of(second - first),
        sharing_gap=Estimate.of(last - second),
        amortization_gap=Estimate.of(last - first),
        evidence=found,
        approximation_gap=found.log_evidence and found.log_evidence.less(bound),
        learned=_learned(problem, encoder, best, budget.evaluation),
    )


def evidence(problem: LocalProblem, answer: Answer, budget: Budget, always_anneal: bool = False) -> Evidence:
    """log p(x | population draw) from an answer: importance weights, or annealing where these are refused."""
    one = answer.bounds(problem, "importance", budget.samples)
    weights, k = ImportanceEvidence(one[:, None]), pareto_shape(one)
    plain = Estimate(float(weights.log_evidence), float(weights.standard_error))
    effective, spread = float(weights.effective_draws), float(one.std())
    refused = refusal(effective, spread, k)
    annealed = annealed_spread = None
    if refused or always_anneal:
        chains = annealed_evidence(*noise_weight(problem, answer), seeded(*problem.key, "anneal"), budget.schedule)
        annealed = Estimate(float(chains.log_evidence), float(chains.standard_error))
        annealed_spread = float(chains.log_weights.std())
    believed = annealed if refused else plain
    if refused and not (annealed_spread <= WIDEST and math.isfinite(annealed.value)):
        believed = None
    return Evidence(plain, effective, k, spread, refused, annealed, annealed_spread, believed)


def refusal(effective: float, spread: float, pareto_k: float) -> str:
    """Why an importance estimate is not to be believed; empty where it is."""
    if not effective >= FEWEST_EFFECTIVE:
        return f"worth {effective:.0f} draws, fewer than {FEWEST_EFFECTIVE}"
    if not spread <= WIDEST:
        return f"log weights have an sd of {spread:.1f}, above {WIDEST:g}"
    return f"Pareto k is {pareto_k:.2f}, above {HEAVIEST:g}" if not pareto_k <= HEAVIEST else ""


@torch.no_grad()
def _learned(problem: LocalProblem, encoder: Answer, best: Answer, draws: int) -> dict[str, tuple[float, float]]:
    """Divergence of q from the prior conditional, summed over a site's variables, for both answers, in nats."""
    both: list[dict[str, float]] = []
    for answer in (encoder, best):
        family, noise, total = answer.family, problem.noise("evaluate"), {}
        for part in problem.chunks(draws):
            for name, ratio in log_ratios(family, problem.batch, answer.draw(problem, noise, part)).items():
                there = family.template.present(family.template.site(name), problem.batch)
                total[name] = total.get(name, 0.0) - float(torch.where(there, ratio, 0.0).sum()) / draws
        both.append(total)
    return {name: (both[0][name], both[1][name]) for name in both[0]}


@torch.no_grad()
def _labels(problem: LocalProblem, answer: Answer, labels: LabelDraws, draws: int) -> Float[Tensor, "V K"]:
    """Mean label probabilities over draws, which are the same for every answer."""
    noise, total = problem.noise("map"), 0.0
    for part in problem.chunks(draws):
        total = total + labels(answer.draw(problem, noise, part).values).sum(0)
    return total / draws


def map_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> MapChange:
    """What changes between two maps, each given as label probabilities (V, K) at every population draw."""
    one, other = torch.stack(list(before)).mean(0), torch.stack(list(after)).mean(0)
    flips = int((one.argmax(-1) != other.argmax(-1)).sum())
    change = (one - other).abs().sum(-1) / 2  # total variation: with two networks, the change of either
    return MapChange(flips, flips / len(one), float(change.mean()), float(change.max()))


def _plain(content):
    if isinstance(content, Mapping):
        return {name: _plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
