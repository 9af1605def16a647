"""The training cohort as new subjects are compared with it: every subject scored by a population without it.

A population that a subject had a part in fits that subject better than others, the more so the fewer were trained on.
Subjects are therefore taken out in folds. What a fold does to the population is the difference that it makes to one
pass of expectation-maximisation at the trained population, whose statistics are sums over subjects; that difference is
taken off the trained population, so nothing is trained again.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from parcellation.model_file import TrainedModel
from parcellation.network_pooling import NetworkPooling
from parcellation.novelty import Population, Reference, digest_bytes, summary
from parcellation.plates import Values
from parcellation.posterior import pooling
from parcellation.training import Source, in_parts

FOLDS = 10
VERTICES = 4096  # at which the variance is looked at, as far as there are more
SUBJECTS = 120  # enough to tell one in a hundred
CHUNK = 8  # subjects in memory at a time


@runtime_checkable
class FeatureMap(Protocol):
    """How features are made of fingerprints."""

    def back(self, x: np.ndarray) -> np.ndarray:
        """Profiles over features as profiles over targets."""


@runtime_checkable
class Cohort(Protocol):
    """What is asked of prepared fingerprints: `cohort.Cohort` has it."""

    subjects: Sequence[str]
    most_sessions: int
    feature_map: FeatureMap

    def fingerprints(self, subject: str) -> Iterator[tuple[np.ndarray, ...]]:
        """Fingerprints (vertex, target) before any projection, and mask (vertex,), of each session."""

    def checksums(self, subject: str) -> list[str]:
        """SHA-256 of each session."""


@torch.no_grad()
def training_reference(model: TrainedModel, cohort: Cohort, source: Source) -> Reference | None:
    """The reference of a trained model; None for a model that is of its training subjects only.

    cohort, source: of the training subjects, in the same order. With more than 120 of them, 120 are taken.
    """
    encoder, template = pooling(model.family), model.family.template
    stuck = any(template.unit_plate in site.plates and site.name in model.family.free for site in template.sites)
    if stuck or not isinstance(encoder, NetworkPooling):
        return None
    count = len(cohort.subjects)
    members = np.unique(np.linspace(0, count - 1, min(count, SUBJECTS)).round().astype(int))
    folds = [members[first::FOLDS] for first in range(min(FOLDS, len(members)))]
    centres = (
        held_out_centres(model, encoder, source, folds) if len(folds) > 1 else [model.family.centre(model.blank())]
    )
    variance = _variance(_population(model, cohort, model.family.centre(model.blank()), 1.0), cohort, members[:CHUNK])
    scores = np.full((count, cohort.most_sessions, 2), np.nan)
    summaries = {}
    for fold, centre in zip(folds, centres, strict=True):
        population = _population(model, cohort, centre, variance)
        for member in fold:
            sessions = list(cohort.fingerprints(cohort.subjects[member]))
            scores[member, : len(sessions)] = [population.score(*session) for session in sessions]
            summaries[member] = summary(sessions)
    whole = _population(model, cohort, model.family.centre(model.blank()), variance)
    order = [*members, *np.setdiff1d(np.arange(count), members)]
    units = [digest_bytes(cohort.checksums(cohort.subjects[member])[0]) for member in order]
    return Reference(whole, scores[members], np.stack([summaries[m] for m in members]), np.stack(units))


def held_out_centres(model: TrainedModel, encoder: NetworkPooling, source: Source, folds: list) -> list[dict]:
    """Population values without each fold of subjects."""
    blank, count = model.blank(), source.cards[model.family.template.unit_plate]
    centre = model.family.centre(blank)
    parts = [_statistics(encoder, source, centre, fold) for fold in folds]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    everybody = sum(len(fold) for fold in folds)

    def step(sums: dict[str, Tensor], subjects: int) -> dict[str, Tensor]:
        return encoder.centre(encoder.population(sums, round(count * subjects / everybody)), blank)

    whole, found = step(total, everybody), []
    for fold, part in zip(folds, parts, strict=True):
        without = step({name: total[name] - part[name] for name in total}, everybody - len(fold))
        found.append({name: centre[name] + without[name] - whole[name] for name in centre})
    return found


def _statistics(encoder: NetworkPooling, source: Source, centre: Values, fold: np.ndarray) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for seen in (batch.seen for batch in in_parts(source, torch.from_numpy(fold), CHUNK)):
        one = encoder.statistics(encoder.summarise(seen, centre), seen)
        sums = {name: sums.get(name, 0) + value for name, value in one.items()}
    return sums


def _population(model: TrainedModel, cohort: Cohort, centre: Values, variance: float) -> Population:
    """A population in the units of the fingerprints."""
    profiles = cohort.feature_map.back(centre["mu"][0, 0, 0].cpu().numpy())
    log_map = model.family.template.log_map(centre)[0, 0].cpu().numpy()
    return Population(profiles.astype(np.float32), log_map.astype(np.float32), variance)


def _variance(population: Population, cohort: Cohort, members: np.ndarray, passes: int = 3) -> float:
    """Variance of the fingerprints about their networks, labels by the population, over some subjects.

    Of a whole cortex, at `VERTICES` vertices or more that lie evenly over all.
    """
    squares, every = [], max(1, len(population.log_map) // VERTICES)
    for member in members:
        for x, mask in cohort.fingerprints(cohort.subjects[member]):
            few = np.flatnonzero(mask)[::every]
            squares.append((population.squares(x[few]), population.log_map[few]))
    square, log_map = (np.concatenate(part) for part in zip(*squares, strict=True))
    targets = population.profiles.shape[1]
    variance = float((np.exp(log_map) * square).sum(1).mean()) / targets
    for _ in range(passes):
        scores = log_map - 0.5 * square / variance
        share = np.exp(scores - scores.max(1, keepdims=True))
        variance = float(((share * square).sum(1) / share.sum(1)).mean()) / targets
    return max(variance, 1e-12)
