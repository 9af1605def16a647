"""Modes of a region: spectra that are known, and what may not change them."""

import numpy as np
import pytest
from scipy import sparse

from parcellation.errors import BadData
from parcellation.meshes import Mesh, Surface
from parcellation.smooth_basis import (
    SmoothBasis,
    cotangent_laplacian,
    edges,
    graph_laplacian,
    parcel_borders,
    region_basis,
    smooth_basis,
    voxel_neighbours,
)
from parcellation.surfaces import Vertices
from tests.spheres import RADIUS, sphere


def sheet(columns: int, rows: int, width: float, height: float) -> Surface:
    """A flat rectangle of triangles."""
    x, y = np.meshgrid(np.linspace(0, width, columns), np.linspace(0, height, rows), indexing="ij")
    place = np.arange(columns * rows).reshape(columns, rows)
    a, b, c, d = (part.ravel() for part in (place[:-1, :-1], place[1:, :-1], place[:-1, 1:], place[1:, 1:]))
    return Surface(np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], 1), np.r_[np.c_[a, b, d], np.c_[a, d, c]])


def basis_of(surface: Surface, modes: int) -> tuple[SmoothBasis, np.ndarray]:
    stiffness, mass = cotangent_laplacian(surface, np.arange(len(surface.coordinates)))
    return smooth_basis(stiffness, mass, modes), mass


def test_a_rectangle_with_free_borders_has_its_known_spectrum():
    basis, mass = basis_of(sheet(41, 31, 4.0, 3.0), 12)
    known = np.sort([np.pi**2 * ((m / 4) ** 2 + (n / 3) ** 2) for m in range(9) for n in range(9)])[:12]
    # Linear elements err by (wavenumber x edge)^2 / 12: at most 1.5 % here.
    assert np.allclose(basis.eigenvalues, known, rtol=0.015)
    assert mass.sum() == pytest.approx(12.0)


@pytest.mark.parametrize(("columns", "rows"), [(41, 31), (15, 11)], ids=["sparse", "dense"])
def test_modes_are_orthonormal_in_mass_and_the_first_is_the_constant(columns, rows):
    basis, mass = basis_of(sheet(columns, rows, 4.0, 3.0), 20)
    assert np.allclose(basis.phi.T @ (mass[:, None] * basis.phi), mass.sum() * np.eye(20), atol=1e-9 * mass.sum())
    assert (basis.phi[:, 0] == 1).all()
    assert basis.eigenvalues[0] == 0


def test_a_sphere_has_the_spectrum_of_spherical_harmonics():
    basis, _ = basis_of(Surface(*sphere(1500)), 16)
    known = np.repeat([0.0, 2.0, 6.0, 12.0], [1, 3, 5, 7])
    assert np.allclose(basis.eigenvalues * RADIUS**2, known, rtol=0.01)


def test_the_order_of_vertices_does_not_matter():
    surface, turn = sheet(24, 20, 4.0, 3.1), np.random.default_rng(0).permutation(480)
    moved = Surface(surface.coordinates[turn], np.argsort(turn)[surface.triangles])
    first, second = basis_of(surface, 10)[0], basis_of(moved, 10)[0]
    assert np.allclose(first.eigenvalues, second.eigenvalues, atol=1e-9)
    # A mode of equal peaks takes its sign from the first of them.
    same = np.sign((first.phi[turn] * second.phi).sum(0))
    assert np.allclose(first.phi[turn], second.phi * same, atol=1e-6)


def test_equal_calls_give_equal_bytes():
    surface = sheet(24, 20, 4.0, 3.0)
    assert basis_of(surface, 10)[0].phi.tobytes() == basis_of(surface, 10)[0].phi.tobytes()


def test_a_region_s_border_is_free():
    # The left half of a sheet, whose other half is not in the region, has the modes of a sheet of half the width.
    whole, half = sheet(41, 21, 4.0, 2.0), sheet(21, 21, 2.0, 2.0)
    chosen = np.flatnonzero(whole.coordinates[:, 0] <= 2.0 + 1e-9)
    found = smooth_basis(*cotangent_laplacian(whole, chosen), 8)
    assert np.allclose(found.eigenvalues, basis_of(half, 8)[0].eigenvalues, atol=1e-9)


def test_parts_share_the_constant_and_have_contrasts_of_their_levels():
    path = edges(np.array([[0, 1], [1, 2], [3, 4], [4, 5], [5, 6]]), 8)  # 3 nodes, 4 nodes, and one alone
    basis = smooth_basis(*graph_laplacian(path), 5)
    assert (basis.eigenvalues[:2] == 0).all()
    assert (basis.eigenvalues[2:] > 0.1).all()
    assert len(set(np.round(basis.phi[:3, 1], 12))) == 1
    assert basis.phi[0, 1] * basis.phi[3, 1] < 0
    assert np.allclose(basis.phi[:, 1:].sum(0), 0, atol=1e-12)
    assert (basis.phi[7] == [1, 0, 0, 0, 0]).all()  # the lone node has the constant and nothing else


def test_a_path_has_its_known_spectrum_and_no_more_modes_than_nodes():
    chain = np.stack([np.arange(9), np.arange(1, 10)], 1)
    basis = smooth_basis(*graph_laplacian(edges(chain, 10)), 30)
    assert np.allclose(basis.eigenvalues, 2 - 2 * np.cos(np.pi * np.arange(10) / 10), atol=1e-12)


def test_both_hemispheres_are_parts_of_one_region_in_its_own_order():
    surface = sheet(6, 5, 2.0, 1.5)
    vertices = Vertices(Mesh("fsaverage", (30, 30)), np.tile([0, 1], 30).astype(np.uint8), np.repeat(np.arange(30), 2))
    basis = region_basis((surface, surface), vertices, 6)
    assert (basis.eigenvalues[:2] == 0).all()
    assert np.allclose(basis.phi[::2, 1], -basis.phi[1::2, 1])


def test_voxels_that_share_a_face_are_neighbours():
    places = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [2, 1, 1], [1, 0, -1]])
    weights = voxel_neighbours(places).toarray()
    assert {tuple(pair) for pair in np.argwhere(np.triu(weights)).tolist()} == {(0, 1), (1, 2), (1, 4)}


def test_parcels_are_joined_by_the_length_of_their_border():
    surface = sheet(4, 3, 3.0, 2.0)
    parcel = np.where(surface.coordinates[:, 0] < 1.5, 0, 1)
    parcel[0] = -1
    weights = parcel_borders(parcel, surface.triangles, 3).toarray()
    assert weights[0, 1] == weights[1, 0] == 5  # three straight edges and two diagonal ones cross the border
    assert weights.sum() == 10


@pytest.mark.parametrize("weights", [[[0, 1.0], [0, 0]], [[0, -1.0], [-1.0, 0]]])
def test_weights_that_are_no_graph_s_are_refused(weights):
    with pytest.raises(BadData, match="symmetric"):
        graph_laplacian(sparse.csr_array(np.array(weights)))


def test_nothing_but_lone_vertices_is_refused():
    with pytest.raises(BadData, match="neighbours"):
        smooth_basis(*graph_laplacian(sparse.csr_array((4, 4))), 3)
