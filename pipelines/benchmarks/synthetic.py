"""Synthetic cohorts through the product's store, training and inference, and what could be had at best.

    python -m pipelines.benchmarks.synthetic STUDY

trains one study in this process and prints what it cost. Cohorts are those of `make_synth`; the first subjects train,
the last 20 are unseen. The oracle knows every session's true profiles; what is attainable is the exact posterior given
the true population.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from parcellation.config import load_study
from parcellation.model_file import TrainedModel
from parcellation.store import write_unit
from parcellation.verbs.simulate import fingerprint_study, numbered_ground
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, Workspace
from pipelines.benchmarks.process import peak_mib

if TYPE_CHECKING:  # a process that trains does not load what infers
    from parcellation.verbs.infer import Inference

COHORTS = {
    "easy10": (10, {}),
    "hard": (200, {"noise": 8.0}),
    "var": (200, {"noise": 6.0, "sd_sub": 1.0, "sd_ses": 0.4}),
}
UNSEEN = 20


def main(study: Path) -> None:
    """Train this study here; prints CPU seconds (after imports) and the peak of memory."""
    start = time.process_time()
    train(load_study(study), Selection())
    peak = peak_mib()
    print(json.dumps({"train_cpu_s": time.process_time() - start, "peak_mib": peak}))


def trained(study: Path) -> dict[str, float]:
    """Train a study in a process of its own; returns its CPU seconds and its peak of memory in MiB."""
    command = [sys.executable, "-m", "pipelines.benchmarks.synthetic", str(study)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def prepare(cohort: dict, subjects: int, folder: Path, frames: float = 1200) -> Path:
    """Training and unseen subjects in a store, runs of so many frames; returns the study file."""
    content = fingerprint_study(folder).resolved()
    names = [f"{s:03d}" for s in range(len(cohort["X"]))]
    chosen = names[:subjects] + names[-UNSEEN:]
    study = {
        "name": "synthetic",
        "data": {"layout": "manifest", "manifest": "manifest.tsv"},
        "features": content["features"],
        "training": {"subjects": names[:subjects]},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    workspace, (_, T, V, D) = Workspace(load_study(path)), cohort["X"].shape
    ground = numbered_ground(V, D)
    workspace.remember(ground, {})
    store = workspace.store(ground)
    for name in chosen:
        for t in range(T):
            x = cohort["X"][int(name), t]
            known = dict(vertices=ground.region, targets=ground.targets, features=workspace.study.features)
            write_unit(store, name, str(t + 1), x, frames=frames, **known)
    return path


def unseen(run: "Inference") -> tuple[np.ndarray, float]:
    """Label probabilities of the unseen subjects, and the median milliseconds of one's posterior (64 draws)."""
    answers, seconds = [], []
    for subject in run.cohort.subjects[-UNSEEN:]:
        start = time.perf_counter()
        answers.append(run.answer(subject).probability)
        seconds.append(time.perf_counter() - start)
    return np.stack(answers), 1000 * float(np.median(seconds))


def scales(model: TrainedModel) -> dict[str, float]:
    """Recovered standard deviations in the units of the cohort, and the label power of one session."""
    centre = model.family.centre(model.blank())
    names = {"log_kappa": "kappa", "log_epsilon": "epsilon", "log_sigma": "sigma"}
    scale = float(model.arrays["scale"][0])
    return {label: float(centre[name].exp().mean() / scale) for name, label in names.items()} | {
        "label_power": model.label_power.single
    }


def _prior(cohort: dict, draws: int = 4000) -> np.ndarray:
    """The true probability of every network at every vertex, over the people's differences in logits."""
    logits, generator = cohort["group_logits"], np.random.default_rng(0)
    return (
        sum(_softmax(logits + cohort["sd_logit"] * generator.standard_normal(logits.shape)) for _ in range(draws))
        / draws
    )


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _labels_given(profiles: np.ndarray, X: np.ndarray, prior: np.ndarray, noise: float) -> np.ndarray:
    evidence = sum(x @ mu.T - 0.5 * (mu**2).sum(-1) for x, mu in zip(X, profiles, strict=True))
    return _softmax(np.log(prior) + evidence / noise**2)


def oracle(cohort: dict) -> np.ndarray:
    """Label posterior of the unseen subjects from the true session profiles, the true group prior and noise."""
    prior, unseen = _prior(cohort), zip(cohort["X"][-UNSEEN:], cohort["mu_ses"][-UNSEEN:], strict=True)
    return np.stack([_labels_given(mu, X.astype(float), prior, cohort["noise"]) for X, mu in unseen])


def attainable(cohort: dict, sweeps: int = 300, burn: int = 75) -> np.ndarray:
    """The exact label posterior of the unseen subjects given the true *population*: nobody knows their own profiles.

    Gibbs sampling of labels, subject and session profiles. What no method that has to infer a subject can beat.
    """
    prior, answers = _prior(cohort), []
    for number, X in enumerate(cohort["X"][-UNSEEN:].astype(float)):
        generator = np.random.default_rng(number)
        profiles, total = np.repeat(cohort["mu_group"][None], len(X), 0), 0.0
        for sweep in range(sweeps):
            p = _labels_given(profiles, X, prior, cohort["noise"])
            total = total + p * (sweep >= burn)
            z = (generator.random((len(p), 1)) > p.cumsum(-1)).sum(-1).clip(0, p.shape[-1] - 1)
            profiles = _draw_profiles(cohort, X, z, generator)
        answers.append(total / (sweeps - burn))
    return np.stack(answers)


def _draw_profiles(cohort: dict, X: np.ndarray, z: np.ndarray, generator) -> np.ndarray:
    """Session profiles (T, K, D) given labels: the subject's with the sessions' summed out, then each session's."""
    K, D = cohort["mu_group"].shape
    own, between, within = cohort["noise"] ** 2, cohort["sd_sub"] ** 2, cohort["sd_ses"] ** 2
    profiles = np.empty((len(X), K, D))
    for k, mu in enumerate(cohort["mu_group"]):
        count = max(int((z == k).sum()), 1e-9)
        average = X[:, z == k].sum(1) / count
        weight, variance = 1 / (within + own / count), 1 / between
        precision = variance + len(X) * weight
        subject = (mu * variance + weight * average.sum(0)) / precision
        subject = subject + generator.standard_normal(D) / np.sqrt(precision)
        precision = 1 / within + count / own
        mean = (subject / within + average * count / own) / precision
        profiles[:, k] = mean + generator.standard_normal(mean.shape) / np.sqrt(precision)
    return profiles


if __name__ == "__main__":
    main(Path(sys.argv[1]))
