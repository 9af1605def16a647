"""Every reader of files that come from outside, as a function of one path.

A reader gives back or raises one of the program's own errors; anything else is a finding.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from parcellation.bold import Bold
from parcellation.censoring import read_censor, read_motion
from parcellation.config import load_study
from parcellation.confounds import read_confounds, read_strategy
from parcellation.errors import BadData, ParcellationError
from parcellation.headers import read_header
from parcellation.labels import Labels, read_labels
from parcellation.manifest import check_files, read_manifest
from parcellation.meshes import DENSITIES, Mesh, read_surface
from parcellation.store import Store
from parcellation.timeseries import open_bold
from pipelines.fuzz.samples import FRAMES, SPACE

Reader = Callable[[Path], object]
HEMISPHERES = (".gii", ".gii.gz", ".mgh", ".mgz")


def series(path: Path) -> Bold:
    """All series of a run; of a file of one hemisphere, those of the left one."""
    paths = (path, None) if path.name.endswith(HEMISPHERES) else (path,)
    bold = open_bold(paths, SPACE)
    seen = 0
    for part, values in bold.rows(np.arange(len(bold.vertices))):
        assert values.shape == (part.stop - part.start, bold.frames)
        assert values.dtype == np.float32
        seen += len(values)
    assert seen == len(bold.vertices) == len(set(zip(bold.vertices.hemisphere, bold.vertices.number, strict=True)))
    return bold


def header(path: Path) -> object:
    """What `index` reads of a run."""
    found = read_header((path, path) if path.name.endswith(HEMISPHERES) else (path,), SPACE)
    assert found.frames > 0
    return found


def labels(path: Path) -> Labels:
    """The labels of a file on any of the meshes; those of the mesh that it is on."""
    for space, count in ((name, count) for name in DENSITIES for count in DENSITIES[name]):
        mesh = Mesh(space, (count, count))
        try:
            found = read_labels(path, mesh)
        except BadData as error:
            if "expected labels on the data's mesh" in str(error):
                continue
            raise
        for one in (0, 1):
            assert found.keys[one] is None or found.keys[one].shape == (count,)
            assert all(isinstance(name, str) for name in found.names[one].values())
            found.missing(["x"], [one])
        return found
    raise BadData(f"{path}: on no mesh")


def surface(path: Path) -> object:
    """A surface of the samples' mesh, or of the real files'."""
    try:
        return read_surface(path, 642)
    except BadData as error:
        if "expected a surface of" in str(error):
            return read_surface(path, 32492)
        raise


def manifest(path: Path) -> object:
    """A manifest and what is said of its files."""
    frame = read_manifest(path)
    assert all(isinstance(value, str) for value in frame.to_numpy().ravel())
    return check_files(frame)


def table(path: Path) -> object:
    """A table beside a run, as each of the readers of such tables takes it; refused where all of them do."""
    refusal, taken = None, 0
    for read in (read_confounds, lambda p, n: read_strategy(p, n, "simple"), read_censor, read_motion):
        try:
            found = read(path, FRAMES)
            assert len(found[0] if isinstance(found, tuple) else found) == FRAMES
            taken += 1
        except ParcellationError as error:
            refusal = error
    if not taken:
        raise refusal
    return taken


def fingerprint(path: Path) -> object:
    """A prepared unit of a store."""
    unit = Store(path.parent).read("01", "1")
    assert np.isfinite(unit.fingerprint).all()
    return unit


# By what a file's name ends with: every reader that may meet such a file.
READERS: dict[str, dict[str, Reader]] = {
    ".dtseries.nii": {"series": series, "header": header},
    ".ptseries.nii": {"series": series, "header": header},
    ".dlabel.nii": {"labels": labels, "series": series},
    ".dscalar.nii": {"series": series},
    ".label.gii": {"labels": labels},
    ".surf.gii": {"surface": surface},
    ".gii": {"series": series, "header": header},
    ".gii.gz": {"series": series, "header": header},
    ".mgz": {"series": series, "header": header},
    ".mgh": {"series": series, "header": header},
    ".annot": {"labels": labels},
    ".white": {"surface": surface},
    "manifest.tsv": {"manifest": manifest},
    ".tsv": {"table": table},
    ".txt": {"table": table},
    ".yaml": {"study": load_study},
    "_fingerprint.safetensors": {"fingerprint": fingerprint},
}


def readers_of(path: Path, readers: dict[str, dict[str, Reader]] = READERS) -> dict[str, Reader]:
    """The readers of a file: those of the longest ending that its name has."""
    endings = [ending for ending in readers if path.name.endswith(ending)]
    return readers[max(endings, key=len)] if endings else {}
