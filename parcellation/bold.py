"""An opened run: which vertices its files hold, and their series in blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from parcellation.errors import BadData
from parcellation.surfaces import Targets, Vertices

BLOCK_BYTES = 1 << 25  # one block as float32: small beside a run, large beside the cost of a call
EXPECTED = "expected a CIFTI-2 .dtseries.nii or .ptseries.nii, or .mgh, .mgz or .func.gii of both hemispheres"


class Part(Protocol):
    """The part of a run that one file holds."""

    def blocks(self, index: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice into index, series (vertex, time) float32) for increasing positions within the part."""


@dataclass(frozen=True, eq=False)
class Bold:
    """An opened run.

    vertices: the cortical vertices in the order of the file's rows (left file first for pairs).
    frames: number of time points; repetition_time: seconds, nan where neither file nor caller says it.
    parts, sizes: the files' readers and how many of the vertices each of them holds.
    parcels: of a series of parcels, what they are; then each of `vertices` stands for a parcel, and is its first one.
    """

    paths: tuple[Path, ...]
    vertices: Vertices
    frames: int
    repetition_time: float
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]
    parcels: Targets | None = None

    @property
    def where(self) -> str:
        """The file names, as error messages begin."""
        return " + ".join(map(str, self.paths))

    def rows(self, index: np.ndarray, block: int | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice into `index`, series (vertex, time) float32), each vertex once, reading the file once.

        index: strictly increasing positions in `vertices`; block: most vertices at a time (32 MiB of them if unset).
        Values are as stored, scaled as the header says; NaN stays NaN. Raises BadData when the file ends too early.
        """
        index = np.asarray(index, np.int64)
        if len(index) and (np.any(np.diff(index) <= 0) or index[0] < 0 or index[-1] >= len(self.vertices)):
            raise ValueError(f"{self.where}: expected strictly increasing positions below {len(self.vertices)}")
        block = block or max(1, BLOCK_BYTES // (4 * self.frames))
        start = 0
        for part, size in zip(self.parts, self.sizes, strict=True):
            low, high = np.searchsorted(index, [start, start + size])
            for where, series in part.blocks(index[low:high] - start, block):
                yield slice(low + where.start, low + where.stop), series
            start += size


def check_stored(path: Path, vertices: int, frames: int, dtype: np.dtype) -> None:
    """Raise BadData for a header that says of no or negative lengths, or of values that are no real numbers."""
    if vertices < 1 or frames < 1:
        raise BadData(f"{path}: expected vertices and frames, got {vertices} by {frames}; copy it again")
    if dtype.kind not in "iuf":
        raise BadData(f"{path}: expected integers or real numbers, got values of type {dtype}")


def chopped(series: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Series (vertex, time) in memory as a Part yields them."""
    for start in range(0, len(series), block):
        yield slice(start, min(start + block, len(series))), series[start : start + block]
