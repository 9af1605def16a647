"""BOLD series of cortical vertices, read from disk in blocks of vertices.

    bold = open_bold((Path("rfMRI_REST1_LR_Atlas_MSMAll_hp2000_clean.dtseries.nii"),), space=None)
    for part, series in bold.rows(np.arange(1000)):
        ...  # series: (vertex, time) float32 for the vertices 0..999 [part] of bold.vertices

Nothing but headers is read when a file is opened (GIFTI excepted: it is one XML text). A CIFTI series is contiguous per
vertex on disk, so `rows` reads just the stretches of the file that hold the vertices asked for, once and in order.
"""

import itertools
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import nibabel as nib
import numpy as np
from nibabel.cifti2.parse_cifti2 import Cifti2Extension
from nibabel.freesurfer.mghformat import MGHHeader
from nibabel.openers import ImageOpener

from parcellation.errors import BadData, InputMissing
from parcellation.meshes import mesh_of, named_space
from parcellation.surfaces import Vertices

log = logging.getLogger(__name__)

SIDES = ("left", "right")
BLOCK_BYTES = 1 << 25  # one block as float32: small beside a run, large beside the cost of a call
GAP_BYTES = 1 << 16  # reading on over a gap this small costs less than a second request to the disk
CORTEX = {"CIFTI_STRUCTURE_CORTEX_LEFT": 0, "CIFTI_STRUCTURE_CORTEX_RIGHT": 1}
EXPECTED = "expected a CIFTI-2 .dtseries.nii, or .mgh, .mgz or .func.gii of both hemispheres"
CIFTI_KINDS = {
    3001: "dense connectivity (dconn)",
    3003: "parcels' connectivity (pconn)",
    3006: "scalar maps without time (dscalar)",
    3007: "labels (dlabel)",
    3008: "parcels' scalars (pscalar)",
}
DENSE_SERIES, PARCEL_SERIES = 3002, 3004


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
    """

    paths: tuple[Path, ...]
    vertices: Vertices
    frames: int
    repetition_time: float
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]

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


def open_bold(paths: tuple[Path | None, ...], space: str | None = None, repetition_time: float | None = None) -> Bold:
    """Open a run: one CIFTI-2 dtseries, or the left and the right file (MGH, MGZ, GIFTI; one of the two may be None).

    space: template of files that do not say it, neither inside nor by their BIDS name; repetition_time: seconds, in
    place of the file's own.
    Raises InputMissing for a file that is not there and BadData, saying what it is instead, for any other kind.
    """
    space = space or named_space(Path(path) for path in paths if path)
    if len(paths) == 1:
        bold = _open_cifti(Path(paths[0]), space)
    elif len(paths) == 2 and any(paths):
        bold = _open_pair(tuple(path and Path(path) for path in paths), space)
    else:
        raise BadData(f"{', '.join(map(str, paths)) or 'a run without files'}: {EXPECTED}, got {len(paths)} files")
    if repetition_time is not None:
        return replace(bold, repetition_time=float(repetition_time))
    if math.isnan(bold.repetition_time):
        log.warning("%s: does not say its repetition time in seconds", bold.where)
    return bold


def _first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file that is there and holds data; raises for files that stand in for others."""
    if not path.exists():
        link = ": a link to content that was not fetched (`datalad get`?)" if path.is_symlink() else ": no such file"
        raise InputMissing(f"{path}{link}")
    try:
        with open(path, "rb") as file:
            first = file.read(count)
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {error.strerror}") from error
    if first.startswith(b"version https://git-lfs"):
        raise BadData(f"{path}: a Git LFS pointer, not the data; fetch them with `git lfs pull`")
    if not first:
        raise BadData(f"{path}: an empty file; copy it again")
    return first


def _parsed(path: Path, read: Callable[[Path], Any]) -> Any:
    """What a parser makes of a file; it meets arbitrary bytes here and raises whatever they lead it to."""
    try:
        return read(path)
    except Exception as error:
        said = " ".join(str(error).split())
        raise BadData(f"{path}: its header or content cannot be read ({said}); copy or convert it again") from error


# --- CIFTI-2 ---


@dataclass(frozen=True, eq=False)
class _CiftiPart:
    """The matrix of a CIFTI-2 file: on disk (row, time) with time fastest; `row` of each vertex increases."""

    path: Path
    row: np.ndarray
    frames: int
    offset: int
    dtype: np.dtype
    slope: float
    inter: float

    def blocks(self, index: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """See Part."""
        row = self.row[index]
        bytes_per_row = self.frames * self.dtype.itemsize
        # Unbuffered reads into memory of our own: mapped pages are slow on network file systems.
        with open(self.path, "rb", buffering=0) as file:
            for start, stop in _stretches(row, block, GAP_BYTES // bytes_per_row):
                first, count = row[start], row[stop - 1] - row[start] + 1
                file.seek(self.offset + int(first) * bytes_per_row)
                raw = np.fromfile(file, self.dtype, count * self.frames)
                if len(raw) < count * self.frames:
                    raise BadData(f"{self.path}: ends before row {first + count}; a truncated file, copy it again")
                raw = raw.reshape(count, self.frames)
                if count > stop - start:
                    raw = raw[row[start:stop] - first]
                yield slice(start, stop), self._scaled(raw)

    def _scaled(self, raw: np.ndarray) -> np.ndarray:
        """Stored numbers to values; integers are scaled in float64, which holds each of them exactly."""
        if (self.slope, self.inter) != (1.0, 0.0):
            raw = raw * np.float64(self.slope) + self.inter
        with np.errstate(over="ignore"):
            return raw.astype(np.float32, copy=False)


def _stretches(row: np.ndarray, block: int, gap: int) -> Iterator[tuple[int, int]]:
    """Cut increasing rows into (start, stop) that span at most `block` rows and skip at most `gap` at a time."""
    start = 0
    for stop, (before, after) in enumerate(itertools.pairwise(row.tolist()), 1):
        if after - before > gap + 1 or after - row[start] >= block:
            yield start, stop
            start = stop
    if len(row):
        yield start, len(row)


def _open_cifti(path: Path, space: str | None) -> Bold:
    nifti = _cifti_nifti_header(path)
    frames, rows = (int(length) for length in nifti["dim"][5:7])
    _check_size(path, int(nifti["vox_offset"]) + rows * frames * nifti.get_data_dtype().itemsize)
    series, models = _parsed(path, _cifti_maps)
    row, vertices = _cortex(path, models, space)
    if series.number_of_series_points != frames or row.max() >= rows:
        raise BadData(f"{path}: its CIFTI header does not describe the {rows} x {frames} values it holds")
    slope, inter = _scaling(nifti)
    dtype = nifti.get_data_dtype()
    part = _CiftiPart(path, row, frames, int(nifti["vox_offset"]), dtype, slope, inter)
    return Bold((path,), vertices, frames, _series_step(series), (part,), (len(vertices),))


def _cifti_maps(path: Path) -> tuple:
    """The two index maps of a CIFTI-2 header, without an image around them, which copies every voxel of it twice."""
    with open(path, "rb") as file, warnings.catch_warnings(action="ignore"):  # lengths that contradict are errors here
        extensions = nib.Nifti2Header.from_fileobj(file, check=False).extensions
        matrix = next(one.get_content() for one in extensions if isinstance(one, Cifti2Extension)).matrix
    return matrix.get_index_map(0), matrix.get_index_map(1)


def _cifti_nifti_header(path: Path) -> nib.Nifti2Header:
    """The NIfTI-2 header of a dense CIFTI-2 series; BadData says what the file is when it is something else."""
    first = _first_bytes(path, 1 << 16)
    sizes = {int.from_bytes(first[:4], order) for order in ("little", "big")}
    if path.name.endswith((".mgh", ".mgz", ".gii")):
        raise BadData(f"{path}: one file of one hemisphere; give both, as `bold_left` and `bold_right`")
    if first[:2] == b"\x1f\x8b":
        raise BadData(f"{path}: a compressed file; {EXPECTED} (CIFTI is kept uncompressed: `gunzip` it)")
    if 348 in sizes:
        raise BadData(f"{path}: a NIfTI-1 volume; {EXPECTED}: map it to the surface first")
    if 540 not in sizes or len(first) < 544:
        raise BadData(f"{path}: not a NIfTI-2 file or cut off within its header; {EXPECTED}")
    header = nib.Nifti2Header(first[:540], check=False)
    if version := re.search(rb'<CIFTI\s[^>]*Version="1', first):
        command = "`wb_command -file-convert -cifti-version-convert IN 2 OUT`"
        raise BadData(f"{path}: a {version[0][1:6].decode()}-1 file; convert it with {command}")
    _check_intent(path, int(header["intent_code"]))
    return header


def _check_intent(path: Path, intent: int) -> None:
    if intent == PARCEL_SERIES:
        raise BadData(f"{path}: parcels' series (ptseries) are not read by this release; give the run's dtseries")
    if intent in CIFTI_KINDS:
        raise BadData(f"{path}: CIFTI of {CIFTI_KINDS[intent]}, not of series; give the run's dtseries")
    if not 3000 <= intent < 3100:
        raise BadData(f"{path}: a NIfTI-2 volume; {EXPECTED}: map it to the surface first")
    if intent != DENSE_SERIES:
        raise BadData(f"{path}: CIFTI of intent {intent}, not of series ({DENSE_SERIES}); give the run's dtseries")


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size < expected:
        raise BadData(f"{path}: truncated: expected {expected} bytes, as its header says, got {size}; copy it again")


def _cortex(path: Path, models, space: str | None) -> tuple[np.ndarray, Vertices]:
    """File rows and identities of the cortical vertices of a brain-model map; other structures are passed over."""
    cortex = sorted(
        (model for model in models.brain_models if model.brain_structure in CORTEX),
        key=lambda model: model.index_offset,
    )
    if not cortex:
        raise BadData(f"{path}: holds no cortical surface; expected {' or '.join(CORTEX)}")
    counts = {CORTEX[model.brain_structure]: int(model.surface_number_of_vertices) for model in cortex}
    left, right = counts.get(0, counts.get(1)), counts.get(1, counts.get(0))
    mesh = mesh_of((left, right), space, str(path))
    row = [model.index_offset + np.arange(model.index_count) for model in cortex]
    hemisphere = np.repeat([CORTEX[model.brain_structure] for model in cortex], [len(part) for part in row])
    number = np.concatenate([np.asarray(model.vertex_indices, np.int32) for model in cortex])
    row = np.concatenate(row)
    if len(number) != len(row) or np.any(number >= np.array([left, right])[hemisphere]):
        raise BadData(f"{path}: its CIFTI header lists other vertices than its brain models count")
    return row, Vertices(mesh, hemisphere.astype(np.uint8), number)


def _series_step(series) -> float:
    """Seconds between two points of a CIFTI series map; nan when it is not a series in seconds."""
    if series.series_unit != "SECOND" or not series.series_step > 0:
        return math.nan
    # Divided by the power, which is exact, so that 720 x 10^-3 is 0.72 to the last digit.
    return float(series.series_step / 10.0**-series.series_exponent)


def _scaling(nifti: nib.Nifti2Header) -> tuple[float, float]:
    slope, inter = float(nifti["scl_slope"]), float(nifti["scl_inter"])
    if not math.isfinite(slope) or slope == 0:
        return 1.0, 0.0
    return slope, inter if math.isfinite(inter) else 0.0


# --- pairs of hemispheres ---


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
            with ImageOpener(self.path) as file:
                file.seek(self.offset)
                for time in range(self.frames):
                    frame = np.frombuffer(file.read(self.count * self.dtype.itemsize), self.dtype, self.count)
                    series[:, time] = frame[index]
        except (OSError, EOFError, ValueError) as error:
            raise BadData(f"{self.path}: ends before its {self.frames} frames; truncated, copy it again") from error
        yield from _chopped(series, block)


@dataclass(frozen=True, eq=False)
class _GiftiPart:
    """One hemisphere in GIFTI, held in memory as (time, vertex)."""

    values: np.ndarray

    def blocks(self, index: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """See Part."""
        yield from _chopped(np.ascontiguousarray(self.values[:, index].T), block)


def _chopped(series: np.ndarray, block: int) -> Iterator[tuple[slice, np.ndarray]]:
    for start in range(0, len(series), block):
        yield slice(start, min(start + block, len(series))), series[start : start + block]


def _open_pair(paths: tuple[Path | None, Path | None], space: str | None) -> Bold:
    """Left and right file of one run; a hemisphere that is None has no vertices."""
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
    _first_bytes(path, 100)
    if path.name.endswith((".mgh", ".mgz")):
        return _open_mgh(path)
    if path.name.endswith((".gii", ".gii.gz")):
        return _open_gifti(path, side)
    raise BadData(f"{path}: not a file of one hemisphere; {EXPECTED}")


def _mgh_header(path: Path) -> MGHHeader:
    with ImageOpener(path) as file:
        return MGHHeader.from_fileobj(file)


def _open_mgh(path: Path) -> tuple[Part, int, int, float]:
    header = _parsed(path, _mgh_header)
    shape = (*(int(length) for length in header.get_data_shape()), 1)
    offset, dtype = header.get_data_offset(), header.get_data_dtype()
    count, frames = math.prod(shape[:3]), shape[3]
    if count != max(shape[:3]):
        raise BadData(f"{path}: a volume of {' x '.join(map(str, shape[:3]))} voxels; map it to the surface first")
    if (
        path.suffix == ".mgh"
    ):  # the others are compressed: reading their header, which is half at the end, finds the cut
        _check_size(path, offset + count * frames * dtype.itemsize)
    milliseconds = float(header["tr"])
    time = milliseconds / 1000 if milliseconds > 0 else math.nan
    return _MghPart(path, count, frames, offset, dtype), count, frames, time


def _open_gifti(path: Path, side: int) -> tuple[Part, int, int, float]:
    """GIFTI knows no unit of time, so its repetition time is unknown."""
    image = _parsed(path, nib.GiftiImage.from_filename)
    codes = nib.nifti1.intent_codes
    for kind in ("NIFTI_INTENT_LABEL", "NIFTI_INTENT_POINTSET", "NIFTI_INTENT_TRIANGLE"):
        if image.get_arrays_from_intent(codes[kind]):
            raise BadData(f"{path}: GIFTI with {codes.label[kind]} data, not series; give the run's func.gii")
    structure = image.meta.get("AnatomicalStructurePrimary", "").lower()
    if structure and SIDES[side] not in structure:
        raise BadData(f"{path}: expected the {SIDES[side]} hemisphere, got {structure}")
    arrays = [array.data for array in image.darrays]
    lengths = {array.shape for array in arrays}
    if len(lengths) != 1:
        raise BadData(f"{path}: expected one data array a frame, all of one length, got {sorted(lengths)}")
    values = np.ascontiguousarray(arrays[0].T) if arrays[0].ndim == 2 else np.stack(arrays)
    return _GiftiPart(values.astype(np.float32, copy=False)), values.shape[1], len(values), math.nan
