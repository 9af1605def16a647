"""Series of parcels: a parcel is treated as one vertex, which its first vertex stands for.

    parcels = parcels_of(mesh, names, members)     # all vertices of every parcel, as `Targets`
    first_vertices(parcels)                        # what identifies them: one vertex of the mesh a parcel
    region = region_parcels(study, parcels)        # those of the study's region, which are parcelled
    targets = as_single_vertices(parcels)          # all of them are targets

Parcels are known by their names and their vertices: a file with other ones is of another atlas and is refused.
"""

import logging
from collections.abc import Sequence

import numpy as np

from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.labels import ABSENT, Labels, side
from parcellation.meshes import Mesh
from parcellation.surfaces import WANTED, Targets, Vertices, region_vertices, wanted_labels

log = logging.getLogger(__name__)


def parcels_of(mesh: Mesh, names: Sequence[str], members: Sequence[Sequence[tuple[int, np.ndarray]]]) -> Targets:
    """Parcels as targets, ordered by their first vertex, left hemisphere first, whatever the order given.

    members: of each parcel its vertices, as pairs of a hemisphere (0 left, 1 right) and vertex numbers.
    """
    parts = [sorted((side, np.sort(numbers)) for side, numbers in _joined(own)) for own in members]
    order = sorted(range(len(names)), key=lambda k: (parts[k][0][0], int(parts[k][0][1][0])))
    flat = [(k, side, numbers) for k, one in enumerate(order) for side, numbers in parts[one]]
    sizes = [len(numbers) for *_, numbers in flat]
    hemisphere = np.repeat(np.array([side for _, side, _ in flat], np.uint8), sizes)
    vertices = Vertices(mesh, hemisphere, np.concatenate([numbers for *_, numbers in flat]).astype(np.int32))
    return Targets(tuple(names[one] for one in order), vertices, np.repeat([k for k, *_ in flat], sizes))


def _joined(own: Sequence[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """One list of vertices a hemisphere."""
    sides = sorted({one for one, _ in own})
    return [(one, np.concatenate([numbers for other, numbers in own if other == one])) for one in sides]


def first_vertices(parcels: Targets) -> Vertices:
    """The first vertex of each parcel, in the order of the parcels."""
    return parcels.members[np.unique(parcels.target, return_index=True)[1]]


def as_single_vertices(parcels: Targets) -> Targets:
    """The same targets, each of the one vertex that its series has in a file of parcels."""
    return Targets(parcels.names, first_vertices(parcels), np.arange(len(parcels.names)))


def all_vertices(parcels: Targets) -> Vertices:
    """Every vertex of every parcel, ascending, left before right."""
    members = parcels.members
    return Vertices.of(members.mesh, *(np.sort(members.number[members.hemisphere == one]) for one in (0, 1)))


def parcel_of(brain: Vertices, parcels: Targets, region: Vertices) -> np.ndarray:
    """Position in the region of the parcel that each vertex of the brain is of, int64 (brain vertex,); -1 for none.

    region: parcels, by their first vertices.
    """
    place = brain.within(parcels.members)
    position = first_vertices(parcels).within(region)
    return np.where(place >= 0, position[parcels.target[place]], -1)


def region_parcels(study: Study, parcels: Targets) -> Vertices:
    """The parcels of the study's region, by their first vertices, in the order of the parcels.

    By their names in the file itself: `region.labels`, or what the definition of `region.name` says. Where the study
    names a `label_file`, or no parcels are called so, the parcels of which more than half of the vertices are in the
    region, as `region_vertices` finds it. Raises as that, and BadData when no parcel is in the region.
    """
    mesh, sides = parcels.members.mesh, WANTED[study.region.hemisphere]
    missing = ""
    if not study.region.label_file:
        labels = _as_labels(parcels)
        for names in wanted_labels(study.region):
            if not (why := labels.missing(names, sides)):
                keys = [labels.keys[one][labels.vertices(name, one)] for name in names for one in sides]
                return _said(study, parcels, np.unique(np.concatenate(keys)), f"called {' + '.join(names)}")
            missing = missing or why
    try:
        dense = region_vertices(study, mesh)
    except (InputMissing, UsageError) as error:
        raise type(error)(f"{missing}; and {error}" if missing else str(error)) from None
    inside = np.bincount(parcels.target, parcels.members.within(dense) >= 0, minlength=len(parcels.names))
    chosen = np.flatnonzero(inside * 2 > np.bincount(parcels.target))
    return _said(study, parcels, chosen, "with more than half of their vertices in it")


def _said(study: Study, parcels: Targets, chosen: np.ndarray, how: str) -> Vertices:
    if not len(chosen):
        raise BadData(f"region {study.region.name!r}: none of the data's {len(parcels.names)} parcels is in it")
    names = ", ".join(parcels.names[one] for one in chosen)
    log.info("region %s: %d parcels %s: %s", study.region.name, len(chosen), how, names)
    return first_vertices(parcels)[chosen]


def _as_labels(parcels: Targets) -> Labels:
    """The parcels as a label file that says of each vertex which parcel it is of."""
    members, table = parcels.members, dict(enumerate(parcels.names))
    keys = tuple(np.full(count, ABSENT) for count in members.mesh.counts)
    for one, own in enumerate(keys):
        here = members.hemisphere == one
        own[members.number[here]] = parcels.target[here]
    tables = tuple({k: name for k, name in table.items() if side(name) in (None, one)} for one in (0, 1))
    return Labels("the data's parcels", keys, tables)


def check_parcels(where: str, expected: Targets | None, got: Targets | None) -> None:
    """Raise BadData when of a run and its cohort one is of parcels, or both are of different atlases."""
    if (expected is None) != (got is None):
        raise BadData(f"{where}: expected series of {_what(expected)}, as the cohort has, got series of {_what(got)}")
    if expected is None or got is None or same_parcels(expected, got):
        return
    differing = sorted(set(expected.names) ^ set(got.names))
    words = f"their names differ, such as {', '.join(differing[:3])}" if differing else "their vertices differ"
    counts = f"{len(expected.names)} parcels of the cohort's atlas, got {len(got.names)} parcels"
    raise BadData(f"{where}: expected the {counts}: {words}; all runs must be of one atlas")


def _what(parcels: Targets | None) -> str:
    return "vertices" if parcels is None else f"{len(parcels.names)} parcels"


def same_parcels(one: Targets, other: Targets) -> bool:
    """Whether names and vertices are the same."""
    mine, theirs = one.members, other.members
    return (
        (one.names, mine.mesh) == (other.names, theirs.mesh)
        and np.array_equal(one.target, other.target)
        and np.array_equal(mine.hemisphere, theirs.hemisphere)
        and np.array_equal(mine.number, theirs.number)
    )
