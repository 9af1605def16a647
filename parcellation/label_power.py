"""Label power: how far a vertex's evidence about its label is to be believed, chosen on the training subjects.

The features of a fingerprint share noise, and a vertex's deviation from its network lasts over a subject's sessions, so
a product of Gaussians over features and sessions is too sure. The evidence is therefore raised to a power inside the
sum over labels. It is chosen by *predictive gain* between halves of a subject's sessions (`scores.predictive_gain`): a
lower bound on the information that two independent halves share about the labels beyond the population's map, largest
when the posteriors are the right ones. With C sessions of equal noise and persistence rho, the evidence of their sum
has 1 + (C - 1) rho times the variance of independent ones, hence power(C) = power(1) / (1 + (C - 1) rho).
"""

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from parcellation.encoders import ENCODERS, NetworkPooling
from parcellation.family import Family
from parcellation.model_file import LabelPower, TrainedModel
from parcellation.plates import Batch, Observed
from parcellation.scores import predictive_gain
from parcellation.training import Source, chunks

log = logging.getLogger(__name__)

POWERS = np.array(
    [1.0, 0.8, 0.6, 0.45, 0.33, 0.25, 0.18, 0.13, 0.1, 0.07, 0.05, 0.035, 0.025, 0.018, 0.013, 0.01, 0.007, 0.005]
)
SUBJECTS = 48  # enough for a gain whose error is small beside its curvature


@torch.no_grad()
def choose_label_power(model: TrainedModel, source: Source) -> LabelPower:
    """The label power of a model from its training subjects, read from `source`.

    With fewer than two subjects of two sessions nothing can be compared: the power stays 1 and is not checked. So it
    does where every session has labels of its own, which tell by themselves how far sessions agree.
    """
    if "session" in model.family.template.reducible:
        log.info("label power: labels are each session's own in this model, so it stays 1")
        return LabelPower()
    halves, correlations = [], []
    for observed in _subjects(model, source):
        present = torch.nonzero(observed.mask.any(-1)[0])[:, 0]
        if len(present) < 2:
            continue
        cut = len(present) // 2
        parts = [observed.select(1, present[:cut]), observed.select(1, present[cut : 2 * cut])]
        halves.append([_evidence(model, part) for part in parts])
        correlations.append(_persistence(model, parts))
    if len(halves) < 2:
        log.warning("label power: no two subjects have two sessions, so it stays 1 and is not checked")
        return LabelPower()
    sessions = max(1, min(evidence.shape[0] for pair in halves for evidence in pair))
    group = _log_map(model)
    gains = [_gain(halves, group, power) for power in POWERS]
    best = float(POWERS[int(np.argmax(gains))])
    persistence = float(np.clip(np.mean(correlations), 0, 1))
    single = best * (1 + (sessions - 1) * persistence)
    log.info(
        "label power: %.3f for one session, persistence %.2f; predictive gain %.4f nats a vertex, %.4f at power 1",
        min(1.0, single), persistence, max(gains), gains[0],
    )  # fmt: skip
    return LabelPower(min(1.0, single), persistence if best < 1 else 0.0, True)


def _subjects(model: TrainedModel, source: Source) -> Iterator[Observed]:
    for chunk in chunks(source, model.family.template, 1, SUBJECTS):
        yield chunk.seen


def _centre(model: TrainedModel, observed: Observed) -> tuple[dict, dict]:
    """Population medians, and a subject's summaries given them."""
    family = model.family
    centre = family.centre(observed)
    encoder = pooling(family)
    return centre, encoder.summarise(observed, centre)


def pooling(family: Family) -> NetworkPooling:
    """The family's encoder, or one of its template's kind where it encodes nothing."""
    return family.encoder or ENCODERS[family.template.encoder](family.template, family.template.sites)


def _evidence(model: TrainedModel, observed: Observed) -> np.ndarray:
    """Log density of every session under every network, given the half's own profiles, shape (T, V, K)."""
    _, summaries = _centre(model, observed)
    profiles, _ = summaries.session
    template = model.family.template
    sessions = []
    for t in range(observed.x.shape[1]):
        one = observed.select(1, torch.tensor([t], device=observed.x.device))
        evidence = template.log_emission(profiles[:, t : t + 1, None], summaries.noise[:, t : t + 1, None].log(), one)
        sessions.append(evidence[0, 0])
    return torch.stack(sessions).double().cpu().numpy()


def _log_map(model: TrainedModel) -> np.ndarray:
    blank = model.blank()
    return model.family.template.log_map(model.family.centre(blank))[0, 0].double().cpu().numpy()


def _gain(halves: list, group: np.ndarray, power: float) -> float:
    first, second = (np.stack([_softmax(group + power * pair[side].sum(0)) for pair in halves]) for side in (0, 1))
    return predictive_gain(first, second, np.exp(group))


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _persistence(model: TrainedModel, parts: list[Observed]) -> float:
    """Correlation over vertices, between two halves, of what a vertex's evidence has beyond its network's mean."""
    residuals = []
    labels = None
    for part in parts:
        evidence = _evidence(model, part).mean(0)
        contrast = evidence - evidence.mean(-1, keepdims=True)
        labels = contrast.argmax(-1) if labels is None else labels
        own = np.take_along_axis(contrast, labels[:, None], -1)[:, 0]
        for k in np.unique(labels):
            own[labels == k] -= own[labels == k].mean()
        residuals.append(own)
    return float(np.corrcoef(*residuals)[0, 1])


@torch.no_grad()
def refit_map(model: TrainedModel, source: Source, passes: int = 10) -> None:
    """Set the population map to what the labels say at the model's label power."""
    family, encoder = model.family, pooling(model.family)
    for _ in range(passes):
        sums: dict[str, Tensor] = {}
        for chunk in chunks(source, family.template, 8):
            for name, value in _tempered_labels(model, encoder, chunk).items():
                sums[name] = sums.get(name, 0) + value
        encoding = encoder.labels.population(sums, source.cards["subject"] / sums["subjects"])["logits_group"]
        if "logits_group" in family.free and "logits_group" not in family.fixed:
            family.free["logits_group"].set(encoding)
        else:
            family.fixed["logits_group"] = encoding


def _tempered_labels(model: TrainedModel, encoder, chunk: Batch) -> dict[str, Tensor]:
    observed = chunk.seen
    centre = model.family.centre(observed)
    summaries = encoder.summarise(observed, centre)
    power = model.label_power.at(observed.mask.sum(1, keepdim=True).to(observed.x.dtype))[..., None]
    evidence = encoder.evidence(observed, summaries.session, summaries.noise)
    _, labels = encoder.labels.assign(evidence, encoder.labels.start(centre, observed), power)
    someone = observed.mask.any(-1).any(1)
    return encoder.labels.statistics(labels, someone) | {"subjects": someone.sum()}
