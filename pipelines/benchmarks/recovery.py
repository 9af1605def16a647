"""Recovery of known truth on synthetic cohorts: `make bench-recovery`.

    python -m pipelines.benchmarks.recovery [--seeds 0 1 2 3]

Cohorts of `make_synth` go through the product's store; the first subjects train, the last 20 are unseen. Training is
`parcellation train` in a process of its own, of which CPU seconds (after imports) and peak memory are taken. Prints our
rows beside those of the oracle (knows every session's true profiles), of what is attainable (the exact posterior given
the true population) and of the rivals, and writes build/bench/recovery.json.
"""

import argparse
import math
import tempfile
from pathlib import Path

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.scores import calibration, match_networks
from parcellation.verbs.infer import Inference
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

# Measured by others on the same cohorts, seed 0 (accuracy, NLL, ECE).
RIVALS = {
    "HBP": {"easy10": (0.982, math.nan, math.nan), "hard": (0.944, 0.149, 0.002), "var": (0.970, 0.085, 0.002)},
    "pyMSHBM": {"easy10": (0.974, math.nan, math.nan), "hard": (0.872, 3.53, 0.128), "var": (0.880, 3.30, 0.120)},
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cohorts", nargs="+", choices=synthetic.COHORTS, default=list(synthetic.COHORTS))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    figures = {}
    for seed in options.seeds:
        for name in options.cohorts:
            figures |= _one(name, seed)
    write_json(options.out / "recovery.json", {key: float(value) for key, value in figures.items()})
    print(f"written: {options.out / 'recovery.json'}")


def _one(name: str, seed: int) -> dict[str, float]:
    """Figures of one cohort; seeds other than 0 have their number in the name."""
    subjects, settings = synthetic.COHORTS[name]
    cohort = make(seed=seed, **settings)
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.prepare(cohort, subjects, Path(folder))
        cost = synthetic.trained(study)
        run = Inference.of(load_study(study))
        posterior, milliseconds = synthetic.unseen(run)
        scales = synthetic.scales(run.model)
    labels = cohort["z"][-synthetic.UNSEEN :]
    ours = calibration(match_networks(posterior, labels), labels)
    best = calibration(synthetic.oracle(cohort), labels)
    bound = calibration(synthetic.attainable(cohort), labels) if name != "easy10" else best
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


def _print(name: str, seed: int, rows: dict[str, dict], cost: dict) -> None:
    print(f"{name}, seed {seed}: {synthetic.UNSEEN} unseen subjects      accuracy      NLL      ECE")
    for method, scores in rows.items():
        print(f"  {method:<32}{scores['accuracy']:>12.4f}{scores['nll']:>9.4f}{scores['ece']:>9.4f}")
    if seed == 0:
        for method, known in RIVALS.items():
            print(f"  {method:<32}{known[name][0]:>12.4f}{known[name][1]:>9.4f}{known[name][2]:>9.4f}")
    print("  " + ", ".join(f"{key} {value:.4g}" for key, value in cost.items()), flush=True)


if __name__ == "__main__":
    main()
