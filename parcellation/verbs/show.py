"""`show`: a picture of a subject's map or the population's, from the files of a result alone."""

from pathlib import Path

import numpy as np
from scipy.sparse.csgraph import dijkstra

from parcellation import figures
from parcellation.errors import InputMissing, NothingSelected
from parcellation.figures import Stage
from parcellation.files import whole_file, writable_folder
from parcellation.meshes import path_lengths
from parcellation.rendering import curvature
from parcellation.result import Maps, Result, load_result
from parcellation.surfaces import Vertices
from parcellation.verbs.workspace import Selection

WIDTH = 620  # pixels of a close-up
SPARSE = 0.5  # of the mesh's vertices; the medial wall, which stays bare, is a tenth
ONLY_POPULATION = ("consensus", "betweensd", "profile")


def show(path: Path, selection: Selection, what: str = "labels", out: Path | None = None) -> str:
    """Write PNGs of the selected subjects, or of the population; returns the lines to print.

    what: `labels`, `entropy` or `confidence`; of the population also `consensus`, `betweensd` and `profile` (its
    contrasts on the cortex). Raises NothingSelected for a subject or a map that is not there.
    """
    result = load_result(path)
    shown = [result.subject(name) for name in selection.participants or ()] or [result.population]
    if selection.participants and what in ONLY_POPULATION:
        raise NothingSelected(f"{what}: only the population has this map; leave --participant-label away")
    if out is not None and len(shown) > 1:
        raise NothingSelected(f"--out names one picture, but {len(shown)} subjects are asked for")
    if selection.dry_run:
        return "\n".join(f"would show {maps.name}" for maps in shown)
    lines = []
    for maps in shown:
        target = out or result.path / "figures" / f"{maps.name}_{what}.png"
        writable_folder(target.parent)
        png = picture(result, maps, what)
        with whole_file(target) as temporary:
            temporary.write_bytes(png)
        lines.append(f"written: {target}")
    return "\n".join(lines)


def picture(result: Result, maps: Maps, what: str) -> bytes:
    """One picture as PNG."""
    title = f"{maps.name}, {result.seg}"
    inflated, folded = result.surfaces("inflated"), result.surfaces("midthickness")
    if inflated is None:
        if what != "labels":
            raise InputMissing(f"{result.path}: has no surface to show {what} on; `--map labels` is drawn as a strip")
        return figures.render_strip(maps.probability.to_numpy(), result.networks)
    relief = None if folded is None else [curvature(*one) for one in folded]
    if what == "profile":
        return _contrast(result, maps, inflated, relief, title)
    stage = Stage.of(inflated, result.region, relief, WIDTH)
    if what == "labels":
        return figures.render_labels(stage, maps.probability.to_numpy(), result.networks, title)
    most = float(np.log2(len(result.networks)))
    limits = {"entropy": (0.0, most), "confidence": (1 / len(result.networks), 1.0), "consensus": (0.0, 1.0)}
    labels = {
        "entropy": "entropy (bits)",
        "confidence": "probability of the label",
        "consensus": "share of subjects with the population's label",
        "betweensd": "standard deviation over subjects, largest of the networks",
    }
    if what == "betweensd":
        values = maps.betweensd.to_numpy().max(1)
        return figures.render_scalar(stage, values, labels[what], (0.0, max(0.1, float(values.max()))), title=title)
    return figures.render_scalar(stage, maps.values(what), labels[what], limits[what], title=title)


def _contrast(result: Result, maps: Maps, surfaces, relief, title: str) -> bytes:
    """The first contrast on the whole cortex, zero in the middle of the colours of its two ends."""
    name, values = maps.contrast_map()
    brain, values = _spread(surfaces, result.brain, values)
    stage = Stage.of(surfaces, brain, relief, WIDTH)
    largest = float(np.quantile(np.abs(values[values != 0]), 0.98)) if np.any(values) else 1.0
    end = result.networks.colours[1] if len(result.networks) == 2 else (90, 90, 95)
    return figures.render_scalar(stage, values, name, (-largest, largest), (end, result.networks.colours[0]), title)


def _spread(surfaces, brain: Vertices, values: np.ndarray) -> tuple[Vertices, np.ndarray]:
    """Values of every mesh vertex, its nearest brain vertex's, where the files carry so few that they would be dots."""
    mesh = brain.mesh
    if len(brain) > SPARSE * sum(mesh.counts):
        return brain, values
    numbers, found = [], []
    for one, surface in enumerate(surfaces):
        here = brain.hemisphere == one
        if here.any():
            nearest = nearest_source(path_lengths(surface), brain.number[here])
            numbers.append(np.flatnonzero(nearest >= 0))
            found.append(values[here][nearest[numbers[-1]]])
        else:
            numbers.append(np.zeros(0, int))
    return Vertices.of(mesh, *numbers), np.concatenate(found)


def nearest_source(lengths, sources: np.ndarray) -> np.ndarray:
    """Position in `sources` of the one nearest to each vertex along the mesh, shape (vertex,); -1 where none leads."""
    _, _, source = dijkstra(lengths, directed=False, indices=sources, min_only=True, return_predecessors=True)
    place = np.full(lengths.shape[0], -1)
    place[sources] = np.arange(len(sources))
    return np.where(source >= 0, place[np.maximum(source, 0)], -1)
