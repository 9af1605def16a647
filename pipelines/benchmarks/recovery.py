"""Recovery of known truth on synthetic cohorts: `make bench-recovery`.

    python -m pipelines.benchmarks.recovery [--seeds 0 1 2 3]

Cohorts of `make_synth` go through the product's store; the first subjects train, the last 20 are unseen. Training is
`parcellation train` in a process of its own, of which CPU seconds (after imports) and peak memory are taken. Prints our
rows beside those of the oracle (knows every session's true profiles), of what is attainable (the exact posterior given
the true population) and of the rivals, and writes build/bench/recovery.json.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.scores import calibration, match_networks
from parcellation.store import write_unit
from parcellation.verbs.infer import Inference
from parcellation.verbs.simulate import fingerprint_study, numbered_ground
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, Workspace
from pipelines.benchmarks.make_synth import make

COHORTS = {
    "easy10": (10, {}),
    "hard": (200, {"noise": 8.0}),
    "var": (200, {"noise": 6.0, "sd_sub": 1.0, "sd_ses": 0.4}),
}
UNSEEN = 20
# Measured by others on the same cohorts, seed 0 (accuracy, NLL, ECE).
RIVALS = {
    "HBP": {"easy10": (0.982, math.nan, math.nan), "hard": (0.944, 0.149, 0.002), "var": (0.970, 0.085, 0.002)},
    "pyMSHBM": {"easy10": (0.974, math.nan, math.nan), "hard": (0.872, 3.53, 0.128), "var": (0.880, 3.30, 0.120)},
}


def main() -> None:
    """Run the benchmark, or train one study in this process and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        _train_here(options.train)
        return
    figures = {}
    for seed in options.seeds:
        for name in options.cohorts:
            figures |= _one(name, seed)
    write_json(options.out / "recovery.json", {key: float(value) for key, value in figures.items()})
    print(f"written: {options.out / 'recovery.json'}")


def _train_here(study: Path) -> None:
    start = time.process_time()
    train(load_study(study), Selection())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"train_cpu_s": time.process_time() - start, "peak_mib": peak}))


def _one(name: str, seed: int) -> dict[str, float]:
    """Figures of one cohort; seeds other than 0 have their number in the name."""
    subjects, settings = COHORTS[name]
    cohort = make(seed=seed, **settings)
    with tempfile.TemporaryDirectory() as folder:
        study = _prepare(cohort, subjects, Path(folder))
        command = [sys.executable, "-m", "pipelines.benchmarks.recovery", "--train", str(study)]
        cost = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        run = Inference.of(load_study(study))
        posterior, milliseconds = _unseen(run)
        scales = _scales(run)
    labels = cohort["z"][-UNSEEN:]
    ours = calibration(match_networks(posterior, labels), labels)
    best = calibration(_oracle(cohort), labels)
    bound = calibration(_attainable(cohort), labels) if name != "easy10" else best
    _print(
        name,
        seed,
        {"parcellation": ours, "attainable": bound, "oracle": best},
        cost | {"new_subject_ms": milliseconds} | scales,
    )
    prefix = name if seed == 0 else f"{name}.seed{seed}"
    figures = {f"{prefix}.{key}": ours[key] for key in ("accuracy", "nll", "ece")}
    figures |= {f"{prefix}.oracle_{key}": best[key] for key in ("accuracy", "nll", "ece")}
    figures |= {f"{prefix}.attainable_{key}": bound[key] for key in ("accuracy", "nll", "ece")}
    return (
        figures
        | {f"{prefix}.{key}": value for key, value in {**scales, **cost}.items()}
        | {f"{prefix}.new_subject_ms": milliseconds}
    )


def _prepare(cohort: dict, subjects: int, folder: Path) -> Path:
    """Training and unseen subjects in a store; returns the study file."""
    content = fingerprint_study(folder).resolved()
    names = [f"{s:03d}" for s in range(len(cohort["X"]))]
    chosen = names[:subjects] + names[-UNSEEN:]
    study = {
        "name": "recovery",
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
            write_unit(store, name, str(t + 1), x, frames=1200, **known)
    return path


def _unseen(run: Inference) -> tuple[np.ndarray, float]:
    """Label probabilities of the unseen subjects, and the median milliseconds of one's posterior (64 draws)."""
    answers, seconds = [], []
    for subject in run.cohort.subjects[-UNSEEN:]:
        start = time.perf_counter()
        answers.append(run.answer(subject).probability)
        seconds.append(time.perf_counter() - start)
    return np.stack(answers), 1000 * float(np.median(seconds))


def _scales(run: Inference) -> dict[str, float]:
    centre = run.model.family.centre(run.model.blank())
    names = {"log_kappa": "kappa", "log_epsilon": "epsilon", "log_sigma": "sigma"}
    scale = run.cohort.feature_map.scale
    return {label: float(centre[name].exp().mean() / scale) for name, label in names.items()} | {
        "label_power": run.model.label_power.single
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


def _oracle(cohort: dict) -> np.ndarray:
    """Label posterior of the unseen subjects from the true session profiles, the true group prior and noise."""
    prior, unseen = _prior(cohort), zip(cohort["X"][-UNSEEN:], cohort["mu_ses"][-UNSEEN:], strict=True)
    return np.stack([_labels_given(mu, X.astype(float), prior, cohort["noise"]) for X, mu in unseen])


def _attainable(cohort: dict, sweeps: int = 300, burn: int = 75) -> np.ndarray:
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


def _print(name: str, seed: int, rows: dict[str, dict], cost: dict) -> None:
    print(f"{name}, seed {seed}: {UNSEEN} unseen subjects      accuracy      NLL      ECE")
    for method, scores in rows.items():
        print(f"  {method:<32}{scores['accuracy']:>12.4f}{scores['nll']:>9.4f}{scores['ece']:>9.4f}")
    if seed == 0:
        for method, known in RIVALS.items():
            print(f"  {method:<32}{known[name][0]:>12.4f}{known[name][1]:>9.4f}{known[name][2]:>9.4f}")
    print("  " + ", ".join(f"{key} {value:.4g}" for key, value in cost.items()), flush=True)


if __name__ == "__main__":
    main()
