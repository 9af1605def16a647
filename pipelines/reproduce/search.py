"""The best rates of a grid: python -m pipelines.reproduce.search build/reproduce/small

Of every method, in every setting of every experiment, the pair of rates with the smallest gap after the search's runs
is written to rates.yaml; a run that failed counts as the worst. A pair at the edge of the grid is said to be there.
"""

import json
import math
import sys
from pathlib import Path

import yaml

from parcellation.files import write_text


def best(runs: list[dict]) -> dict:
    """Rates of the run with the smallest gap, and that gap; raises ValueError where all have failed."""
    chosen = min(runs, key=lambda run: math.inf if run["gap"] is None else run["gap"])
    if chosen["gap"] is None:
        raise ValueError(f"{chosen['method']}, {chosen['setting']}: no rate of the grid trains it")
    return {"rate": chosen["rate"], "row_rate": chosen["row_rate"]}


def main(folder: Path) -> None:
    """Write rates.yaml, and search.tsv with every run, into the folder."""
    groups: dict[str, list[dict]] = {}
    lines = ["key\trate\trow_rate\tsteps\tgap\tseconds"]
    for path in sorted((folder / "search").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        key = path.name.split("_rate-")[0]
        groups.setdefault(key, []).append(run)
        cells = (run["rate"], run["row_rate"], run["steps_done"], run["gap"], round(run["train_s"], 1))
        lines.append("\t".join(map(str, (key, *cells))))
    rates = {key: best(runs) for key, runs in groups.items()}
    write_text(folder / "search.tsv", "\n".join([*lines, ""]))
    write_text(folder / "rates.yaml", yaml.safe_dump(rates, default_flow_style=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
