"""What each scheme and each model of labels recovers of known truth, and what it costs: `make bench-schemes`.

    python -m pipelines.benchmarks.schemes [--seeds 0 1 2 3] [--cohorts hard var]

Cohorts of `make_synth`, through the product's store: 200 subjects train, 20 are unseen. A method is the `model` part of
a study and nothing else. Training is `parcellation train` in a process of its own, of which CPU seconds (after imports)
and peak memory are taken; answers are those of `parcellation infer`. With the scheme free a model knows its training
subjects only: its scores are those of the last 20 of *them*, and the hybrid's of the same ones stand above it. Prints a
table and writes build/bench/schemes.json.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml

from parcellation.cohort import FeatureMap, open_cohort
from parcellation.cohort_source import CohortSource
from parcellation.config import Model, load_study
from parcellation.files import write_json
from parcellation.model_file import TrainedModel, load_model
from parcellation.plates import gaussian_noise
from parcellation.scores import calibration, match_networks
from parcellation.verbs.infer import Inference
from parcellation.verbs.workspace import Workspace
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

LOGITS = {"template": "functional_parcellation_logits"}
METHODS = {
    "hybrid": {},
    "free": {"scheme": "free"},
    "encoded": {"scheme": "encoded"},
    "logits_hybrid": LOGITS,
    "logits_encoded": LOGITS | {"scheme": "encoded"},
}
DRAWS = 64


def main() -> None:
    """Print the table of every cohort and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cohorts", nargs="+", choices=("hard", "var"), default=["hard", "var"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for seed in options.seeds:
        for name in options.cohorts:
            prefix = name if seed == 0 else f"{name}.seed{seed}"
            for method, row in compare(name, seed, options.methods).items():
                figures |= {f"{prefix}.{method}.{key}": float(value) for key, value in row.items()}
            write_json(options.out / "schemes.json", figures)
    print(f"written: {options.out / 'schemes.json'}")


def compare(name: str, seed: int, methods: list[str]) -> dict[str, dict[str, float]]:
    """Figures of the methods on one cohort, and of the truth; printed as they come."""
    subjects, settings = synthetic.COHORTS[name]
    cohort, rows = make(seed=seed, **settings), {}
    print(f"\n{name}, seed {seed}\n{_line('', dict.fromkeys(COLUMNS))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.prepare(cohort, subjects, Path(folder))
        content = yaml.safe_load(study.read_text())
        for method in methods:
            study.write_text(yaml.safe_dump(content | {"model": METHODS[method]}))
            for row, found in one(study, cohort, subjects).items():
                rows[f"{method}{row}"] = found
                print(_line(f"{method}{row}", found), flush=True)
    truth = {"kappa": cohort["noise"], "epsilon": cohort["sd_sub"], "sigma": cohort["sd_ses"]}
    for method, answer in (("attainable", synthetic.attainable), ("oracle", synthetic.oracle)):
        rows[method] = _scores(answer(cohort), cohort["z"][-synthetic.UNSEEN :]) | truth
        print(_line(method, rows[method]), flush=True)
    return rows


def one(study: Path, cohort: dict, subjects: int) -> dict[str, dict[str, float]]:
    """Scores, recovered scales and cost of one method; scores of training subjects in a row of their own."""
    cost = synthetic.trained(study)
    model = load_model(Workspace(load_study(study)).model)
    scales, scheme, rows = synthetic.scales(model), model.family.settings["scheme"], {}
    if scheme != "free":
        posterior, cost["new_subject_ms"] = synthetic.unseen(Inference.of(load_study(study)))
        rows[""] = _scores(posterior, cohort["z"][-synthetic.UNSEEN :]) | scales | cost
    if scheme == "free" or model.details["study"]["model"] == Model().model_dump(mode="json"):
        labels = cohort["z"][subjects - synthetic.UNSEEN : subjects]
        rows["_trained"] = _scores(_trained_subjects(study, model), labels) | scales | cost
    return rows


def _scores(posterior: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return calibration(match_networks(posterior, labels), labels)


@torch.no_grad()
def _trained_subjects(study: Path, model: TrainedModel) -> np.ndarray:
    """Label probabilities of the last training subjects, each by its own encodings."""
    workspace = Workspace(load_study(study))
    feature_map = FeatureMap.from_arrays(model.arrays, workspace.study.features)
    cohort = open_cohort(workspace.store(workspace.ground()), feature_map, model.details["subjects"])
    family = model.family
    source = CohortSource(family.template, cohort, torch.device("cpu"))
    noise, answers = gaussian_noise(torch.Generator().manual_seed(0), "cpu", torch.float32), []
    for position in range(len(cohort.subjects) - synthetic.UNSEEN, len(cohort.subjects)):
        batch = source.batch(torch.tensor([position]))
        values = family.draw(batch, noise, path=False, draws=(DRAWS,)).values
        joint = family.template.log_joint(values, batch.seen, model.label_power.at(batch.seen.mask.sum(1, True)))
        answers.append(joint[:, 0, 0].softmax(-1).mean(0).double().numpy())
    return np.stack(answers)


COLUMNS = {
    "accuracy": ("accuracy", ".4f"),
    "nll": ("NLL", ".4f"),
    "ece": ("ECE", ".4f"),
    "kappa": ("kappa", ".2f"),
    "epsilon": ("epsilon", ".3f"),
    "sigma": ("sigma", ".3f"),
    "train_cpu_s": ("train s", ".0f"),
    "peak_mib": ("MiB", ".0f"),
    "new_subject_ms": ("ms", ".0f"),
}


def _line(method: str, row: dict) -> str:
    """A row of the table; the headings where the row's values are None."""
    cells = []
    for key, (heading, style) in COLUMNS.items():
        value = row.get(key, "-")
        cells.append(heading if value is None else value if value == "-" else format(value, style))
    return f"{method:16}" + "".join(f"{cell:>10}" for cell in cells)


if __name__ == "__main__":
    main()
