"""What can be checked about a result: recovery where the truth is known, agreement of a subject's sessions else."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from parcellation.cohort_source import observe
from parcellation.config import Study
from parcellation.errors import BadData
from parcellation.interruption import told_to_end
from parcellation.posterior import SubjectPosterior
from parcellation.scores import calibration, match_networks, oracle_posterior, scaled_profiles
from parcellation.truth import read_population, read_subject, subject_path
from parcellation.verbs.infer import Inference

log = logging.getLogger(__name__)

BINS = 10
RETEST_SUBJECTS = 20


@dataclass(frozen=True, eq=False)
class Recovery:
    """Scores against the known truth: method -> score -> number, and ours in bins of stated confidence."""

    scores: dict[str, dict[str, float]]
    reliability: dict[str, np.ndarray]
    subjects: int


def truth_folder(study: Study) -> Path | None:
    """The folder of the simulated cohort that a study's data are, None when they are not simulated."""
    for folder in (study.data.root, study.data.manifest and study.data.manifest.parent):
        if folder is not None and (folder / "truth" / "settings.json").exists():
            return folder
    return None


def recovery(run: Inference, folder: Path) -> Recovery | None:
    """Score the inferred subjects that the model was not trained on; None when there are none with a known truth."""
    unseen = set(run.cohort.subjects) - set(run.model.details["subjects"])
    answers = [a for a in run.known() if a.subject in unseen and subject_path(folder, a.subject).exists()]
    if not answers:
        return None
    prior = read_population(folder)["group_probability"]
    truths = {answer.subject: read_subject(folder, answer.subject) for answer in answers}
    oracle = _readable(lambda subject: _oracle(run, subject, truths[subject], prior), list(truths))
    if not oracle:
        return None
    answers = [answer for answer in answers if answer.subject in oracle]
    labels = np.stack([truths[subject].labels for subject in oracle])
    ours = match_networks(np.stack([answer.probability for answer in answers]), labels)
    oracle = np.stack(list(oracle.values()))
    methods = {"parcellation": ours, "group map (true)": np.broadcast_to(prior, ours.shape), "oracle": oracle}
    scores = {name: _scores(posterior, labels) for name, posterior in methods.items()}
    return Recovery(scores, _reliability(ours.max(-1), ours.argmax(-1) == labels), len(answers))


def _readable(function: Callable, subjects: Sequence[str]) -> dict:
    """What a function makes of each subject; subjects with a damaged file are left out, which is logged."""
    found = {}
    for subject in subjects:
        try:
            found[subject] = function(subject)
        except BadData as error:
            if told_to_end():
                raise
            log.warning("subject %s is left out of the scores: %s", subject, error)
    return found


def _scores(posterior: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    found = calibration(posterior, labels)
    return {"accuracy": found["accuracy"], "NLL": found["nll"], "ECE": found["ece"]}


def _oracle(run: Inference, subject: str, truth, prior: np.ndarray) -> np.ndarray:
    """Label posterior from the true session fingerprints and the true group map, in the model's features."""
    batch = run.cohort.read([run.cohort.subjects.index(subject)])
    sessions = run.cohort.sessions(subject)
    x, mask = batch.x[0, : len(sessions)], batch.mask[0, : len(sessions)]
    K = prior.shape[1]
    noiseless = np.zeros((len(sessions), K, x.shape[-1]))
    for t, session in enumerate(sessions):
        whole = truth.fingerprints[truth.sessions.index(session)][truth.labels]
        features = run.cohort.feature_map.apply(whole.astype(np.float32), np.ones(len(whole), bool))
        for k in np.unique(truth.labels):
            noiseless[t, k] = features[truth.labels == k][0]
    return oracle_posterior(x, mask, scaled_profiles(x, mask, noiseless, truth.labels), prior, truth.labels)


def _reliability(confidence: np.ndarray, hit: np.ndarray) -> dict[str, np.ndarray]:
    """Stated confidence and share of hits in bins of confidence."""
    confidence, hit = np.ravel(confidence), np.ravel(hit)
    index = np.clip((confidence * BINS).astype(int), 0, BINS - 1)
    used = [b for b in range(BINS) if (index == b).any()]
    return {
        "confidence": np.array([confidence[index == b].mean() for b in used]),
        "accuracy": np.array([hit[index == b].mean() for b in used]),
        "count": np.array([(index == b).sum() for b in used]),
    }


@dataclass(frozen=True, eq=False)
class Retest:
    """Agreement of label maps from independent sessions, each inferred alone.

    within: share of vertices with equal labels between two sessions of a subject, a number a subject; between: the same
    between different subjects' sessions, NaN with one subject; confidence: mean stated confidence; reliability: in bins
    of the stated probability that the other session has a session's label, how often it has; linked: whether that is
    the retest link's, which was fitted for it, or the confidence in the label, which says something else.
    """

    within: np.ndarray
    between: float
    confidence: float
    reliability: dict[str, np.ndarray]
    linked: bool

    def rows(self) -> list[dict]:
        """For the report's table."""
        other = "n/a" if np.isnan(self.between) else f"{self.between:.3f}"
        return [
            {
                "subjects": len(self.within),
                "agreement between a subject's sessions": f"{self.within.mean():.3f}",
                "agreement between subjects": other,
                "mean confidence from one session": f"{self.confidence:.3f}",
            }
        ]


def retest(run: Inference, subjects: Sequence[str] | None = None) -> Retest | None:
    """Infer the first two sessions of some subjects each alone, and compare; None when nobody has two."""
    chosen = [s for s in subjects or run.cohort.subjects if len(run.cohort.sessions(s)) > 1][:RETEST_SUBJECTS]
    found = _readable(lambda subject: [_one_session(run, subject, t) for t in (0, 1)], chosen)
    if not found:
        return None
    pairs = list(found.values())
    labels = np.array([[one.probability.argmax(-1) for one in pair] for pair in pairs])
    within = (labels[:, 0] == labels[:, 1]).mean(-1)
    others = [(labels[i, 0] == labels[j, 1]).mean() for i in range(len(pairs)) for j in range(len(pairs)) if i != j]
    confidence = np.mean([one.probability.max(-1).mean() for pair in pairs for one in pair])
    between = float(np.mean(others)) if others else float("nan")
    return Retest(within, between, float(confidence), _said_again(run, pairs), run.model.retest_link.checked)


def _said_again(run: Inference, pairs: list[list[SubjectPosterior]]) -> dict[str, np.ndarray]:
    """Whether sessions have each other's labels, by the probability that was stated for it, where both have data."""
    link, group = run.model.retest_link, run.posterior.maps().mean(0)
    stated, hit = [], []
    for one, other in [order for pair in pairs for order in (pair, pair[::-1])]:
        label, both = one.probability.argmax(-1), one.mask & other.mask
        again = link.apply(one.probability, group) if link.checked else one.probability
        stated.append(np.take_along_axis(again, label[:, None], -1)[both, 0])
        hit.append((label == other.probability.argmax(-1))[both])
    return _reliability(np.concatenate(stated), np.concatenate(hit))


def _one_session(run: Inference, subject: str, t: int) -> SubjectPosterior:
    read = run.cohort.read([run.cohort.subjects.index(subject)])
    observed = observe(read).select(1, torch.tensor([t]))
    session = run.cohort.sessions(subject)[t]
    return run.posterior.subject(subject, (session,), observed, run.cohort.feature_map.back)
