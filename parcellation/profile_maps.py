"""Profiles of connectivity on the cortex: which target each vertex of the brain shows."""

from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree

from parcellation.meshes import Surface
from parcellation.surfaces import Targets, Vertices


def fill(targets: Targets, brain: Vertices, spheres: Sequence[Surface] | None, wall: Vertices | None) -> np.ndarray:
    """Index of the target that each vertex of the brain shows, int64, shape (brain vertex,); -1 for none.

    A member of a target shows it. Where targets are single vertices, the others show the nearest one of their
    hemisphere, along the sphere, except in the medial wall; parcels are never spread beyond their border, and without
    spheres nothing is.
    """
    place = targets.members.within(brain)
    shown = np.full(len(brain), -1)
    shown[place[place >= 0]] = targets.target[place >= 0]
    parcels = len(targets.members) > len(targets.names)
    if parcels or spheres is None:
        return shown
    free = shown < 0 if wall is None else (shown < 0) & (brain.within(wall) < 0)
    for one, sphere in enumerate(spheres):
        own, empty = targets.members.hemisphere == one, free & (brain.hemisphere == one)
        if own.any() and empty.any():
            tree = cKDTree(sphere.coordinates[targets.members.number[own]])
            # The chord is shorter where the arc is.
            shown[empty] = targets.target[own][tree.query(sphere.coordinates[brain.number[empty]])[1]]
    return shown
