"""`simulate`: a cohort with known truth, as files or as fingerprints straight into a store."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from parcellation.config import Study, parse_study
from parcellation.files import writable_folder, write_text
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
    train = [name for index, name in enumerate(settings.names) if settings.group(index) == "train"]
    content = fingerprint_content(train)
    study = parse_study(content, writable_folder(out) / "study.yaml")
    write_text(Path(out) / "study.yaml", yaml.safe_dump(content, sort_keys=False))
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
    """The study of a cohort of simulated fingerprints, trained on all of it."""
    return parse_study(fingerprint_content(None), out / "study.yaml")


def fingerprint_content(train: Sequence[str] | None) -> dict:
    """A study of simulated fingerprints as a file holds it: features as they are drawn; train: who is trained on."""
    features = dict(remove_region_mean=False, center=False, unit_norm=False, components="none", precision=PRECISION)
    return {
        "name": "simulated",
        "data": {"layout": "manifest", "manifest": "manifest.tsv"},
        "features": features,
        "training": {"subjects": train},
    }
