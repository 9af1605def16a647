"""A cohort on disk with known truth: real file formats, real spectra and covariances, networks that we placed.

A vertex of the region carries its network's series plus noise. A network's series is a weighted mixture of target
series; weights vary between subjects, between a subject's sessions, and between a network's vertices (which lasts over
sessions). Target series, and those of all other vertices, are phase-randomised surrogates of a real run, drawn anew for
each run (`surrogates`). Files lie as in the Human Connectome Project, or per session for fsaverage, with a manifest.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from tqdm import tqdm

from parcellation import simulation, truth
from parcellation.bold_files import write_cifti, write_pair
from parcellation.errors import BadData, NothingSelected
from parcellation.files import writable_folder, write_text
from parcellation.simulation import SimulationConfig, stream
from parcellation.surrogates import (
    Population,
    Source,
    coloured_noise,
    expected_correlation,
    fisher_z,
    surrogate,
)

log = logging.getLogger(__name__)

# The two phase encodings, as HCP names runs.
DIRECTIONS = ("LR", "RL")


@dataclass(frozen=True, eq=False)
class Subject:
    """What is drawn for one subject.

    labels: (region vertex,); weights: (session, network, target) of the sessions present, each mixture near variance
    1; own: what each vertex adds to its network's weights, (region vertex, target); sessions: numbers from 1; dead:
    indices into the region.
    """

    labels: np.ndarray
    weights: np.ndarray
    own: np.ndarray
    sessions: tuple[int, ...]
    dead: np.ndarray


def simulate(
    config: SimulationConfig, out: Path, population: Population | None = None, subjects: list[str] | None = None
) -> None:
    """Write a cohort, or some of its subjects, below `out`; subjects that are complete are skipped.

    population: made from the settings if None. Subjects may be written by several processes at once, in any order: each
    is the same whoever else is drawn. Raises CannotWrite and NothingSelected before any work, UsageError when `out`
    holds a cohort of other settings.
    """
    writable_folder(out)
    chosen = _chosen(config, subjects)
    if population is None:
        # Only here, since a caller with a population needs no readers of files and surfaces.
        from parcellation.simulation_source import population_of

        population = population_of(config)
    source = population.source
    key = truth.digest(config, source.series, population.weights, population.logits)
    truth.claim(out, config, key, _about(source))
    truth.write_participants(out, config)
    probability = simulation.group_probability(config, population.logits)
    shared = {"group_probability": probability, "logits": population.logits, "weights": population.weights}
    truth.write_arrays(Path(out) / "truth" / "population.npz", **shared)
    write_text(Path(out) / "manifest.tsv", _manifest(config, source.repetition_time))
    for index in tqdm(chosen, desc="simulate", unit="subject", disable=None):
        write_subject(config, population, index, out)
    truth.write_label_table(out, config, source.vertices_of(source.region))


def _chosen(config: SimulationConfig, subjects: list[str] | None) -> list[int]:
    if subjects is None:
        return list(range(config.subjects))
    wanted = {name.removeprefix("sub-") for name in subjects}
    unknown = sorted(wanted - set(config.names))
    if unknown or not wanted:
        raise NothingSelected(f"expected subjects {config.names[0]} to {config.names[-1]}, got {unknown or 'none'}")
    return [index for index, name in enumerate(config.names) if name in wanted]


def _about(source: Source) -> dict:
    return {
        "source": source.origin,
        "source_frames": len(source.series),
        "repetition_time": source.repetition_time,
        "region": source.vertices_of(source.region).to_json(),
        "targets": source.vertices_of(source.targets).to_json(),
        "fingerprints": "Fisher z of the correlation that each network's noiseless series has, in expectation, with "
        "the series in the files; exact when a run has as many frames as the source",
    }


def run_paths(config: SimulationConfig, name: str, session: int, direction: str) -> tuple[Path, ...]:
    """Files of one run, relative to the cohort's folder: one CIFTI file, or left and right."""
    if config.format == "cifti":
        run = f"rfMRI_REST{session}_{direction}"
        return (Path(name, "MNINonLinear", "Results", run, f"{run}_Atlas_MSMAll_hp2000_clean.dtseries.nii"),)
    suffix = {"gifti": "func.gii"}.get(config.format, config.format)
    start = f"sub-{name}_ses-{session}_task-rest_dir-{direction}"
    return tuple(
        Path(f"sub-{name}", f"ses-{session}", "func", f"{start}_hemi-{side}_bold.{suffix}") for side in ("L", "R")
    )


def _manifest(config: SimulationConfig, repetition_time: float) -> str:
    """The cohort's manifest, with all subjects and paths relative to it."""
    files = ["bold"] if config.format == "cifti" else ["bold_left", "bold_right"]
    lines = [["subject", "session", "run", *files, "tr", "group"]]
    time = f"{config.repetition_time or repetition_time:g}"
    for index, name in enumerate(config.names):
        for session, direction in _runs(config, simulation.present_sessions(config, index)):
            paths = [path.as_posix() for path in run_paths(config, name, session, direction)]
            lines.append([name, str(session), direction, *paths, time, config.group(index)])
    return "".join("\t".join(line) + "\n" for line in lines)


def _runs(config: SimulationConfig, sessions: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    for session in sessions:
        for direction in DIRECTIONS[: config.runs]:
            yield session, direction


def write_subject(config: SimulationConfig, population: Population, index: int, out: Path) -> None:
    """Write one subject's runs and, last, its truth; nothing when they are there. `index` counts from 0."""
    name, out = config.names[index], Path(out)
    subject = draw_subject(config, population, index)
    paths = [run_paths(config, name, *run) for run in _runs(config, subject.sessions)]
    if truth.subject_path(out, name).exists() and all((out / path).exists() for run in paths for path in run):
        log.info("%s: there already", name)
        return
    for (session, direction), files in zip(_runs(config, subject.sessions), paths, strict=True):
        series = draw_run(config, population, subject, index, session, DIRECTIONS.index(direction))
        write_run(config, population.source, series, [out / file for file in files])
    truth.write_arrays(
        truth.subject_path(out, name),
        labels=subject.labels.astype(np.int32),
        fingerprints=noiseless_fingerprints(config, population, subject).astype(np.float32),
        sessions=np.array([str(one) for one in subject.sessions]),
        dead=subject.dead,
        weights=subject.weights.astype(np.float32),
    )


def write_run(config: SimulationConfig, source: Source, series: np.ndarray, paths: list[Path]) -> None:
    """Write one run's series (time, vertex of the source) in the format of the settings."""
    time = config.repetition_time or source.repetition_time
    if config.format == "cifti":
        write_cifti(paths[0], series, source.vertices, time)
    else:
        write_pair(tuple(paths), series, source.vertices, time)


def draw_subject(config: SimulationConfig, population: Population, index: int) -> Subject:
    """Draw what a subject is; deterministic in the settings' seed and the subject's index."""
    seed, shape = config.seed, population.weights.shape
    smooth = _smooth(config, population)
    labels = simulation.draw_labels(
        population.logits, config.labels.temperature, stream(seed, simulation.LABELS, index), smooth
    )
    base = population.weights / population.size[:, None]
    between = config.between_subjects * population.unit
    subject = base + between * stream(seed, simulation.SUBJECT, index).standard_normal(shape)
    sessions = simulation.present_sessions(config, index)
    between = config.between_sessions * population.unit
    draws = [stream(seed, simulation.SESSION, index, session).standard_normal(shape) for session in sessions]
    own = stream(seed, simulation.VERTEX, index).standard_normal((len(labels), shape[1]), np.float32)
    own *= np.float32(config.between_vertices * population.unit)
    dead = simulation.dead_vertices(config, index, len(labels))
    return Subject(labels, subject + between * np.stack(draws), own, sessions, dead)


def _smooth(config: SimulationConfig, population: Population) -> sparse.sparray | None:
    if config.labels.noise == "independent":
        return None
    if population.neighbours is None:
        raise BadData("smooth label noise: expected the neighbours of the region's vertices, got none")
    return simulation.diffusion(population.neighbours, config.labels.steps)


def draw_run(
    config: SimulationConfig, population: Population, subject: Subject, index: int, session: int, run: int = 0
) -> np.ndarray:
    """One run's series, float32, shape (time, vertex of the source); session from 1, run 0 or 1.

    Region vertices have, in expectation, the mean variance that the region has in the source.
    """
    source = population.source
    generator = stream(config.seed, simulation.RUN, index, session, run)
    frames = config.frames or len(source.series)
    series = surrogate(source.series, frames, generator)
    noise = coloured_noise(population.spectrum, frames, len(source.region), generator)
    targets = series[:, source.targets] - source.series[:, source.targets].mean(0)
    weights = subject.weights[subject.sessions.index(session)].astype(np.float32)
    mixtures = (targets @ weights.T)[:, subject.labels] + targets @ subject.own.T
    mixtures += noise / np.float32(np.sqrt(config.signal_to_noise))
    variance = 1 + config.between_vertices**2 + 1 / config.signal_to_noise
    level = np.sqrt(source.series[:, source.region].var(0).mean() / variance)
    series[:, source.region] = level * mixtures
    series[:, source.region[subject.dead]] = 0
    return series


def noiseless_fingerprints(config: SimulationConfig, population: Population, subject: Subject) -> np.ndarray:
    """Fisher z of the expected correlation of each network's noiseless series with each target's series in the files.

    Shape (session, network, target). A target inside the region is a noisy mixture itself, of its own label's network,
    and constant if it is dead (0).
    """
    source = population.source
    target, vertex = np.nonzero(source.targets[:, None] == source.region)
    result = []
    for weights in subject.weights:
        found = expected_correlation(weights, population.covariance)
        inside = weights[subject.labels[vertex]] + subject.own[vertex]
        found[:, target] = expected_correlation(weights, population.covariance, inside, 1 / config.signal_to_noise)
        found[:, target[np.isin(vertex, subject.dead)]] = 0
        result.append(fisher_z(found))
    return np.stack(result)
