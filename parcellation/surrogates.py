"""Series with known origin: phase-randomised surrogates of a run, and noise of a measured spectrum.

A surrogate turns the phase of every frequency by a random angle, the same for all series of the run (Prichard and
Theiler 1994). Spectra, and the covariance between any two series at any lag, stay exactly what they were; what happened
when does not. A mixture of surrogates therefore has connectivity that follows from the run's covariance alone:
`expected_correlation` is the truth that a simulation writes down.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft, sparse
from sklearn.cluster import KMeans

from parcellation.errors import BadData
from parcellation.surfaces import Vertices


@dataclass(frozen=True, eq=False)
class Source:
    """The run that surrogates are made of.

    series: BOLD signal, float32, shape (time, vertex), without missing values; vertices: who they are, left hemisphere
    first, ascending; region, targets: indices into `vertices` of the region's vertices and of those that networks are
    mixtures of (they may overlap); repetition_time: seconds; origin: one sentence that the truth's settings will state.
    Raises BadData when the parts contradict each other.
    """

    series: np.ndarray
    vertices: Vertices
    region: np.ndarray
    targets: np.ndarray
    repetition_time: float
    origin: str

    def __post_init__(self):
        if self.series.shape[1] != len(self.vertices):
            raise BadData(f"source: expected one series for {len(self.vertices)} vertices, got {self.series.shape[1]}")
        if not np.isfinite(self.series).all():
            raise BadData("source: expected finite series, got NaN or infinite values")
        order = np.lexsort((self.vertices.number, self.vertices.hemisphere))
        if (order != np.arange(len(order))).any():
            raise BadData("source: expected vertices in ascending order, the left hemisphere first")
        flat = [
            name for name in ("region", "targets") if (np.ptp(self.series[:, getattr(self, name)], axis=0) == 0).any()
        ]
        if flat:
            raise BadData(f"source: expected signal at every vertex, got constant series in its {' and '.join(flat)}")

    def vertices_of(self, index: np.ndarray) -> Vertices:
        """Who the vertices of `region` or `targets` are."""
        return Vertices(self.vertices.mesh, self.vertices.hemisphere[index], self.vertices.number[index])

    def covariance(self) -> np.ndarray:
        """Covariance of the target series, shape (target, target)."""
        centred = _centred(self.series[:, self.targets])
        return centred.T @ centred / len(centred)


def _centred(series: np.ndarray) -> np.ndarray:
    series = np.asarray(series, np.float64)
    return series - series.mean(0)


def surrogate(series: np.ndarray, frames: int, generator: np.random.Generator) -> np.ndarray:
    """A phase-randomised run of `frames` frames, float32, shape (frames, vertex).

    series: (time, vertex). With as many frames as the source has, every covariance is the source's own; fewer are a
    stretch of such a surrogate; more are several drawn anew, end to end.
    """
    spectrum = fft.rfft(np.asarray(series, np.float32), axis=0)
    pieces = [_turned(spectrum, len(series), generator) for _ in range(-(-frames // len(series)))]
    return np.concatenate(pieces)[:frames] if len(pieces) > 1 else pieces[0][:frames]


def _turned(spectrum: np.ndarray, frames: int, generator: np.random.Generator) -> np.ndarray:
    turn = np.exp(2j * np.pi * generator.random(len(spectrum)))
    turn[0] = 1  # the mean stays
    if frames % 2 == 0:
        turn[-1] = np.where(turn[-1].real < 0, -1, 1)  # the highest frequency of an even length is real
    return fft.irfft(spectrum * turn.astype(np.complex64)[:, None], n=frames, axis=0)


def noise_spectrum(source: Source, components: int = 40) -> np.ndarray:
    """Amplitude over frequency of what the region's series hold beyond the targets', shape (frequency,).

    The region's series are regressed on the leading principal components of the target series (at most a quarter of the
    frames, so that a rest remains), and the power of the residuals is averaged over vertices. A region that is nothing
    but components of its targets gives a flat spectrum.
    """
    left = np.linalg.svd(_centred(source.series[:, source.targets]), full_matrices=False)[0]
    left = left[:, : max(1, min(components, len(left) // 4))]
    region = _centred(source.series[:, source.region])
    power = (np.abs(fft.rfft(region - left @ (left.T @ region), axis=0)) ** 2).mean(1)
    if power.sum() < 1e-9 * (region**2).sum():
        return np.ones(len(power))
    return np.sqrt(power / power.mean())


def coloured_noise(spectrum: np.ndarray, frames: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Independent noise series of expected variance 1 with the given amplitude spectrum, float32, (frames, count).

    The spectrum is interpolated to the frequencies of `frames` frames and filters white noise.
    """
    bins = frames // 2 + 1
    amplitude = np.interp(np.linspace(0, 1, bins), np.linspace(0, 1, len(spectrum)), spectrum)
    amplitude[0] = 0
    # Every frequency but the mean and, for an even length, the highest stands for two of the full transform.
    weight = np.full(bins, 2.0)
    weight[-1] = 1.0 if frames % 2 == 0 else 2.0
    amplitude *= np.sqrt(frames / (weight[1:] @ amplitude[1:] ** 2))
    white = fft.rfft(generator.standard_normal((frames, count), np.float32), axis=0)
    return fft.irfft(white * amplitude.astype(np.float32)[:, None], n=frames, axis=0)


def correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson correlation of every pair of series (time, a) and (time, b), shape (a, b)."""
    first, second = _centred(first), _centred(second)
    return (first / np.linalg.norm(first, axis=0)).T @ (second / np.linalg.norm(second, axis=0))


def fisher_z(correlations: np.ndarray) -> np.ndarray:
    """Inverse hyperbolic tangent, of correlations kept within 1e-6 of one."""
    return np.arctanh(np.clip(correlations, -1 + 1e-6, 1 - 1e-6))


def region_clusters(source: Source, networks: int, windows: int = 2, seed: int = 0) -> np.ndarray:
    """Networks of the source's own region vertices by k-means, shape (region vertex,), numbered from 0.

    Fisher-z fingerprints are averaged over equal windows of the run, the region's mean fingerprint is removed, rows are
    centred and scaled to unit norm; 20 seeded starts. A vertex's correlation with itself counts as the region's mean.
    """
    parts = np.array_split(source.series, windows)
    fingerprints = np.mean([fisher_z(correlation(one[:, source.region], one[:, source.targets])) for one in parts], 0)
    fingerprints[source.region[:, None] == source.targets] = np.nan
    fingerprints -= np.nanmean(fingerprints, axis=0)
    fingerprints = np.nan_to_num(fingerprints)
    fingerprints -= fingerprints.mean(1, keepdims=True)
    fingerprints /= np.linalg.norm(fingerprints, axis=1, keepdims=True)
    return KMeans(networks, n_init=20, random_state=seed).fit(fingerprints).labels_


def ordered_clusters(labels: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
    """The same clusters numbered by falling mean coordinate, so that with an anterior coordinate 0 is the foremost."""
    means = [coordinate[labels == one].mean() for one in range(labels.max() + 1)]
    return np.argsort(np.argsort(-np.array(means)))[labels]


def network_weights(source: Source, labels: np.ndarray, ridge: float = 0.1) -> np.ndarray:
    """Weights over the targets whose mixtures are the clusters' mean series, float64, shape (network, target).

    labels: cluster of each region vertex. Ridge regression of each cluster's mean series on the target series; `ridge`
    is in units of the mean variance of a target's principal component. There are more targets than frames, so even a
    small ridge reproduces the mean series; it keeps the weights from resting on components that hold no signal.
    """
    region, targets = _centred(source.series[:, source.region]), _centred(source.series[:, source.targets])
    means = np.stack([region[:, labels == one].mean(1) for one in range(labels.max() + 1)])
    left, size, right = np.linalg.svd(targets, full_matrices=False)
    return (means @ left) * (size / (size**2 + ridge * (size**2).mean())) @ right


def expected_correlation(
    weights: np.ndarray, covariance: np.ndarray, others: np.ndarray | None = None, noise: float = 0.0
) -> np.ndarray:
    """Correlation of mixtures with the target series, or with other mixtures that carry noise; (mixture, target).

    weights: (mixture, target); covariance: of the targets; others: (other, target), `noise` the variance added to each.
    """
    shared = weights @ covariance
    size = np.sqrt((shared * weights).sum(1))
    if others is None:
        return shared / size[:, None] / np.sqrt(np.diag(covariance))
    variance = np.einsum("od,de,oe->o", others, covariance, others) + noise
    return shared @ others.T / size[:, None] / np.sqrt(variance)


def synthetic_source(
    vertices: Vertices,
    coordinates: np.ndarray,
    region: np.ndarray,
    targets: np.ndarray,
    frames: int = 600,
    repetition_time: float = 0.72,
    seed: int = 0,
) -> Source:
    """A source made of nothing but numbers, for when no real run is at hand.

    Forty first-order autoregressive series (coefficient 0.7) are loaded on vertices by random cosine waves of their
    coordinates (vertex, 3), which makes the covariance fall off smoothly with distance (random Fourier features of a
    squared exponential kernel, Rahimi and Recht 2007; length scale a fifth of the extent), plus a tenth of white noise.
    """
    generator = np.random.default_rng(seed)
    latent = generator.normal(size=(frames + 50, 40))
    for frame in range(1, len(latent)):
        latent[frame] += 0.7 * latent[frame - 1]
    scale = np.ptp(coordinates, axis=0).max() / 5
    waves = np.cos(coordinates / scale @ generator.normal(size=(3, 40)) + generator.uniform(0, 2 * np.pi, 40))
    series = latent[50:] @ waves.T
    series += np.sqrt(0.1) * series.std() * generator.normal(size=series.shape)
    origin = "synthetic: autoregressive series with a covariance that falls off with distance; no real run was used"
    return Source(series.astype(np.float32), vertices, region, targets, repetition_time, origin)


@dataclass(frozen=True, eq=False)
class Population:
    """What all subjects share.

    source: the run that surrogates are made of; weights: of the networks' mixtures, (network, target); logits: group
    map, (region vertex, network); neighbours: of the region's vertices (vertex, vertex), needed for smooth label noise.
    """

    source: Source
    weights: np.ndarray
    logits: np.ndarray
    neighbours: sparse.sparray | None = None

    def __post_init__(self):
        expected = (self.logits.shape[1], len(self.source.targets))
        if self.weights.shape != expected:
            raise BadData(f"weights: expected shape (network, target) = {expected}, got {self.weights.shape}")
        if len(self.logits) != len(self.source.region):
            raise BadData(f"group map: expected {len(self.source.region)} vertices, got {len(self.logits)}")

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance of the target series, shape (target, target)."""
        return self.source.covariance()

    @cached_property
    def spectrum(self) -> np.ndarray:
        """Amplitude spectrum of the noise."""
        return noise_spectrum(self.source)

    @cached_property
    def size(self) -> np.ndarray:
        """Standard deviation of each network's series, shape (network,)."""
        return np.sqrt(np.einsum("kd,de,ke->k", self.weights, self.covariance, self.weights))

    @cached_property
    def unit(self) -> float:
        """Standard deviation of white noise on the weights that makes a series of variance 1."""
        return 1 / np.sqrt(np.trace(self.covariance))
