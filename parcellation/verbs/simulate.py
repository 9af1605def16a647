"""`simulate`: a cohort with known truth, as files or as fingerprints straight into a store."""

from pathlib import Path

import numpy as np

from parcellation.config import Study, parse_study
from parcellation.files import writable_folder
from parcellation.simulate import simulate as simulate_files
from parcellation.simulate_fingerprints import simulate_fingerprints
from parcellation.simulation import load_simulation
from parcellation.store import numbered_vertices, write_unit
from parcellation.surfaces import Targets
from parcellation.verbs.workspace import Ground, Selection, Workspace

PRECISION = "float16"


def simulate(config: Path, out: Path, selection: Selection, fingerprints: bool = False) -> str:
    """Write the cohort; returns the lines to print."""
    settings = load_simulation(config)
    if selection.dry_run:
        return f"would simulate {settings.subjects} subjects into {out}"
    if not fingerprints:
        simulate_files(settings, out, subjects=selection.participants)
        return f"{settings.subjects} subjects simulated in {out}; the truth is in {out / 'truth'}"
    study = fingerprint_study(writable_folder(out))
    workspace = Workspace(study)
    draws = settings.template
    ground = numbered_ground(draws.vertices, draws.features)
    store = workspace.store(ground)
    workspace.remember(ground, {"simulated": str(config)})

    def write(subject, session, fingerprint, mask, frames):
        write_unit(
            store, subject, session, fingerprint, mask=mask, frames=frames,
            vertices=ground.region, targets=ground.targets, features=study.features,
        )  # fmt: skip

    simulate_fingerprints(settings, write, Path(out))
    store.write_index()
    return f"{settings.subjects} subjects simulated in {store.folder}; the truth is in {out / 'truth'}"


def numbered_ground(vertices: int, features: int) -> Ground:
    """A ground on no surface: numbered vertices and targets."""
    region, members = numbered_vertices(vertices), numbered_vertices(features)
    names = tuple(f"target-{number:04d}" for number in range(features))
    return Ground(region, Targets(names, members, np.arange(features)), region)


def fingerprint_study(out: Path) -> Study:
    """The study of a cohort of simulated fingerprints: features as they are drawn."""
    features = dict(remove_region_mean=False, center=False, unit_norm=False, components="none", precision=PRECISION)
    content = {
        "name": "simulated",
        "data": {"layout": "manifest", "manifest": "manifest.tsv"},
        "features": features,
        "training": {"group": "train"},
    }
    return parse_study(content, out / "study.yaml")
