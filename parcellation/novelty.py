"""How unlike the training cohort data are: one subject against its members, and one cohort against the whole of it.

A *score* of a session has two numbers, both of its fingerprints x (vertex, target) given the trained population, with
profiles mu (network, target), map pi (vertex, network) and variance v of what is left, as in training:

    density     mean over vertices of  log sum_k pi_k Normal(x; mu_k, v)  over the number of targets, in nats a value
    agreement   slope of the networks' mean fingerprints, averaged by pi, on what the population expects of them:
                1 where the contrasts between networks are the population's, 0 where there are none

Fingerprints are those before any projection: a projection that was fitted to the training data knows their noise, so
that new data would seem different. No label is inferred, and none can adapt to noise. Scores of training subjects are
of populations without them (`training_reference`).

A subject is compared with the training subjects by full conformal prediction (Vovk et al. 2005) with its leverage among
all of them as the measure of strangeness: of exchangeable subjects, one in 1 / a has p <= a, whatever the distribution.
With n training subjects p is never below 1 / (n + 1). A cohort is compared by a permutation test of the largest
absolute t over all quantities (Westfall and Young 1993), which keeps its level however they are correlated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import logsumexp

RATE = 0.01  # of subjects like the training cohort's that are flagged, where there are enough of those to tell
MOST_FLAGGED = 0.1  # with so few training subjects that more would be flagged, nobody is
SHIFT_LEVEL = 0.01  # of cohorts like the training cohort that are warned of
PERMUTATIONS = 1999
QUANTITIES = ("log predictive density", "agreement with the networks")


@dataclass(frozen=True, eq=False)
class Population:
    """What sessions are scored by: profiles (network, target), log_map (vertex, network), variance of the rest."""

    profiles: np.ndarray
    log_map: np.ndarray
    variance: float

    def score(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Density and agreement of one session, float64, shape (2,); NaN without any vertex.

        x: fingerprints (vertex, target), 0 where masked; mask: bool (vertex,).
        """
        x, log_map = x[mask], self.log_map[mask].astype(float)
        if not len(x):
            return np.full(2, np.nan)
        density = logsumexp(log_map - 0.5 * self.squares(x) / self.variance, axis=1).mean() / x.shape[1]
        return np.array([density - 0.5 * math.log(2 * math.pi * self.variance), self._agreement(x, np.exp(log_map))])

    def squares(self, x: np.ndarray) -> np.ndarray:
        """Squared distance of fingerprints to every network's profile, shape (vertex, network)."""
        m = self.profiles.astype(np.float32)
        own = np.einsum("vd,vd->v", x, x)[:, None] + np.einsum("kd,kd->k", m, m)
        return np.maximum(own - 2 * (x @ m.T), 0).astype(float)

    def _agreement(self, x: np.ndarray, share: np.ndarray) -> float:
        weight = share.sum(0)
        average = (share.T.astype(np.float32) @ x) / np.maximum(weight, 1e-9)[:, None]
        expected = (share.T @ share) @ self.profiles / np.maximum(weight, 1e-9)[:, None]
        average, expected = (one - weight @ one / weight.sum() for one in (average, expected))
        return float((weight[:, None] * average * expected).sum() / max((weight[:, None] * expected**2).sum(), 1e-12))


def summary(sessions: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """A subject's mean and root mean square of every target over its vertices and sessions, float32, shape (2 target,).

    sessions: (fingerprints (vertex, target), mask (vertex,)) of each.
    """
    parts = [x[mask] for x, mask in sessions if mask.any()]
    mean = np.mean([x.mean(0) for x in parts], axis=0)
    return np.r_[mean, np.sqrt(np.mean([np.einsum("vd,vd->d", x, x) / len(x) for x in parts], axis=0))]


@dataclass(frozen=True, eq=False)
class Reference:
    """The training cohort, as new subjects and cohorts are compared with it.

    population: see there; scores: held-out, of each session, NaN where there is none, (subject, session, 2); summaries:
    see `summary`, (subject, 2 target); units: SHA-256 of the first session of each subject, then of those who were
    trained on and are not scored, uint8 (any, 32).
    """

    population: Population
    scores: np.ndarray
    summaries: np.ndarray
    units: np.ndarray

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays from which `from_arrays` restores it."""
        own = {name: getattr(self, name) for name in ("scores", "summaries", "units")}
        population = {field.name: np.atleast_1d(getattr(self.population, field.name)) for field in fields(Population)}
        return own | population

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Reference":
        """The inverse of `to_arrays`."""
        population = Population(arrays["profiles"], arrays["log_map"], float(arrays["variance"][0]))
        return cls(population, arrays["scores"], arrays["summaries"], arrays["units"])

    def __len__(self) -> int:
        return len(self.scores)

    def position(self, checksum: str) -> int | None:
        """Which training subject has this first session, None when none has; `len(self)` and more are not scored."""
        found = np.flatnonzero((self.units == digest_bytes(checksum)).all(1))
        return int(found[0]) if len(found) else None

    def p(self, scores: np.ndarray, member: int | None = None) -> float:
        """p-value of a subject's scores (session, 2): share of subjects at least as strange, itself among them.

        Means over sessions are compared with those of as many sessions of each training subject. member: its position
        if it is a training subject, which is then compared with the others by its own held-out scores.
        """
        others, own = self.scores, scores
        if member is not None and member < len(self):
            others, own = np.delete(others, member, 0), others[member]
        count = max(1, int(np.isfinite(own).all(-1).sum()))
        return conformal_p(session_mean(others[:, :count]), session_mean(own))


def digest_bytes(checksum: str) -> np.ndarray:
    """A SHA-256 in hexadecimal as bytes, uint8 (32,)."""
    return np.frombuffer(bytes.fromhex(checksum), np.uint8)


def session_mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the sessions that are there, shape (..., 2)."""
    there = np.isfinite(scores).all(-1, keepdims=True)
    return np.where(there, scores, 0).sum(-2) / np.maximum(there.sum(-2), 1)


def conformal_p(others: np.ndarray, own: np.ndarray) -> float:
    """Share of points, the own one among them, whose leverage is at least that of the own one.

    others: (point, number), own: (number,). Leverage is the squared Mahalanobis distance from the mean of all points,
    by their own covariance, which no order of the points changes.
    """
    points = np.vstack([others, own])
    away = points - points.mean(0)
    away = away / np.maximum(away.std(0), 1e-12)
    leverage = np.einsum("ij,ij->i", away @ np.linalg.pinv(away.T @ away, rcond=1e-9), away)
    return float(np.mean(leverage >= leverage[-1] * (1 - 1e-9)))


def flag_level(training: int) -> float | None:
    """The p at which a subject is flagged, also the share of subjects like the training ones that are.

    1 in 100, or the smallest p that so many training subjects allow; None where that is above 1 in 10.
    """
    smallest = 1 / (training + 1)
    return None if smallest > MOST_FLAGGED else max(RATE, smallest)


@dataclass(frozen=True)
class Shift:
    """A cohort beside the training cohort.

    p: of the permutation test; smallest: below which p cannot be with so few subjects; beyond: names of the quantities
    whose t is beyond the 99 % level of the largest, the largest first; quantities: how many were tested.
    """

    p: float
    smallest: float
    beyond: tuple[str, ...]
    quantities: int
    subjects: int

    @property
    def found(self) -> bool:
        """Whether the cohort is to be warned of."""
        return self.p <= SHIFT_LEVEL


def cohort_shift(
    reference: Reference, scores: np.ndarray, summaries: np.ndarray, targets: Sequence[str], seed: int = 0
) -> Shift:
    """Compare new subjects, none of whom was trained on, with the training cohort.

    scores: (subject, session, 2), NaN where there is no session; summaries: (subject, 2 target); targets: their names.
    """
    training = np.hstack([session_mean(reference.scores), reference.summaries])
    new = np.hstack([session_mean(scores), summaries])
    values = np.vstack([training, new]).astype(float)
    values = values - values.mean(0)
    varies = values.std(0) > 1e-9 * max(values.std(0).max(), 1e-12)
    names = np.array([*QUANTITIES, *(f"mean of {t}" for t in targets), *(f"spread of {t}" for t in targets)])[varies]
    n, m = len(training), len(new)
    observed = _t(values[:, varies], np.arange(n, n + m)[None])[0]
    generator = np.random.default_rng(seed)
    picks = np.stack([generator.permutation(n + m)[:m] for _ in range(PERMUTATIONS)])
    largest = np.concatenate([_t(values[:, varies], part).max(1) for part in np.array_split(picks, 20)])
    p = (1 + np.sum(largest >= observed.max() * (1 - 1e-9))) / (1 + PERMUTATIONS)
    level = np.sort(largest)[PERMUTATIONS - int(SHIFT_LEVEL * (PERMUTATIONS + 1))]
    order = np.argsort(-observed, kind="stable")
    beyond = tuple(names[k] for k in order if observed[k] > level)
    # Two cohorts of one size have the same t either way round.
    smallest = max((1 + (n == m)) / math.comb(n + m, m), 1 / (PERMUTATIONS + 1))
    return Shift(float(p), smallest, beyond, len(names), m)


def _t(values: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Absolute t of picked rows against the others, pooled variance, shape (pick, column); columns have mean 0."""
    total, m = len(values), picks.shape[1]
    chosen = np.zeros((len(picks), total))
    chosen[np.arange(len(picks))[:, None], picks] = 1
    mean = chosen @ values / m
    other = -mean * m / (total - m)
    within = (values**2).sum(0) - m * mean**2 - (total - m) * other**2
    return np.abs(mean - other) / np.sqrt(np.maximum(within, 1e-300) / max(total - 2, 1) * (1 / m + 1 / (total - m)))
