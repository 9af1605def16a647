"""New cohorts whose population is another: kept as trained, inferred again, or trained anew: `make bench-populations`.

    python -m pipelines.benchmarks.populations [--schemes hybrid encoded] [--sizes 20 50 100]

A model is trained on 200 subjects of the cohort `hard`. New cohorts of `make_synth` have other subjects and

    map    the same profiles, with a map that lies along another direction
    all    other profiles and another map

so that nothing of the trained population holds but its scales; smaller cohorts are parts of larger ones. Their subjects
are inferred as by `parcellation infer`, with the population fixed and re-inferred, and by a model trained from scratch
on the very cohort. `attainable` is the exact posterior given the true population, and `oracle` knows every session's
true profiles. Scores are of all subjects of the cohort; `worse` is NLL less that of the model trained anew, with its
standard error over subjects. `sd` are posterior standard deviations, of mu in the units of the cohort, over those of
the model trained anew: mean, least and largest over elements. Writes build/bench/populations.json.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml
from scipy.optimize import linear_sum_assignment

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.posterior import Posterior
from parcellation.scores import calibration, match_networks
from parcellation.verbs.infer import Inference
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, resolve
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

HARD, TRAINING = synthetic.COHORTS["hard"][1], synthetic.COHORTS["hard"][0]
SIZES = (20, 50, 100)
KINDS = ("map", "all")
DRAWS = 2000  # of the population: an sd is known to 1.6 %


def main() -> None:
    """Print the tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", nargs="+", choices=("hybrid", "encoded"), default=["hybrid", "encoded"])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="of the new cohorts")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    figures = {}
    for name, row in rows(options.schemes, options.kinds, options.sizes, options.seed).items():
        figures |= {f"{name}.{key}": float(value) for key, value in row.items()}
    write_json(options.out / "populations.json", figures)
    print(f"written: {options.out / 'populations.json'}")


def rows(schemes: list[str], kinds: list[str], sizes: list[int], seed: int = 1) -> dict[str, dict[str, float]]:
    """Figures by `KIND.SIZE.METHOD`, the method's name with its scheme's in front unless that is hybrid."""
    trained = make(seed=0, **HARD)
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {
            scheme: trained_on(trained, TRAINING, Path(folder) / "trained" / scheme, scheme) for scheme in schemes
        }
        profiles = trained.pop("mu_group")
        del trained
        for kind in kinds:
            same = {"profiles": profiles} if kind == "map" else {}
            whole = make(S=max(sizes), seed=seed, map_seed=seed, **same, **HARD)
            found = {size: compare(_first(whole, size), models, Path(folder) / kind / str(size)) for size in sizes}
            for method, answer in EXACT.items():
                exact = _everybody(answer, whole)
                for size in sizes:
                    found[size][method] = scores(exact[:size], whole["z"][:size])
            for size in sizes:
                _print(kind, size, found[size])
                result |= {f"{kind}.{size}.{method}": row for method, row in found[size].items()}
    return result


EXACT: dict[str, Callable] = {"attainable": synthetic.attainable, "oracle": synthetic.oracle}


def _first(cohort: dict, size: int, start: int = 0) -> dict:
    """The cohort of these subjects only."""
    own = {name: cohort[name][start : start + size] for name in ("X", "z", "mu_sub", "mu_ses")}
    return {**cohort, **own}


def _everybody(answer: Callable, cohort: dict) -> np.ndarray:
    """Label posterior of all subjects by a function that answers for so many at a time."""
    step = synthetic.UNSEEN
    return np.concatenate([answer(_first(cohort, step, start)) for start in range(0, len(cohort["X"]), step)])


def trained_on(cohort: dict, subjects: int, folder: Path, scheme: str) -> Path:
    """Study file of a model that is trained on the first subjects."""
    folder.mkdir(parents=True, exist_ok=True)
    study = synthetic.prepare(cohort, subjects, folder)
    content = yaml.safe_load(study.read_text(encoding="utf-8")) | {"model": {"scheme": scheme}}
    study.write_text(yaml.safe_dump(content), encoding="utf-8")
    train(load_study(study), Selection())
    return study


def compare(cohort: dict, models: dict[str, Path], folder: Path) -> dict[str, dict[str, float]]:
    """Rows of one cohort: the trained models with either population, and models trained anew."""
    found = {}
    for scheme, trained in models.items():
        study = trained_on(cohort, len(cohort["X"]), folder / scheme, scheme)
        applied = resolve(load_study(study), trained.parent / "work" / "model")
        anew = Inference.of(load_study(study), "fixed")
        last = _answers(anew)
        prefix = "" if scheme == "hybrid" else f"{scheme}_"
        for kind in ("fixed", "reinferred"):
            start = time.process_time()
            run = Inference.of(applied, kind)
            cost = {"seconds": time.process_time() - start}
            row = scores(_answers(run), cohort["z"], last) | cost
            if kind == "reinferred":
                row |= widths(run, anew)
            found[prefix + kind] = row
        found[prefix + "retrained"] = scores(last, cohort["z"])
        print(f"{scheme} compared on {len(cohort['X'])} subjects", file=sys.stderr, flush=True)
    return found


def _answers(run: Inference) -> np.ndarray:
    return np.stack([run.answer(subject).probability for subject in run.cohort.subjects])


def scores(posterior: np.ndarray, labels: np.ndarray, other: np.ndarray | None = None) -> dict[str, float]:
    """Scores of all subjects, shapes (S, V, K) and (S, V); how much worse they are than another posterior's, paired."""
    row = {name: value for name, value in _matched(posterior, labels).items() if name != "confidence"}
    if other is not None:
        for name in ("accuracy", "nll"):
            pairs = zip(_by_subject(posterior, labels, name), _by_subject(other, labels, name), strict=True)
            differences = np.array([one - two for one, two in pairs]) * (1 if name == "nll" else -1)
            row |= {f"{name}_worse": differences.mean(), f"{name}_error": differences.std(ddof=1) / len(labels) ** 0.5}
    return row


def _matched(posterior: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return calibration(match_networks(posterior, labels), labels)


def _by_subject(posterior: np.ndarray, labels: np.ndarray, name: str) -> list[float]:
    matched = match_networks(posterior, labels)
    return [calibration(one, own)[name] for one, own in zip(matched, labels, strict=True)]


def widths(run: Inference, anew: Inference) -> dict[str, float]:
    """Posterior sd of mu and of the map over that of the model trained anew, and how far apart their means are.

    moved: root mean square of the difference of means, in sd of the model trained anew.
    """
    one, two = _population(run), _population(anew)
    distance = np.square(one["mu"].mean(0)[:, None] - two["mu"].mean(0)[None]).sum(-1)
    _, order = linear_sum_assignment(distance.T)  # our network for each of the other's
    one = {"mu": one["mu"][:, order], "map": one["map"][..., order]}
    row = {"mu_sd": one["mu"].std(0).mean()}
    for name in ("mu", "map"):
        own, other = one[name], two[name]
        ratio = own.std(0) / other.std(0)
        row |= {f"{name}_ratio": ratio.mean(), f"{name}_least": ratio.min(), f"{name}_largest": ratio.max()}
        row[f"{name}_moved"] = np.sqrt(np.square((own.mean(0) - other.mean(0)) / other.std(0)).mean())
    return row | {"switched": float(not (order == np.arange(len(order))).all())}


def _population(run: Inference) -> dict[str, np.ndarray]:
    """Draws of the profiles (draw, K, D) in units of the cohort, and of the map (draw, V, K) as logits."""
    values = Posterior(run.model, DRAWS).population
    logits = values["logits_group"][:, 0, 0] @ run.model.family.template.basis.float()
    return {"mu": values["mu"][:, 0, 0, 0].numpy() / run.cohort.feature_map.scale, "map": logits.numpy()}


COLUMNS = ("accuracy", "nll", "ece", "nll_worse", "nll_error", "mu_sd", "mu_ratio", "map_ratio")


def _print(kind: str, size: int, found: dict[str, dict[str, float]]) -> None:
    print(f"\n{kind}, {size} subjects".ljust(28) + "".join(f"{name:>11}" for name in COLUMNS))
    for method, row in found.items():
        cells = [f"{row[name]:>11.4f}" if name in row else " " * 11 for name in COLUMNS]
        print(f"  {method:<25}" + "".join(cells))
        if "mu_ratio" in row:
            for name in ("mu", "map"):
                extremes = f"{row[f'{name}_least']:.2f} to {row[f'{name}_largest']:.2f}"
                print(f"      sd of {name}: {extremes} of the other's; means {row[f'{name}_moved']:.2f} sd apart")
    print(flush=True, end="")


if __name__ == "__main__":
    main()
