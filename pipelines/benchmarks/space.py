"""Whether a smooth map, and smooth deviations of subjects from it, tell labels better: `make bench-space`.

    python -m pipelines.benchmarks.space [--cohorts smooth hard var] [--sizes 20 200] [--settings off group subjects]

Cohorts of `make_synth`, with the neighbours on its 40 x 30 sheet as the graph (`model.topography.graph`): `hard` and
`var` draw each vertex's label by itself; `smooth` is `hard` with the smooth label noise of `parcellation simulate`, so
that subjects have borders and islands of their own. So many subjects train, 20 are unseen. Everything goes through
`parcellation train`, in a process of its own, and `infer`. `better` is what a setting gains over `off`, a mean over the
unseen subjects with its standard error. Writes build/bench/space.json.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml

from parcellation import simulation
from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.scores import calibration, match_networks
from parcellation.smooth_basis import edges
from parcellation.verbs.infer import Inference
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

SHEET = (40, 30)
MODES = 30
COHORTS = ("smooth", "hard", "var")
SETTINGS = {
    "off": {},
    "group": {"modes": MODES, "subjects": False},
    "subjects": {"modes": MODES},
}
SCORES = ("accuracy", "nll")


def main() -> None:
    """Print the rows and write the figures, after each cohort and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 200], help="training subjects")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for name in options.cohorts:
        for size in options.sizes:
            for setting, row in compare(cohort(name, size, options.seed), size, options.settings).items():
                print(line(f"{name} {size} {setting}", row), flush=True)
                figures |= {f"{name}.{size}.{setting}.{key}": float(value) for key, value in row.items()}
            write_json(options.out / "space.json", figures)
    print(f"written: {options.out / 'space.json'}")


def cohort(name: str, subjects: int, seed: int) -> dict:
    """A cohort with so many training subjects and the unseen ones."""
    settings = synthetic.COHORTS["hard" if name == "smooth" else name][1]
    drawn = make(S=subjects + synthetic.UNSEEN, seed=seed, **settings)
    return smooth_labels(drawn, seed) if name == "smooth" else drawn


def smooth_labels(drawn: dict, seed: int) -> dict:
    """The cohort with labels by smooth noise, from the same group map, and fingerprints to go with them."""
    spread, steps = simulation.diffusion(neighbours(), simulation.LabelMap().steps), drawn["X"].shape[1]
    z, X = drawn["z"].copy(), drawn["X"].copy()
    for s in range(len(z)):
        generator = np.random.default_rng([seed, s])
        z[s] = simulation.draw_labels(drawn["group_logits"], 1.0, generator, spread)
        for t in range(steps):
            X[s, t] = drawn["mu_ses"][s, t][z[s]] + drawn["noise"] * generator.standard_normal(X[s, t].shape)
    return {**drawn, "z": z, "X": X}


def neighbours():
    """Which vertices of the sheet are beside each other, (vertex, vertex)."""
    return edges(pairs(), SHEET[0] * SHEET[1])


def pairs() -> np.ndarray:
    """Neighbours on the sheet, shape (pair, 2)."""
    place = np.arange(SHEET[0] * SHEET[1]).reshape(SHEET)
    along = place[:-1].ravel(), place[1:].ravel()
    across = place[:, :-1].ravel(), place[:, 1:].ravel()
    return np.concatenate([np.stack(along, 1), np.stack(across, 1)])


def compare(drawn: dict, subjects: int, settings: list[str]) -> dict[str, dict[str, float]]:
    """Figures of every setting on one cohort; what each gains over the first."""
    rows, first, labels = {}, None, drawn["z"][-synthetic.UNSEEN :]
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.prepare(drawn, subjects, Path(folder))
        content = yaml.safe_load(study.read_text(encoding="utf-8"))
        np.savetxt(Path(folder) / "neighbours.tsv", pairs(), fmt="%d", delimiter="\t")
        for setting in settings:
            chosen = SETTINGS[setting] and SETTINGS[setting] | {"graph": "neighbours.tsv"}
            study.write_text(yaml.safe_dump(content | {"model": {"topography": chosen}}), encoding="utf-8")
            cost = synthetic.trained(study)
            run = Inference.of(load_study(study))
            posterior, milliseconds = synthetic.unseen(run)
            posterior = match_networks(posterior, labels)
            own = by_subject(posterior, labels)
            first = own if first is None else first
            rows[setting] = scores(posterior, labels, own, first) | cost | {"new_subject_ms": milliseconds}
            rows[setting]["label_power"] = run.model.label_power.single
    return rows


def by_subject(posterior: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Accuracy and NLL of every subject, shape (subject, 2)."""
    found = [calibration(one, own) for one, own in zip(posterior, labels, strict=True)]
    return np.array([[one[name] for name in SCORES] for one in found])


def scores(posterior: np.ndarray, labels: np.ndarray, own: np.ndarray, first: np.ndarray) -> dict[str, float]:
    """Scores with their standard errors over subjects, and how much better they are than those of `first`, paired."""
    found = calibration(posterior, labels)
    row = {name: found[name] for name in (*SCORES, "ece", "confidence")}
    better = (own - first) * (1, -1)
    for column, name in enumerate(SCORES):
        row[f"{name}_se"] = standard_error(own[:, column])
        row[f"{name}_better"] = better[:, column].mean()
        row[f"{name}_better_se"] = standard_error(better[:, column])
    return row


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def line(name: str, row: dict[str, float]) -> str:
    """A row of the table."""
    gains = " ".join(f"{key} {row[f'{key}_better']:+.4f} ± {row[f'{key}_better_se']:.4f}" for key in SCORES)
    found = ", ".join(f"{key} {row[key]:.4f} ± {row[f'{key}_se']:.4f}" for key in SCORES)
    cost = f"train {row['train_cpu_s']:.0f} s, {row['new_subject_ms']:.0f} ms"
    return f"{name:22} {found}, ECE {row['ece']:.4f}; better: {gains}; {cost}"


if __name__ == "__main__":
    main()
