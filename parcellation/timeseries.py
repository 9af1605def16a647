"""BOLD series of cortical vertices, read from disk in blocks of vertices.

    bold = open_bold((Path("rfMRI_REST1_LR_Atlas_MSMAll_hp2000_clean.dtseries.nii"),), space=None)
    for part, series in bold.rows(np.arange(1000)):
        ...  # series: (vertex, time) float32 for the vertices 0..999 [part] of bold.vertices

Nothing but headers is read when a file is opened (GIFTI excepted: it is one XML text). A CIFTI series is contiguous per
vertex on disk, so `rows` reads just the stretches of the file that hold the vertices asked for, once and in order.
"""

import logging
import math
from dataclasses import replace
from pathlib import Path

from parcellation.bold import EXPECTED, Bold
from parcellation.cifti_series import open_cifti
from parcellation.errors import BadData
from parcellation.hemisphere_series import open_pair
from parcellation.meshes import named_space

log = logging.getLogger(__name__)


def open_bold(paths: tuple[Path | None, ...], space: str | None = None, repetition_time: float | None = None) -> Bold:
    """Open a run: one CIFTI-2 dtseries, or the left and the right file (MGH, MGZ, GIFTI; one of the two may be None).

    space: template of files that do not say it, neither inside nor by their BIDS name; repetition_time: seconds, in
    place of the file's own.
    Raises InputMissing for a file that is not there and BadData, saying what it is instead, for any other kind.
    """
    space = space or named_space(Path(path) for path in paths if path)
    if len(paths) == 1:
        bold = open_cifti(Path(paths[0]), space)
    elif len(paths) == 2 and any(paths):
        bold = open_pair(tuple(path and Path(path) for path in paths), space)
    else:
        raise BadData(f"{', '.join(map(str, paths)) or 'a run without files'}: {EXPECTED}, got {len(paths)} files")
    if repetition_time is not None:
        return replace(bold, repetition_time=float(repetition_time))
    if math.isnan(bold.repetition_time):
        log.warning("%s: does not say its repetition time in seconds", bold.where)
    return bold
