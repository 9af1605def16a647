"""Vertices and targets as plain values of JSON, and back: what a store, a ground and a model say they stand on.

A file may come from anybody, so that what is read is checked: everything else relies on it.
"""

import numpy as np

from parcellation.meshes import Mesh
from parcellation.surfaces import Targets, Vertices

SPACES = ("fsLR", "fsaverage", "none")
MOST_VERTICES = 10**7  # of a hemisphere


def vertices_json(vertices: Vertices) -> dict:
    """Plain values of vertices in their order, that `vertices_from_json` restores exactly."""
    # Row by row, since members of targets follow their targets: the left hemisphere's need not come first.
    return {
        "space": vertices.mesh.space,
        "counts": list(vertices.mesh.counts),
        "hemisphere": vertices.hemisphere.tolist(),
        "number": vertices.number.tolist(),
    }


def vertices_from_json(content: dict) -> Vertices:
    """The inverse of `vertices_json`; raises ValueError for what is no list of vertices of one mesh."""
    space, counts = content["space"], tuple(content["counts"])
    known = space in SPACES and all(isinstance(count, int) and 0 <= count <= MOST_VERTICES for count in counts)
    if not known or len(counts) != 2:
        raise ValueError(f"expected a mesh in one of {', '.join(SPACES)}, got {space!r} with {content['counts']}")
    hemisphere, number = np.array(content["hemisphere"]), np.array(content["number"])
    if hemisphere.ndim != 1 or hemisphere.shape != number.shape or not np.isin(hemisphere, (0, 1)).all():
        raise ValueError(f"expected a hemisphere and a number each vertex, got {hemisphere.shape} and {number.shape}")
    most = np.take(counts, hemisphere.astype(int))
    if len(number) and not (number.dtype.kind == "i" and (number >= 0).all() and (number < most).all()):
        raise ValueError(f"expected vertices of a mesh of {counts} vertices, got others")
    return Vertices(Mesh(space, counts), hemisphere.astype(np.uint8), number.astype(np.int32))


def targets_json(targets: Targets) -> dict:
    """Plain values of targets, that `targets_from_json` restores exactly."""
    members = vertices_json(targets.members)
    return {"names": list(targets.names), "members": members, "target": targets.target.tolist()}


def targets_from_json(content: dict) -> Targets:
    """The inverse of `targets_json`; raises ValueError for what is no list of targets."""
    names, members = tuple(content["names"]), vertices_from_json(content["members"])
    target = np.array(content["target"], int)
    if target.shape != (len(members),) or not np.isin(target, np.arange(len(names))).all():
        raise ValueError(f"expected each of {len(members)} members to be of one of {len(names)} targets")
    return Targets(names, members, target)
