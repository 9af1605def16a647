"""What a run's files say about themselves, without reading its series: mesh, frames, repetition time.

Files of which the size or the end shows that they are cut off are found here too.
"""

import gzip
import math
import xml.parsers.expat as expat
import zlib
from dataclasses import dataclass
from pathlib import Path

from parcellation.errors import BadData, InputMissing
from parcellation.meshes import Mesh, mesh_of, named_space
from parcellation.timeseries import open_bold

GIFTI = (".gii", ".gii.gz")


@dataclass(frozen=True)
class Header:
    """A run as its files describe it.

    frames: time points; repetition_time: seconds, nan where nobody says it; parcels: how many, 0 of vertices.
    """

    paths: tuple[Path, ...]
    mesh: Mesh
    frames: int
    repetition_time: float
    parcels: int = 0

    @property
    def of(self) -> str:
        """What the rows are of: the mesh's name, or so many parcels on it."""
        return f"{self.mesh.name} in {self.parcels} parcels" if self.parcels else self.mesh.name

    @property
    def where(self) -> str:
        """The file names, as error messages begin."""
        return " + ".join(map(str, self.paths))


def read_header(paths: tuple[Path, ...], space: str | None = None, repetition_time: float | None = None) -> Header:
    """The header of a run; arguments and errors as of `timeseries.open_bold`."""
    if len(paths) == 2 and all(path.name.endswith(GIFTI) for path in paths):
        return _gifti_pair(paths, space, math.nan if repetition_time is None else repetition_time)
    bold = open_bold(paths, space, repetition_time)
    parcels = 0 if bold.parcels is None else len(bold.parcels.names)
    return Header(bold.paths, bold.vertices.mesh, bold.frames, bold.repetition_time, parcels)


def _gifti_pair(paths: tuple[Path, ...], space: str | None, repetition_time: float) -> Header:
    shapes = [_gifti_shape(path) for path in paths]
    where = " + ".join(map(str, paths))
    (left, frames), (right, others) = shapes
    if frames != others:
        raise BadData(f"{where}: hemispheres of different lengths, {frames} and {others} frames")
    return Header(paths, mesh_of((left, right), space or named_space(paths), where), frames, repetition_time)


def _gifti_shape(path: Path) -> tuple[int, int]:
    """Vertices and frames of a GIFTI series: its XML is read to the end, its numbers are not decoded."""
    arrays: list[tuple[int, int]] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "DataArray":
            arrays.append((int(attributes["Dim0"]), int(attributes.get("Dim1", 1))))

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    try:
        with (gzip.open if path.name.endswith(".gz") else open)(path, "rb") as file:
            parser.ParseFile(file)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file") from None
    except (expat.ExpatError, OSError, EOFError, LookupError, ValueError, zlib.error) as error:
        raise BadData(f"{path}: not a whole GIFTI file ({error}); copy or convert it again") from error
    counts = {vertices for vertices, _ in arrays}
    if any(frames < 1 for _, frames in arrays):
        raise BadData(f"{path}: expected frames, got an array of {min(frames for _, frames in arrays)}; copy it again")
    if len(counts) != 1:
        raise BadData(f"{path}: expected one data array a frame, all of one length, got {sorted(counts)}")
    return counts.pop(), sum(frames for _, frames in arrays)
