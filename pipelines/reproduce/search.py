"""One method at every pair of rates of a grid: what gap each ends with.

    python -m pipelines.reproduce.search OUT.json --grid 0.01 0.03 --row-grid 5 15 --method pavi_f --groups 100 ...

Every pair trains from the same start on the same data, which no run of the experiments has. What fails counts as worst.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parcellation.files import write_json
from pipelines.reproduce.experiments import Run, add_options, execute


def search(run: Run, rates: Sequence[float], row_rates: Sequence[float]) -> list[dict]:
    """The gap after the run's steps (None for a failure), steps and seconds at every pair of rates."""
    tries = []
    for rate, row_rate in itertools.product(rates, row_rates):
        found = execute(replace(run, rate=rate, row_rate=row_rate, points=1))
        known = {name: found[name] for name in ("rate", "row_rate", "gap", "steps_done", "train_s")}
        tries.append(known)
    return tries


def main() -> None:
    """Search from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--grid", type=float, nargs="+", required=True)
    parser.add_argument("--row-grid", type=float, nargs="+", required=True)
    options = vars(add_options(parser).parse_args())
    out, rates, row_rates = (options.pop(name) for name in ("out", "grid", "row_grid"))
    write_json(out, {"tries": search(Run(**options), rates, row_rates)})


if __name__ == "__main__":
    main()
