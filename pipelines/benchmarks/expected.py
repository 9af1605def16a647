"""What a study of HCP-YA will need, from what was measured: `make bench-expected`.

    python -m pipelines.benchmarks.expected [--folder build/bench]

Reads prepare.json and scale.json, which `make bench-prepare` and `make bench-scale` write, and prints a table in
Markdown: memory of a job, hours of one core and disk of each step, for 10, 100 and 1000 subjects. A subject has two
sessions of two runs. Hours grow in proportion to subjects, but for training, whose cost is that of the next larger size
that was measured. What was not measured has a dash. Waiting, and the start of each job, are not counted.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pipelines.benchmarks.prepare import CORTEX, FRAMES, VOXELS

SUBJECTS = (10, 100, 1000)
SESSIONS, RUNS = 2, 2  # runs of a session
MEASURED = {10: "broca50", 100: "broca200", 1000: "broca1000"}  # trainings
WHOLE = "cortex17_100"
THOUSAND, PROCESSES = 1000, 2  # subjects that infer1000 is of, and how many processes have them
INPUT_MIB = 4 * FRAMES * (sum(CORTEX) + VOXELS) / 2**20  # a run's series as float32
NONE = "–"

Figures = Mapping[str, float]


def main() -> None:
    """Print the table of what is measured in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"))
    folder = parser.parse_args().folder
    figures: dict[str, float] = {}
    for name in ("prepare", "scale"):
        path = folder / f"{name}.json"
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; `make bench-{name}` writes it")
        figures |= {f"{name}.{key}": value for key, value in json.loads(path.read_text(encoding="utf-8")).items()}
    print(table(figures))


def table(figures: Figures) -> str:
    """The table; figures: of both files, named as in `prepare.float32.seconds`."""
    counts = [f"{count}" for count in SUBJECTS]
    heads = ["step", "memory of a job, MB", *(f"core hours, {n}" for n in counts), *(f"disk, {n}" for n in counts)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, memory, hours, disk in _steps(figures):
        cells = [_cell(memory, _whole), *(_cell(partial(hours, n), _hours) for n in SUBJECTS)]
        cells += [_cell(partial(disk, n), _size) for n in SUBJECTS]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _steps(f: Figures) -> list[tuple[str, Callable[[], float], Callable[[int], float], Callable[[int], float]]]:
    """Name, MiB of a job, hours of a number of subjects, MiB on disk of these."""

    def prepared(kind: str) -> Callable[[int], float]:
        return lambda n: n * SESSIONS * RUNS * f[f"prepare.{kind}.seconds"] / 3600

    def fingerprints(n: int) -> float:
        return n * SESSIONS * f["prepare.float32.unit_mib"]

    def part(name: str, n: int) -> float:
        return f[f"scale.infer1000.{name}"] * n / THOUSAND

    def whole(n: int) -> float:
        if n != int(WHOLE.split("_")[1]):
            raise KeyError(WHOLE)
        return f[f"scale.{WHOLE}.train_cpu_s"] / 3600

    largest = max(SUBJECTS)
    return [
        ("the data", _unknown, lambda n: 0.0, lambda n: n * SESSIONS * RUNS * INPUT_MIB),
        ("`prepare`", lambda: f["prepare.float32.peak_mib"], prepared("float32"), fingerprints),
        ("`prepare`, cleaned and smoothed", lambda: f["prepare.clean.peak_mib"], prepared("clean"), fingerprints),
        (
            "`train`",
            lambda: f[f"scale.{MEASURED[largest]}.peak_mib"],
            lambda n: f[f"scale.{MEASURED[n]}.train_cpu_s"] / 3600,
            _unknown,
        ),
        (
            "`infer`",
            lambda: f[f"scale.{MEASURED[largest]}.new_peak_mib"],
            lambda n: PROCESSES * (part("infer_minutes", n) + part("export_minutes", n)) / 60,
            lambda n: part("results_mib", n) + part("posterior_mib", n),
        ),
        ("`train`, whole cortex, 17 networks", lambda: f[f"scale.{WHOLE}.peak_mib"], whole, _unknown),
        (
            "posteriors, whole cortex, 17 networks",
            lambda: f[f"scale.{WHOLE}.new_peak_mib"],
            lambda n: n * f[f"scale.{WHOLE}.new_subject_ms"] / 3.6e6,
            _unknown,
        ),
    ]


def _unknown(*_: int) -> float:
    raise KeyError("not measured")


def _cell(value: Callable[[], float], form: Callable[[float], str]) -> str:
    try:
        return form(value())
    except KeyError:
        return NONE


def _whole(mib: float) -> str:
    return f"{mib * 2**20 / 1e6:,.0f}"


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"


def _size(mib: float) -> str:
    """Decimal units, as disks are sold."""
    size = mib * 2**20
    unit, power = ("TB", 12) if size >= 1e12 else ("GB", 9) if size >= 1e9 else ("MB", 6)
    return f"{size / 10**power:.2g} {unit}" if size < 10 ** (power + 1) else f"{size / 10**power:.0f} {unit}"


if __name__ == "__main__":
    main()
