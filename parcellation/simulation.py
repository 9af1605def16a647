"""What a simulated cohort is: its settings, who was scanned when, and how networks are laid out on the region.

Everything random about one subject comes from streams of its own (`stream`), so that any subject can be drawn alone, by
any process, and is the same.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator
from scipy import sparse
from scipy.special import log_ndtr, softmax

from parcellation.config import Region, Section, Targets, anchored
from parcellation.errors import UsageError
from parcellation.yaml_file import read_yaml


class RealRun(Section):
    """The run that surrogates are made of: `bold` (CIFTI), or `bold_left` and `bold_right` (MGH, MGZ, GIFTI).

    `frames` is the half-open range of frames used, all if unset; every column of `confounds` is regressed out. Without
    files the source is synthetic, on fsaverage5, and the truth's settings say so.
    """

    bold: Path | None = None
    bold_left: Path | None = None
    bold_right: Path | None = None
    space: Literal["fsLR", "fsaverage"] | None = None
    confounds: Path | None = None
    repetition_time: float | None = Field(default=None, gt=0, description="seconds, in place of the file's own")
    frames: tuple[int, int] | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files given, one or two."""
        return tuple(path for path in (self.bold, self.bold_left, self.bold_right) if path is not None)

    @model_validator(mode="after")
    def _pair(self) -> "RealRun":
        if (self.bold_left is None) != (self.bold_right is None) or (self.bold and self.bold_left):
            raise ValueError("give `bold`, or `bold_left` and `bold_right`, or none of them")
        if self.frames is not None and not 0 <= self.frames[0] < self.frames[1]:
            raise ValueError(f"frames: expected first < end, got {list(self.frames)}")
        return self


class LabelMap(Section):
    """Where networks lie, and how subjects differ in it.

    The group's logits come from `group_map`, a .npy file of shape (vertex, network), or fall into as many bands from
    anterior to posterior, the steeper the larger `contrast`. A label is the largest of logits plus `temperature` x
    Gumbel noise, so that the group's probabilities are exactly softmax(logits / temperature), whether the noise is
    independent at each vertex or smooth along the mesh (diffused by `steps` rounds of neighbour averaging).
    """

    group_map: Path | None = None
    contrast: float = Field(default=1.5, gt=0)
    noise: Literal["independent", "smooth"] = "independent"
    temperature: float = Field(default=1.0, gt=0)
    steps: int = Field(default=20, ge=1)


class TemplateDraws(Section):
    """Settings of fingerprints drawn from the model itself (`simulate --fingerprints`); symbols as in the model.

    Standard deviations: `epsilon` between subjects, `sigma` between a subject's sessions, `kappa` of an observation in
    a session of `frames[0]` frames. Session t has frames[t] frames, the list being repeated as needed; a session's log
    kappa is log kappa + slope x log(frames[0] / frames[t]) / 2 + `kappa_session` x Normal.
    """

    features: int = Field(default=100, ge=1, le=100_000)
    vertices: int = Field(default=300, ge=1, le=1_000_000)
    population: float = Field(default=1.0, gt=0)
    epsilon: float = Field(default=0.3, ge=0)
    sigma: float = Field(default=0.2, ge=0)
    kappa: float = Field(default=8.0, gt=0)
    kappa_session: float = Field(default=0.0, ge=0)
    slope: float = Field(default=1.0, ge=0, le=1)
    frames: tuple[int, ...] = Field(default=(400,), min_length=1)


class SimulationConfig(Section):
    """A simulated cohort.

    Standard deviations `between_*` are those of the deviation's series relative to the network's series: of a subject
    from the population, of a session from its subject, and of a vertex from its network, which lasts over a subject's
    sessions. `signal_to_noise` is the ratio of variances of the network's series and the noise. The defaults, with 326
    frames, are chosen so that a vertex's fingerprints of two sessions correlate as those of two halves of a real run
    do (.44), with about the same half of it shared by a network. `train`: how many of the subjects, the first ones, are
    in group train; the others are in group test. `missing`: probability that a session was not scanned (each subject
    keeps one), or the missing session numbers by subject. `dead_vertices`: constant series, as many in each subject.
    """

    subjects: int = Field(default=24, ge=1, le=1_000_000)
    train: int | None = Field(default=None, ge=0)
    sessions: int = Field(default=2, ge=1, le=1000)
    runs: Literal[1, 2] = 1
    frames: int | None = Field(default=None, ge=20, le=1_000_000, description="of a run; the source's if unset")
    repetition_time: float | None = Field(default=None, gt=0, description="seconds; the source's if unset")
    networks: int = Field(default=2, ge=2, le=1000)
    weights: Path | None = None
    between_subjects: float = Field(default=0.5, ge=0)
    between_sessions: float = Field(default=0.3, ge=0)
    between_vertices: float = Field(default=1.0, ge=0)
    signal_to_noise: float = Field(default=0.05, gt=0)
    labels: LabelMap = LabelMap()
    missing: float | dict[str, list[int]] = 0.0
    dead_vertices: int = Field(default=0, ge=0)
    format: Literal["cifti", "mgh", "mgz", "gifti"] = "cifti"
    coverage: Literal["needed", "cortex"] = "needed"
    seed: int = Field(default=0, ge=0, lt=2**32)
    source: RealRun = RealRun()
    region: Region = Region()
    targets: Targets = Targets()
    template: TemplateDraws = TemplateDraws()

    @property
    def names(self) -> list[str]:
        """The subjects' names, sim01 and on, which also are valid BIDS labels."""
        width = max(2, len(str(self.subjects)))
        return [f"sim{number + 1:0{width}d}" for number in range(self.subjects)]

    def group(self, index: int) -> str:
        """`train` or `test`; two thirds of the subjects are for training where `train` is unset."""
        train = round(self.subjects * 2 / 3) if self.train is None else self.train
        return "train" if index < train else "test"

    @model_validator(mode="after")
    def _missing(self) -> "SimulationConfig":
        if isinstance(self.missing, float):
            if not 0 <= self.missing < 1:
                raise ValueError(f"missing: expected a probability in [0, 1), got {self.missing}")
            return self
        for name, numbers in self.missing.items():
            if name not in self.names:
                raise ValueError(f"missing: expected subjects {self.names[0]} to {self.names[-1]}, got {name!r}")
            if not set(numbers) < set(range(1, self.sessions + 1)):
                raise ValueError(f"missing: {name}: expected some of sessions 1 to {self.sessions}, not all: {numbers}")
        return self


def load_simulation(path: Path) -> SimulationConfig:
    """Read a simulation's YAML file; relative paths are relative to it.

    Raises InputMissing without a file and UsageError, naming the key, when it is wrong.
    """
    path = Path(path)
    content = read_yaml(path, "simulation")
    try:
        settings = SimulationConfig.model_validate({} if content is None else content)
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise UsageError("\n".join(lines)) from None
    return anchored(settings, path)


# Purposes of random streams: changing one part of a simulation leaves the others as they were.
PRESENCE, LABELS, SUBJECT, VERTEX, SESSION, RUN, DEAD, POPULATION = range(8)


def stream(seed: int, purpose: int, subject: int = 0, session: int = 0, run: int = 0) -> np.random.Generator:
    """The random stream of one purpose, subject, session and run."""
    return np.random.default_rng([seed, purpose, subject, session, run])


def present_sessions(config: SimulationConfig, index: int) -> tuple[int, ...]:
    """Numbers, from 1, of the sessions that a subject was scanned in; at least one."""
    everything = np.arange(1, config.sessions + 1)
    if isinstance(config.missing, dict):
        return tuple(int(one) for one in everything if one not in config.missing.get(config.names[index], []))
    chance = stream(config.seed, PRESENCE, index).random(config.sessions)
    present = chance >= config.missing
    present[chance.argmax()] = True
    return tuple(everything[present].tolist())


def dead_vertices(config: SimulationConfig, index: int, vertices: int) -> np.ndarray:
    """Indices of the region's vertices that are constant in this subject, ascending."""
    if config.dead_vertices >= vertices:
        raise UsageError(f"dead_vertices: expected fewer than the region's {vertices}, got {config.dead_vertices}")
    return np.sort(stream(config.seed, DEAD, index).choice(vertices, config.dead_vertices, replace=False))


def bands(coordinate: np.ndarray, networks: int, contrast: float) -> np.ndarray:
    """Group logits in bands along a coordinate, network 0 where it is largest; shape (vertex, network).

    The coordinate enters by its rank, so each network has the same share of vertices. The logit of network k is
    -contrast (K (position - centre_k))^2, which makes log odds of two networks linear in the position.
    """
    position = np.argsort(np.argsort(coordinate, kind="stable")) / max(len(coordinate) - 1, 1) - 0.5
    centres = 0.5 - (np.arange(networks) + 0.5) / networks
    return -contrast * (networks * (position[:, None] - centres)) ** 2


def smoothed_map(labels: np.ndarray, neighbours: sparse.sparray, contrast: float = 1.0, steps: int = 20) -> np.ndarray:
    """Group logits that follow a given map, blurred along the mesh; shape (vertex, network).

    labels: (vertex,), from 0; each network's indicator is diffused, centred, and scaled to a standard deviation of
    `contrast` over vertices and networks.
    """
    field = np.eye(labels.max() + 1)[labels]
    for _ in range(steps):
        field = _averaging(neighbours) @ field
    field = field - field.mean(1, keepdims=True)
    return contrast * field / field.std()


def group_probability(config: SimulationConfig, logits: np.ndarray) -> np.ndarray:
    """Probability over subjects that a vertex belongs to each network, shape (vertex, network); sums to 1."""
    return softmax(logits / config.labels.temperature, axis=1)


def _averaging(neighbours: sparse.sparray) -> sparse.csr_array:
    """Each vertex's mean with its neighbours, as a matrix."""
    closed = sparse.csr_array(neighbours, dtype=float) + sparse.eye_array(neighbours.shape[0], format="csr")
    return sparse.diags_array(1 / closed.sum(1)) @ closed


def diffusion(neighbours: sparse.sparray, steps: int) -> sparse.csr_array:
    """Turns white noise into smooth noise of variance 1 at every vertex: `steps` rounds of averaging, then scaling."""
    averaging = _averaging(neighbours)
    operator = sparse.eye_array(averaging.shape[0], format="csr")
    for _ in range(steps):
        operator = averaging @ operator
    return sparse.csr_array(sparse.diags_array(1 / np.sqrt((operator**2).sum(1))) @ operator)


def draw_labels(
    logits: np.ndarray, temperature: float, generator: np.random.Generator, smooth: sparse.sparray | None = None
) -> np.ndarray:
    """One subject's labels, shape (vertex,), each from softmax(logits / temperature), by the Gumbel-max construction.

    smooth: a `diffusion`. It correlates the normal noise over vertices; the normal distribution's and the Gumbel
    distribution's quantiles then keep the probability at every vertex what it was.
    """
    normal = generator.standard_normal(logits.shape)
    if smooth is not None:
        normal = smooth @ normal
    gumbel = -np.log(-log_ndtr(normal))
    return np.argmax(logits + temperature * gumbel, axis=1)
