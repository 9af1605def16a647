"""What honesty alone gives on real fingerprints: a mixture with one concentration, chosen on training subjects.

Spherical k-means on the group-mean fingerprints (20 starts) gives unit profiles, and a vertex of a subject belongs to
network k with probability proportional to group_vk exp(c sum_t x_t . m_k). The group map is the mean of the training
subjects' probabilities with half a count a network added; c is the grid's best predictive gain between halves of the
training subjects' sessions, beyond the map of the other training subjects. A subject's profiles are its weighted means,
shrunk towards the population's by one factor, fitted so that one half of a training subject's sessions predicts the
other half's means best.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans

from parcellation.scores import predictive_gain, unit

CONCENTRATIONS = np.geomspace(1, 32, 14)
PASSES = 3
HALF_COUNT = 0.5


@dataclass(frozen=True)
class PlainMixture:
    """A fitted mixture: profiles (network, feature), group map (vertex, network), concentration, share in [0, 1]."""

    profiles: np.ndarray
    group: np.ndarray
    concentration: float
    share: float

    def posterior(self, half: np.ndarray) -> np.ndarray:
        """Label probabilities (subject, vertex, network) from sessions (subject, session, vertex, feature)."""
        return _posterior(half, self.profiles, self.group, self.concentration)

    def subject_profiles(self, half: np.ndarray) -> np.ndarray:
        """Profiles of every subject, (subject, network, feature)."""
        return self.profiles + self.share * _away(half, self.posterior(half), self.profiles)


def fit_plain_mixture(x: np.ndarray, networks: int, seed: int = 0) -> PlainMixture:
    """Fit to training subjects x, (subject, session, vertex, feature), rows of unit norm and without a gap."""
    average = unit(x.mean((0, 1)).astype(float))
    profiles = _spherical_means(average, networks, seed)
    halves = np.array_split(x, 2, 1)
    group = np.full((x.shape[2], networks), 1 / networks)
    best, best_gain = None, -np.inf
    for concentration in CONCENTRATIONS:  # rising: each map starts at the last one
        for _ in range(PASSES):
            posterior = _posterior(x, profiles, group, concentration)
            group = _map(posterior)
        folds = (np.arange(len(x)) % 2 == 0, np.arange(len(x)) % 2 == 1)
        gain = np.mean([_gain(halves, fold, profiles, _map(posterior[~fold]), concentration) for fold in folds])
        if gain > best_gain:
            best, best_gain = (concentration, group), gain
    concentration, group = best
    away = [_away(half, _posterior(half, profiles, group, concentration), profiles) for half in halves]
    share = float(np.clip((away[0] * away[1]).sum() * 2 / sum((one**2).sum() for one in away), 0, 1))
    return PlainMixture(profiles, group, float(concentration), share)


def _map(posterior: np.ndarray) -> np.ndarray:
    counts = posterior.sum(0) + HALF_COUNT
    return counts / counts.sum(-1, keepdims=True)


def _gain(halves: list[np.ndarray], fold: np.ndarray, profiles, group, concentration) -> float:
    """Gain of some subjects beyond the map of the others: their own has learned of them already."""
    return predictive_gain(*(_posterior(half[fold], profiles, group, concentration) for half in halves), group)


def _spherical_means(x: np.ndarray, networks: int, seed: int, passes: int = 50) -> np.ndarray:
    """Unit centres (network, feature): k-means on unit rows, then passes with the centres kept at unit norm."""
    centres = unit(KMeans(networks, n_init=20, random_state=seed).fit(x).cluster_centers_)
    for _ in range(passes):
        member = (x @ centres.T).argmax(-1)
        centres = unit(
            np.stack([x[member == k].sum(0) if (member == k).any() else centres[k] for k in range(networks)])
        )
    return centres


def _posterior(half: np.ndarray, profiles: np.ndarray, group: np.ndarray, concentration: float) -> np.ndarray:
    scores = np.log(group) + concentration * (half.sum(1) @ profiles.T)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _away(half: np.ndarray, posterior: np.ndarray, profiles: np.ndarray) -> np.ndarray:
    """How subjects' own mean profiles differ from the population's (subject, network, feature); 0 if empty."""
    weight = posterior.sum(1)[..., None]
    own = np.einsum("svk,svd->skd", posterior, half.mean(1)) / np.maximum(weight, 1e-9)
    return np.where(weight > 1e-6, own - profiles, 0)
