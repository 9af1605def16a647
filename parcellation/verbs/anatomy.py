"""What the report says of a map and anatomy: agreement with areas beside its chance level, or why it says nothing."""

import logging
from dataclasses import dataclass

import numpy as np

from parcellation.anatomy import MOST_VERTICES, Agreement, Areas, agreement, areas_of, region_distances
from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.interruption import told_to_end
from parcellation.meshes import find_geometry
from parcellation.surfaces import Vertices, atlas_areas, own_areas

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Anatomy:
    """One comparison of the population map: with what, and its result or why there is none."""

    areas: str
    result: Agreement | None
    reason: str = ""


def anatomy(study: Study, region: Vertices, probability: np.ndarray) -> list[Anatomy]:
    """Comparisons of a map with the areas that the region is made of, if several, and with those of `outputs.atlas`.

    probability: of every network at every vertex, shape (vertex, network).
    """
    found = []
    for what, read in (("the labels that the region is made of", _own), (_atlas_name(study), _atlas)):
        try:
            areas = read(study, region)
        except (BadData, InputMissing, UsageError) as error:
            if told_to_end():
                raise
            # A region that came with a model, or whose labels have been moved away, is still the region.
            reason = f"Its areas could not be read: {error}"
        else:
            if areas is None:
                continue
            reason = _obstacle(study, region)
        found.append(Anatomy(what, None, reason) if reason else _compared(what, study, region, areas, probability))
    return found


def _own(study: Study, region: Vertices) -> Areas | None:
    if region.mesh.space == "none":
        return None
    found = own_areas(study, region)
    return found and areas_of(list(found[0]), list(found[0].values()), len(region), found[1])


def _atlas_name(study: Study) -> str:
    return f"the areas of {study.outputs.atlas.name}" if study.outputs.atlas else ""


def _atlas(study: Study, region: Vertices) -> Areas | None:
    if study.outputs.atlas is None:
        return None
    if region.mesh.space == "none":
        raise BadData("the data's vertices lie on no surface, so a label file says nothing about them")
    areas, origin = atlas_areas(study.outputs.atlas, region)
    found = areas_of(list(areas), list(areas.values()), len(region), origin)
    if found is None:
        raise BadData(
            f"{study.outputs.atlas}: expected two areas or more that have 5 % of the region's vertices each, "
            f"got {len(areas)} with any"
        )
    return found


def _obstacle(study: Study, region: Vertices) -> str:
    """Why there can be no random cuts."""
    if find_geometry(study, region.mesh) is None:
        return "No surface of the mesh is known, so there are no random cuts to compare with."
    if len(region) > MOST_VERTICES:
        return f"Random cuts are made of regions of at most {MOST_VERTICES} vertices."
    return ""


def _compared(what: str, study: Study, region: Vertices, areas: Areas, probability: np.ndarray) -> Anatomy:
    distance = region_distances(find_geometry(study, region.mesh), region)
    result = agreement(probability.argmax(-1), areas, distance, probability.shape[-1])
    log.info("anatomy: %s: mean Dice %.3f, random cuts %.3f, 95 %% level %.3f, p %.4f",
             what, result.mean, result.null_mean, result.null_level, result.p)  # fmt: skip
    return Anatomy(what, result)
