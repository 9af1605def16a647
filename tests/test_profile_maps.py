"""Profiles on the cortex: members show their target, others the nearest, parcels nothing beyond their border."""

import numpy as np

from parcellation.meshes import Surface
from parcellation.profile_maps import fill
from parcellation.surfaces import Mesh, Targets, Vertices
from tests.spheres import sphere

MESH = Mesh("fsaverage", (642, 642))
SPHERE = Surface(*sphere())
BRAIN = Vertices.of(MESH, np.arange(642), np.arange(0, 642, 2))


def single(left, right=()):
    members = Vertices.of(MESH, left, right)
    return Targets(tuple(f"t{n}" for n in range(len(members))), members, np.arange(len(members)))


def test_a_vertex_shows_the_nearest_target_of_its_hemisphere():
    shown = fill(single([10, 400], [200]), BRAIN, (SPHERE, SPHERE), None)
    left = shown[BRAIN.hemisphere == 0]
    distance = np.linalg.norm(SPHERE.coordinates[:, None] - SPHERE.coordinates[[10, 400]], axis=-1)
    np.testing.assert_array_equal(left, distance.argmin(1))
    assert (shown[BRAIN.hemisphere == 1] == 2).all()


def test_nothing_is_shown_in_the_medial_wall_or_without_targets():
    wall = Vertices.of(MESH, np.arange(50), [])
    shown = fill(single([100, 300]), BRAIN, (SPHERE, SPHERE), wall)
    assert (shown[:50] == -1).all()
    assert (shown[50:642] >= 0).all()
    assert (shown[642:] == -1).all()


def test_without_spheres_only_members_show_their_target():
    shown = fill(single([100, 300]), BRAIN, None, None)
    assert np.flatnonzero(shown >= 0).tolist() == [100, 300]


def test_parcels_are_not_spread():
    members = Vertices.of(MESH, [1, 2, 3, 500], [])
    shown = fill(Targets(("a", "b"), members, np.array([0, 0, 1, 1])), BRAIN, (SPHERE, SPHERE), None)
    assert shown[[1, 2, 3, 500]].tolist() == [0, 0, 1, 1]
    assert (shown >= 0).sum() == 4


def test_members_outside_the_file_are_shown_by_none():
    shown = fill(single([], [1, 2]), BRAIN, None, None)
    right = shown[642:]
    assert np.flatnonzero(right >= 0).tolist() == [1]  # vertex 2; vertex 1 has no row
