"""BOLD series in CIFTI-2: dense time series of vertices (dtseries) and series of parcels (ptseries).

The index maps of the header decide which row is which vertex or parcel, never the row's number; structures other than
the cortex are passed over by their names.
"""

import itertools
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.cifti2.parse_cifti2 import Cifti2Extension

from parcellation.bold import EXPECTED, Bold, check_stored
from parcellation.errors import BadData
from parcellation.meshes import mesh_of
from parcellation.parcels import first_vertices, parcels_of
from parcellation.reading import check_nifti_2, check_size, first_bytes, parsed
from parcellation.surfaces import Targets, Vertices

GAP_BYTES = 1 << 16  # reading on over a gap this small costs less than a second request to the disk
CORTEX = {"CIFTI_STRUCTURE_CORTEX_LEFT": 0, "CIFTI_STRUCTURE_CORTEX_RIGHT": 1}
KINDS = {
    3001: "dense connectivity (dconn)",
    3003: "parcels' connectivity (pconn)",
    3006: "scalar maps without time (dscalar)",
    3007: "labels (dlabel)",
    3008: "parcels' scalars (pscalar)",
}
DENSE_SERIES, PARCEL_SERIES = 3002, 3004
MOST_POWER = 6  # a step of more than a million seconds, or of less than a millionth, is no repetition time


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
        # Values of a damaged file may be anything; what is not finite then is masked.
        with np.errstate(over="ignore", invalid="ignore"):
            if (self.slope, self.inter) != (1.0, 0.0):
                raw = raw * np.float64(self.slope) + self.inter
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


def open_cifti(path: Path, space: str | None) -> Bold:
    """Open a dtseries or ptseries; arguments and errors as of `timeseries.open_bold`."""
    nifti = _nifti_header(path)
    frames, rows = (int(length) for length in nifti["dim"][5:7])
    dtype, offset = parsed(path, lambda _: nifti.get_data_dtype()), int(nifti["vox_offset"])
    check_stored(path, rows, frames, dtype)
    if offset < 0:
        raise BadData(f"{path}: expected its values at a place in the file, got {offset}; copy it again")
    check_size(path, offset + rows * frames * dtype.itemsize)
    check_nifti_2(path)
    series, models = parsed(path, _index_maps)
    of_parcels = int(nifti["intent_code"]) == PARCEL_SERIES
    row, vertices, parcels = parsed(path, lambda _: (_parcels if of_parcels else _cortex)(path, models, space))
    if series.number_of_series_points != frames or row.max() >= rows:
        raise BadData(
            f"{path}: its CIFTI header does not describe the {rows} x {frames} values it holds; convert it again"
        )
    part = _CiftiPart(path, row, frames, offset, dtype, *_scaling(nifti))
    step = parsed(path, lambda _: _series_step(series))
    return Bold((path,), vertices, frames, step, (part,), (len(vertices),), parcels)


def _index_maps(path: Path) -> tuple:
    """The two index maps of a CIFTI-2 header, without an image around them, which copies every voxel of it twice."""
    with open(path, "rb") as file, warnings.catch_warnings(action="ignore"):  # lengths that contradict are errors here
        extensions = nib.Nifti2Header.from_fileobj(file, check=False).extensions
        matrix = next(one.get_content() for one in extensions if isinstance(one, Cifti2Extension)).matrix
    return matrix.get_index_map(0), matrix.get_index_map(1)


def _nifti_header(path: Path) -> nib.Nifti2Header:
    """The NIfTI-2 header of a CIFTI-2 series; BadData says what the file is when it is something else."""
    first = first_bytes(path, 1 << 16)
    sizes = {int.from_bytes(first[:4], order) for order in ("little", "big")}
    if path.name.endswith((".mgh", ".mgz", ".gii")):
        raise BadData(f"{path}: one file of one hemisphere; give both, as `bold_left` and `bold_right`")
    if first[:2] == b"\x1f\x8b":
        raise BadData(f"{path}: a compressed file; {EXPECTED} (CIFTI is kept uncompressed: `gunzip` it)")
    if 348 in sizes:
        raise BadData(f"{path}: a NIfTI-1 volume; {EXPECTED}: map it to the surface first")
    if 540 not in sizes or len(first) < 544:
        raise BadData(f"{path}: not a NIfTI-2 file or cut off within its header; {EXPECTED}")
    header = parsed(path, lambda _: nib.Nifti2Header(first[:540], check=False))
    if re.search(rb'<CIFTI\s[^>]*Version="1', first):
        command = "`wb_command -file-convert -cifti-version-convert IN 2 OUT`"
        raise BadData(f"{path}: a CIFTI-1 file, expected CIFTI-2; convert it with {command}")
    _check_intent(path, int(header["intent_code"]))
    return header


def _check_intent(path: Path, intent: int) -> None:
    if intent in KINDS:
        raise BadData(f"{path}: CIFTI of {KINDS[intent]}, not of series; give the run's dtseries")
    if not 3000 <= intent < 3100:
        raise BadData(f"{path}: a NIfTI-2 volume; {EXPECTED}: map it to the surface first")
    if intent not in (DENSE_SERIES, PARCEL_SERIES):
        raise BadData(f"{path}: CIFTI of intent {intent}, not of series ({DENSE_SERIES}); give the run's dtseries")


def _cortex(path: Path, models, space: str | None) -> tuple[np.ndarray, Vertices, None]:
    """File rows and identities of the cortical vertices of a brain-model map; other structures are passed over."""
    cortex = sorted(
        (model for model in models.brain_models if model.brain_structure in CORTEX),
        key=lambda model: model.index_offset,
    )
    if not cortex:
        raise BadData(f"{path}: holds no cortical surface; expected {' or '.join(CORTEX)}")
    counts = {CORTEX[model.brain_structure]: int(model.surface_number_of_vertices) for model in cortex}
    mesh = mesh_of((counts.get(0), counts.get(1)), space, str(path))
    numbers = [np.asarray(model.vertex_indices, np.int64) for model in cortex]
    if any(len(own) != model.index_count for own, model in zip(numbers, cortex, strict=True)):
        raise BadData(f"{path}: its CIFTI header lists other vertices than its brain models count; convert it again")
    row = np.concatenate([model.index_offset + np.arange(len(own)) for own, model in zip(numbers, cortex, strict=True)])
    hemisphere = np.repeat([CORTEX[model.brain_structure] for model in cortex], [len(own) for own in numbers])
    number = np.concatenate(numbers)
    _check_vertices(path, hemisphere, number, mesh.counts)
    if not len(row) or row[0] < 0 or np.any(np.diff(row) <= 0):
        raise BadData(
            f"{path}: the brain models of its CIFTI header are empty or share rows of the file; convert it again"
        )
    return row, Vertices(mesh, hemisphere.astype(np.uint8), number.astype(np.int32)), None


def _check_vertices(path: Path, hemisphere: np.ndarray, number: np.ndarray, counts: tuple[int, int]) -> None:
    """Raise BadData unless every vertex is on the mesh, and named once."""
    if np.any(number < 0) or np.any(number >= np.array(counts)[hemisphere]):
        raise BadData(f"{path}: expected vertices below {max(counts)}, as its CIFTI header counts, got others")
    if len(np.unique(hemisphere * max(counts) + number)) < len(number):
        raise BadData(f"{path}: expected every vertex once in its CIFTI header, got some twice")


def _parcels(path: Path, models, space: str | None) -> tuple[np.ndarray, Vertices, Targets]:
    """File rows, first vertices and extents of the parcels of a parcels map; those outside the cortex are skipped."""
    counts = {CORTEX[one.brain_structure]: int(one.surface_number_of_vertices) for one in models.surfaces
              if one.brain_structure in CORTEX}  # fmt: skip
    rows, names, members = [], [], []
    for row, parcel in enumerate(models.parcels):
        own = [(CORTEX[part.brain_structure], np.asarray(part, np.int64)) for part in parcel.vertices
               if part.brain_structure in CORTEX and len(part)]  # fmt: skip
        if own:
            rows.append(row)
            names.append(str(parcel.name).strip())
            members.append(own)
    if not rows:
        raise BadData(f"{path}: has no parcels with vertices of the cortex")
    mesh = mesh_of((counts.get(0), counts.get(1)), space, str(path))
    parts = [part for one in members for part in one]
    hemisphere = np.repeat([side for side, _ in parts], [len(numbers) for _, numbers in parts])
    _check_vertices(path, hemisphere, np.concatenate([numbers for _, numbers in parts]), mesh.counts)
    if "" in names or len(set(names)) < len(names):
        raise BadData(f"{path}: expected a name of its own for each of its {len(names)} parcels")
    parcels = parcels_of(mesh, names, members)
    order = {name: place for place, name in enumerate(parcels.names)}
    return np.array(rows), first_vertices(parcels)[np.array([order[name] for name in names])], parcels


def _series_step(series) -> float:
    """Seconds between two points of a CIFTI series map; nan when it is not a series in seconds."""
    power = series.series_exponent
    if series.series_unit != "SECOND" or not series.series_step > 0 or abs(power) > MOST_POWER:
        return math.nan
    # Divided by the power, which is exact, so that 720 x 10^-3 is 0.72 to the last digit.
    step = float(series.series_step / 10.0**-power)
    return step if 10.0**-MOST_POWER < step < 10.0**MOST_POWER else math.nan


def _scaling(nifti: nib.Nifti2Header) -> tuple[float, float]:
    slope, inter = float(nifti["scl_slope"]), float(nifti["scl_inter"])
    if not math.isfinite(slope) or slope == 0:
        return 1.0, 0.0
    return slope, inter if math.isfinite(inter) else 0.0
