"""BOLD series of one hemisphere a file: MGH, MGZ and GIFTI, of which a run has a left and a right one."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.freesurfer.mghformat import MGHHeader
from nibabel.openers import ImageOpener

from parcellation.bold import EXPECTED, Bold, Part, check_stored, chopped
from parcellation.errors import BadData
from parcellation.gifti import load_gifti
from parcellation.meshes import mesh_of
from parcellation.reading import check_size, first_bytes, parsed
from parcellation.surfaces import Vertices

SIDES = ("left", "right")
MOST_RATIO = 1032  # gzip cannot shrink anything more than that
NO_SERIES = ("NIFTI_INTENT_LABEL", "NIFTI_INTENT_POINTSET", "NIFTI_INTENT_TRIANGLE")


@dataclass(frozen=True, eq=False)
class _MghPart:
    """One hemisphere in MGH: on disk frame after frame, so the series of all vertices asked for are gathered first."""

    path: Path
    count: int
    frames: int
    offset: int
    dtype: np.dtype

    def blocks(self, index: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """See Part."""
        series = np.empty((len(index), self.frames), np.float32)
        try:
            with ImageOpener(self.path) as file, np.errstate(over="ignore", invalid="ignore"):
                file.seek(self.offset)
                for time in range(self.frames):
                    frame = np.frombuffer(file.read(self.count * self.dtype.itemsize), self.dtype, self.count)
                    series[:, time] = frame[index]
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise BadData(f"{self.path}: ends before its {self.frames} frames; truncated, copy it again") from error
        yield from chopped(series, block)


@dataclass(frozen=True, eq=False)
class _GiftiPart:
    """One hemisphere in GIFTI, held in memory as (time, vertex)."""

    values: np.ndarray

    def blocks(self, index: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """See Part."""
        yield from chopped(np.ascontiguousarray(self.values[:, index].T), block)


def open_pair(paths: tuple[Path | None, Path | None], space: str | None) -> Bold:
    """Open the left and the right file of one run; a hemisphere that is None has no vertices."""
    opened = [(side, path, *_open_hemisphere(path, side)) for side, path in enumerate(paths) if path]
    where = " + ".join(str(path) for path in paths if path)
    frames, times = ({entry[column] for entry in opened} for column in (4, 5))
    if len(frames) > 1:
        raise BadData(f"{where}: hemispheres of different lengths, {opened[0][4]} and {opened[1][4]} frames")
    known = {time for time in times if not math.isnan(time)}
    if len(known) > 1:
        raise BadData(f"{where}: hemispheres of different repetition times, {' and '.join(map(str, known))} s")
    counts = [entry[3] for entry in opened]
    mesh = mesh_of((counts[0], counts[-1]), space, where)
    hemisphere = np.repeat(np.array([entry[0] for entry in opened], np.uint8), counts)
    number = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    files, parts = tuple(entry[1] for entry in opened), tuple(entry[2] for entry in opened)
    return Bold(
        files, Vertices(mesh, hemisphere, number), frames.pop(), max(known, default=math.nan), parts, (*counts,)
    )


def _open_hemisphere(path: Path, side: int) -> tuple[Part, int, int, float]:
    """Reader, vertices, frames and repetition time of one hemisphere's file."""
    first_bytes(path, 100)
    if path.name.endswith((".mgh", ".mgz")):
        return _open_mgh(path)
    if path.name.endswith((".gii", ".gii.gz")):
        return _open_gifti(path, side)
    raise BadData(f"{path}: not a file of one hemisphere; {EXPECTED}")


def _mgh_header(path: Path) -> MGHHeader:
    with ImageOpener(path) as file:
        return MGHHeader.from_fileobj(file)


def _open_mgh(path: Path) -> tuple[Part, int, int, float]:
    header = parsed(path, _mgh_header)
    shape = (*(int(length) for length in header.get_data_shape()), 1)
    offset, dtype = header.get_data_offset(), header.get_data_dtype()
    count, frames = math.prod(shape[:3]), shape[3]
    check_stored(path, min(shape[:3]), frames, dtype)
    if count != max(shape[:3]):
        raise BadData(f"{path}: a volume of {' x '.join(map(str, shape[:3]))} voxels; map it to the surface first")
    # What is compressed cannot be measured; but its header, which is half at the end, was read to there.
    smallest = 1 if path.suffix == ".mgh" else MOST_RATIO
    check_size(path, (offset + count * frames * dtype.itemsize) // smallest)
    milliseconds = float(header["tr"])
    time = milliseconds / 1000 if 0 < milliseconds < math.inf else math.nan
    return _MghPart(path, count, frames, offset, dtype), count, frames, time


def _open_gifti(path: Path, side: int) -> tuple[Part, int, int, float]:
    """GIFTI knows no unit of time, so its repetition time is unknown."""
    image = load_gifti(path)
    codes = nib.nifti1.intent_codes
    for kind in NO_SERIES:
        if image.get_arrays_from_intent(codes[kind]):
            raise BadData(f"{path}: GIFTI with {codes.label[kind]} data, not series; give the run's func.gii")
    structure = str(image.meta.get("AnatomicalStructurePrimary", "")).lower()
    if structure and SIDES[side] not in structure:
        raise BadData(f"{path}: expected the {SIDES[side]} hemisphere, got {structure}")
    values = parsed(path, lambda _: _frames(path, [array.data for array in image.darrays]))
    return _GiftiPart(values), values.shape[1], len(values), math.nan


def _frames(path: Path, arrays: list[np.ndarray]) -> np.ndarray:
    """Series (time, vertex), float32, of an array a frame or of one array (vertex, time)."""
    lengths = {array.shape for array in arrays}
    if len(lengths) != 1:
        raise BadData(f"{path}: expected one data array a frame, all of one length, got {sorted(lengths)}")
    (shape,) = lengths
    if len(shape) > 2 or (len(shape) == 2 and len(arrays) > 1 and shape[1] != 1):
        raise BadData(f"{path}: expected one data array a frame, or one of all frames, got {len(arrays)} of {shape}")
    values = arrays[0].T if len(arrays) == 1 and len(shape) == 2 else np.stack([array.ravel() for array in arrays])
    check_stored(path, values.shape[1], len(values), values.dtype)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)
