"""From a simulation's settings to what all its subjects share: the source's series, network weights, the group map."""

from pathlib import Path

import numpy as np
from scipy import sparse

from parcellation.bold import Bold
from parcellation.cleaning import Cleaning
from parcellation.config import Data, Study
from parcellation.confounds import read_confounds
from parcellation.errors import BadData, InputMissing
from parcellation.meshes import geometry, neighbours
from parcellation.simulation import SimulationConfig, bands
from parcellation.surfaces import Mesh, Vertices, region_vertices, target_set
from parcellation.surrogates import (
    Population,
    Source,
    network_weights,
    ordered_clusters,
    region_clusters,
    synthetic_source,
)
from parcellation.timeseries import open_bold

# A source without a real run lies on fsaverage5, whose surfaces and region come with what is installed.
SYNTHETIC_MESH = Mesh("fsaverage", (10242, 10242))


def population_of(config: SimulationConfig) -> Population:
    """Read what the settings name, and make the rest.

    Without `weights` the networks are the clusters of the source's own region (`region_clusters`), the foremost one
    first; without a group map they lie in bands from anterior to posterior. Raises InputMissing and BadData for files.
    """
    source, coordinate, adjacency = _source(config)
    if config.weights is not None:
        weights = _array(config.weights)
    else:
        clusters = region_clusters(source, config.networks, seed=config.seed)
        weights = network_weights(source, ordered_clusters(clusters, coordinate))
    if config.labels.group_map is not None:
        logits = _array(config.labels.group_map)
    else:
        logits = bands(coordinate, config.networks, config.labels.contrast)
    if logits.ndim != 2 or logits.shape[1] != config.networks:
        raise BadData(f"group map: expected {config.networks} networks a vertex, got an array of shape {logits.shape}")
    return Population(source, weights, logits, adjacency)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False).astype(np.float64)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: expected a numeric .npy file: {error}") from None


def _study(config: SimulationConfig) -> Study:
    """The settings in the form in which regions, targets and surfaces are asked for."""
    data = Data(layout="manifest", manifest=Path("manifest.tsv"), space=config.source.space)
    return Study(name="simulation", data=data, region=config.region, targets=config.targets)


def _source(config: SimulationConfig) -> tuple[Source, np.ndarray, sparse.csr_array]:
    """The source, the anterior coordinate of the region's vertices (mm), and their neighbours."""
    study, bold = _study(config), None
    if config.source.paths:
        bold = open_bold(config.source.paths, config.source.space, config.source.repetition_time)
        if bold.parcels is not None:
            raise BadData(f"source: expected series of vertices, got series of parcels: {bold.where}; give a dtseries")
    everywhere = bold.vertices if bold else _all_of(SYNTHETIC_MESH)
    series = _series(bold) if bold else None
    live = np.arange(len(everywhere)) if series is None else np.flatnonzero(np.ptp(series, axis=0) > 0)
    kept, region, targets = _kept(config, study, everywhere[live])
    vertices = everywhere[live][kept]
    places = region.within(vertices), targets.within(vertices)
    surfaces = geometry(study, vertices.mesh)
    coordinates = np.stack(
        [surfaces[h].coordinates[n] for h, n in zip(vertices.hemisphere, vertices.number, strict=True)]
    )
    if series is None:
        source = synthetic_source(vertices, coordinates, *places, seed=config.seed)
    else:
        origin = f"phase-randomised surrogates of {' + '.join(path.name for path in bold.paths)}"
        series = _cleaned(config, series[:, live[kept]])
        source = Source(series, vertices, *places, bold.repetition_time, origin)
    return source, coordinates[places[0], 1], _adjacency(surfaces, region)


def _kept(config: SimulationConfig, study: Study, live: Vertices) -> tuple[np.ndarray, Vertices, Vertices]:
    """Positions among those with signal of the vertices that files will hold; the region; the targets' members."""
    region, targets = region_vertices(study, live.mesh), target_set(study, live.mesh, live).members
    region = region[region.within(live) >= 0]
    if config.coverage == "cortex":
        return np.arange(len(live)), region, targets
    return np.unique(np.r_[region.within(live), targets.within(live)]), region, targets


def _all_of(mesh: Mesh) -> Vertices:
    return Vertices.of(mesh, *(np.arange(count) for count in mesh.counts))


def _series(bold: Bold) -> np.ndarray:
    """All series of a run (time, vertex), float32; those with a value that is not finite are constant."""
    if not np.isfinite(bold.repetition_time):
        raise BadData(f"{bold.where}: does not say its repetition time; give source.repetition_time in seconds")
    series = np.empty((len(bold.vertices), bold.frames), np.float32)
    for index, block in bold.rows(np.arange(len(bold.vertices))):
        series[index] = block
    series[~np.isfinite(series).all(1)] = 0
    return series.T


def _cleaned(config: SimulationConfig, series: np.ndarray) -> np.ndarray:
    """Series (time, vertex) without the run's confounds, in the frames that the settings name."""
    frames = len(series)
    first, end = config.source.frames or (0, frames)
    if end > frames:
        raise BadData(f"source.frames: expected an end of at most {frames}, the frames of the run, got {end}")
    if config.source.confounds is not None:
        cleaning = Cleaning(confounds=read_confounds(config.source.confounds, frames))
        series = cleaning.apply(series, np.ones(frames, bool)).astype(np.float32)
    return np.ascontiguousarray(series[first:end])


def _adjacency(surfaces, region: Vertices) -> sparse.csr_array:
    """Which of the region's vertices share an edge, in the region's order (left before right)."""
    counts = region.mesh.counts
    whole = [neighbours(surface.triangles, count) for surface, count in zip(surfaces, counts, strict=True)]
    both = sparse.block_diag(whole, format="csr")
    rows = region.number + np.where(region.hemisphere == 1, counts[0], 0)
    return sparse.csr_array(both[rows][:, rows])
