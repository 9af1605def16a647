"""What a results folder holds beside maps: surfaces to see them on, sizes of networks, and how networks are named."""

import logging
from collections.abc import Sequence
from pathlib import Path

import nibabel
import numpy as np
import pandas
from nibabel.cifti2 import BrainModelAxis

from parcellation.colours import EIGHT, far_apart
from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.files import write_json
from parcellation.interruption import told_to_end
from parcellation.label_table import Networks, named_networks
from parcellation.map_files import Frame, Parcels, write_relief, write_surface
from parcellation.maps import (
    Export,
    bids_label,
    population_path,
    relief_path,
    subject_path,
    surface_path,
    write_table,
)
from parcellation.meshes import Surface, find_geometry, neighbours, own_midthickness, vertex_areas
from parcellation.model_file import TrainedModel
from parcellation.orientation import orientation
from parcellation.parcels import first_vertices, parcel_of
from parcellation.posterior import Posterior, applicable
from parcellation.profile_maps import fill
from parcellation.refitted_map import mean_map
from parcellation.rendering import WHOLE_SHARE, curvature
from parcellation.rendering import Surface as Shaded
from parcellation.scene import Stage, Tab, write_scene, write_spec
from parcellation.sizes import MEANINGS, network_sizes
from parcellation.surfaces import Vertices, medial_wall
from parcellation.verbs.workspace import Ground

log = logging.getLogger(__name__)

SHOWN = ("midthickness", "inflated")
SIZES = "sizes_network"
EXAMPLES = 3  # subjects in the scene, beside the population


def find_orientation(study: Study, ground: Ground, model: TrainedModel) -> dict:
    """Which of two networks lies in front in the model's population map, and the names that follow from it.

    Empty for other than two networks and where no surface is known; plain values, which travel with the model, so that
    all cohorts have the same names.
    """
    region = ground.region
    surfaces = None if region.mesh.space == "none" or ground.parcels else find_geometry(study, region.mesh)
    if study.model.networks != 2 or surfaces is None:
        return {}
    if not applicable(model.family):  # its networks nobody will see
        return {}
    found = orientation(Posterior(model).maps(), _coordinates(surfaces, region), _areas(surfaces, region))
    names = found.names(study.region.name)
    said = " and ".join(names) if names else "undecided, so networks keep their numbers"
    log.info("orientation: %s (share of draws %.2f, %.1f mm)", said, found.share, found.separation)
    return found.to_json() | {"names": names and list(names)}


def networks_of(study: Study, model: TrainedModel) -> Networks:
    """Networks with their colours; names: the study's, or those of the model's own study, or by orientation."""
    trained = model.details["study"]["model"]
    oriented = model.details.get("orientation", {}).get("names")
    names = study.model.names or trained["names"] or oriented
    return named_networks(trained["networks"], names, model.details.get("colours"))


def pairs_of(contrasts: Sequence[tuple[str, str]], networks: Networks) -> tuple[tuple[int, int], ...]:
    """Positions of the networks of each contrast, without those that all answers have.

    Raises UsageError for a name that no network has.
    """
    for name in [name for pair in contrasts for name in pair]:
        if name not in networks.names:
            known = ", ".join(networks.names[:20])
            raise UsageError(f"outputs.contrasts: no network is called {name!r}; expected names among {known}")
    pairs = dict.fromkeys((networks.names.index(first), networks.names.index(second)) for first, second in contrasts)
    return tuple(pair for pair in pairs if len(networks) > 2 or pair != (0, 1))


def find_colours(study: Study, ground: Ground, model: TrainedModel) -> list[list[int]] | None:
    """Colours that travel with the model, so that networks side by side in its population map differ clearly.

    None for as few networks as all colours of which do, and where no surface says what lies side by side.
    """
    region, K = ground.region, study.model.networks
    without = region.mesh.space == "none" or ground.parcels or len(EIGHT) >= K
    surfaces = None if without else find_geometry(study, region.mesh)
    if surfaces is None or not applicable(model.family):
        return None
    label, beside = mean_map(model).argmax(1).cpu().numpy(), np.zeros((K, K), bool)
    for one, surface in enumerate(surfaces):
        own = np.full(len(surface.coordinates), -1)
        own[region.number[region.hemisphere == one]] = label[region.hemisphere == one]
        start, end = (own[ends] for ends in neighbours(surface.triangles, len(own)).nonzero())
        inside = (start >= 0) & (end >= 0) & (start != end)
        beside[start[inside], end[inside]] = True
    return far_apart(beside).tolist()


def _coordinates(surfaces: tuple[Surface, Surface], region: Vertices) -> np.ndarray:
    return np.stack([surfaces[h].coordinates[n] for h, n in zip(region.hemisphere, region.number, strict=True)])


def _areas(surfaces: tuple[Surface, Surface], region: Vertices) -> np.ndarray:
    """mm2 of each vertex of the region."""
    areas = [vertex_areas(surface) for surface in surfaces]
    return np.array([areas[h][n] for h, n in zip(region.hemisphere, region.number, strict=True)])


def _areas_in(surfaces: tuple[Surface, Surface], frame: Frame) -> np.ndarray:
    """mm2 of each vertex of the frame's region, or of each parcel as far as maps show it."""
    shown = _areas(surfaces, frame.shown)
    if frame.parcels is None:
        return shown
    return np.bincount(frame.on_shown(np.arange(len(frame.region))), shown, minlength=len(frame.region))


def export_frame(ground: Ground, volume: BrainModelAxis | None = None) -> Frame:
    """What exported maps carry, and what of it is parcelled; volume: models of voxels that follow the cortex."""
    if not ground.parcels:
        return Frame(ground.brain, ground.region, volume)
    position = first_vertices(ground.targets).within(ground.region)
    order = np.argsort(position, kind="stable")[np.sum(position < 0) :]
    names = tuple(ground.targets.names[k] for k in order)
    return Frame(
        ground.brain, ground.region, volume, Parcels(names, parcel_of(ground.brain, ground.targets, ground.region))
    )


def shown_targets(study: Study, ground: Ground) -> np.ndarray:
    """The target that each vertex of the brain shows in maps of profiles, see `profile_maps.fill`."""
    mesh = ground.brain.mesh
    return fill(ground.targets, ground.brain, find_geometry(study, mesh, "sphere"), medial_wall(study, mesh))


def volume_of(manifest: pandas.DataFrame) -> BrainModelAxis:
    """The models of voxels in the first run's file.

    Raises InputMissing when it is not there, and UsageError for one without voxels.
    """
    path = Path(manifest["bold"].iloc[0]) if len(manifest) else Path()
    if not path.is_file():
        raise InputMissing(f"outputs.grayordinates: all: {path}: no such CIFTI file to take the voxels from")
    image = nibabel.load(path)
    axes = [image.header.get_axis(at) for at in range(image.ndim)] if isinstance(image, nibabel.Cifti2Image) else []
    models = [axis for axis in axes if isinstance(axis, BrainModelAxis)]
    if not models or not models[0].volume_mask.any():
        raise UsageError(f"outputs.grayordinates: all: {path} has no voxels; leave it at cortex")
    return models[0][models[0].volume_mask]


def write_surfaces(study: Study, export: Export) -> None:
    """The group's surfaces, those that are known, beside the population's maps: what opens maps needs no other file."""
    for kind in SHOWN:
        for hemisphere, surface in enumerate(find_geometry(study, export.mesh, kind) or ()):
            write_surface(surface_path(export.out, export.mesh, hemisphere, kind), surface, hemisphere, kind)
    folded = find_geometry(study, export.mesh)
    if folded is not None:
        shades = [Shaded(*one, relief=curvature(*one)).grey for one in folded]
        write_relief(relief_path(export.out, export.mesh), export.mesh, np.concatenate(shades))


def write_scenes(export: Export, participants: Sequence[str]) -> None:
    """The Workbench scene and spec of a result, where its surfaces are known: the population and the first subjects."""
    mesh, folder = export.mesh, export.out / f"tpl-{export.mesh.space}"
    paths = {kind: [surface_path(export.out, mesh, one, kind) for one in (0, 1)] for kind in SHOWN}
    if not all(path.is_file() for pair in paths.values() for path in pair):
        return
    names = {kind: tuple(path.name for path in pair) for kind, pair in paths.items()}
    sides = tuple(np.unique(export.frame.shown.hemisphere).tolist())
    medial = len(export.frame.shown) > WHOLE_SHARE * sum(mesh.counts[one] for one in sides)
    stage = Stage(names["inflated"], names["midthickness"], mesh.counts, sides, medial)
    relief, population = relief_path(export.out, mesh).name, population_path(export).name
    subjects = [(name, f"../{subject_path(export, name).relative_to(export.out)}") for name in participants[:EXAMPLES]]
    tabs = [Tab(name, (path, relief)) for name, path in [("population", population), *subjects]]
    scenes = [("Population and example subjects", tabs), *((tab.name, [tab]) for tab in tabs)]
    write_scene(folder / f"{export.seg}.scene", stage, scenes)
    write_spec(folder / f"{export.seg}.wb.spec", stage, [population, *(path for _, path in subjects), relief])


def write_sizes(study: Study, export: Export, answers) -> None:
    """Sizes of the networks of every subject: one table for statistics, and what its columns mean."""
    group = find_geometry(study, export.mesh)
    tables = []
    for answer in answers:
        surfaces, whose = _measured_on(study, export, answer.subject, group)
        areas = None if surfaces is None else _areas_in(surfaces, export.frame)
        shown = np.asarray(answer.probability, np.float32).argmax(1)
        name = f"sub-{bids_label(answer.subject)}"
        tables.append(network_sizes(name, export.networks.names, shown, answer.label_draws, areas, whose))
    table = pandas.concat(tables).sort_values("participant_id", kind="stable")
    write_table(export.out / f"{SIZES}.tsv", table)
    write_json(export.out / f"{SIZES}.json", {name: {"Description": text} for name, text in MEANINGS.items()})


def _measured_on(study: Study, export: Export, subject: str, group) -> tuple[tuple[Surface, Surface] | None, str]:
    """The surfaces that a subject's areas are measured on, and whose they are."""
    try:
        own = own_midthickness(study, export.mesh, subject)
    except BadData as error:
        if told_to_end():
            raise
        log.warning("subject %s: areas are measured on the group's surface: %s", subject, error)
        own = None
    return (own, "subject") if own else (group, "group" if group else "none")
