"""Label power: how far a vertex's evidence about its label is to be believed, chosen on the training subjects.

The features of a fingerprint share noise, and a vertex's deviation from its network lasts over a subject's sessions, so
a product of Gaussians over features and sessions is too sure. The evidence is therefore raised to a power inside the
sum over labels. It is chosen by *predictive gain* between halves of a subject's sessions (`scores.predictive_gain`): a
lower bound on the information that two independent halves share about the labels beyond the population's map, largest
when the posteriors are the right ones. With C sessions of equal noise and persistence rho, the evidence of their sum
has 1 + (C - 1) rho times the variance of independent ones, hence power(C) = power(1) / (1 + (C - 1) rho).

Two more things are chosen with it: heavier tails (`networks.heavy_tailed`), and whose profiles a vertex is compared
with. The model's own way stays where it is nearly right and no other gains surely and clearly more. A session's own
profile holds the noise that its vertices share, which then speaks for the labels that it was pooled by; the subject's
has less of it, the population's none. The map beyond which gain counts is that of other training subjects: measured
against a map that they are in themselves, subjects seem to have labels of their own where they only moved the map.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.model_file import LabelPower, TrainedModel
from parcellation.networks import heavy_tailed, session_square
from parcellation.plates import Observed
from parcellation.posterior import pooling, tempered_labels
from parcellation.refitted_map import HALF, half_labels, mean_map, without
from parcellation.retest_link import RetestLink, fit_link
from parcellation.scores import subject_gains
from parcellation.shares import shares
from parcellation.training import Source, chunks

log = logging.getLogger(__name__)

POWERS = np.array(
    [1.0, 0.8, 0.6, 0.45, 0.33, 0.25, 0.18, 0.13, 0.1, 0.07, 0.05, 0.035, 0.025, 0.018, 0.013, 0.01, 0.007, 0.005]
)
STRONGER = np.array([4.0, 2.8, 2.0, 1.4])  # with a tail, which weakens all evidence, further powers
TAIL = 20.0
# Whose profiles, and with what tail: the model's own way, then the others, preferred ones first.
WAYS = (("session", None), ("population", TAIL), ("subject", TAIL), ("population", None), ("subject", None))
ALIKE = 0.5  # standard errors within which two ways gain alike
SURELY = 2.0  # standard errors by which a model that is nearly right must be beaten
# And the share of the gain. A map of half of few people is so much poorer than the one that they are told with that
# evidence seems too sure: where the model holds, 20 people gain most at a power of .9, two hundredths more than at 1.
CLEARLY = 0.03
NEARLY_RIGHT = 0.5  # a model that needs a lower power than this has no claim to its own way
SUBJECTS = 48  # enough for a gain whose error is small beside its curvature
VERTICES = 2000  # likewise: subjects differ more than that many vertices do


@dataclass(frozen=True)
class Gain:
    """What one way to score labels gains, nats a vertex, by training subject; untempered: at power 1."""

    profiles: str
    tail: float | None
    power: float
    subjects: np.ndarray
    untempered: np.ndarray

    def at_one(self) -> "Gain":
        """The same way at power 1."""
        return replace(self, power=1.0, subjects=self.untempered)


@torch.no_grad()
def choose_label_power(model: TrainedModel, source: Source, unchecked: float = 1.0) -> LabelPower:
    """The label power of a model from its training subjects, read from `source`.

    With fewer than two subjects of two sessions nothing can be compared (runs of a session are averaged before): the
    power is `unchecked` then, and said to be so. Where every session has labels of its own, which tell by themselves
    how far sessions agree, it stays 1.
    """
    if "session" in model.family.template.reducible:
        log.info("label power: labels are each session's own in this model, so it stays 1")
        return LabelPower()
    halves, sessions = [], []
    for observed in _subjects(model, source):
        present = torch.nonzero(observed.mask.any(-1)[0])[:, 0]
        if len(present) < 2:
            continue
        cut = len(present) // 2
        sessions.append(cut)
        halves.append([squares(model, observed.select(1, part)) for part in (present[:cut], present[cut : 2 * cut])])
    if len(halves) < 2:
        log.warning("label power: no two subjects have two sessions, so it is %g and not checked", unchecked)
        return LabelPower(unchecked)
    group = _log_map(model)
    tried = [_best_power(_pairs(halves, name), group, name, tail) for name, tail in WAYS]
    best = _preferred(tried)
    persistence = _persistence(halves, sessions, best.profiles)
    most = 1.0 if best.tail is None else STRONGER[0]
    single = float(min(most, best.power * (1 + (min(sessions) - 1) * persistence)))
    log.info(
        "label power: %.3f for one session, persistence %.2f, tail %s, profiles of the %s; predictive gain %.4f nats a "
        "vertex, %.4f at power 1", single, persistence, best.tail, best.profiles, best.subjects.mean(),
        best.untempered.mean(),
    )  # fmt: skip
    return LabelPower(single, persistence if single < most else 0.0, True, best.tail, best.profiles)


@torch.no_grad()
def fit_retest_link(model: TrainedModel, source: Source) -> RetestLink:
    """The retest link of a model, at its label power, from halves of the training subjects' sessions, both ways.

    Each subject is told with the map of the others, as new people are: a map that a subject is in itself agrees with it
    too well. Unchecked where no two subjects have two sessions, or labels are each session's own.
    """
    said, again, maps, log_map = [], [], [], mean_map(model).log()
    centre = model.family.centre(model.blank())
    few = _few(len(log_map))  # of a whole cortex, everybody's probabilities at all vertices are gigabytes
    for observed in () if "session" in model.family.template.reducible else _subjects(model, source):
        present = torch.nonzero(observed.mask.any(-1)[0])[:, 0]
        cut = len(present) // 2
        if cut:
            parts = [observed.select(1, part) for part in (present[:cut], present[cut : 2 * cut])]
            others = without(
                log_map.exp(), half_labels(model, observed, log_map, centre)[0, 0], source.cards["subject"]
            )
            labels = [
                tempered_labels(model, part, others.log(), centre=centre)[0, 0].cpu().numpy()[few] for part in parts
            ]
            said += labels
            again += [label.argmax(-1) for label in labels[::-1]]
            maps += [others.cpu().numpy()[few]] * 2
    if len(said) < 4:
        return RetestLink()
    link = fit_link(np.stack(said), np.stack(again), np.stack(maps))
    log.info("retest link: own %.2f, map %.2f", link.own, link.map)
    return link


def _few(vertices: int) -> np.ndarray:
    """Positions of `VERTICES` vertices, evenly over all; of fewer, all."""
    return np.linspace(0, vertices - 1, min(vertices, VERTICES)).round().astype(int)


def _subjects(model: TrainedModel, source: Source) -> Iterator[Observed]:
    for chunk in chunks(source, model.family.template, 1, SUBJECTS):
        yield chunk.seen


def squares(model: TrainedModel, observed: Observed) -> dict[str, Float[Tensor, "S T V K"]]:
    """|x - m|^2 / kappa^2 of every session, by whose profiles m are: at most `VERTICES` vertices of them."""
    centre = model.family.centre(observed)
    summaries = pooling(model.family).summarise(observed, centre)
    count = observed.x.shape[2]
    few = observed.select(2, torch.from_numpy(_few(count)).to(observed.x.device))
    profiles = {
        "session": summaries.session[0][:, :, None],
        "subject": summaries.subject[0][:, None, None],
        "population": centre["mu"],
    }
    return {name: _square(m, summaries.noise, few) for name, m in profiles.items()}


def _square(profiles: Tensor, noise: Tensor, observed: Observed) -> Tensor:
    log_kappa = noise.log()[..., None]
    return torch.stack([session_square(profiles, log_kappa, observed, t)[:, 0] for t in range(observed.x.shape[1])], 1)


def _pairs(halves: list, profiles: str) -> list[list[Tensor]]:
    """Squares of every subject's two halves, each of shape (session, network, vertex)."""
    return [[half[profiles][0].mT.contiguous().cpu() for half in pair] for pair in halves]


def _log_map(model: TrainedModel) -> Float[Tensor, "V K"]:
    blank = model.blank()
    log_map = model.family.template.log_map(model.family.centre(blank))[0, 0].cpu()
    few = _few(len(log_map))
    return log_map[torch.from_numpy(few)]


def _best_power(pairs: list[list[Tensor]], group: Float[Tensor, "V K"], profiles: str, tail: float | None) -> Gain:
    """The power of the grid that gains most. pairs: see `_pairs`; group: log map to start from."""
    powers = POWERS if tail is None else np.concatenate([STRONGER, POWERS])
    gains = []
    for power in powers.tolist():

        def scores(square: Tensor, power: float = power) -> Float[Tensor, "K V"]:
            return (-0.5 * power * square if tail is None else heavy_tailed(square, power, tail)).sum(0)

        both = [torch.stack([scores(pair[side]) for pair in pairs]) for side in (0, 1)]
        gains.append(_crossed_gain(torch.stack(both).mT, group))
    means = np.array([gain.mean() for gain in gains])
    best = int(means.argmax())
    return Gain(profiles, tail, float(powers[best]), gains[best], gains[int((powers == 1).argmax())])


def _crossed_gain(
    scores: Float[Tensor, "half S V K"], group: Float[Tensor, "V K"], passes: int = 3
) -> Float[np.ndarray, " S"]:
    """Gain of each subject beyond the map of the other half of the subjects; beyond everybody's where they are few."""
    number = torch.arange(scores.shape[1])
    folds = [number % 2 == 0, number % 2 == 1] if len(number) >= 4 else [number >= 0]
    gains = np.empty(len(number))
    for fold in folds:
        others = scores[:, ~fold] if len(folds) > 1 else scores
        map_of = group
        for _ in range(passes):
            counts = shares(map_of + others).flatten(0, 1).sum(0) / len(scores) + HALF
            map_of = (counts / counts.sum(-1, keepdim=True)).log()
        gains[fold.numpy()] = subject_gains(*shares(map_of + scores[:, fold]).numpy(), map_of.exp().numpy())
    return gains


def _preferred(tried: list[Gain]) -> Gain:
    """The model's own way, the first, where it is nearly right and none gains surely and clearly more; else one alike.

    Of many ways that are equally right the best gains more than the model's by chance, so at power 1 it has its turn
    before it is tempered. With few subjects the best of several that gain alike is often not the best for others: then
    what is less a subject's own is to be preferred.
    """
    best = max(tried, key=lambda one: one.subjects.mean())

    def within(errors: float, one: Gain, share: float = 0.0) -> bool:
        less = best.subjects - one.subjects
        chance = errors * less.std(ddof=1) / len(less) ** 0.5
        return bool(less.mean() <= max(chance, share * best.subjects.mean()))

    if tried[0].power >= NEARLY_RIGHT:
        for one in (tried[0].at_one(), tried[0]):
            if within(SURELY, one, CLEARLY):
                return one
    return next(one for one in tried[1:] + tried[:1] if within(ALIKE, one))


def _persistence(halves: list, sessions: list[int], profiles: str) -> float:
    """Correlation over vertices, between two halves, of what a vertex's evidence has beyond its network's mean.

    The mean over subjects. A half of several sessions is their sum, of which the correlation is that of two sessions
    stepped up; what is returned is stepped down again (Spearman and Brown).
    """
    found = []
    for pair, cut in zip(halves, sessions, strict=True):
        residuals, labels = [], None
        for half in pair:
            contrast = -half[profiles][0].sum(0).cpu().numpy()
            contrast = contrast - contrast.mean(-1, keepdims=True)
            labels = contrast.argmax(-1) if labels is None else labels
            own = np.take_along_axis(contrast, labels[:, None], -1)[:, 0]
            for k in np.unique(labels):
                own[labels == k] -= own[labels == k].mean()
            residuals.append(own)
        correlation = np.corrcoef(*residuals)[0, 1]
        found.append(correlation / (cut - (cut - 1) * correlation))
    return float(np.clip(np.mean(found), 0, 1))
