"""The interactive surface: meshes and maps as base64 typed arrays, and the script that paints them.

The script is part of the page and the only one that its content security policy lets run, by its hash.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import matplotlib
import numpy as np

from parcellation.figures import Scene
from parcellation.meshes import HEMISPHERES
from parcellation.report_parts.content import ReportContent

SCRIPTS = ("viewer_data.js", "viewer_paint.js", "viewer.js")
FULL = 8  # networks up to which every probability is in the page
MOST = 4  # networks a vertex beyond that: the most probable ones
MESH_LIMIT = 6_000_000  # bytes of meshes; of two hemispheres that take more, the one with more of the region is shown
PEOPLE_LIMIT = 2_000_000  # bytes of subjects' maps


@dataclass(frozen=True)
class Viewer:
    """What the template needs: data as JSON that is safe inside a page, the script, its hash, and names of controls."""

    data: str
    script: str
    people: tuple[str, ...]
    maps: tuple[tuple[str, str], ...]
    sides: tuple[str, ...]

    @property
    def hash(self) -> str:
        """The script's hash as a content security policy has it."""
        return script_hash(self.script)


def viewer(content: ReportContent) -> Viewer | None:
    """The interactive surface of a report; None without a surface."""
    if content.stage is None:
        return None
    scenes = _shown(content)
    maps = _population_maps(content)
    people = [_person("population", content.population, None) | {"maps": maps}, *_subjects(content)]
    names = content.networks.names
    colours = ["#{:02x}{:02x}{:02x}".format(*map(int, colour)) for colour in content.networks.colours]
    viridis = np.rint(255 * matplotlib.colormaps["viridis"](np.linspace(0, 1, 256))[:, :3])
    data = {
        "networks": [{"name": name, "colour": colour} for name, colour in zip(names, colours, strict=True)],
        "hemispheres": [_hemisphere(scene, content) for scene in scenes],
        "people": people,
        "viridis": packed(viridis, np.uint8),
    }
    return Viewer(
        safe_json(data),
        script(),
        tuple(one["name"] for one in people),
        tuple((one["key"], one["button"]) for one in maps),
        tuple(HEMISPHERES[scene.side] for scene in scenes),
    )


def script() -> str:
    """The viewer's program, one function that is called at once."""
    folder = resources.files("parcellation.report_parts")
    parts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '(function () {\n"use strict";\n' + "\n".join(parts) + "})();\n"


def script_hash(text: str) -> str:
    """A script's hash as a content security policy has it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def safe_json(content: object) -> str:
    """JSON that ends no script element, whatever names are in it."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(values: np.ndarray, kind: type) -> str:
    """An array as base64, little-endian."""
    return base64.b64encode(np.ascontiguousarray(values).astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def share16(values: np.ndarray, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Values as 0..65535 between two limits."""
    return np.rint(65535 * np.clip((np.asarray(values, float) - low) / ((high - low) or 1.0), 0, 1))


def _shown(content: ReportContent) -> list[Scene]:
    """A scene of each hemisphere that is shown."""
    first: dict[int, Scene] = {}
    for scene in content.stage.scenes:
        first.setdefault(scene.side, scene)
    scenes = list(first.values())
    weight = [scene.surface.coordinates.size * 2 + scene.surface.triangles.size * 4 for scene in scenes]
    if len(scenes) > 1 and sum(weight) > MESH_LIMIT:
        side = content.frame.region.hemisphere
        scenes = [max(scenes, key=lambda scene: np.count_nonzero(side == scene.side))]
    return scenes


def _hemisphere(scene: Scene, content: ReportContent) -> dict:
    """A mesh: points as 16-bit steps of `unit` mm around its middle, the region's vertices, and their rows in maps."""
    points, region = scene.surface.coordinates, content.frame.region
    middle = (points.min(0) + points.max(0)) / 2
    unit = float(np.abs(points - middle).max() / 32767)
    rows = np.flatnonzero(region.hemisphere == scene.side)
    return {
        "name": HEMISPHERES[scene.side],
        "unit": unit,
        "points": packed(np.rint((points - middle) / unit), np.int16),
        "triangles": packed(scene.surface.triangles, np.uint32 if len(points) > 65536 else np.uint16),
        "grey": packed(np.rint(255 * scene.surface.grey), np.uint8),
        "vertices": packed(region.number[rows], np.uint32),
        "rows": packed(rows, np.uint32),
        "camera": np.round(scene.canvas.view.camera, 6).tolist(),
        "whole": not scene.close,
    }


def _person(name: str, posterior, mask: np.ndarray | None) -> dict:
    """The maps of a subject or of the population: probabilities, entropy, and where there are no data."""
    probability = np.asarray(posterior.probability, np.float32)
    quantised, which = label_probabilities(probability)
    limit = float(np.log2(probability.shape[1]))
    return {
        "name": name,
        "p": packed(quantised, np.uint16),
        "which": None if which is None else packed(which, np.uint16),
        "entropy": packed(share16(posterior.entropy, 0, limit), np.uint16),
        "missing": None if mask is None or np.all(mask) else packed(~np.asarray(mask, bool), np.uint8),
    }


def label_probabilities(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Probabilities (vertex, network) as 0..65535, of many networks the most probable, and which those are.

    The largest stays the largest, so that the label read from them is that of the files.
    """
    quantised = share16(probability)
    label, rows = probability.argmax(1), np.arange(len(probability))
    tied = quantised.argmax(1) != label
    quantised[rows[tied], label[tied]] += 1
    if probability.shape[1] <= FULL:
        return quantised, None
    which = np.argsort(-quantised, axis=1, kind="stable")[:, :MOST]
    return np.take_along_axis(quantised, which, 1), which


def _subjects(content: ReportContent) -> list[dict]:
    """Maps of the first subjects, as many as fit; none where each has a page of its own."""
    if content.paged:
        return []
    V, K = np.shape(content.population.probability)
    room = PEOPLE_LIMIT // (V * (2 * K + 2 if K <= FULL else 4 * MOST + 2))
    subjects = zip(content.participants, content.subjects, strict=True)
    chosen = [one for one, _ in zip(subjects, range(room), strict=False)]
    return [_person(row["participant_id"], posterior, posterior.mask) for row, posterior in chosen]


def _population_maps(content: ReportContent) -> list[dict]:
    """The maps that only the population has: where subjects differ."""
    if len(content.participants) < 2:
        return []
    population, limit = content.population, float(np.log2(len(content.networks)))
    spread = np.max(population.betweensd, axis=1)
    chosen: Sequence[tuple] = (
        ("consensus", "Consensus", "share of subjects with this label", population.consensus, 1.0),
        ("betweensd", "Spread", "standard deviation over subjects", spread, tenth(spread.max())),
        ("between", "Between subjects", "differs between subjects (bits)", population.between, limit),
        ("within", "Within subjects", "uncertain within a subject (bits)", population.within, limit),
    )
    return [
        {"key": key, "button": button, "name": name, "low": 0.0, "high": high,
         "values": packed(share16(values, 0, high), np.uint16)}
        for key, button, name, values, high in chosen
    ]  # fmt: skip


def tenth(value: float) -> float:
    """The next tenth that is not below a value, and at least 0.1."""
    return max(0.1, float(np.ceil(round(10 * float(value), 6)) / 10))
