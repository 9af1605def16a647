"""From a surface mesh to pixels: an orthographic view is rasterised once and then painted for any number of maps.

A pixel keeps the triangle that it shows and its barycentric weights there, so a map's values are interpolated between
vertices and borders run smoothly between them, at a cost that does not depend on the mesh.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import ndimage, sparse

LATERAL = np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # towards the viewer, left and right hemisphere
UP = np.array([0.0, 0.0, 1.0])
WHOLE_SHARE = 0.3  # of a hemisphere's vertices, above which a region is shown whole and from both sides
OVERSAMPLING = 2  # pixels are computed at twice the resolution and averaged
GYRUS, SULCUS = 0.88, 0.70  # grey of the bare cortex
BLANK = 0.84  # grey of the region where a map says nothing; even, so that folds are not read as values
RELIEF = 0.3  # share of the light's contrast left in the region, for the same reason
OUTLINE = np.array([0.13, 0.13, 0.15])


@dataclass(frozen=True, eq=False)
class Surface:
    """One hemisphere: coordinates (vertex, 3) in mm, x to the right, y to the front, z up; triangles (triangle, 3).

    relief: positive in sulci, any scale, shape (vertex,); None shades by light alone.
    """

    coordinates: np.ndarray
    triangles: np.ndarray
    relief: np.ndarray | None = None

    @cached_property
    def normals(self) -> np.ndarray:
        """Outward unit normals of the vertices, shape (vertex, 3)."""
        normals = vertex_normals(self.coordinates, self.triangles)
        # Either winding is met in files; a closed surface's normals point away from its centre on average.
        outward = np.sum(normals * (self.coordinates - self.coordinates.mean(0)))
        return normals if outward >= 0 else -normals

    @cached_property
    def grey(self) -> np.ndarray:
        """Grey of the bare cortex, 0 black to 1 white, shape (vertex,)."""
        if self.relief is None:
            return np.full(len(self.coordinates), (GYRUS + SULCUS) / 2)
        depth = (self.relief - np.median(self.relief)) / (np.std(self.relief) + 1e-12)
        return GYRUS + (SULCUS - GYRUS) / (1 + np.exp(-4 * depth))


def vertex_normals(coordinates: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Unit normals of vertices, the area-weighted mean of their triangles' normals, shape (vertex, 3)."""
    a, b, c = (coordinates[triangles[:, corner]] for corner in range(3))
    faces = np.cross(b - a, c - a)
    total = np.zeros((len(coordinates), 3))
    for corner in range(3):
        np.add.at(total, triangles[:, corner], faces)
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)


def curvature(coordinates: np.ndarray, triangles: np.ndarray, rounds: int = 3) -> np.ndarray:
    """Relief of a folded surface such as midthickness, positive in sulci, shape (vertex,).

    How far the mean of a vertex's neighbours lies outward of it, smoothed by a few rounds of neighbour averaging.
    """
    n = len(coordinates)
    ends = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    graph = sparse.coo_matrix((np.ones(len(ends)), ends.T), shape=(n, n)).tocsr()
    graph = ((graph + graph.T) > 0).astype(float)
    mean = sparse.diags(1 / np.maximum(np.asarray(graph.sum(1)).ravel(), 1)) @ graph
    surface = Surface(np.asarray(coordinates, float), triangles)
    relief = np.sum((mean @ surface.coordinates - surface.coordinates) * surface.normals, axis=1)
    for _ in range(rounds):
        relief = (relief + mean @ relief) / 2
    return relief


@dataclass(frozen=True, eq=False)
class View:
    """A surface seen from one side; P pixels show it, of height x width.

    window: left, right, bottom, top of the picture in mm along the camera's axes; pixel: flat index (P,); vertex:
    corners of the triangle seen there (P, 3); weight: barycentric (P, 3); light: 0..1 (P,); grey: the bare cortex (P,).
    """

    camera: np.ndarray
    window: tuple[float, float, float, float]
    shape: tuple[int, int]
    pixel: np.ndarray
    vertex: np.ndarray
    weight: np.ndarray
    light: np.ndarray
    grey: np.ndarray

    def interpolate(self, values: np.ndarray) -> np.ndarray:
        """Values (vertex, ...) of the mesh at the pixels, shape (P, ...)."""
        return np.einsum("pc,pc...->p...", self.weight, values[self.vertex])


def camera_towards(direction: np.ndarray) -> np.ndarray:
    """Rows: the picture's right, its up, and towards the viewer, for a viewer in that direction; head up."""
    towards = direction / np.linalg.norm(direction)
    up = UP - (UP @ towards) * towards
    up /= np.linalg.norm(up)
    return np.stack([np.cross(up, towards), up, towards])


def frame_window(points: np.ndarray, camera: np.ndarray, margin: float) -> tuple[float, float, float, float]:
    """The window that holds all points (point, 3) with a margin, as a share of the larger side, on every side."""
    seen = points @ camera[:2].T
    low, high = seen.min(0), seen.max(0)
    pad = margin * (high - low).max()
    return float(low[0] - pad), float(high[0] + pad), float(low[1] - pad), float(high[1] + pad)


def look(surface: Surface, camera: np.ndarray, window: tuple[float, float, float, float], width: int) -> View:
    """Rasterise what a camera sees of a surface through a window, `width` final pixels wide."""
    left, right, bottom, top = window
    scale = width * OVERSAMPLING / (right - left)
    shape = (round((top - bottom) * scale / OVERSAMPLING) * OVERSAMPLING, width * OVERSAMPLING)
    seen = surface.coordinates @ camera.T
    place = np.stack([(seen[:, 0] - left) * scale, (top - seen[:, 1]) * scale], -1)
    front = surface.triangles[surface.normals[surface.triangles].sum(1) @ camera[2] > 0]
    pixel, triangle, weight = _visible(place, seen[:, 2], front, shape)
    vertex = front[triangle]
    normal = np.einsum("pc,pcx->px", weight, surface.normals[vertex])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    grey = np.einsum("pc,pc->p", weight, surface.grey[vertex])
    return View(camera, window, shape, pixel, vertex, weight, _light(normal, camera), grey)


def _light(normal: np.ndarray, camera: np.ndarray) -> np.ndarray:
    """Matte light from above the viewer's left shoulder, with a darker rim that makes the surface look round."""
    lamp = np.array([-0.35, 0.45, 1.0]) @ camera
    diffuse = np.clip(normal @ (lamp / np.linalg.norm(lamp)), 0, 1)
    facing = np.clip(normal @ camera[2], 0, 1)
    return (0.52 + 0.50 * diffuse) * (0.74 + 0.26 * facing**0.6)


def _visible(place: np.ndarray, depth: np.ndarray, triangles: np.ndarray, shape: tuple[int, int]):
    """Which triangle each pixel shows: (flat pixel, triangle, barycentric weights), the nearest to the viewer."""
    corners = place[triangles]
    low = np.maximum(np.ceil(corners.min(1) - 0.5), 0).astype(int)
    high = np.minimum(np.floor(corners.max(1) - 0.5), [shape[1] - 1, shape[0] - 1]).astype(int)
    size = high - low + 1
    inside = np.flatnonzero((size > 0).all(1))
    inside = inside[np.argsort(size[inside].max(1), kind="stable")]
    found = [_cover(chunk, corners, low, size, shape) for chunk in np.array_split(inside, len(inside) // 256 + 1)]
    pixel, triangle, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
    near = np.einsum("pc,pc->p", weight, depth[triangles[triangle]])
    order = np.argsort(near, kind="stable")
    nearest = np.full(shape[0] * shape[1], -1)
    nearest[pixel[order]] = order  # of several, the last assignment stays
    shown = nearest[nearest >= 0]
    return pixel[shown], triangle[shown], weight[shown]


def _cover(chunk: np.ndarray, corners: np.ndarray, low: np.ndarray, size: np.ndarray, shape: tuple[int, int]):
    """Pixel centres inside each triangle of a chunk: (flat pixel, triangle, weights)."""
    if not len(chunk):
        return np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3))
    wide, high = size[chunk].max(0)
    x, y = low[chunk, :1] + np.arange(wide), low[chunk, 1:] + np.arange(high)
    a, b, c = (corners[chunk, corner] for corner in range(3))
    area = _cross(b - a, c - a)
    area[area == 0] = np.nan  # seen edge-on: no pixel is inside
    # A barycentric weight is linear in the pixel's place: one column of numbers plus one row of them.
    first, second = (
        (_cross(p, q) / area)[:, None, None]
        + ((p - q)[:, 1] / area)[:, None, None] * (x + 0.5)[:, None, :]
        + ((q - p)[:, 0] / area)[:, None, None] * (y + 0.5)[:, :, None]
        for p, q in ((b, c), (c, a))
    )
    third = 1 - first - second
    inside = np.minimum(np.minimum(first, second), third) >= -1e-9
    inside &= (x < shape[1])[:, None, :] & (y < shape[0])[:, :, None]
    triangle, row, column = np.nonzero(inside)
    pixel = y[triangle, row] * shape[1] + x[triangle, column]
    return pixel, chunk[triangle], np.stack([first[inside], second[inside], third[inside]], -1)


def _cross(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]


class Canvas:
    """A view prepared for maps of one region.

    numbers: mesh vertices of the region in this hemisphere, in the order of the maps' rows here.
    """

    def __init__(self, view: View, numbers: np.ndarray):
        self.view, self.numbers = view, np.asarray(numbers)
        row = np.full(view.vertex.max(initial=0) + 1, -1)
        known = self.numbers < len(row)
        row[self.numbers[known]] = np.flatnonzero(known)
        rows = row[view.vertex]
        weight = np.where(rows >= 0, view.weight, 0)
        share = weight.sum(1)
        self.inside = np.flatnonzero(share > 0.5)
        self.rows, self.weight = rows[self.inside], weight[self.inside] / share[self.inside, None]
        self.backdrop = np.ones((view.shape[0] * view.shape[1], 3))
        self.backdrop[view.pixel] = (view.grey * view.light)[:, None]
        self.outline = edges(self._flags(np.ones(len(self.inside), bool)).reshape(view.shape), 1.6 * OVERSAMPLING)

    def interpolate(self, values: np.ndarray) -> np.ndarray:
        """Values of the region's vertices here, shape (row, ...), at its pixels, shape (pixel inside, ...)."""
        return np.einsum("pc,pc...->p...", self.weight, values[self.rows])

    def paint(
        self, colour: np.ndarray, opacity: np.ndarray | float = 1.0, lines: np.ndarray | None = None
    ) -> np.ndarray:
        """The picture, uint8, shape (height, width, 3), of colours (pixel inside, 3) in 0..1 over the grey cortex.

        lines: labels (pixel inside,) whose borders are drawn thinly; the region's outline is always drawn.
        """
        picture, view = self.backdrop.copy(), self.view
        opacity = np.broadcast_to(opacity, len(self.inside))[:, None]
        mixed = opacity * colour + (1 - opacity) * BLANK
        picture[view.pixel[self.inside]] = mixed * (1 + RELIEF * (view.light[self.inside, None] - 1))
        picture = picture.reshape(*view.shape, 3)
        if lines is not None:
            label = self._flags(lines + 1).reshape(view.shape)
            picture[edges(label, 0.9 * OVERSAMPLING) & (label > 0)] = OUTLINE
        picture[self.outline] = OUTLINE
        return _shrink(picture)

    def _flags(self, values: np.ndarray) -> np.ndarray:
        flat = np.zeros(self.view.shape[0] * self.view.shape[1], values.dtype)
        flat[self.view.pixel[self.inside]] = values
        return flat


def edges(label: np.ndarray, thickness: float) -> np.ndarray:
    """Pixels within half a thickness of a change of label, bool, shape as `label`."""
    change = np.zeros(label.shape, bool)
    change[:, 1:] |= label[:, 1:] != label[:, :-1]
    change[1:] |= label[1:] != label[:-1]
    return ndimage.distance_transform_edt(~change) <= thickness / 2 if change.any() else change


def _shrink(picture: np.ndarray) -> np.ndarray:
    """Average blocks of pixels, as uint8."""
    high, wide, _ = picture.shape
    blocks = picture.reshape(high // OVERSAMPLING, OVERSAMPLING, wide // OVERSAMPLING, OVERSAMPLING, 3)
    return np.rint(255 * np.clip(blocks.mean((1, 3)), 0, 1)).astype(np.uint8)
