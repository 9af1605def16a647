"""The same series in every format and encoding that is read, byte by byte, whatever our own writers prefer.

    for name, encode in ENCODINGS.items():
        paths = encode(folder, series, vertices)

series: (vertex, time); vertices: those of a mesh that have a series. Formats that hold whole hemispheres get zeros for
the other vertices, as for a medial wall. Each function returns the run's files: one, or the left and the right one.
"""

import base64
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.cifti2 import BrainModelAxis, Cifti2Header, ParcelsAxis, SeriesAxis

from parcellation.surfaces import Targets, Vertices

STEP = 0.72  # seconds between frames
CORTEX = ("CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT")
SIDES = ("CortexLeft", "CortexRight")
GIFTI_TYPES = {"f4": "NIFTI_TYPE_FLOAT32", "f8": "NIFTI_TYPE_FLOAT64", "i4": "NIFTI_TYPE_INT32"}
NOWHERE = ' ExternalFileName="" ExternalFileOffset=""'
GIFTI_ENCODINGS = ("ASCII", "Base64Binary", "GZipBase64Binary", "ExternalFileBinary")

Encode = Callable[[Path, np.ndarray, Vertices], tuple[Path, ...]]


# --- CIFTI-2 ---


def matrix(path: Path, rows: np.ndarray, models, dtype: str = "<f4", scaled: bool = False, intent: int = 3002) -> Path:
    """Write rows (row, time) as a CIFTI-2 series of this type; scaled: as integers that span the rows' range."""
    slope, inter = (np.ptp(rows) / 6e4, rows.min() + np.ptp(rows) / 2) if scaled else (1.0, 0.0)
    stored = (np.rint((rows - inter) / slope) if scaled else rows).astype(dtype)
    header = nib.Nifti2Header()
    header.set_data_dtype(stored.dtype.newbyteorder("<"))
    header.set_data_shape((1, 1, 1, 1, rows.shape[1], rows.shape[0]))
    xml = Cifti2Header.from_axes((SeriesAxis(0, STEP, rows.shape[1], "SECOND"), models)).to_xml()
    xml += b" " * (-(len(xml) + 8) % 16)
    header["intent_code"], header["scl_slope"], header["scl_inter"] = intent, slope, inter
    header["vox_offset"], header["magic"] = 540 + 4 + 8 + len(xml), b"n+2"
    order = dtype[0]
    block = header.binaryblock if order == "<" else header.as_byteswapped(">").binaryblock
    extension = b"\1\0\0\0" + struct.pack(f"{order}ii", 8 + len(xml), 32)
    path.write_bytes(block + extension + xml + stored.tobytes())
    return path


def surface_models(vertices: Vertices, sides: tuple[int, ...] = (0, 1)) -> BrainModelAxis:
    """Brain models of the hemispheres in this order."""
    models = [
        BrainModelAxis.from_surface(vertices.number[vertices.hemisphere == one], vertices.mesh.counts[one], CORTEX[one])
        for one in sides
        if np.any(vertices.hemisphere == one)
    ]
    return models[0] if len(models) == 1 else models[0] + models[1]


def _by_side(vertices: Vertices, sides: tuple[int, ...] = (0, 1)) -> np.ndarray:
    return np.concatenate([np.flatnonzero(vertices.hemisphere == one) for one in sides])


def dense(folder: Path, series: np.ndarray, vertices: Vertices, dtype: str = "<f4", scaled: bool = False):
    """A dtseries of the vertices that have a series."""
    path = folder / "run.dtseries.nii"
    return (matrix(path, series[_by_side(vertices)], surface_models(vertices), dtype, scaled),)


def right_first(folder: Path, series: np.ndarray, vertices: Vertices):
    """The right hemisphere's rows before the left one's."""
    order = _by_side(vertices, (1, 0))
    return (matrix(folder / "run.dtseries.nii", series[order], surface_models(vertices, (1, 0))),)


def whole_mesh(folder: Path, series: np.ndarray, vertices: Vertices, wall: float = 0.0):
    """All vertices of the mesh have a row; those without a series hold a constant, or NaN."""
    count = vertices.mesh.counts[0]
    every = Vertices.of(vertices.mesh, np.arange(count), np.arange(vertices.mesh.counts[1]))
    rows = np.full((len(every), series.shape[1]), wall, np.float32)
    rows[vertices.hemisphere.astype(int) * count + vertices.number] = series
    return (matrix(folder / "run.dtseries.nii", rows, surface_models(every)),)


def _voxels(name: str, start: int, stop: int) -> BrainModelAxis:
    here = np.isin(np.arange(20), np.arange(start, stop))[:, None, None]
    return BrainModelAxis.from_mask(here, affine=np.eye(4), name=name)


def more_structures(folder: Path, series: np.ndarray, vertices: Vertices):
    """Voxels and a surface of other structures before, between and after the hemispheres."""
    thalamus, stem = _voxels("thalamus_left", 0, 11), _voxels("brain_stem", 11, 16)
    cerebellum = BrainModelAxis.from_surface(np.arange(7), 300, "CIFTI_STRUCTURE_CEREBELLUM")
    left, right = (surface_models(vertices, (one,)) for one in (0, 1))
    others = np.random.default_rng(1).normal(size=(11 + 5 + 7, series.shape[1])).astype(np.float32)
    rows = np.concatenate(
        [others[:11], series[vertices.hemisphere == 0], others[11:18], series[vertices.hemisphere == 1], others[18:]]
    )
    return (matrix(folder / "run.dtseries.nii", rows, thalamus + left + cerebellum + right + stem),)


def parcels_axis(parcels: Targets, extra: bool = False) -> ParcelsAxis:
    """The parcels of a ptseries; extra: with one of voxels alone in front."""
    members = parcels.members
    parts = []
    for k in range(len(parcels.names)):
        own = members[parcels.target == k]
        found = {CORTEX[one]: own.number[own.hemisphere == one] for one in np.unique(own.hemisphere)}
        parts.append((parcels.names[k], np.zeros((0, 3), int), found))
    if extra:
        parts.insert(0, ("thalamus", np.array([[1, 0, 0], [2, 0, 0]]), {}))
    names, voxels, found = zip(*parts, strict=True)
    boxes = np.empty(len(parts), object)
    boxes[:] = voxels
    counts = dict(zip(CORTEX, members.mesh.counts, strict=True))
    return ParcelsAxis(list(names), boxes, np.array(found), np.eye(4), (9, 9, 9), counts)


def parcellated(
    path: Path, series: np.ndarray, parcels: Targets, dtype: str = "<f4", scaled=False, extra=False
) -> Path:
    """A ptseries of series (parcel, time)."""
    rows = np.concatenate([np.ones((1, series.shape[1]), np.float32), series]) if extra else series
    return matrix(path, rows, parcels_axis(parcels, extra), dtype, intent=3004)


# --- GIFTI ---


def gifti(path: Path, frames: np.ndarray, side: int, encoding: str, order: str, dtype: str, one_array: bool) -> Path:
    """Write frames (time, vertex): one data array a frame, or one of all (vertex, time); order: C or F."""
    arrays = [frames.T] if one_array else list(frames)
    outside = path.with_name(f"{path.name}.dat")
    text, blob = "", b""
    for array in arrays:
        values = array.astype(dtype)
        raw = values.tobytes(order)
        data, place = _coded(values, raw, encoding, order), ""
        if encoding == "ExternalFileBinary":
            place, blob = f' ExternalFileName="{outside.name}" ExternalFileOffset="{len(blob)}"', blob + raw
        text += _array_tag(array, encoding, order, dtype, place, data)
    if blob:
        outside.write_bytes(blob)
    meta = f"<MD><Name>AnatomicalStructurePrimary</Name><Value>{SIDES[side]}</Value></MD>"
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<GIFTI Version="1.0" NumberOfDataArrays="{len(arrays)}">'
    path.write_text(f"{head}<MetaData>{meta}</MetaData><LabelTable/>{text}</GIFTI>\n", encoding="utf-8")
    return path


def _coded(values: np.ndarray, raw: bytes, encoding: str, order: str) -> str:
    if encoding == "ASCII":
        return " ".join(map(repr, values.ravel(order).tolist()))
    if encoding == "ExternalFileBinary":
        return ""
    return base64.b64encode(zlib.compress(raw) if encoding == "GZipBase64Binary" else raw).decode()


def _array_tag(array: np.ndarray, encoding: str, order: str, dtype: str, place: str, data: str) -> str:
    dims = "".join(f' Dim{axis}="{length}"' for axis, length in enumerate(array.shape))
    layout = "RowMajorOrder" if order == "C" else "ColumnMajorOrder"
    endian = "LittleEndian" if dtype[0] == "<" else "BigEndian"
    return (
        f'<DataArray Intent="NIFTI_INTENT_TIME_SERIES" DataType="{GIFTI_TYPES[dtype[1:]]}"'
        f' ArrayIndexingOrder="{layout}" Dimensionality="{array.ndim}"{dims} Encoding="{encoding}"'
        f' Endian="{endian}"{place or NOWHERE}>'
        f"<MetaData/><Data>{data}</Data></DataArray>"
    )


def _halves(series: np.ndarray, vertices: Vertices) -> list[np.ndarray]:
    """Series (vertex, time) of each whole hemisphere, 0 where there is none."""
    halves = [np.zeros((count, series.shape[1]), series.dtype) for count in vertices.mesh.counts]
    for one, half in enumerate(halves):
        here = vertices.hemisphere == one
        half[vertices.number[here]] = series[here]
    return halves


def gifti_pair(folder: Path, series: np.ndarray, vertices: Vertices, encoding="GZipBase64Binary", order="C",
               dtype="<f4", one_array=False):  # fmt: skip
    """A func.gii of each hemisphere."""
    paths = tuple(folder / f"run_hemi-{letter}_bold.func.gii" for letter in "LR")
    for side, (path, half) in enumerate(zip(paths, _halves(series, vertices), strict=True)):
        gifti(path, half.T, side, encoding, order, dtype, one_array)
    return paths


def mgh_pair(folder: Path, series: np.ndarray, vertices: Vertices, suffix: str = "mgz", dtype: str = "f4"):
    """An MGH or MGZ file of each hemisphere."""
    paths = tuple(folder / f"{side}.run.{suffix}" for side in ("lh", "rh"))
    for path, half in zip(paths, _halves(series, vertices), strict=True):
        image = nib.MGHImage(half.astype(dtype)[:, None, None, :], np.eye(4))
        image.header["tr"] = 1000 * STEP
        image.to_filename(path)
    return paths


ENCODINGS: dict[str, Encode] = {
    **{f"dtseries {dtype}": partial(dense, dtype=dtype) for dtype in ("<f4", ">f4", "<f8", ">f8", "<i2", ">i2", "<i4")},
    **{f"dtseries scaled {dtype}": partial(dense, dtype=dtype, scaled=True) for dtype in ("<i2", ">i2")},
    "dtseries right first": right_first,
    "dtseries with medial wall": whole_mesh,
    "dtseries with medial wall of NaN": partial(whole_mesh, wall=np.nan),
    "dtseries with other structures": more_structures,
    **{
        f"func.gii {encoding} {order} {dtype}": partial(gifti_pair, encoding=encoding, order=order, dtype=dtype)
        for encoding in GIFTI_ENCODINGS
        for order, dtype in (("C", "<f4"), ("C", ">f4"), ("F", "<f8"), ("C", "<i4"))
    },
    **{
        f"func.gii in one array {encoding} {order} {dtype}": partial(
            gifti_pair, encoding=encoding, order=order, dtype=dtype, one_array=True
        )
        for encoding in GIFTI_ENCODINGS
        for order, dtype in (("C", "<f4"), ("F", "<f4"), ("F", ">f4"))
    },
    **{f"{suffix} {dtype}": partial(mgh_pair, suffix=suffix, dtype=dtype) for suffix in ("mgh", "mgz")
       for dtype in ("f4", "i4", "i2")},
}  # fmt: skip
