"""Many data sets to train over, so that what is trained serves others too: PAVI-E(sa).

They are drawn from the template's prior, or are cohorts resampled from a real one, in sizes that vary. Each is a
function of nothing but the seed and the step. For the objective to be an evidence lower bound a step takes whole data
sets (`Plan.batch` no less than the largest): small ones teach what large ones need, since encoders know their sizes.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from parcellation.errors import UsageError
from parcellation.plates import Batch, Observed, Template, gaussian_noise, seeded
from parcellation.training import Source, Whole

Covariates = Callable[[Bool[Tensor, "*plates"], torch.Generator], Mapping[str, Tensor]]


@dataclass(frozen=True)
class PriorDataSets:
    """Data sets drawn from the template's prior.

    ranges: for each plate its least and greatest cardinality, log-uniform between them. ragged: plates of which each
    combination of the plates before it has so many members as it draws for itself, the data set's at most. covariates:
    what the template needs to be known, from the mask and a generator; by default nothing. Raises UsageError for ranges
    that are not these.
    """

    template: Template
    ranges: Mapping[str, tuple[int, int]]
    seed: int
    ragged: Collection[str] = ()
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    covariates: Covariates | None = None

    def __post_init__(self):
        plates = self.template.plates
        if set(self.ranges) != set(plates) or not set(self.ragged) <= set(plates[1:]):
            raise UsageError(f"data sets: expected a range of each of {', '.join(plates)}, got {self.identity}")
        if any(not 1 <= low <= high for low, high in self.ranges.values()):
            raise UsageError(f"data sets: expected 1 <= least <= greatest, got {dict(self.ranges)}")

    @property
    def cards(self) -> dict[str, int]:
        """The greatest cardinalities, for a family to be made with."""
        return {plate: self.ranges[plate][1] for plate in self.template.plates}

    @property
    def identity(self) -> str:
        """Template, ranges, ragged plates, seed, and the name of what makes covariates."""
        ranges = {plate: tuple(bounds) for plate, bounds in sorted(self.ranges.items())}
        known = "" if self.covariates is None else f" {self.covariates.__qualname__}"
        return f"{type(self.template).__name__} {ranges} {sorted(self.ragged)} {self.seed}{known}"

    def at(self, step: int) -> Whole:
        """The data set of a step, drawn in float64."""
        return self.drawn(step)[1]

    def drawn(self, step: int) -> tuple[dict[str, Tensor], Whole]:
        """The values of all sites that a step's data set was drawn from, in float64, and the data set."""
        generator, plates = seeded(self.seed, "data set", step), self.template.plates
        sizes = [int(_log_uniform(*self.ranges[plate], (), generator)) for plate in plates]
        mask = self._mask(sizes, generator)
        known = {} if self.covariates is None else self.covariates(mask, generator)
        blank = Observed(torch.zeros(*sizes, 1, dtype=torch.float64), mask, known)
        noise = gaussian_noise(generator, "cpu", torch.float64)
        values = self.template.draw(blank, noise)
        observed = self.template.observations(values, blank, noise)
        return values, Whole(self.template, Batch.full(plates, observed.to(self.device, self.dtype)))

    def _mask(self, sizes: list[int], generator: torch.Generator) -> Bool[Tensor, "*plates"]:
        mask = torch.ones(sizes, dtype=torch.bool)
        for d, plate in enumerate(self.template.plates):
            if plate in self.ragged:
                own = _log_uniform(self.ranges[plate][0], sizes[d], (*sizes[:d], 1), generator)
                there = torch.arange(sizes[d]) < own
                mask &= there.reshape(*there.shape, *[1] * (len(sizes) - d - 1))
        return mask


@dataclass(frozen=True)
class ResampledCohorts:
    """Cohorts of some of a source's members of the outermost plate, each member once, everything below them whole.

    sizes: least and greatest number of members, log-uniform between them; it is the cohort's full cardinality. Raises
    UsageError for more members than there are.
    """

    source: Source
    template: Template
    sizes: tuple[int, int]
    seed: int

    def __post_init__(self):
        count = self.source.cards[self.template.unit_plate]
        if not 1 <= self.sizes[0] <= self.sizes[1] <= count:
            raise UsageError(f"resampled cohorts: expected 1 <= least <= greatest <= {count}, got {self.sizes}")

    @property
    def cards(self) -> dict[str, int]:
        """The greatest cardinalities, for a family to be made with."""
        return {**self.source.cards, self.template.unit_plate: self.sizes[1]}

    @property
    def identity(self) -> str:
        """Sizes and seed; which source it is, is for the caller to say."""
        return f"resampled {tuple(self.sizes)} {self.seed}"

    def at(self, step: int) -> "Cohort":
        """The cohort of a step."""
        generator = seeded(self.seed, "cohort", step)
        size = int(_log_uniform(*self.sizes, (), generator))
        order = torch.randperm(self.source.cards[self.template.unit_plate], generator=generator)
        return Cohort(self.source, self.template.unit_plate, order[:size].sort().values)


@dataclass(frozen=True)
class Cohort:
    """Some members of a source as a source of their own."""

    source: Source
    plate: str
    members: Tensor
    cards: Mapping[str, int] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "cards", {**self.source.cards, self.plate: len(self.members)})

    def batch(self, index: Tensor) -> Batch:
        """The batch of these members, by their position in this cohort."""
        batch = self.source.batch(self.members[index])
        return replace(batch, index={**batch.index, self.plate: index.to(batch.seen.x.device)}, cards=self.cards)


def _log_uniform(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Whole numbers from low to high whose logarithms are spread evenly."""
    share = torch.rand(shape, generator=generator, dtype=torch.float64)
    least, span = math.log(low), math.log(high + 1) - math.log(low)
    return (least + share * span).exp().floor().long().clamp(low, high)
