"""Figures of the reproduced experiments, in the paper's form: gaps over steps, over encoding sizes, over plates."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

NAMES = {
    "pavi_f": "PAVI-F",
    "pavi_e": "PAVI-E",
    "hybrid": "hybrid",
    "pavi_e_sa": "PAVI-E(sa)",
    "baseline": "not plate-amortized",
    "cf": "CF",
    "cf_sa": "CF(sa)",
    "adavi": "ADAVI",
    "adavi_sa": "ADAVI(sa)",
}
COLOURS = {name: f"C{number}" for number, name in enumerate(NAMES)}
MARKERS = dict(zip(NAMES, "os^Dvx+P*", strict=True))
FLOOR = 1e-3  # nats: below, a gap is none, and a logarithmic axis needs an end
GAP = f"gap to the log evidence\n(nats, {FLOOR:g} at least)"


def draw(folder: Path, numbers: pd.DataFrame, curves: pd.DataFrame) -> None:
    """One figure an experiment and setting, figureN_SETTING.png."""
    for number, (one, data) in enumerate(((convergence, curves), (encoding_sizes, numbers), (scaling, numbers)), 1):
        there = data[data["experiment"] == f"exp{number}"]
        for setting, rows in there.groupby("setting"):
            one(rows, folder / f"figure{number}_{setting}.png")


def convergence(curves: pd.DataFrame, path: Path) -> None:
    """Experiment 1: gap over steps and over seconds, mean and range over repetitions, of each method's longest runs."""
    longest = curves.groupby("method")["steps_asked"].transform("max")
    chosen = curves[(curves["step"] > 0) & (curves["steps_asked"] == longest)]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for method, runs in chosen.groupby("method", sort=False):
        mean = runs.groupby("step")[["seconds", "gap"]].mean()
        low, high = (runs.groupby("step")["gap"].agg(kind).clip(lower=FLOOR) for kind in ("min", "max"))
        for axis, x in zip(axes, (mean.index, mean["seconds"]), strict=True):
            axis.plot(x, mean["gap"].clip(lower=FLOOR), label=NAMES[method], color=COLOURS[method])
            axis.fill_between(x, low, high, alpha=0.2, color=COLOURS[method], linewidth=0)
    for axis, label in zip(axes, ("step", "seconds of training"), strict=True):
        axis.set(xlabel=label, yscale="log", xscale="log")
    axes[0].set_ylabel(GAP)
    _save(figure, axes[0], path)


def encoding_sizes(chosen: pd.DataFrame, path: Path) -> None:
    """Experiment 2: gap against the size of the encodings."""
    figure, axis = plt.subplots(figsize=(4.5, 3.8))
    sizes = chosen["encoding_size"]
    axis.errorbar(
        sizes, chosen["gap_mean"].clip(lower=FLOOR), chosen["gap_std"], marker="o", capsize=3, color=COLOURS["pavi_f"]
    )
    axis.set(xlabel="numbers in a group's encoding", ylabel=GAP, yscale="log")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size}" for size in sizes])
    _save(figure, None, path)


def scaling(chosen: pd.DataFrame, path: Path) -> None:
    """Experiment 3: gap, weights, seconds, milliseconds of a step and memory against the number of groups."""
    columns = {
        "gap": GAP,
        "weights": "weights",
        "weights_of_groups": "weights of single groups",
        "train_s": "seconds of training",
        "step_ms": "milliseconds a step",
        "peak_mib": "peak memory (MiB)",
    }
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), sharex=True)
    for axis, (name, label) in zip(axes.flat, columns.items(), strict=True):
        for method, rows in chosen.groupby("method", sort=False):
            rows = rows[rows[f"{name}_mean"] > 0] if name == "weights_of_groups" else rows
            mean = rows[f"{name}_mean"].clip(lower=FLOOR)
            style = dict(label=NAMES[method], color=COLOURS[method], marker=MARKERS[method], fillstyle="none", lw=1)
            axis.errorbar(rows["groups"], mean, rows[f"{name}_std"], **style)
        axis.set(ylabel=label, xscale="log", yscale="log")
    axes[1, 2].set_yscale("linear")
    axes[1, 2].set_ylim(0, 1.2 * chosen["peak_mib_mean"].max())
    sizes = sorted(set(chosen["groups"]))
    for axis in axes[1]:
        axis.set_xlabel("groups")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.tick_params(axis="x", which="minor", labelbottom=False)
    _save(figure, axes[0, 0], path)


def _save(figure, legend, path: Path) -> None:
    if legend is not None:
        handles, labels = legend.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    plt.close(figure)
