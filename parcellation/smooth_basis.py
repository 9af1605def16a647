"""Smooth functions on a region: the first eigenvectors of its Laplacian, by rising eigenvalue.

    stiffness phi_j = lambda_j mass phi_j,     sum_v mass_v phi_j^2 = sum_v mass_v

so a mode's mean square over the region is 1 and its weight has the unit of the function. On a mesh these are the
eigenfunctions of the Laplace-Beltrami operator with free (Neumann) borders, by linear finite elements with a lumped
mass (Reuter et al. 2009); voxels and parcels have the Laplacian of a graph, with equal masses.

The first mode is the constant. Separate parts of a region have modes of their own, and share contrasts of their levels,
of eigenvalue 0. Parts with next to no mass, such as a vertex in no triangle, have the constant only.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from parcellation.errors import BadData
from parcellation.meshes import Surface
from parcellation.surfaces import Vertices

SMALL_PART = 0.01  # of the region's mass
DENSE = 400  # vertices up to which all of a part's matrix is decomposed
TIE = 1e-4  # relative: entries that differ by less are equally large, so that rounding does not choose a sign


@dataclass(frozen=True, eq=False)
class SmoothBasis:
    """Modes of a region, ascending.

    eigenvalues: in 1/mm^2 on a mesh, shape (mode,), the first 0; phi: shape (vertex, mode), the first all 1.
    """

    eigenvalues: np.ndarray
    phi: np.ndarray


def cotangent_laplacian(surface: Surface, chosen: np.ndarray) -> tuple[sparse.csr_array, np.ndarray]:
    """Stiffness (vertex, vertex) and lumped mass (vertex,), mm^2, of some vertices of one hemisphere, in their order.

    Triangles with all three vertices among `chosen` count: outside them nothing is known, so the border is free. The
    weight of an edge is half the sum of the cotangents of the angles opposite to it (Pinkall and Polthier 1993).
    """
    place = np.full(len(surface.coordinates), -1)
    place[chosen] = np.arange(len(chosen))
    corners = place[surface.triangles]
    inside = (corners >= 0).all(1)
    corners, points = corners[inside], surface.coordinates[surface.triangles[inside]]
    n, area = len(chosen), np.linalg.norm(np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]), axis=1)
    weights = sparse.csr_array((n, n))
    for one in range(3):
        start, end = (one + 1) % 3, (one + 2) % 3
        arms = points[:, start] - points[:, one], points[:, end] - points[:, one]
        half_cotangent = 0.5 * np.einsum("ij,ij->i", *arms) / np.maximum(area, np.finfo(float).tiny)
        edge = sparse.csr_array((half_cotangent, (corners[:, start], corners[:, end])), shape=(n, n))
        weights = weights + edge + edge.T
    mass = np.bincount(corners.ravel(), np.repeat(area / 6, 3), minlength=n)
    return _laplacian(weights), mass


def graph_laplacian(weights: sparse.sparray) -> tuple[sparse.csr_array, np.ndarray]:
    """Stiffness (node, node) and mass (node,), all 1, of a graph with these symmetric weights of edges.

    Raises BadData for weights that are not symmetric or negative.
    """
    weights = sparse.csr_array(weights, dtype=float)
    weights.setdiag(0)
    weights.eliminate_zeros()
    if abs(weights - weights.T).nnz or (weights.data < 0).any():
        raise BadData("graph: expected symmetric weights of edges, none of them negative")
    return _laplacian(weights), np.ones(weights.shape[0])


def _laplacian(weights: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(sparse.diags_array(weights.sum(1)) - weights)


def voxel_neighbours(places: np.ndarray) -> sparse.csr_array:
    """Which voxels of a mask share a face; places: their whole-number coordinates, shape (voxel, 3), each once."""
    number = {tuple(place): i for i, place in enumerate(places.tolist())}
    pairs = []
    for axis in np.eye(3, dtype=int):
        after = [number.get(tuple(place)) for place in (places + axis).tolist()]
        pairs += [(i, j) for i, j in enumerate(after) if j is not None]
    return edges(np.array(pairs, int).reshape(-1, 2), len(places))


def parcel_borders(parcel: np.ndarray, triangles: np.ndarray, count: int) -> sparse.csr_array:
    """How long the border of each two parcels is, in mesh edges that cross it, shape (parcel, parcel).

    parcel: of each vertex of the mesh, from 0, shape (vertex,); -1 for none.
    """
    sides = np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]]), axis=1)
    pairs = parcel[np.unique(sides, axis=0)]
    return edges(pairs[(pairs >= 0).all(1) & (pairs[:, 0] != pairs[:, 1])], count)


def edges(pairs: np.ndarray, count: int) -> sparse.csr_array:
    """Symmetric weights of the edges between these pairs of nodes, shape (pair, 2): how often each is named."""
    weights = sparse.csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return weights + weights.T


def region_basis(surfaces: tuple[Surface, Surface], region: Vertices, modes: int) -> SmoothBasis:
    """The basis of a region on its mesh, in the region's order; both hemispheres are parts of one region."""
    parts = [np.flatnonzero(region.hemisphere == one) for one in (0, 1)]
    found = [cotangent_laplacian(surface, region.number[part]) for surface, part in zip(surfaces, parts, strict=True)]
    order = np.argsort(np.concatenate(parts))
    stiffness = sparse.block_diag([one for one, _ in found], format="csr")[order][:, order]
    return smooth_basis(stiffness, np.concatenate([mass for _, mass in found])[order], modes)


def smooth_basis(stiffness: sparse.sparray, mass: np.ndarray, modes: int) -> SmoothBasis:
    """The first modes of a Laplacian, at most as many as there are.

    Raises BadData where no vertex has a neighbour.
    """
    total = mass.sum()
    _, part = connected_components(stiffness)
    members = [np.flatnonzero(part == p) for p in range(part.max() + 1)]
    members = [one for one in members if len(one) > 1 and mass[one].sum() >= SMALL_PART * total]
    if not members:
        raise BadData(f"smooth basis: expected vertices that have neighbours, got {len(mass)} without")
    values, columns = [0.0], [np.ones(len(mass))]
    for contrast in _levels(members, mass):
        values.append(0.0)
        columns.append(contrast)
    for one in members:
        own_values, own = _modes(sparse.csr_array(stiffness)[one][:, one], mass[one], modes)
        for value, vector in zip(own_values, own.T, strict=True):
            column = np.zeros(len(mass))
            column[one] = vector * np.sqrt(total)
            values.append(value)
            columns.append(column)
    order = np.argsort(values, kind="stable")[:modes]
    return SmoothBasis(np.array(values)[order], np.stack(columns, 1)[:, order])


def _levels(members: list[np.ndarray], mass: np.ndarray) -> list[np.ndarray]:
    """Contrasts between the levels of a region's parts, each part with those before it, orthogonal in mass."""
    contrasts, before = [], members[0]
    for one in members[1:]:
        first, second = mass[before].sum(), mass[one].sum()
        contrast = np.zeros(len(mass))
        contrast[before], contrast[one] = 1 / first, -1 / second
        contrasts.append(contrast * np.sqrt(mass.sum() / (1 / first + 1 / second)))
        before = np.concatenate([before, one])
    return contrasts


def _modes(stiffness: sparse.csr_array, mass: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and modes of one connected part but its constant; sum of mass phi^2 is 1; signs are settled."""
    root = sparse.diags_array(1 / np.sqrt(np.maximum(mass, 1e-9 * mass.max())))
    matrix = sparse.csc_array(root @ stiffness @ root)
    n, wanted = len(mass), min(count, len(mass) - 1)
    if n <= DENSE or wanted + 1 >= n:
        values, vectors = linalg.eigh(matrix.toarray(), subset_by_index=[0, wanted])
    else:
        # Shifted below 0, where the matrix is definite; a start of its own, so that every run has the same.
        start = np.random.default_rng(0).standard_normal(n)
        values, vectors = eigsh(matrix, wanted + 1, sigma=-1e-2 * matrix.diagonal().mean(), v0=start)
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
    phi = (root @ vectors)[:, 1:]
    return values[1:], phi * _signs(phi)


def _signs(phi: np.ndarray) -> np.ndarray:
    """What makes the first of a mode's largest entries positive."""
    size = np.abs(phi)
    first = (size >= (1 - TIE) * size.max(0)).argmax(0)
    return np.sign(phi[first, np.arange(phi.shape[1])])
