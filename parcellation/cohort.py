"""The features that a model sees of prepared fingerprints, and batches of subjects.

    features = fit_features(store, training_subjects, study.features)
    cohort = open_cohort(store, features, subjects)
    batch = cohort.read([0, 3])                                    # x (subject, session, vertex, feature)

From a fingerprint z to features x, for every unit by itself: the region's mean fingerprint is taken away, what is left
is centred over targets and scaled to unit norm (each by setting); then x = scale * P (u - mean), where P holds the
principal components of the training subjects' fingerprints, or is the identity when targets are few, and `scale` makes
the training features' mean square 1. P, mean and scale belong to the model: a new cohort is projected by them.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.linalg import eigh

from parcellation.config import Features
from parcellation.errors import BadData, InputMissing
from parcellation.manifest import natural
from parcellation.store import Store, Unit, describe, input_key, write_unit
from parcellation.surfaces import Targets, Vertices

__all__ = [
    "Batch",
    "Cohort",
    "FeatureMap",
    "Store",
    "Unit",
    "fit_features",
    "input_key",
    "open_cohort",
    "write_unit",
]

# Up to here targets are used as they are: few components cost accuracy, and so many features are still cheap.
MOST_TARGETS = 512
AUTOMATIC_COMPONENTS = 256
# Share of a float32 fingerprint's norm that is no more than rounding; float16 resolves 5e-4 only.
ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map from fingerprints to features that travels with a model.

    targets: how many a fingerprint has; scale: one factor for all features; mean: float32, shape (target,), and
    components: float32, orthonormal rows, shape (feature, target), both None where targets are used as they are.
    """

    settings: Features
    targets: int
    scale: float
    mean: np.ndarray | None = None
    components: np.ndarray | None = None

    @property
    def features(self) -> int:
        """How many features a vertex has."""
        return self.targets if self.components is None else len(self.components)

    @classmethod
    def fit(cls, units: Iterable[tuple[np.ndarray, ...]], settings: Features) -> "FeatureMap":
        """Fit to training fingerprints, one pass, in memory of one unit and (target, target).

        units: (z, mask) or (z, mask, target_mask) as in `apply`. Raises BadData when they do not have equal targets or
        nothing varies in them.
        """
        moments = None
        for z, mask, *target_mask in units:
            moments = moments or _Moments(z.shape[1], _asked_components(settings, z.shape[1]) is not None)
            moments.add(normalised(z, mask, settings, *target_mask)[np.asarray(mask, bool)])
        if moments is None or moments.square == 0:
            raise BadData("features: expected training fingerprints that vary, got none with signal")
        asked = _asked_components(settings, moments.targets)
        if asked is None:
            return cls(settings, moments.targets, float(np.sqrt(moments.rows * moments.targets / moments.square)))
        mean, components, variance = moments.principal(asked)
        return cls(settings, moments.targets, float(1 / np.sqrt(variance.mean())), mean, components)

    def apply(self, z: np.ndarray, mask: np.ndarray, target_mask: np.ndarray | None = None) -> np.ndarray:
        """Features of one unit.

        z: fingerprints, shape (vertex, target); mask: bool, (vertex,); target_mask: bool, (target,), all when None.
        Returns float32, shape (vertex, feature); rows of masked vertices are 0, as are those whose fingerprint is the
        same for all targets. Raises BadData for another number of targets than was fitted.
        """
        if z.shape[1] != self.targets:
            raise BadData(f"features: expected fingerprints with {self.targets} targets, got {z.shape[1]}")
        u = normalised(z, mask, self.settings, target_mask)
        if self.components is None:
            u *= np.float32(self.scale)
            return u
        weights, offset = self._projection
        x = u @ weights
        x -= offset
        x[~np.asarray(mask, bool)] = 0
        return x

    @cached_property
    def _projection(self) -> tuple[np.ndarray, np.ndarray]:
        weights = (self.scale * self.components.astype(float)).T
        return weights.astype(np.float32), (self.mean @ weights).astype(np.float32)

    def back(self, x: np.ndarray) -> np.ndarray:
        """Profiles over features, shape (..., feature), as profiles over targets, shape (..., target).

        Undoes scale and projection, its mean included: exact where no component was dropped, else the nearest profile
        within the components. What is a unit's own is not put back: the region's mean fingerprint and the norm.
        """
        u = np.asarray(x) / self.scale
        return u if self.components is None else u @ self.components + self.mean

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays from which `from_arrays` restores the map exactly; the settings are the study's."""
        arrays = {"scale": np.array([self.scale]), "targets": np.array([self.targets])}
        return arrays if self.components is None else arrays | {"mean": self.mean, "components": self.components}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], settings: Features) -> "FeatureMap":
        """The inverse of `to_arrays`; raises BadData for arrays that are no feature map."""
        mean, components = arrays.get("mean"), arrays.get("components")
        try:
            scale, targets = float(arrays["scale"][0]), int(arrays["targets"][0])
            fits = components is None or (components.shape[1:] == (targets,) and mean.shape == (targets,))
            finite = all(np.isfinite(one).all() for one in (scale, mean, components) if one is not None)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadData(f"the model's feature map cannot be read: {type(error).__name__}: {error}") from error
        if not fits or not finite or scale <= 0 or targets < 1:
            raise BadData(
                f"the model's feature map: expected finite numbers of {targets} targets, got {_shapes(arrays)}"
            )
        return cls(settings, targets, scale, mean, components)


def _shapes(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items()))


def _asked_components(settings: Features, targets: int) -> int | None:
    if settings.components == "auto":
        return AUTOMATIC_COMPONENTS if targets > MOST_TARGETS else None
    return None if settings.components == "none" else settings.components


def normalised(
    z: np.ndarray, mask: np.ndarray, settings: Features, target_mask: np.ndarray | None = None
) -> np.ndarray:
    """Fingerprints of one unit without the region's mean, centred and of unit norm, each by setting.

    Shapes and masks as in `FeatureMap.apply`; float32. Masked vertices and targets without signal are 0 and count in no
    mean and no norm.
    """
    mask = np.asarray(mask, bool)
    live = np.ones(z.shape[1], bool) if target_mask is None else np.asarray(target_mask, bool)
    u = np.array(z, np.float32)
    u[~mask] = 0
    u[:, ~live] = 0
    before = np.sqrt(np.einsum("vt,vt->v", u, u))
    if settings.remove_region_mean and mask.any():
        u -= mask.astype(np.float32) @ u / np.float32(mask.sum())
    if settings.center and live.any():
        u -= (u @ live.astype(np.float32) / np.float32(live.sum()))[:, None]
        u[:, ~live] = 0
    if settings.unit_norm:
        norm = np.sqrt(np.einsum("vt,vt->v", u, u))
        # A fingerprint that is gone with the means has no direction: what rounding left must not become one.
        u /= np.where(norm > ROUNDING * before, norm, np.inf)[:, None]
    u[~mask] = 0
    return u


class _Moments:
    """Sums over rows, in float64: enough for mean square and principal components, whatever the number of rows."""

    def __init__(self, targets: int, products: bool):
        self.targets, self.rows, self.square = targets, 0, 0.0
        self.sum = np.zeros(targets)
        self.product = np.zeros((targets, targets)) if products else None

    def add(self, u: np.ndarray) -> None:
        if u.shape[1] != self.targets:
            raise BadData(f"features: expected fingerprints with {self.targets} targets, got {u.shape[1]}")
        u = u.astype(float)
        self.rows += len(u)
        self.square += float(np.einsum("vt,vt->", u, u))
        self.sum += u.sum(0)
        if self.product is not None:
            self.product += u.T @ u

    def principal(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, at most `count` components as rows, and the variance along each; fewer where the rank is lower."""
        mean = self.sum / self.rows
        covariance = self.product / self.rows - np.outer(mean, mean)
        first = max(self.targets - count, 0)
        variance, vectors = eigh(covariance, subset_by_index=[first, self.targets - 1])
        # Below this a direction is the rounding of float32 fingerprints, not data.
        real = variance > max(variance[-1], 0) * self.targets * np.finfo(np.float32).eps ** 2
        if not real.any():
            raise BadData("features: expected training fingerprints that vary, got equal ones at all vertices")
        variance, components = variance[real][::-1], vectors[:, real].T[::-1]
        # An eigenvector's sign is arbitrary: fixed so that the same data always give the same features.
        largest = np.abs(components).argmax(1)
        components = components * np.sign(components[np.arange(len(components)), largest])[:, None]
        return mean.astype(np.float32), np.ascontiguousarray(components, np.float32), variance


def fit_features(store: Store, subjects: Sequence[str] | None, settings: Features) -> FeatureMap:
    """The feature map of the units of some subjects (all when None), read one after the other in natural order.

    Raises InputMissing for a subject without units, and BadData when there is nothing to fit.
    """
    subjects, sessions = _sessions(store, subjects)

    def arrays() -> Iterable[tuple[np.ndarray, ...]]:
        for subject in sorted(subjects, key=natural):
            for session in sessions[subject]:
                _, tensors = store.arrays(subject, session)
                yield tensors["fingerprint"], tensors["mask"], tensors["target_mask"]

    return FeatureMap.fit(arrays(), settings)


def _sessions(store: Store, subjects: Sequence[str] | None) -> tuple[list[str], dict[str, list[str]]]:
    """Subjects, in the order asked for, and the sessions each has in the store."""
    there: dict[str, list[str]] = {}
    for subject, session in store.units():
        there.setdefault(subject, []).append(session)
    wanted = list(there) if subjects is None else list(subjects)
    missing = [subject for subject in wanted if subject not in there]
    if missing or not wanted:
        names = ", ".join(missing[:5]) or "any subject"
        raise InputMissing(f"{store.folder}: no prepared fingerprints of {names}; run `parcellation prepare` first")
    if len(set(wanted)) != len(wanted):
        raise BadData(f"{store.folder}: expected every subject once, got {sorted(wanted)}")
    return wanted, there


@dataclass(frozen=True, eq=False)
class Batch:
    """Data of some subjects; sessions that a subject does not have are masked.

    x: features, float32, shape (subject, session, vertex, feature), 0 where masked; mask: bool, (subject, session,
    vertex); frames: kept frames, float32, (subject, session), 0 where there is no session.
    """

    x: np.ndarray
    mask: np.ndarray
    frames: np.ndarray


class Cohort:
    """Subjects of a store as a model sees them.

    subjects: their names, in the order asked for; vertices, targets: what all units have in common; identity: plain
    values that must be equal for a model to be applied, one a key so that a difference has a name. Making one reads
    every unit's header: raises InputMissing for a subject without units, and BadData, expected and got, when units are
    not of the same vertices and targets or not what the feature map was fitted to.
    """

    def __init__(self, store: Store, subjects: Sequence[str] | None, feature_map: FeatureMap):
        self.store, self.feature_map = store, feature_map
        self.subjects, self._sessions = _sessions(store, subjects)
        self.most_sessions = max(len(self._sessions[subject]) for subject in self.subjects)
        header = _common_header(store, [(one, t) for one in self.subjects for t in self._sessions[one]])
        _check_feature_map(feature_map, header, store)
        self.vertices: Vertices
        self.targets: Targets
        self.vertices, self.targets = store.identity(header["identity"])
        chosen = feature_map.settings.model_dump(mode="json", exclude={"precision"})
        self.identity = {
            "data": describe(self.vertices, self.targets),
            "vertices": header["vertices"],
            "targets": header["targets"],
            **{f"features.{name}": value for name, value in chosen.items()},
        }

    def sessions(self, subject: str) -> list[str]:
        """Names of a subject's sessions, in natural order."""
        return list(self._sessions[subject])

    def reference_frames(self) -> float:
        """Kept frames of a session of reference length: the median over the cohort's sessions."""
        units = [(subject, session) for subject in self.subjects for session in self._sessions[subject]]
        return float(np.median([self.store.header(*unit)["frames"] for unit in units]))

    def fingerprints(self, subject: str, sessions: Sequence[str] | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """Normalised fingerprints (vertex, target), before any projection, and mask (vertex,) of a subject's sessions.

        sessions: some of them; all when None. Raises BadData naming the file of a unit that is damaged.
        """
        for session in self._sessions[subject] if sessions is None else sessions:
            _, unit = self.store.arrays(subject, session)
            mask = np.asarray(unit["mask"], bool)
            yield normalised(unit["fingerprint"], mask, self.feature_map.settings, unit["target_mask"]), mask

    def checksums(self, subject: str, sessions: Sequence[str] | None = None) -> list[str]:
        """Checksum of each of a subject's sessions, or of some of them: the same whenever it was prepared."""
        chosen = self._sessions[subject] if sessions is None else sessions
        return [_content(self.store.header(subject, session)) for session in chosen]

    def read(self, index: Sequence[int]) -> Batch:
        """Data of the subjects at these positions, in this order; memory is the batch and one unit.

        Raises BadData naming the file of a unit that is damaged.
        """
        shape = (len(index), self.most_sessions, len(self.vertices))
        x = np.zeros((*shape, self.feature_map.features), np.float32)
        mask, frames = np.zeros(shape, bool), np.zeros(shape[:2], np.float32)
        for s, position in enumerate(index):
            subject = self.subjects[position]
            for t, session in enumerate(self._sessions[subject]):
                header, unit = self.store.arrays(subject, session)
                x[s, t] = self.feature_map.apply(unit["fingerprint"], unit["mask"], unit["target_mask"])
                mask[s, t], frames[s, t] = unit["mask"], header["frames"]
        return Batch(x, mask, frames)


def _content(header: dict) -> str:
    """Checksum of a unit by its source files' contents, not their times; its own where it was made of no file.

    What was left out of it does not count: a unit is what it was made of.
    """
    if not header["sources"]:
        return header["checksum"]
    known = {name: value for name, value in header.items() if name not in ("inputs", "software", "checksum")}
    if "left_out" in header["cleaning"]:
        known["cleaning"] = header["cleaning"] | {"left_out": []}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def open_cohort(store: Store | Path, feature_map: FeatureMap, subjects: Sequence[str] | None = None) -> Cohort:
    """The cohort of some subjects (all when None) of a store or of the folder that holds one; errors as `Cohort`."""
    return Cohort(store if isinstance(store, Store) else Store(store), subjects, feature_map)


def _common_header(store: Store, units: list[tuple[str, str]]) -> dict:
    """The header of the first unit, after every other unit was found to be of the same vertices, targets and kind."""
    first = store.header(*units[0])
    for unit in units[1:]:
        header = store.header(*unit)
        if header["identity"] != first["identity"]:
            expected, got = (describe(*store.identity(one["identity"])) for one in (first, header))
            raise BadData(f"{store.path(*unit)}: expected {expected} as the cohort's first unit has, got {got}")
        expected, got = first["features"]["connectivity"], header["features"]["connectivity"]
        if expected != got:
            raise BadData(f"{store.path(*unit)}: expected connectivity {expected} as the first unit's, got {got}")
    return first


def _check_feature_map(feature_map: FeatureMap, header: dict, store: Store) -> None:
    targets = len(store.identity(header["identity"])[1].names)
    if targets != feature_map.targets:
        raise BadData(f"{store.folder}: expected {feature_map.targets} targets as the model has, got {targets}")
    expected, got = feature_map.settings.connectivity, header["features"]["connectivity"]
    if expected != got:
        raise BadData(f"{store.folder}: expected connectivity {expected} as the model has, got {got}")
