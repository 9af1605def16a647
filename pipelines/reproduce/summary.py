"""Table and figures of finished runs: python -m pipelines.reproduce.summary build/reproduce/small

Repetitions become a mean and a standard deviation. Every gap is to the exact log evidence of that repetition's data.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from parcellation.files import write_text
from pipelines.reproduce.claims import flatness, step_ratio, weights_ratio
from pipelines.reproduce.figures import NAMES, draw
from pipelines.reproduce.race import seconds_to

GROUP = ["experiment", "setting", "method", "groups", "encoding_size", "steps_asked"]
NUMBERS = ["gap", "weights", "weights_of_groups", "train_s", "half_s", "step_ms", "peak_mib", "steps_done", "failed"]
FIRST = ("exp1", "exp1short")  # the same experiment, with schedules of its own for few steps
HEAD = "experiment|sds|method|groups|encoding|steps|gap (nats)|weights|of groups|s|s to ½ nat|ms a step|MiB|failed"


def main(folder: Path) -> None:
    """Write table.tsv, table.md and the figures into the folder."""
    runs = read(folder / "runs")
    table = pd.DataFrame([{name: value for name, value in run.items() if name != "points"} for run in runs])
    points = [point | {name: run[name] for name in [*GROUP, "seed"]} for run in runs for point in run["points"]]
    numbers = table.groupby(GROUP, sort=False)[NUMBERS].agg(["mean", "std"])
    numbers.columns = [f"{name}_{kind}" for name, kind in numbers.columns]
    numbers = numbers.reset_index()
    write_text(folder / "table.tsv", numbers.to_csv(sep="\t", index=False, float_format="%.6g"))
    draw(folder, numbers, pd.DataFrame(points))
    write_text(folder / "table.md", markdown(numbers, [*claims(runs), *races(read(folder / "races"))]))


def read(folder: Path) -> list[dict]:
    """Finished runs, in the order of their names and of their numbers of groups."""
    runs = []
    for path in folder.glob("*.json"):
        run = json.loads(path.read_text(encoding="utf-8")) | {"experiment": path.name.split("_")[0]}
        run["steps_asked"] = int(path.stem.split("_steps-")[1].split("_")[0])
        half = seconds_to(run | {"train_s": np.nan})
        runs.append(run | {"half_s": half, "failed": float(bool(run["failed"]))})
    return sorted(runs, key=_place)


def _place(run: dict) -> tuple:
    experiment, setting, method, *numbers = (run[name] for name in [*GROUP, "seed"])
    return experiment, setting, list(NAMES).index(method), *numbers


def markdown(numbers: pd.DataFrame, lines: list[str]) -> str:
    """The table for reading; mean ± standard deviation over repetitions."""
    head = HEAD.split("|")
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in numbers.to_dict("records"):
        cells = [
            row["experiment"], row["setting"], NAMES[row["method"]], row["groups"], row["encoding_size"] or "-",
            f"{row['steps_done_mean']:.0f}", _pair(row, "gap"), f"{row['weights_mean']:.0f}",
            f"{row['weights_of_groups_mean']:.0f}", _pair(row, "train_s"), _pair(row, "half_s"),
            f"{row['step_ms_mean']:.3g}", f"{row['peak_mib_mean']:.0f}", f"{row['failed_mean']:.0%}",
        ]  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    note = "Gaps are to the exact log evidence; those of CF are of its augmented bound, an upper bound of its gap."
    return "\n".join([*rows, "", note, "", *lines, ""])


def claims(runs: list[dict]) -> list[str]:
    """What was found of the paper's claims, a line each."""
    lines, settings = [], sorted({run["setting"] for run in runs})
    for setting, seed in itertools.product(settings, sorted({run["seed"] for run in runs})):
        same = [run for run in runs if run["experiment"] in FIRST and _is(run, setting=setting, seed=seed)]
        ours = [run for run in same if run["method"] != "baseline"]
        rival = next((run for run in same if run["method"] == "baseline"), None)
        if rival and ours:
            ratio = _number(step_ratio(ours, rival))
            lines.append(f"- exp1, {setting}, seed {seed}: the baseline's level in {ratio} times fewer steps")
    for setting, method in itertools.product(settings, ("pavi_f", "pavi_e")):
        rivals, sizes = (_means(runs, setting, one) for one in ("cf_sa", method))
        who, large = f"- exp3, {setting}, {NAMES[method]}", max(sizes, default=0)
        for groups in sorted(set(rivals) & set(sizes)):
            ratio = weights_ratio(rivals[groups], sizes[groups])
            lines.append(f"{who}: at {groups} groups CF(sa) has {ratio:.3g} times the weights")
        if 200 in sizes and large > 200:
            ratio = flatness(sizes[200], sizes[large])
            lines.append(
                f"{who}: from 200 to {large} groups, time of a step times {ratio['step_ms']:.3g}, "
                f"memory times {ratio['peak_mib']:.3g}"
            )
    return lines


def _means(runs: list[dict], setting: str, method: str) -> dict[int, dict[str, float]]:
    """Weights, milliseconds and memory of a method in experiment 3 by number of groups, means over repetitions."""
    names = ["weights", "step_ms", "peak_mib"]
    found = [run for run in runs if _is(run, experiment="exp3", setting=setting, method=method)]
    table = pd.DataFrame(found, columns=["groups", *names])
    return table.groupby("groups")[names].mean().to_dict("index")


def _is(run: dict, **values) -> bool:
    return all(run[name] == value for name, value in values.items())


def races(runs: list[dict]) -> list[str]:
    """How many times our time a rival needed, a line a race."""
    lines = []
    for run in runs:
        tries = ", ".join(f"{one['times']:.3g} times: {_number(one['gap'])} nats" for one in run["tries"])
        who = f"{run['experiment']}, {run['setting']}, seed {run['seed']}: {NAMES[run['method']]}"
        lines.append(
            f"- {who} at {run['groups']} groups, with multiples of our {run['ours_s']:.3g} s: {tries}; {run['end']}"
        )
    return lines


def _number(value: float | None) -> str:
    return "no" if value is None else f"{value:.3g}"


def _pair(row: dict, name: str) -> str:
    if np.isnan(row[f"{name}_mean"]):
        return "-"
    return f"{row[f'{name}_mean']:.3g} ± {np.nan_to_num(row[f'{name}_std']):.2g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
