"""Agreement of networks with anatomical areas, beside that of random cuts through the region of the same sizes.

Parts of a region overlap with its areas by chance, and parts of the right sizes overlap much. So an overlap says
something only where random *geodesic cuts* into parts of the networks' sizes rarely have a larger one. Such a cut has
one random vertex a network; in random order, each network takes as many vertices as it has, those that are nearest to
its own random vertex compared with the nearest of the later ones: v by least

    distance(v, own) - min over later networks j of distance(v, j)

With two networks this is a straight border in a random direction through a random place, bent only as the sheet is, and
parts are as compact as areas are. Discs grown about a vertex to a wanted size overlap less with areas than
such cuts do: a parcellation with straight borders would seem to agree beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.spatial import cKDTree

from parcellation.meshes import Surface, path_lengths
from parcellation.surfaces import Vertices

CUTS = 1999  # with the observed one 2000: a p-value is known to .005 where it is .05
SIGNIFICANT = 0.05
MOST_VERTICES = 6000  # all distances are kept: 144 MB of float32
BLOCK = 500  # vertices whose distances to all others are found at once
LEAST_SHARE = 0.05  # of the region: an area with less only touches it


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas of a region: name of each; index of each vertex's, shape (vertex,), -1 for none; where they are from."""

    names: tuple[str, ...]
    area: np.ndarray
    origin: str


@dataclass(frozen=True)
class Match:
    """A network and the area that is its own in the best assignment, with their Dice coefficient."""

    network: int
    area: str
    dice: float


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of one map with areas, and its null.

    matches: one a network that has an area; mean: mean Dice of them; null_mean, null_level: mean and 95 % level of the
    same number over random cuts, each with its own best assignment; p: share of cuts that agree as well or better, the
    map itself counted as one of them (Phipson and Smyth 2010), so never below 1 / (cuts + 1).
    """

    matches: tuple[Match, ...]
    mean: float
    null_mean: float
    null_level: float
    p: float
    cuts: int

    @property
    def significant(self) -> bool:
        """Whether fewer than 5 % of random cuts agree as well."""
        return self.p <= SIGNIFICANT


def areas_of(names: Sequence[str], members: Sequence[np.ndarray], count: int, origin: str) -> Areas | None:
    """Areas from the positions of their vertices in the region of `count` vertices; None for fewer than two.

    members: int, shape (vertex of the area,). A position in several areas is the first one's. Areas of less than 5 % of
    the region are left out.
    """
    kept = [(name, rows) for name, rows in zip(names, members, strict=True) if len(rows) >= LEAST_SHARE * count]
    if len(kept) < 2:
        return None
    area = np.full(count, -1)
    for number in reversed(range(len(kept))):
        area[kept[number][1]] = number
    return Areas(tuple(name for name, _ in kept), area, origin)


def region_distances(surfaces: Sequence[Surface], region: Vertices) -> np.ndarray:
    """Geodesic distances between the region's vertices in mm, float32, shape (vertex, vertex).

    Shortest paths (`meshes.path_lengths`) that stay in the region. Where it has vertices in both hemispheres, each is
    joined to the nearest one of the other hemisphere's mirror image, so that a cut is much the same on both sides.
    Parts without a path between them are joined by the shortest straight lines. Raises ValueError for a region of more
    than 6000 vertices.
    """
    if len(region) > MOST_VERTICES:
        raise ValueError(f"expected a region of at most {MOST_VERTICES} vertices, got {len(region)}")
    points = np.stack([surfaces[h].coordinates[n] for h, n in zip(region.hemisphere, region.number, strict=True)])
    points[region.hemisphere == 1, 0] *= -1
    graph = sparse.lil_array((len(region), len(region)))
    for one in np.unique(region.hemisphere):
        rows = np.flatnonzero(region.hemisphere == one)
        numbers = region.number[rows]
        graph[np.ix_(rows, rows)] = path_lengths(surfaces[one])[numbers][:, numbers]
    sides = [np.flatnonzero(region.hemisphere == one) for one in (0, 1)]
    for own, other in (sides, sides[::-1]):
        if len(own) and len(other):
            length, nearest = cKDTree(points[other]).query(points[own])
            graph[own, other[nearest]] = np.maximum(length, np.finfo(np.float32).tiny)
    whole = _joined(graph.tocsr(), points)
    # In blocks, between which a signal to end is heard: all at once take many seconds, in float64.
    blocks = [np.arange(len(region))[start : start + BLOCK] for start in range(0, len(region), BLOCK)]
    return np.concatenate([dijkstra(whole, directed=False, indices=one).astype(np.float32) for one in blocks])


def _joined(graph: sparse.csr_array, points: np.ndarray) -> sparse.csr_array:
    """The graph with straight steps between its parts, the shortest that make it one."""
    while True:
        count, part = connected_components(graph, directed=False)
        if count == 1:
            return graph
        own, other = np.flatnonzero(part == part[0]), np.flatnonzero(part != part[0])
        length, nearest = cKDTree(points[own]).query(points[other])
        shortest = int(np.argmin(length))
        step = sparse.csr_array(
            ([max(length[shortest], np.finfo(np.float32).tiny)], ([own[nearest[shortest]]], [other[shortest]])),
            shape=graph.shape,
        )
        graph = graph + step


def random_cuts(distance: np.ndarray, sizes: Sequence[int], count: int, generator: np.random.Generator) -> np.ndarray:
    """Random geodesic cuts of a region: the part of each vertex, int16, shape (cut, vertex).

    distance: see `region_distances`; sizes: vertices of each part, adding up to all of them; a part may be empty.
    Raises ValueError for other sizes.
    """
    vertices, sizes = len(distance), np.asarray(sizes)
    if sizes.sum() != vertices or (sizes < 0).any():
        raise ValueError(f"expected sizes that add up to {vertices} vertices, got {sizes.tolist()}")
    present = np.flatnonzero(sizes)
    cuts = np.empty((count, vertices), np.int16)
    for cut in cuts:
        order = generator.permutation(present)
        starts = generator.choice(vertices, len(order), replace=False)
        _cut(cut, distance[starts], order, sizes)
    return cuts


def _cut(cut: np.ndarray, distance: np.ndarray, order: np.ndarray, sizes: np.ndarray) -> None:
    """Fill in the part of each vertex; distance: from the parts' starts, in their order, shape (part, vertex)."""
    cut[:] = order[-1]
    free = np.arange(distance.shape[1])
    for number, part in enumerate(order[:-1]):
        own = distance[number, free] - distance[number + 1 :, free].min(0)
        taken = np.argsort(own, kind="stable")[: sizes[part]]
        cut[free[taken]] = part
        free = np.delete(free, taken)


def dice(labels: np.ndarray, areas: Areas, networks: int) -> np.ndarray:
    """Dice coefficients 2 |A and B| / (|A| + |B|) within the region, shape (..., network, area).

    labels: network of each vertex, from 0, shape (..., vertex). A network without a vertex has 0.
    """
    member = np.eye(len(areas.names) + 1)[areas.area][:, :-1]  # -1 picks the last row, of no area
    own = (labels[..., None, :] == np.arange(networks)[:, None]).astype(float)
    return 2 * (own @ member) / (own.sum(-1)[..., None] + member.sum(0))


def best_match(overlap: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Networks, their areas, one to one, that have the largest sum of Dice; and the mean over these pairs."""
    rows, columns = linear_sum_assignment(-overlap)
    return rows, columns, float(overlap[rows, columns].mean())


def agreement(
    labels: np.ndarray,
    areas: Areas,
    distance: np.ndarray,
    networks: int,
    cuts: int = CUTS,
    seed: int = 0,
) -> Agreement:
    """How well a map agrees with areas, beside random cuts of the region into parts of its networks' sizes.

    labels: network of each vertex, from 0, shape (vertex,); distance: see `region_distances`. The same seed gives the
    same cuts.
    """
    overlap = dice(labels, areas, networks)
    rows, columns, mean = best_match(overlap)
    sizes = np.bincount(labels, minlength=networks)
    random = random_cuts(distance, sizes, cuts, np.random.default_rng(seed))
    null = np.sort([best_match(one)[2] for one in dice(random, areas, networks)])
    better = int(np.sum(null >= mean - 1e-12))
    level = null[max(cuts - int(SIGNIFICANT * (cuts + 1)), 0)]
    matches = tuple(Match(int(k), areas.names[a], float(overlap[k, a])) for k, a in zip(rows, columns, strict=True))
    return Agreement(matches, mean, float(null.mean()), float(level), (1 + better) / (1 + cuts), cuts)
