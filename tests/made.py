"""Small made-up results on a sphere: what reads results needs no model, no training and no data."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas

from parcellation.derivative import participant, write_dataset
from parcellation.files import write_json
from parcellation.label_table import named_networks
from parcellation.map_files import Cifti, Frame, write_surface
from parcellation.maps import Export, bids_label, surface_path, write_population, write_subject, write_table
from parcellation.meshes import Surface, vertex_areas
from parcellation.sizes import MEANINGS, network_sizes
from parcellation.surfaces import Mesh, Vertices
from tests.spheres import sphere

MESH = Mesh("fsaverage", (642, 642))
POINTS, TRIANGLES = sphere()
SURFACES = tuple(Surface(POINTS + [shift, 0, 0], TRIANGLES) for shift in (-60.0, 60.0))
CAP = np.flatnonzero(POINTS @ [-1, 0, 0] > 30)  # 128 vertices that face left
REGION = Vertices.of(MESH, CAP, [])
BRAIN = Vertices.of(MESH, np.arange(642), np.arange(642))
TARGETS = ("L_001", "L_002", "R_001")
DRAWS = 40


def frontal(networks: int = 2, sharp: float = 8.0) -> np.ndarray:
    """Probabilities (vertex, network) of networks in order from front to back of the cap, borders soft."""
    y = POINTS[CAP, 1]
    centre = np.quantile(y, (np.arange(networks)[::-1] + 0.5) / networks)
    score = -np.abs(y[:, None] - centre) / np.ptp(y) * sharp * networks
    share = np.exp(score - score.max(1, keepdims=True))
    return share / share.sum(1, keepdims=True)


def answer(subject: str, probability: np.ndarray, seed: int = 0, draws: int = DRAWS, mask=None) -> SimpleNamespace:
    """What `posterior` gives of a subject or of the population, with this map."""
    rng = np.random.default_rng(seed)
    V, K = probability.shape
    mean = rng.normal(size=(K, len(TARGETS)))
    difference = mean[:1] - mean[1:] if K == 2 else mean - mean.mean(0)
    uniform = rng.random((draws, V, 1))
    return SimpleNamespace(
        subject=subject,
        sessions=("1", "2"),
        frames=(1200.0, 1100.0),
        probability=probability.astype(np.float32),
        entropy=-(probability * np.log2(np.maximum(probability, 1e-12))).sum(1),
        mutual_information=rng.uniform(0, 0.01, V),
        mask=np.ones(V, bool) if mask is None else mask,
        consensus=rng.uniform(size=V),
        betweensd=rng.uniform(size=(V, K)),
        within=rng.uniform(0, 0.5, V),
        between=rng.uniform(0, 0.5, V),
        label_draws=(probability.cumsum(1)[:, :-1] < uniform).sum(-1).astype(np.uint16),
        **{f"profile_{part}": mean + step for part, step in (("mean", 0), ("low", -0.5), ("high", 0.25))},
        **{f"contrast_{part}": difference + step for part, step in (("mean", 0), ("low", -0.5), ("high", 0.25))},
    )


@dataclass(frozen=True)
class Made:
    """A results folder and the answers in it, by subject; the population's is called `population`."""

    path: Path
    answers: dict[str, SimpleNamespace]


def make_result(
    out: Path,
    maps: dict[str, np.ndarray] | None = None,
    names=None,
    styles=(Cifti,),
    surfaces=SURFACES,
    region: Vertices = REGION,
) -> Made:
    """Write a result of these maps, by subject; three subjects with soft borders otherwise."""
    maps = maps or {name: frontal(sharp=sharp) for name, sharp in (("01", 4.0), ("02", 8.0), ("s-03", 2.0))}
    K = next(iter(maps.values())).shape[1]
    export = Export(out, Frame(BRAIN, region), named_networks(K, names), TARGETS, f"broca{K}", styles, {"Draws": DRAWS},
                    np.arange(len(BRAIN)) % len(TARGETS))  # fmt: skip
    answers = {name: answer(name, probability, seed) for seed, (name, probability) in enumerate(maps.items())}
    for one in answers.values():
        write_subject(export, one)
    population = answer("population", np.mean(list(maps.values()), 0), 99)
    write_population(export, population)
    for hemisphere, surface in enumerate(surfaces or ()):
        for kind in ("midthickness", "inflated"):
            write_surface(surface_path(out, MESH, hemisphere, kind), surface, hemisphere, kind)
    areas = None if surfaces is None else vertex_areas(surfaces[0])[region.number]
    whose = "none" if surfaces is None else "group"
    sizes = [
        network_sizes(f"sub-{bids_label(name)}", export.networks.names, one.probability.argmax(1), one.label_draws,
                      areas, whose)
        for name, one in answers.items()
    ]  # fmt: skip
    write_table(out / "sizes_network.tsv", pandas.concat(sizes))
    write_json(out / "sizes_network.json", {name: {"Description": text} for name, text in MEANINGS.items()})
    write_dataset(out, "made", {}, [participant(one) for one in answers.values()], citation="# Cite\n")
    return Made(out, answers | {"population": population})


def expected_maps(space: str, stem: str, atlas: str, subjects, gifti: str = "", surfaces: str = "") -> set[str]:
    """Paths of all maps, tables and sidecars of a result.

    stem, atlas: entities of a subject's and of the population's files; gifti: hemispheres of the region that have GIFTI
    files; surfaces: density of the group's surfaces, empty where none are known.
    """
    tables = {"_dseg.json", "_dseg.tsv", "_probseg.json"}
    stats = {f"_stat-{stat}_network.{end}" for stat in ("profile", "contrast") for end in ("tsv", "json")}
    group = f"tpl-{space}/tpl-{space}"
    files = {f"{group}_{atlas}{end}" for end in tables | stats}
    files |= _maps(group, atlas, ("entropy", "confidence", "consensus", "betweensd", "variability"), gifti)
    files |= {f"{group}_{atlas}_stat-profile_boldmap.{end}" for end in ("dscalar.nii", "json")}
    files |= {f"{group}_hemi-{side}_{atlas}_stat-profile_boldmap.func.gii" for side in "LR" if gifti}
    kinds = ("midthickness", "inflated") if surfaces else ()
    files |= {f"{group}_hemi-{side}_den-{surfaces}_{kind}.surf.gii" for side in "LR" for kind in kinds}
    for name in subjects:
        anat, func = (f"sub-{name}/{folder}/sub-{name}" for folder in ("anat", "func"))
        files |= {f"{anat}_{stem}{end}" for end in tables} | {f"{func}_{stem}{end}" for end in stats}
        files |= _maps(anat, stem, ("uncertainty",), gifti)
    return files


def _maps(start: str, entities: str, stats, gifti: str) -> set[str]:
    files = {f"{start}_{entities}_dseg.dlabel.nii", f"{start}_{entities}_probseg.dscalar.nii"}
    files |= {f"{start}_{entities}_stat-{stat}_boldmap.{end}" for stat in stats for end in ("dscalar.nii", "json")}
    for side in gifti:
        ends = ["dseg.label.gii", "probseg.func.gii", *(f"stat-{stat}_boldmap.func.gii" for stat in stats)]
        files |= {f"{start}_hemi-{side}_{entities}_{end}" for end in ends}
    return files
