"""Write a run's series as a CIFTI-2 dense time series, or as a pair of MGH or GIFTI files."""

from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.cifti2 import BrainModelAxis, Cifti2Image, SeriesAxis

from parcellation.files import whole_file
from parcellation.surfaces import Mesh, Vertices

SIDES = ("L", "R")
STRUCTURES = ("CortexLeft", "CortexRight")


def write_cifti(path: Path, series: np.ndarray, vertices: Vertices, repetition_time: float) -> None:
    """Write series (time, vertex), float32; vertices left hemisphere first, ascending; repetition_time in seconds."""
    models = None
    for side in np.unique(vertices.hemisphere):
        number = vertices.number[vertices.hemisphere == side]
        one = BrainModelAxis.from_surface(number, vertices.mesh.counts[side], name=STRUCTURES[side])
        models = one if models is None else models + one
    time = SeriesAxis(0, repetition_time, len(series), unit="SECOND")
    image = Cifti2Image(np.asarray(series, np.float32), header=(time, models))
    image.update_headers()
    image.nifti_header.set_intent("ConnDenseSeries")
    with whole_file(path) as temporary:
        nib.save(image, temporary)


def write_pair(paths: tuple[Path, Path], series: np.ndarray, vertices: Vertices, repetition_time: float) -> None:
    """Write series (time, vertex) as the left and the right file, in the format of the paths' suffix.

    Such files hold every vertex of the mesh: those without a series get zeros, which readers take for no signal.
    """
    for side, path in enumerate(paths):
        whole = np.zeros((len(series), vertices.mesh.counts[side]), np.float32)
        here = vertices.hemisphere == side
        whole[:, vertices.number[here]] = series[:, here]
        image = (_mgh if path.suffix in (".mgh", ".mgz") else _gifti)(whole, repetition_time, vertices.mesh, side)
        with whole_file(path) as temporary:
            nib.save(image, temporary)


def _mgh(series: np.ndarray, repetition_time: float, mesh: Mesh, side: int) -> nib.MGHImage:
    image = nib.MGHImage(series.T[:, None, None, :], np.eye(4))
    image.header.set_zooms((1, 1, 1, repetition_time * 1000))  # milliseconds
    return image


def _gifti(series: np.ndarray, repetition_time: float, mesh: Mesh, side: int) -> nib.GiftiImage:
    step = {"TimeStep": f"{repetition_time:g}"}
    arrays = [
        nib.gifti.GiftiDataArray(frame, intent="NIFTI_INTENT_TIME_SERIES", datatype="NIFTI_TYPE_FLOAT32", meta=step)
        for frame in series
    ]
    structure = {"AnatomicalStructurePrimary": STRUCTURES[side]}
    return nib.GiftiImage(darrays=arrays, meta=nib.gifti.GiftiMetaData(structure | step))
