"""Small runs as files, and what all tests of their readers ask."""

import nibabel as nib
import numpy as np
import pytest
from nibabel.cifti2 import BrainModelAxis, SeriesAxis

from parcellation.errors import BadData
from parcellation.timeseries import open_bold

COUNT = 4842  # vertices of a hemisphere of fs_LR 5k
RNG = np.random.default_rng(0)


def cortex(number, side):
    return BrainModelAxis.from_surface(np.asarray(number), COUNT, f"CIFTI_STRUCTURE_CORTEX_{side}")


def volume(voxels):
    return BrainModelAxis.from_mask(np.ones((voxels, 1, 1)), affine=np.eye(4), name="thalamus_left")


def write_cifti(path, values, models, axis=None, intent="ConnDenseSeries"):
    """Write values (row, time)."""
    axis = axis or SeriesAxis(0, 0.72, values.shape[1], "SECOND")
    image = nib.Cifti2Image(values.T, (axis, models))
    image.nifti_header.set_intent(intent)
    image.nifti_header.set_data_dtype(values.dtype)
    image.to_filename(path)
    return path


def plain_run(path):
    """Left 0 2 4 .. 38 and right 100 .. 114 around a thalamus of 7 voxels: (path, values of all 42 rows)."""
    models = cortex(range(0, 40, 2), "LEFT") + volume(7) + cortex(range(100, 115), "RIGHT")
    values = RNG.normal(size=(42, 9)).astype(np.float32)
    return write_cifti(path, values, models), values


def change_header(path, **fields):
    """Overwrite fields of a NIfTI-2 header on disk."""
    raw = path.read_bytes()
    header = nib.Nifti2Header(raw[:540], check=False)
    for name, value in fields.items():
        header[name] = value
    path.write_bytes(header.binaryblock + raw[540:])
    return path


def everything(bold, block=None, index=None):
    """All series (vertex, time) of a run, read in blocks."""
    index = np.arange(len(bold.vertices)) if index is None else index
    values = np.full((len(index), bold.frames), np.nan, np.float32)
    for part, series in bold.rows(index, block):
        assert series.dtype == np.float32
        values[part] = series
    return values


def refusal(paths, *words):
    with pytest.raises(BadData) as caught:
        everything(open_bold(paths))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in (str(paths[-1]), *words)), message


def write_mgh(path, values, milliseconds=1400.0):
    """Write values (vertex, time)."""
    image = nib.MGHImage(values.reshape(len(values), 1, 1, -1), np.eye(4))
    image.header["tr"] = milliseconds
    image.to_filename(path)
    return path


def write_gifti(path, values, structure=None, intent="NIFTI_INTENT_TIME_SERIES"):
    """Write values (vertex, time), one data array a frame."""
    arrays = [nib.gifti.GiftiDataArray(frame, intent=intent, datatype=frame.dtype) for frame in values.T]
    meta = nib.gifti.GiftiMetaData({"AnatomicalStructurePrimary": structure} if structure else {})
    nib.GiftiImage(darrays=arrays, meta=meta).to_filename(path)
    return path
