"""A model of long runs applied to short ones, beside models trained on such data: `make bench-frames`.

    python -m pipelines.benchmarks.frames [--subjects 100] [--seeds 0 1 2]

Cohorts of `make_synth` (`hard`) of known truth, whose runs have all, one half and one quarter of the frames: the noise
variance of a fingerprint is proportional to one over the frames, labels and profiles are the same. The model of the
long runs and one trained on the short ones infer the same 20 unseen subjects from the short ones. `apart` is how far
their calibration errors lie apart: what a session's own noise, inferred from its own data, has to keep small.
Writes build/bench/frames.json.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.scores import calibration, match_networks
from parcellation.verbs.infer import Inference
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, resolve
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

SHARES = {"all": 1.0, "half": 0.5, "quarter": 0.25}
FRAMES = 1200
SCORES = ("accuracy", "nll", "ece")


def main() -> None:
    """Print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--subjects", type=int, default=100, help="that are trained on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = compare(options.subjects, Path(folder), seed=seed, **synthetic.COHORTS["hard"][1])
        _print(seed, found)
        prefix = "" if seed == 0 else f"seed{seed}."
        figures |= {f"{prefix}{share}.{key}": value for share, row in found.items() for key, value in row.items()}
        write_json(options.out / "frames.json", figures)
    print(f"written: {options.out / 'frames.json'}")


def compare(subjects: int, folder: Path, noise: float, **settings) -> dict[str, dict[str, float]]:
    """Figures by share of the frames: scores of the model of long runs, of one of such runs, and of the oracle.

    lambda: label power that the model of such runs chose for one session; apart: difference of calibration errors.
    """
    found, long = {}, None
    for name, share in SHARES.items():
        cohort = make(S=subjects + synthetic.UNSEEN, noise=noise * share**-0.5, **settings)
        labels = cohort["z"][-synthetic.UNSEEN :]
        (folder / name).mkdir()
        study = synthetic.prepare(cohort, subjects, folder / name, frames=FRAMES * share)
        train(load_study(study), Selection())
        long = long or study.parent / "work" / "model"
        same = Inference.of(load_study(study))
        answers = {
            "long": synthetic.unseen(Inference.of(resolve(load_study(study), long)))[0],
            "same": synthetic.unseen(same)[0],
        }
        rows = {method: _scores(answer, labels) for method, answer in answers.items()}
        rows["oracle"] = calibration(synthetic.oracle(cohort), labels)
        found[name] = {f"{method}_{key}": float(row[key]) for method, row in rows.items() for key in SCORES}
        found[name] |= {
            "apart": abs(rows["long"]["ece"] - rows["same"]["ece"]),
            "lambda": same.model.label_power.single,
        }
    return found


def _scores(posterior: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return calibration(match_networks(posterior, labels), labels)


def _print(seed: int, found: dict[str, dict[str, float]]) -> None:
    print(f"seed {seed}, {'frames':<10}{'model of':<14}" + "".join(f"{key:>10}" for key in SCORES))
    for share, row in found.items():
        for method, words in (("long", "long runs"), ("same", "such runs"), ("oracle", "the oracle")):
            print(f"        {share:<10}{words:<14}" + "".join(f"{row[f'{method}_{key}']:>10.4f}" for key in SCORES))
        print(f"        calibration errors {row['apart']:.4f} apart; lambda {row['lambda']:.3g}", flush=True)


if __name__ == "__main__":
    main()
