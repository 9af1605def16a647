"""Training: optimise a family on reduced batches; checkpoint, resume, and never lose or repeat a step.

Batches and noise are functions of (seed, step), not of a running state: a resumed training is the uninterrupted one,
bit for bit. Every epoch visits each member of the outermost plate once, in a new order, so that the noise of
subsampling cancels over an epoch instead of adding up.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from parcellation.approximation import Approximation
from parcellation.distributed import ALONE, Team
from parcellation.elbo import Estimator, training_loss
from parcellation.encoders import ENCODERS, concatenate
from parcellation.encoding import Streamed
from parcellation.errors import BadData, Stopped, UsageError
from parcellation.family import Family
from parcellation.optimisers import Adam, Optimiser, RowAdam
from parcellation.plates import Batch, Values, gaussian_noise, seeded
from parcellation.recorded_step import RecordedStep, why_not_recorded
from parcellation.tensor_file import keep_arrays, kept_arrays

log = logging.getLogger(__name__)

WARM_UP = 20  # steps
BETA = 0.95  # large gradients of the first steps must be forgotten within an epoch or two


@runtime_checkable
class Source(Protocol):
    """Where batches come from: the members of a template's outermost plate, by position."""

    cards: Mapping[str, int]

    def batch(self, index: Tensor) -> Batch:
        """The batch of these members of the outermost plate, with everything below them."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A source that reads in the background, and knows how large its members are."""

    def expect(self, index: Tensor) -> None:
        """Begin to read these members: the next batch will be of them."""

    def at_most(self, count: int) -> int:
        """So many members, or fewer where they are large."""


@runtime_checkable
class DataSets(Protocol):
    """Many data sets, one a step: what is trained on them is applied to others (`data_sets` has some).

    identity: says which they are, for a checkpoint to tell one training from another.
    """

    identity: str

    def at(self, step: int) -> Source:
        """The data set of this step, a function of nothing but the step."""


@dataclass(frozen=True)
class Whole:
    """A source over data that are in memory."""

    template: object
    full: Batch

    @property
    def cards(self) -> Mapping[str, int]:
        """Full cardinalities."""
        return self.full.cards

    def batch(self, index: Tensor) -> Batch:
        """The batch of these members."""
        return self.template.reduce(self.full, {self.template.unit_plate: index})


@dataclass(frozen=True)
class Plan:
    """How to optimise: steps, members of the outermost plate a step, members of another plate in the likelihood.

    row_rate: rows of the outermost plate are visited rarely, so they move this many times further at each visit.
    """

    steps: int
    batch: int
    learning_rate: float
    seed: int
    subsample: Mapping[str, int]
    checkpoint_every: int = 100
    row_rate: float = 15.0

    def rate(self, step: int) -> float:
        """Learning rate: a short rise, then half a cosine down to nothing, which averages the last steps' noise out."""
        rise = min(1.0, (step + 1) / WARM_UP)
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def generator(self, *key: int | str) -> torch.Generator:
        """A generator that depends on nothing but the seed and the key."""
        return seeded(self.seed, *key)

    def members(self, step: int, count: int, order: str = "epoch") -> Int[Tensor, " n"]:
        """Positions on the outermost plate for this step; an epoch has all of them once, in nearly equal batches.

        order: epochs by another name have orders of their own.
        """
        parts = -(-count // self.batch)
        epoch, place = divmod(step, parts)
        size, longer = divmod(count, parts)
        start = place * size + min(place, longer)
        return _order(self.seed, order, epoch, count)[start : start + size + (place < longer)].sort().values

    def reduce(self, batch: Batch, step: int, template) -> Batch:
        """Subsample the other plates."""
        index = {}
        for plate, size in self.subsample.items():
            if size < batch.cards[plate]:
                order = torch.randperm(batch.cards[plate], generator=self.generator(plate, step))
                index[plate] = order[:size].sort().values.to(batch.seen.x.device)
        return template.reduce(batch, index) if index else batch


@lru_cache(maxsize=2)  # a step on a large plate must not pay for the whole plate; a bank's visits have another order
def _order(seed: int, name: str, epoch: int, count: int) -> Int[Tensor, " {count}"]:
    return torch.randperm(count, generator=seeded(seed, name, epoch))


def fit(
    family: Approximation,
    source: Source | DataSets,
    plan: Plan,
    checkpoint: Path | None = None,
    identity: str = "",
    progress: Callable[[int, float], None] = lambda step, loss: None,
    stop: Callable[[], bool] = lambda: False,
    estimator: Estimator = training_loss,
    team: Team = ALONE,
) -> np.ndarray:
    """Optimise the family in place; returns the training loss of every step, in nats (not an ELBO).

    checkpoint: file that the state is saved to, and continued from when it is of this plan, estimator and `identity`.
    stop: asked after every step; when it says yes the state is saved and Stopped is raised.
    estimator: of the loss and its gradient, from `elbo`.
    source: of one data set, or of many, for a family without free encodings. A family with a bank also visits as many
    other members a step. team: processes that each call this with the same arguments; the first of them saves.
    Raises BadData, naming the step, when the loss is not finite.
    """
    template, device = family.template, next(family.parameters()).device
    optimisers = _optimisers(family, plan)
    many, bank = isinstance(source, DataSets), isinstance(family, Family) and family.bank is not None
    team.check(family, many or bank)
    if many:
        _check_amortized(family, bank)
        identity = f"{identity} {source.identity}"
    losses, key = [], _key(family, plan, f"{identity} {estimator.__name__}")
    if checkpoint is not None:
        losses = _restore(checkpoint, key, family, optimisers)
    if bank:
        fill_bank(family, source, plan.batch)
    recorded = _recorded(family, estimator, optimisers, device, team, plain=not (many or bank))
    for step in range(len(losses), plan.steps):
        now = source.at(step) if many else source
        count = now.cards[template.unit_plate]
        members = plan.members(step, count)
        share = team.share(members)
        batch = plan.reduce(now.batch(share), step, template)
        if step + 1 < plan.steps and isinstance(now, ReadsAhead):
            now.expect(team.share(plan.members(step + 1, count)))
        if bank:
            family.visit(source.batch(plan.members(step, count, "visit")))
        noise = gaussian_noise(plan.generator("noise", step), device, batch.seen.x.dtype)
        noise = team.noise(noise, template, len(members))
        if recorded is not None:
            total = recorded(batch, noise).item()
        else:
            total = _gradients(estimator(family, batch, noise).tensor, optimisers, team, len(share) / len(members))
        losses.append(_move(total, optimisers, plan.rate(step), step))
        progress(step + 1, losses[-1])
        last, stopping = step + 1 == plan.steps, team.any(stop())
        if checkpoint is not None and (last or stopping or (step + 1) % plan.checkpoint_every == 0):
            if team.rank == 0:
                _save(checkpoint, key, family, optimisers, losses)
            team.wait()  # a process that ends has the others ended
        if stopping and not last:
            raise Stopped(f"training stopped after step {step + 1} of {plan.steps}; the same command continues")
    return np.array(losses)


def _check_amortized(family: Approximation, bank: bool) -> None:
    """Raises UsageError for what belongs to one data set."""
    if family.free:
        raise UsageError(f"training over many data sets: {', '.join(family.free)} have encodings of one data set's own")
    if bank:
        raise UsageError("training over many data sets: a bank of summaries is of one data set")


@torch.no_grad()
def fill_bank(family: Family, source: Source, batch: int) -> None:
    """Visit every member once, so many at a time, unless all have been."""
    if not bool(family.bank.visited.all()):
        for chunk in chunks(source, family.template, batch):
            family.visit(chunk)


def _recorded(family, estimator, optimisers, device: torch.device, team: Team, plain: bool) -> RecordedStep | None:
    """Steps as recordings, where that pays; the log says if not on a GPU."""
    reason = why_not_recorded(device, team.size, any(isinstance(one, RowAdam) for one, _ in optimisers), plain)
    if reason:
        if device.type != "cpu":
            log.info("steps are not recorded: %s", reason)
        return None
    return RecordedStep(family, estimator, [p for optimiser, _ in optimisers for p in optimiser.parameters])


def _gradients(loss: Float[Tensor, ""], optimisers, team: Team, share: float) -> float:
    for optimiser, _ in optimisers:
        optimiser.zero_grad()
    return team.backward(loss, [p for optimiser, _ in optimisers for p in optimiser.parameters], share)


def _move(total: float, optimisers, rate: float, step: int) -> float:
    if not math.isfinite(total):
        raise BadData(f"training: the loss at step {step + 1} is {total}; expected a finite number of nats")
    for optimiser, factor in optimisers:
        optimiser.rate = rate * factor
        optimiser.step()
    return total


def _optimisers(family: Approximation, plan: Plan) -> list[tuple[Optimiser, float]]:
    rows = [free.rows.weight for free in family.free.values() if free.sparse]
    rest = [p for p in family.parameters() if all(p is not row for row in rows)]
    pairs: list[tuple[Optimiser, float]] = [(Adam(rest, plan.learning_rate, (0.9, BETA)), 1.0)]
    if rows:
        pairs.append((RowAdam(rows, plan.learning_rate), plan.row_rate))
    return pairs


def _key(family: Approximation, plan: Plan, identity: str) -> str:
    shapes = {name: list(value.shape) for name, value in family.state_dict().items()}
    content = json.dumps([identity, repr(plan), family.settings, family.cards, shapes], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _save(path: Path, key: str, family: Approximation, optimisers, losses: list[float]) -> None:
    tensors = {f"family.{name}": value for name, value in family.state_dict().items()}
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    for number, (optimiser, _) in enumerate(optimisers):
        for name, value in optimiser.tensors().items():
            tensors[f"optimiser.{number}.{name}"] = value
    keep_arrays(path, {name: value.detach().cpu().numpy() for name, value in tensors.items()}, "key", key)


def _restore(path: Path, key: str, family: Approximation, optimisers) -> list[float]:
    """Continue from a checkpoint of the same training; returns the losses so far, none when there is no such one."""
    if not path.exists():
        return []
    try:
        kept = kept_arrays(path, "key", key)
    except BadData as error:
        raise BadData(f"{path}: not a readable checkpoint ({error}); remove it to start again") from error
    if kept is None:
        log.info("%s is of another training; starting from the beginning", path)
        return []
    tensors = {name: torch.from_numpy(array) for name, array in kept[0].items()}
    family.load_state_dict(
        {name.removeprefix("family."): value for name, value in tensors.items() if name.startswith("family.")}
    )
    for number, (optimiser, _) in enumerate(optimisers):
        prefix = f"optimiser.{number}."
        optimiser.restore({n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)})
    losses = tensors["losses"].tolist()
    log.info("continuing from step %d (%s)", len(losses), path)
    return losses


def chunks(source: Source, template, size: int, limit: int | None = None) -> Iterator[Batch]:
    """Batches that cover the outermost plate once, in order; `limit` members spread evenly over it when given."""
    count = source.cards[template.unit_plate]
    take = count if limit is None else min(limit, count)
    yield from in_parts(source, torch.linspace(0, count - 1, take).round().long(), size)


def in_parts(source: Source, members: Int[Tensor, " n"], size: int) -> Iterator[Batch]:
    """Batches of these members in order, so many or fewer at a time, each read while the one before is looked at."""
    ahead = isinstance(source, ReadsAhead)
    parts = members.split(source.at_most(size) if ahead else size)
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        batch = source.batch(part)
        if ahead and following is not None:
            source.expect(following)
        yield batch


def anchor(
    source: Source, template_plates: tuple[str, ...], networks: int, seed: int, batch: int
) -> Float[Tensor, "{networks} D"]:
    """Reference fingerprints, shape (K, D): k-means (20 starts) on directions of the vertices' averages.

    Vertices are grouped by direction and a network has the mean of its vertices: grouped by the averages themselves,
    weak vertices of all networks are a network of their own. Networks are ordered by their centres' first coordinate
    that differs, so that order does not depend on the starts.
    Raises BadData where vertices are too few, or features are not numbers.
    """
    from sklearn.cluster import KMeans  # here: it takes as long to import as all that inference needs beside PyTorch

    total, weight = 0.0, 0.0
    for seen in (one.seen for one in in_parts(source, torch.arange(source.cards[template_plates[0]]), batch)):
        total = total + seen.x.sum((0, 1), dtype=torch.float64)
        weight = weight + seen.mask.sum((0, 1), dtype=torch.float64)
    seen_vertices = weight > 0
    average = (total[seen_vertices] / weight[seen_vertices, None]).cpu().numpy()
    if len(average) < networks:
        raise BadData(f"training: expected at least {networks} vertices with signal, one a network, got {len(average)}")
    if not (finite := np.isfinite(average).all(-1)).all():
        vertex = int(torch.nonzero(seen_vertices)[int(finite.argmin())])
        raise BadData(f"training: the mean features of vertex {vertex} of the region are not finite numbers")
    direction = average / np.maximum(np.linalg.norm(average, axis=1, keepdims=True), 1e-9)
    member = KMeans(networks, n_init=20, random_state=seed).fit_predict(direction)
    centres = np.stack([average[member == k].mean(0) for k in range(networks)])
    return torch.from_numpy(centres[np.lexsort(centres.T[::-1])])


def warm_start(family: Family, source: Source, batch: int, passes: int = 8, subjects: int = 64) -> Values:
    """Set free encodings to a coordinate-ascent answer, the population's from a sample of the subjects.

    Only for templates whose encoder can read the population off the data (`network_pooling`); training then polishes an
    answer that is nearly right instead of looking for one. Returns the population's values, from which an encoded
    population settles soon.
    """
    template = family.template
    encoder = ENCODERS[template.encoder](template, template.sites)
    centre, population = None, {}
    for _ in range(passes):
        sums: dict[str, Tensor] = {}
        for chunk in chunks(source, template, batch, subjects):
            centre = encoder.start(chunk.seen) if centre is None else centre
            one = encoder.statistics(encoder.summarise(chunk.seen, centre), chunk.seen)
            sums = {name: sums.get(name, 0) + value for name, value in one.items()}
        population = encoder.population(sums, source.cards[template.unit_plate])
        centre = encoder.centre(population, chunk.seen)
    rows = {name for name, free in family.free.items() if name not in population}
    parts = []
    for chunk in chunks(source, template, batch) if rows else ():
        seen = population | encoder.subject_encodings(encoder.summarise(chunk.seen, centre))
        parts.append(family.answers({site.name: seen[site.name] for site in template.sites}, chunk.seen))
    for name, free in family.free.items():
        free.set(population[name] if name in population else concatenate([part[name] for part in parts]))
    return centre


@torch.no_grad()
def settle_population(family: Family, source: Source, batch: int, start: Values | None = None) -> None:
    """Fix the encoded population sites at their encoding of all training subjects, as part of the model.

    Before a training it makes the objective a true bound: else every batch has a population of its own, and subjects
    and flows are trained about one that is not the whole cohort's. This only holds for an encoder without weights.
    start: population values to begin with, where the encoder goes through the cohort several times.
    """
    names = [site.name for site in family.template.population_sites() if site.name not in family.free]
    if names:
        batches = Streamed(lambda: chunks(source, family.template, batch))
        family.fixed = family.encoder.population_of(batches, source.cards, names, start)
