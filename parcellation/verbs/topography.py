"""The modes that a study's map is smooth in: of the region's mesh, or of a graph that the study names."""

import logging
from pathlib import Path

import numpy as np

from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.meshes import DENSITIES, geometry
from parcellation.smooth_basis import SmoothBasis, edges, graph_laplacian, region_basis, smooth_basis
from parcellation.surfaces import Vertices

log = logging.getLogger(__name__)


def study_basis(study: Study, vertices: Vertices) -> SmoothBasis | None:
    """The basis of `model.topography`; None where it is off, or vertices are on no mesh, which is logged.

    Raises InputMissing for a mesh without surfaces or a graph that is not there, and BadData for a graph of others.
    """
    settings = study.model.topography
    if not settings.modes:
        return None
    if settings.graph is not None:
        stiffness, mass = graph_laplacian(edges(read_pairs(settings.graph, len(vertices)), len(vertices)))
        basis = smooth_basis(stiffness, mass, settings.modes)
    elif vertices.mesh.space not in DENSITIES:
        log.warning("topography: off, the vertices are on no mesh; `model.topography.graph` would say which are near")
        return None
    else:
        basis = region_basis(geometry(study, vertices.mesh), vertices, settings.modes)
    log.info("topography: %d modes of %d vertices", len(basis.eigenvalues), len(vertices))
    return basis


def check_topography(study: Study, parcels: bool) -> None:
    """Raises UsageError for a smooth map of parcels without a graph: their first vertices are no neighbours."""
    if parcels and study.model.topography.modes and study.model.topography.graph is None:
        raise UsageError("model.topography.graph: parcels lie on no mesh; name the table of which are neighbours")


def read_pairs(path: Path, count: int) -> np.ndarray:
    """Pairs of neighbours, whole numbers from 0 to count - 1, shape (pair, 2), each once: a line a pair.

    Raises InputMissing where there is no file and BadData for anything else in it.
    """
    try:
        pairs = np.loadtxt(path, dtype=int, ndmin=2)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file; model.topography.graph names the pairs of neighbours") from None
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: expected two whole numbers a line, the places of two neighbours: {error}") from error
    if pairs.shape[1:] != (2,) or not len(pairs):
        raise BadData(f"{path}: expected two whole numbers a line, got {pairs.shape[1]} in {len(pairs)} lines")
    if pairs.min() < 0 or pairs.max() >= count or (pairs[:, 0] == pairs[:, 1]).any():
        raise BadData(f"{path}: expected pairs of different places from 0 to {count - 1}, as the region has")
    if len(np.unique(np.sort(pairs, axis=1), axis=0)) < len(pairs):
        raise BadData(f"{path}: expected every pair once")
    return pairs
