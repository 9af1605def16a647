"""The truth beside a simulated cohort, in its folder `truth`: what was drawn, to score answers against.

settings.json           settings, where the surrogates are from, region and target vertices
participants.tsv        subjects, their group, the sessions they were scanned in
population.npz          group_probability (vertex, network), logits, and what else all subjects share
SUBJECT_truth.npz       labels (vertex,), fingerprints (session, network, target), sessions, dead vertices, and more
labels.tsv              the label maps as a table, one row a vertex of the region; networks count from 1
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcellation import __version__
from parcellation.errors import InputMissing, UsageError
from parcellation.files import whole_file, write_json, write_text
from parcellation.simulation import SimulationConfig, present_sessions
from parcellation.surfaces import Vertices


@dataclass(frozen=True, eq=False)
class SubjectTruth:
    """What is true of one simulated subject.

    labels: networks from 0, shape (vertex,); sessions: names of those it was scanned in, in the order of the first
    dimension of fingerprints, (session, network, target): noiseless, Fisher z for simulated series; dead: indices of
    vertices without signal.
    """

    labels: np.ndarray
    fingerprints: np.ndarray
    sessions: tuple[str, ...]
    dead: np.ndarray


def subject_path(out: Path, name: str) -> Path:
    """The truth of one subject; written last, so that it says that the subject is complete."""
    return Path(out) / "truth" / f"{name}_truth.npz"


def read_subject(out: Path, name: str) -> SubjectTruth:
    """Read one subject's truth; raises InputMissing when it was not simulated."""
    content = _read(subject_path(out, name))
    sessions = tuple(map(str, content["sessions"].tolist()))
    return SubjectTruth(content["labels"].astype(int), content["fingerprints"], sessions, content["dead"])


def read_population(out: Path) -> dict[str, np.ndarray]:
    """Arrays that all subjects share, among them `group_probability` (vertex, network)."""
    return _read(Path(out) / "truth" / "population.npz")


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as content:
            return dict(content)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such truth; expected the folder of a simulated cohort") from None


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write a .npz file so that it appears whole or not at all; equal arrays give equal bytes."""
    with whole_file(path) as temporary:
        np.savez(temporary, **arrays)


def digest(config: SimulationConfig, *arrays: np.ndarray) -> str:
    """SHA-256 of settings and shared arrays, wherever their files lie: equal for equal cohorts."""
    content = config.model_dump(mode="json", exclude={"source", "weights", "region", "targets"})
    content["labels"].pop("group_map")
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def claim(out: Path, config: SimulationConfig, key: str, about: dict) -> None:
    """Write settings.json, or find it there with the same digest; raises UsageError in another cohort's folder."""
    path = Path(out) / "truth" / "settings.json"
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8")).get("digest")
        if there != key:
            raise UsageError(f"{out}: holds a cohort simulated with other settings (see {path}); name another folder")
        return
    settings = config.model_dump(mode="json")
    write_json(path, {"digest": key, "settings": settings, "software": f"parcellation {__version__}"} | about)


def write_participants(out: Path, config: SimulationConfig) -> None:
    """Write participants.tsv: all subjects of the cohort, also those not yet drawn."""
    lines = ["participant_id\tgroup\tsessions"]
    for index, name in enumerate(config.names):
        sessions = ",".join(map(str, present_sessions(config, index)))
        lines.append(f"sub-{name}\t{config.group(index)}\t{sessions}")
    write_text(Path(out) / "truth" / "participants.tsv", "\n".join(lines) + "\n")


def write_label_table(out: Path, config: SimulationConfig, region: Vertices | None) -> None:
    """Write labels.tsv once every subject is there; until then nothing."""
    if not all(subject_path(out, name).exists() for name in config.names):
        return
    probability = read_population(out)["group_probability"]
    networks = range(1, probability.shape[1] + 1)
    columns = {} if region is None else {"hemisphere": region.hemisphere, "vertex": region.number}
    columns |= {f"probability_{k}": [f"{one:.6f}" for one in probability[:, k - 1]] for k in networks}
    columns |= {name: read_subject(out, name).labels + 1 for name in config.names}
    rows = ["\t".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    write_text(Path(out) / "truth" / "labels.tsv", "\n".join(["\t".join(columns), *rows]) + "\n")
