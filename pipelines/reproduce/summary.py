"""Table and figures of finished runs: python -m pipelines.reproduce.summary build/reproduce/small

Repetitions become a mean and a standard deviation. Every gap is to the exact log evidence of that repetition's data.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from parcellation.files import write_text

GROUP = ["experiment", "setting", "method", "groups", "encoding_size"]
NUMBERS = ["gap", "weights", "weights_of_groups", "train_s", "step_ms", "peak_mib", "steps_done"]
NAMES = {
    "pavi_f": "PAVI-F",
    "pavi_e": "PAVI-E",
    "pavi_e_sa": "PAVI-E(sa)",
    "hybrid": "hybrid",
    "cf": "CF",
    "cf_sa": "CF(sa)",
    "adavi": "ADAVI",
    "baseline": "not plate-amortized",
}


def main(folder: Path) -> None:
    """Write table.tsv, table.md and the figures into the folder."""
    table, curves = read(folder)
    numbers = table.groupby(GROUP, sort=False)[NUMBERS].agg(["mean", "std"])
    numbers.columns = [f"{name}_{kind}" for name, kind in numbers.columns]
    numbers = numbers.reset_index()
    write_text(folder / "table.tsv", numbers.to_csv(sep="\t", index=False, float_format="%.6g"))
    for number, (draw, data) in enumerate(((convergence, curves), (encoding_sizes, numbers), (scaling, numbers)), 1):
        there = data[data["experiment"] == f"exp{number}"]
        for setting, rows in there.groupby("setting"):
            draw(rows, folder / f"figure{number}_{setting}.png")
    write_text(folder / "table.md", markdown(numbers))


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row a run, and one row a point of a run's curve."""
    rows, points = [], []
    for path in sorted((folder / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8")) | {"experiment": path.name.split("_")[0]}
        points += [point | {key: run[key] for key in [*GROUP, "seed"]} for point in run.pop("points")]
        rows.append(run)
    return pd.DataFrame(rows), pd.DataFrame(points)


def markdown(numbers: pd.DataFrame) -> str:
    """The table for reading; mean ± standard deviation over repetitions."""
    lines = [
        "| experiment | sds | method | groups | encoding | gap (nats) | weights | of groups | seconds | ms a step |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for row in numbers.to_dict("records"):
        cells = [
            row["experiment"], row["setting"], NAMES[row["method"]], row["groups"], row["encoding_size"],
            _pair(row, "gap"), f"{row['weights_mean']:.0f}", f"{row['weights_of_groups_mean']:.0f}",
            _pair(row, "train_s"), _pair(row, "step_ms"),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    note = (
        "Gaps are to the exact log evidence. That of CF is of its augmented bound, so it is an upper bound of its gap."
    )
    return "\n".join([*lines, "", note, ""])


def _pair(row: dict, name: str) -> str:
    return f"{row[f'{name}_mean']:.3g} ± {np.nan_to_num(row[f'{name}_std']):.2g}"


def convergence(curves: pd.DataFrame, path: Path) -> None:
    """Experiment 1: gap over steps and over seconds, mean and range over repetitions."""
    chosen = curves[curves["step"] > 0]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for method, runs in chosen.groupby("method", sort=False):
        mean = runs.groupby("step")[["seconds", "gap"]].mean()
        low, high = (runs.groupby("step")["gap"].agg(kind).clip(lower=1e-4) for kind in ("min", "max"))
        for axis, x in zip(axes, (mean.index, mean["seconds"]), strict=True):
            axis.plot(x, mean["gap"].clip(lower=1e-4), label=NAMES[method])
            axis.fill_between(x, low, high, alpha=0.2)
    for axis, label in zip(axes, ("step", "seconds of training"), strict=True):
        axis.set(xlabel=label, yscale="log", xscale="log")
    axes[0].set_ylabel("gap to the exact log evidence (nats)")
    _save(figure, axes[0], path)


def encoding_sizes(chosen: pd.DataFrame, path: Path) -> None:
    """Experiment 2: gap against the size of the encodings."""
    figure, axis = plt.subplots(figsize=(4.5, 3.6))
    axis.errorbar(chosen["encoding_size"], chosen["gap_mean"].clip(lower=1e-4), chosen["gap_std"], marker="o")
    axis.set(xlabel="numbers in a group's encoding", ylabel="gap (nats)", yscale="log", xscale="log")
    _save(figure, None, path)


def scaling(chosen: pd.DataFrame, path: Path) -> None:
    """Experiment 3: gap, weights and seconds against the number of groups."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for method, rows in chosen.groupby("method", sort=False):
        for axis, name in zip(axes, ("gap", "weights", "train_s"), strict=True):
            axis.plot(rows["groups"], rows[f"{name}_mean"].clip(lower=1e-4), marker="o", label=NAMES[method])
    for axis, label in zip(axes, ("gap (nats)", "weights", "seconds of training"), strict=True):
        axis.set(xlabel="groups", ylabel=label, xscale="log", yscale="log")
    _save(figure, axes[0], path)


def _save(figure, legend, path: Path) -> None:
    if legend is not None:
        legend.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
