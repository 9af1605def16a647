"""Fingerprints drawn from the functional parcellation model itself, without any series.

    mu[k] ~ N(0, population)
    mu_subject[s,k] ~ N(mu[k], epsilon)
    mu_session[s,t,k] ~ N(mu_subject[s,k], sigma)
    z[s,v] ~ Categorical(softmax(logits[v]))
    x[s,t,v] ~ N(mu_session[s,t,z[s,v]], kappa_session[s,t])

so that epsilon, sigma and kappa are known exactly. All are standard deviations, the same for every feature.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
from scipy import sparse
from tqdm import tqdm

from parcellation import simulation, truth
from parcellation.errors import BadData
from parcellation.files import writable_folder
from parcellation.simulation import SimulationConfig, stream


class Write(Protocol):
    """Puts one unit into a store."""

    def __call__(self, subject: str, session: str, fingerprint: np.ndarray, mask: np.ndarray, frames: int) -> None:
        """fingerprint: float32 (vertex, target), masked rows 0; mask: bool (vertex,), False without signal."""


def simulate_fingerprints(
    config: SimulationConfig,
    write: Write,
    out: Path,
    logits: np.ndarray | None = None,
    neighbours: sparse.sparray | None = None,
) -> None:
    """Draw a cohort from the model, hand each session to `write`, and write the truth below `out`.

    logits: group map (vertex, network), by default bands over `template.vertices` vertices in a row; neighbours: of the
    vertices (vertex, vertex), in a row by default; used by smooth label noise. Raises UsageError when `out` holds the
    truth of other settings.
    """
    writable_folder(out)
    settings = config.template
    if logits is None:
        logits = simulation.bands(-np.arange(settings.vertices), config.networks, config.labels.contrast)
    if logits.shape[1] != config.networks:
        raise BadData(f"group map: expected {config.networks} networks, got {logits.shape[1]}")
    smooth = None
    if config.labels.noise == "smooth":
        smooth = simulation.diffusion(_row(len(logits)) if neighbours is None else neighbours, config.labels.steps)
    shape = (config.networks, settings.features)
    mu = settings.population * stream(config.seed, simulation.POPULATION).standard_normal(shape)
    about = {"source": "drawn from the model itself; fingerprints are mu_session, not Fisher z of any series"}
    truth.claim(out, config, truth.digest(config, mu, logits), about)
    truth.write_participants(out, config)
    probability = simulation.group_probability(config, logits)
    scales = {name: getattr(settings, name) for name in ("epsilon", "sigma", "kappa")}
    path = Path(out) / "truth" / "population.npz"
    truth.write_arrays(path, group_probability=probability, logits=logits, mu=mu, **scales)
    for index in tqdm(range(config.subjects), desc="simulate", unit="subject", disable=None):
        _subject(config, write, Path(out), index, mu, logits, smooth)
    truth.write_label_table(out, config, None)


def _row(vertices: int) -> sparse.csr_array:
    """Neighbours of vertices in a row."""
    ones = np.ones(vertices - 1)
    return sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1], shape=(vertices, vertices)))


def _subject(config: SimulationConfig, write: Write, out: Path, index: int, mu, logits, smooth) -> None:
    seed, name = config.seed, config.names[index]
    labels = simulation.draw_labels(logits, config.labels.temperature, stream(seed, simulation.LABELS, index), smooth)
    mu_subject = mu + config.template.epsilon * stream(seed, simulation.SUBJECT, index).standard_normal(mu.shape)
    dead = simulation.dead_vertices(config, index, len(labels))
    mask = ~np.isin(np.arange(len(labels)), dead)
    profiles, kappas, sessions = [], [], simulation.present_sessions(config, index)
    for session in sessions:
        mu_session, kappa, x, frames = _session(config, index, session, mu_subject, labels)
        write(name, str(session), (x * mask[:, None]).astype(np.float32), mask, frames)
        profiles.append(mu_session)
        kappas.append(kappa)
    truth.write_arrays(
        truth.subject_path(out, name),
        labels=labels.astype(np.int32),
        fingerprints=np.stack(profiles).astype(np.float32),
        sessions=np.array([str(one) for one in sessions]),
        dead=dead,
        mu_subject=mu_subject,
        kappa_session=np.array(kappas),
    )


def _session(config: SimulationConfig, index: int, session: int, mu_subject, labels):
    """Profiles (network, feature), noise's standard deviation, observations (vertex, feature) and number of frames."""
    settings, generator = config.template, stream(config.seed, simulation.SESSION, index, session)
    mu_session = mu_subject + settings.sigma * generator.standard_normal(mu_subject.shape)
    frames = settings.frames[(session - 1) % len(settings.frames)]
    kappa = settings.kappa * (settings.frames[0] / frames) ** (settings.slope / 2)
    kappa *= np.exp(settings.kappa_session * generator.standard_normal())
    x = mu_session[labels] + kappa * generator.standard_normal((len(labels), mu_subject.shape[1]))
    return mu_session, kappa, x, frames
