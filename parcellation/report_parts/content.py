"""What a report says, as its caller fills it in; everything else of the report is computed from this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parcellation.figures import Geometry, Stage, shown_whole
from parcellation.label_table import Networks
from parcellation.map_files import Frame
from parcellation.surfaces import Targets

THUMBNAIL = 230  # pixels of a gallery picture
# Where hemispheres are shown whole, up to four views stand beside each other: each is smaller.
WHOLE_THUMBNAIL, WHOLE_SHARE = 80, 0.5
GALLERY_LIMIT = 100  # subjects on one page, about 3 MB; with more, each has a page of its own


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often labels of a stated probability turn out right: a dot a bin.

    confidence, accuracy: means of each bin; count: labels in it; said: a sentence of what was stated of whom, and what
    counts as right; hit: the latter in short, for the axis.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    said: str
    hit: str = "share of labels that are right"

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of stated and true, weighted by count; NaN when empty."""
        total = np.sum(self.count)
        return float(np.sum(self.count * np.abs(self.confidence - self.accuracy)) / total) if total else float("nan")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """How well people are predicted who were not trained on.

    densities: of each group of people by its name, the log predictive density of a value of a person's fingerprints
    given the population, nats; by_networks: columns `networks`, `density`, `less_error` of models of several numbers of
    networks, or None.
    """

    densities: Mapping[str, np.ndarray]
    by_networks: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class ReportContent:
    """What a report is made of; parts that are None are left out, and the page says how to get them.

    summary: paragraphs that say what was done with what data; population and subjects: see `posterior`; participants:
    rows of `derivative.participant`; geometry and relief: see `figures.Stage.of`, None falls back to strips and says
    so; pairs: networks (positions) whose contrast is shown besides; recovery: method -> score name -> number, ours
    first, where the truth is known; reliability: against the truth, and between sessions; retest: rows of named values,
    one a comparison; held_out: see there; gaps: rows of diagnostics/amortization_gap.tsv; anatomy: comparisons with
    areas, each `areas` (with what), `result` (an `anatomy.Agreement`, or None and the `reason`); training_loss: of each
    step; settings: the resolved study; versions: software -> version; citation: how to cite; warnings come first on the
    page, notes last; warned: what steps have warned of, each `step`, `text` and `count`; gallery_limit: subjects on one
    page; picture_width: of a close-up, in pixels.
    """

    title: str
    summary: Sequence[str]
    networks: Networks
    frame: Frame
    targets: Targets
    population: object
    subjects: Sequence
    participants: Sequence[Mapping]
    geometry: Geometry | None = None
    relief: Sequence | None = None
    pairs: Sequence[tuple[int, int]] = ()
    recovery: Mapping[str, Mapping[str, float]] | None = None
    reliability: Sequence[Reliability] = ()
    retest: Sequence[Mapping] | None = None
    held_out: HeldOut | None = None
    gaps: Sequence[Mapping] | None = None
    anatomy: Sequence = ()
    training_loss: np.ndarray | None = None
    settings: Mapping = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    citation: str = ""
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    warned: Sequence = ()
    gallery_limit: int = GALLERY_LIMIT
    picture_width: int = 620

    @property
    def paged(self) -> bool:
        """Whether every subject has a page of its own."""
        return len(self.subjects) > self.gallery_limit

    @property
    def count(self) -> str:
        """Number of subjects, for captions."""
        n = len(self.participants)
        return f"{n:,}".replace(",", " ") + f" subject{'' if n == 1 else 's'}"

    @cached_property
    def stage(self) -> Stage | None:
        """The views of the large pictures, None without a surface."""
        return self._stage(round(self.picture_width * WHOLE_SHARE) if self.whole else self.picture_width)

    @cached_property
    def small_stage(self) -> Stage | None:
        """The views of the gallery's pictures, None without a surface."""
        return self._stage(WHOLE_THUMBNAIL if self.whole else THUMBNAIL)

    def _stage(self, width: int) -> Stage | None:
        return self.geometry and Stage.of(self.geometry, self.frame.region, self.relief, width)

    @property
    def whole(self) -> bool:
        """Whether hemispheres are shown whole, from both sides."""
        return self.geometry is not None and shown_whole(self.geometry, self.frame.region)
