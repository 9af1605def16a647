"""Pixels show what they should: the nearest triangle, the right way round, with the right colours."""

import numpy as np
import pytest

from parcellation.rendering import (
    BLANK,
    LATERAL,
    OVERSAMPLING,
    Canvas,
    Surface,
    camera_towards,
    curvature,
    edges,
    frame_window,
    look,
)
from tests.spheres import RADIUS, sphere

WIDTH = 80


@pytest.fixture(scope="module")
def surface():
    return Surface(*sphere())


@pytest.fixture(scope="module")
def view(surface):
    camera = camera_towards(LATERAL[0])
    return look(surface, camera, frame_window(surface.coordinates, camera, 0.1), WIDTH)


def test_a_sphere_covers_a_disc(view):
    left, right, *_ = view.window
    millimetre = view.shape[1] / (right - left)
    disc = np.pi * (RADIUS * millimetre) ** 2
    # A polyhedron of 642 vertices lies within 1 % of its sphere.
    assert len(view.pixel) == pytest.approx(disc, rel=0.02)
    assert len(np.unique(view.pixel)) == len(view.pixel)


def test_interpolated_places_are_the_pixels_own(surface, view):
    place = view.interpolate(surface.coordinates) @ view.camera.T
    left, _, _, top = view.window
    y, x = np.divmod(view.pixel, view.shape[1])
    scale = WIDTH * OVERSAMPLING / (view.window[1] - left)
    np.testing.assert_allclose(place[:, 0], left + (x + 0.5) / scale, atol=1e-6)
    np.testing.assert_allclose(place[:, 1], top - (y + 0.5) / scale, atol=1e-6)


def test_only_the_near_side_is_seen(surface, view):
    # A triangle on the rim that faces the viewer reaches half its size, 3 mm, beyond.
    assert view.interpolate(surface.coordinates)[:, 0].max() < 3


def test_of_two_sheets_the_nearer_is_seen_in_any_order():
    sheet = np.array([[0.0, -1, -1], [0, 1, -1], [0, 0, 1]])
    coordinates = np.concatenate([sheet, sheet - [5, 0, 0]])  # the second is further left, nearer to a left viewer
    for triangles in ([[0, 2, 1], [3, 5, 4]], [[3, 5, 4], [0, 2, 1]]):
        surface = Surface(coordinates, np.array(triangles))
        surface.__dict__["normals"] = np.tile(LATERAL[0], (6, 1))
        seen = look(surface, camera_towards(LATERAL[0]), (-1, 1, -1, 1), 10)
        assert len(seen.pixel) > 100
        assert set(np.unique(seen.vertex)) == {3, 4, 5}


@pytest.mark.parametrize(("side", "front"), [(0, -1), (1, 1)])
def test_the_front_is_left_in_a_left_hemisphere_and_right_in_a_right_one(side, front):
    right, up, towards = camera_towards(LATERAL[side])
    np.testing.assert_allclose(right, [0, front, 0], atol=1e-12)
    np.testing.assert_allclose(up, [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(np.cross(right, up), towards, atol=1e-12)


def test_normals_point_outward_whatever_the_winding(surface):
    for triangles in (surface.triangles, surface.triangles[:, ::-1]):
        normals = Surface(surface.coordinates, triangles).normals
        assert (np.sum(normals * surface.coordinates / RADIUS, axis=1) > 0.98).all()


def test_curvature_is_positive_in_dents():
    points, triangles = sphere(2562)
    bumps = np.cos(4 * np.arctan2(points[:, 1], points[:, 0])) * np.hypot(points[:, 0], points[:, 1]) / RADIUS
    relief = curvature(points * (1 + 0.1 * bumps[:, None]), triangles)
    assert np.corrcoef(relief, -bumps)[0, 1] > 0.9


def paint_front(surface, view, opacity):
    """Red and blue halves, front and back, of the lateral side."""
    numbers = np.flatnonzero(surface.coordinates[:, 0] < -20)[::-1]
    canvas = Canvas(view, numbers)
    front = canvas.interpolate(surface.coordinates[numbers, 1]) > 0
    colour = np.where(front[:, None], [1.0, 0, 0], [0, 0, 1.0])
    return canvas, canvas.paint(colour, opacity, front.astype(int)).astype(float)


def test_colours_are_where_their_vertices_are(surface, view):
    canvas, picture = paint_front(surface, view, 1.0)
    red, blue = (picture[..., c] - picture[..., 2 - c] > 100 for c in (0, 2))
    half = picture.shape[1] // 2
    assert red[:, :half].sum() > 500
    assert blue[:, half:].sum() > 500
    assert not red[:, half + 1 :].any()
    assert not blue[:, : half - 1].any()
    radius = np.sqrt(RADIUS**2 - 20**2) * WIDTH / (view.window[1] - view.window[0])
    inside = len(canvas.inside) / OVERSAMPLING**2
    assert inside == pytest.approx(np.pi * radius**2, rel=0.04)  # borders run between vertices


def test_without_opacity_the_region_is_grey(surface, view):
    _, picture = paint_front(surface, view, 0.0)
    centre = picture[picture.shape[0] // 2 - 8, picture.shape[1] // 2 - 8]
    assert np.ptp(centre) == 0
    assert centre[0] == pytest.approx(255 * BLANK, rel=0.1)


def test_outside_the_region_nothing_changes(surface, view):
    canvas, picture = paint_front(surface, view, 1.0)
    bare = Canvas(view, np.zeros(0, int)).paint(np.zeros((0, 3))).astype(float)
    touched = np.zeros(view.shape, bool)
    touched.ravel()[view.pixel[canvas.inside]] = True
    touched |= canvas.outline
    far = ~touched.reshape(picture.shape[0], OVERSAMPLING, picture.shape[1], OVERSAMPLING).any((1, 3))
    np.testing.assert_array_equal(picture[far], bare[far])
    assert (bare[0, 0] == 255).all()


def test_edges_have_their_thickness():
    label = np.zeros((9, 20), int)
    label[:, 10:] = 1
    assert edges(label, 4).sum(1).tolist() == [5] * 9
    assert not edges(np.ones((4, 4)), 2).any()
