"""Individual networks of real people, judged without a truth: `make bench-real`.

    python -m pipelines.benchmarks.real [--hcp30 FILE] [--mdtb FILE] [--sets hcp30 mdtb] [--networks 2 7 17]
        [--splits 10]

Two sets of fingerprints (`real_fingerprints`): resting state, 180 parcels; task activity, cerebellar voxels. For each
split some subjects train, and each of the others is inferred from either half of its sessions and scored on the other
half (`parcellation.scores`). Everything is chosen on training subjects. Ours is the product's own path: store, `train`,
`infer`. Beside it stand the plain mixture on the same splits, and what others have measured on all subjects of these
sets. The files are at PARCELLATION_SHARED, by default beside the checkout, or where the options say; a set that is not
there is skipped. Writes build/bench/real.json.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.retest_link import RetestLink, fit_link
from parcellation.scores import calibration, calibration_error, held_out_cosine, predictive_gain, retest, unit
from parcellation.store import write_unit
from parcellation.verbs.infer import Inference
from parcellation.verbs.simulate import numbered_ground
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, Workspace
from pipelines.benchmarks import real_fingerprints
from pipelines.benchmarks.plain_mixture import fit_plain_mixture

SHARED = Path(os.environ.get("PARCELLATION_SHARED", Path(__file__).resolve().parents[3] / "shared"))
FILES = {
    "hcp30": SHARED / "data/hcp30/hcp_rest1run_glasser360_dev20_int16z.npz",
    "mdtb": SHARED / "data/mdtb/mdtb_dev12.npz",
}
TRAINED = {"hcp30": 0.7, "mdtb": 2 / 3}  # share of the subjects
FRAMES = 300  # of every session, as far as a model needs to know: all are of one length
STEPS = 10  # the start is a coordinate-ascent answer, and more do not change a score by a standard error
SCORES = ("gain", "cosine", "cosine_subject", "group_cosine", "group_cosine_subject", "agreement", "between")
SCORES += ("confidence", "ece", "nll", "ece_link", "nll_link", "lambda")
POOLED = ("ece", "ece_link")  # also of all splits' vertices together: a split's few people move it by a hundredth
COLUMNS = ("gain", "cosine", "group_cosine", "cosine_subject", "group_cosine_subject", "agreement", "between")
COLUMNS += ("confidence", "ece", "nll", "ece_link", "nll_link")
DIFFERENCES = ("gain_minus_plain", "gain_se", "cosine_subject_minus_group", "cosine_subject_minus_group_se")
DIFFERENCES += ("cosine_subject_minus_plain", "cosine_subject_minus_plain_se", "lambda")
# Measured by others on all subjects of the sets, in the order of COLUMNS; NaN where it was not. The last ones are a
# mixture whose profiles have norms of their own and differ between subjects.
NAN = float("nan")
RIVALS = {
    ("hcp30", 2, "HBP"): (-3.83, 0.534, 0.543, NAN, NAN, 0.920, 0.894, 0.999, 0.080, 2.05),
    ("hcp30", 2, "plain mixture"): (0.018, 0.547, 0.541, 0.582, 0.576, 0.962, 0.947, 0.970, 0.012, 0.10),
    ("hcp30", 7, "HBP"): (-5.91, 0.610, 0.626, NAN, NAN, 0.776, 0.694, 0.996, 0.221, 5.44),
    ("hcp30", 7, "plain mixture"): (0.035, 0.632, 0.619, 0.674, 0.663, 0.888, 0.853, 0.878, 0.029, 0.35),
    ("hcp30", 17, "HBP"): (-6.82, 0.634, 0.650, NAN, NAN, 0.649, 0.512, 0.993, 0.345, 8.19),
    ("hcp30", 17, "plain mixture"): (0.060, 0.662, 0.630, 0.706, 0.678, 0.842, 0.795, 0.803, 0.050, 0.57),
    ("mdtb", 2, "HBP"): (-0.012, 0.232, 0.196, NAN, NAN, 0.802, 0.698, 0.926, 0.124, 0.63),
    ("mdtb", 2, "plain mixture"): (0.066, 0.227, 0.203, 0.237, 0.214, 0.835, 0.765, 0.878, 0.046, 0.39),
    ("mdtb", 7, "HBP"): (-0.172, 0.332, 0.284, NAN, NAN, 0.642, 0.498, 0.885, 0.243, 1.58),
    ("mdtb", 7, "plain mixture"): (0.169, 0.355, 0.277, 0.363, 0.287, 0.645, 0.521, 0.689, 0.047, 1.06),
    ("mdtb", 17, "HBP"): (-0.317, 0.348, 0.297, NAN, NAN, 0.529, 0.369, 0.848, 0.320, 2.34),
    ("hcp30", 7, "norms, subjects, t(20)"): (0.044, 0.631, NAN, 0.676, 0.665, 0.865, 0.821, 0.885, 0.032, 0.39),
    ("hcp30", 17, "norms, subjects"): (0.073, 0.661, NAN, 0.710, 0.681, 0.844, 0.791, 0.834, 0.028, 0.51),
    ("mdtb", 7, "norms, subjects"): (0.160, 0.359, NAN, 0.366, 0.293, 0.635, 0.512, 0.694, 0.062, 1.09),
}


@dataclass(frozen=True)
class Half:
    """What a method says from one half of the sessions: label probabilities (S, V, K), subject profiles (S, K, D)."""

    probability: np.ndarray
    profiles: np.ndarray


@dataclass(frozen=True)
class Fitted:
    """A method after training: group map (V, K), profiles (K, D), what it says of halves of subjects, its power."""

    group: np.ndarray
    profiles: np.ndarray
    answer: Callable[[np.ndarray, np.ndarray], Half]  # subjects, sessions
    power: float
    link: RetestLink | None = None  # its own, else one is fitted to what it says of training subjects


def main() -> None:
    """Run the benchmark on the sets that are there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, path in FILES.items():
        parser.add_argument(f"--{name}", type=Path, default=path, help="file of the same shape")
    parser.add_argument("--sets", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--networks", type=int, nargs="+", default=[2, 7, 17])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for name in options.sets:
        path = getattr(options, name)
        if not path.exists():
            print(f"{name}: skipped, {path} is not there")
            continue
        x = getattr(real_fingerprints, name)(path)
        for found in _set(name, x[:, :, real_fingerprints.usable(x)], options):
            figures |= found
            write_json(options.out / "real.json", figures)  # after each number of networks: they take minutes
    if figures:
        print(f"written: {options.out / 'real.json'}")


def _set(name: str, x: np.ndarray, options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Figures of one set, a number of networks at a time; x: (subject, session, vertex, feature)."""
    with tempfile.TemporaryDirectory() as folder:
        _store(x, Path(folder))
        for networks in options.networks:
            start, ours, plain = time.process_time(), [], []
            trained = round(TRAINED[name] * len(x))
            for train_on, test_on in real_fingerprints.splits(len(x), trained, options.splits):
                ours.append(_scores(_ours(Path(folder), x, networks, train_on, options.steps), x, train_on, test_on))
                plain.append(_scores(_plain(x, networks, train_on), x, train_on, test_on))
            rows = _summary(ours, plain)
            _print(name, networks, x, rows, time.process_time() - start)
            yield {f"{name}.{networks}.{key}": value for key, value in rows.items()}


def _store(x: np.ndarray, folder: Path) -> None:
    """The set as prepared fingerprints, ready to be trained on."""
    workspace = Workspace(load_study(_study(folder, 2, [], 1)))
    ground = numbered_ground(*x.shape[2:])
    workspace.remember(ground, {})
    store = workspace.store(ground)
    known = dict(vertices=ground.region, targets=ground.targets, features=workspace.study.features)
    for s, subject in enumerate(x):
        for t, session in enumerate(subject):
            write_unit(store, f"{s:02d}", str(t + 1), session.astype(np.float32), frames=FRAMES, **known)


def _study(folder: Path, networks: int, subjects: list[str], steps: int) -> Path:
    path = folder / "study.yaml"
    content = {
        "name": "real",
        "data": {"layout": "manifest", "manifest": "manifest.tsv"},
        "features": {"remove_region_mean": False, "components": "none"},
        "model": {"networks": networks},
        "training": {"subjects": subjects, "steps": steps},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def _ours(folder: Path, x: np.ndarray, networks: int, train_on: np.ndarray, steps: int) -> Fitted:
    """The product's own path: `train` on some subjects of the store, then `infer`."""
    study = load_study(_study(folder, networks, [f"{s:02d}" for s in train_on], steps))
    train(study, Selection())
    run = Inference.of(study)
    whole = run.posterior.of_population(None, run.cohort.feature_map.back)

    def answer(subjects: np.ndarray, sessions: np.ndarray) -> Half:
        names = tuple(str(t + 1) for t in sessions)
        answers = [run.answer(f"{s:02d}", names) for s in subjects]
        return Half(np.stack([a.probability for a in answers]), np.stack([a.profile_mean for a in answers]))

    return Fitted(whole.probability, whole.profile_mean, answer, run.model.label_power.single, run.model.retest_link)


def _plain(x: np.ndarray, networks: int, train_on: np.ndarray) -> Fitted:
    """The plain mixture."""
    mixture = fit_plain_mixture(x[train_on], networks)

    def answer(subjects: np.ndarray, sessions: np.ndarray) -> Half:
        half = x[np.ix_(subjects, sessions)]
        return Half(mixture.posterior(half), mixture.subject_profiles(half))

    return Fitted(mixture.group, mixture.profiles, answer, mixture.concentration)


def _scores(fitted: Fitted, x: np.ndarray, train_on: np.ndarray, test_on: np.ndarray) -> dict:
    """Scores of one split, means of both directions; `hits`: confidences and whether they were right, to be pooled."""
    halves = np.array_split(np.arange(x.shape[1]), 2)
    answers = [fitted.answer(test_on, half) for half in halves]
    others = [unit(x[np.ix_(test_on, half)].mean(1)) for half in halves]
    link = fitted.link or _link(fitted, train_on, halves)
    pairs = [(answers[0], answers[1], others[1]), (answers[1], answers[0], others[0])]
    both = [_direction(fitted, *pair, link) for pair in pairs]
    gain = predictive_gain(answers[0].probability, answers[1].probability, fitted.group)
    hits = {key: [one.pop(f"{key}_hits") for one in both] for key in POOLED}
    means = {key: float(np.mean([one[key] for one in both])) for key in both[0]}
    return {"gain": gain, "lambda": fitted.power, "hits": hits} | means


def _link(fitted: Fitted, train_on: np.ndarray, halves: list[np.ndarray]) -> RetestLink:
    first, second = (fitted.answer(train_on, half).probability for half in halves)
    return fit_link(np.concatenate([first, second]), np.concatenate([second, first]).argmax(-1), fitted.group)


def _direction(fitted: Fitted, half: Half, again: Half, other: np.ndarray, link: RetestLink) -> dict:
    p, group = half.probability, np.broadcast_to(fitted.group, half.probability.shape)
    said, labels, q = retest(p, again.probability), again.probability.argmax(-1), link.apply(p, fitted.group)
    linked = calibration(q, labels)
    return {
        "ece_hits": _hits(p, labels),
        "ece_link_hits": _hits(q, labels),
        "cosine": held_out_cosine(p, fitted.profiles, other),
        "cosine_subject": held_out_cosine(p, half.profiles, other),
        "group_cosine": held_out_cosine(group, fitted.profiles, other),
        "group_cosine_subject": held_out_cosine(group, half.profiles, other),
        "agreement": said["accuracy"],
        "between": said["between_subjects"],
        "ece_link": linked["ece"],
        "nll_link": linked["nll"],
    } | {key: said[key] for key in ("confidence", "ece", "nll")}


def _hits(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([p.max(-1).ravel(), (p.argmax(-1) == labels).ravel()])


def _summary(ours: list[dict], plain: list[dict]) -> dict[str, float]:
    """Means over splits, and means and standard errors of paired differences."""

    def column(rows: list[dict], key: str) -> np.ndarray:
        return np.array([row[key] for row in rows])

    result = {key: column(ours, key).mean() for key in SCORES}
    result |= {f"plain_{key}": column(plain, key).mean() for key in SCORES}
    for prefix, rows in (("", ours), ("plain_", plain)):
        for key in POOLED:
            every = np.concatenate([hits for row in rows for hits in row["hits"][key]], 1)
            result[f"{prefix}{key}_pooled"] = calibration_error(*every)
    differences = {
        "gain_minus_plain": ("gain_se", column(ours, "gain") - column(plain, "gain")),
        "cosine_subject_minus_group": (
            "cosine_subject_minus_group_se",
            column(ours, "cosine_subject") - column(ours, "group_cosine_subject"),
        ),
        "cosine_subject_minus_plain": (
            "cosine_subject_minus_plain_se",
            column(ours, "cosine_subject") - column(plain, "cosine_subject"),
        ),
    }
    for name, (error, values) in differences.items():
        result |= {name: values.mean(), error: values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else NAN}
    return {key: float(value) for key, value in result.items() if np.isfinite(value)}


def _print(name: str, networks: int, x: np.ndarray, rows: dict[str, float], seconds: float) -> None:
    print(f"{name}, K = {networks}: {x.shape[0]} subjects, {x.shape[2]} vertices; {seconds:.0f} CPU seconds")
    print(f"  {'':<34}" + "".join(f"{_short(key):>10}" for key in COLUMNS))
    pooled = "; ".join(f"{key} {rows[f'{key}_pooled']:.4f}" for key in POOLED)
    shown = {"parcellation": [rows[k] for k in COLUMNS], "plain mixture": [rows[f"plain_{k}"] for k in COLUMNS]}
    shown |= {f"{method} (others)": row for (a, b, method), row in RIVALS.items() if (a, b) == (name, networks)}
    for method, row in shown.items():
        known = "".join(f"{value:>10.4f}" if np.isfinite(value) else f"{'-':>10}" for value in row)
        print(f"  {method:<34}{known}")
    print(
        "  {:+.4f} (se {:.4f}) of gain over the plain mixture; cosine with the subject's profiles {:+.4f} (se {:.4f})\n"
        "  over the group map's, {:+.4f} (se {:.4f}) over the plain mixture's; lambda {:.3g}\n"
        "  of all splits' people together: {}".format(*(rows.get(key, NAN) for key in DIFFERENCES), pooled),
        flush=True,
    )


def _short(key: str) -> str:
    return key.replace("cosine_subject", "cos_subj").replace("group_", "g_").replace("confidence", "conf")


if __name__ == "__main__":
    main()
