"""A sphere as a surface mesh, for tests that need one whose every picture is known."""

import numpy as np
from scipy.spatial import ConvexHull

RADIUS = 50.0


def sphere(vertices=642):
    """(coordinates (vertex, 3), triangles (triangle, 3) seen counter-clockwise from outside), evenly spread."""
    at = np.arange(vertices) + 0.5
    polar, turn = np.arccos(1 - 2 * at / vertices), np.pi * (1 + 5**0.5) * at
    points = RADIUS * np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)], 1)
    triangles = ConvexHull(points).simplices
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    inward = np.sum(np.cross(b - a, c - a) * a, axis=1) < 0
    triangles[inward] = triangles[inward][:, ::-1]
    return points, triangles
