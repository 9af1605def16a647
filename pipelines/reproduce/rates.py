"""The best rates of what was searched: python -m pipelines.reproduce.rates build/reproduce/small

Of every method, in every setting of every experiment, the pair of rates with the smallest gap goes to rates.yaml. Of
pairs that are as good, it is the one whose rows move least: at the largest rates that a data set bears, groups of the
next are lost for good. All pairs go to search.tsv.
"""

import json
import sys
from pathlib import Path

import yaml

from parcellation.files import write_text

AS_GOOD = 0.05  # nats


def best(key: str, tries: list[dict]) -> dict[str, float]:
    """Rates of the smallest gap; raises ValueError where all have failed."""
    trained = [one for one in tries if one["gap"] is not None]
    if not trained:
        raise ValueError(f"{key}: no rate of the grid trains it")
    smallest = min(one["gap"] for one in trained)
    as_good = [one for one in trained if one["gap"] <= smallest + AS_GOOD]
    chosen = min(as_good, key=lambda one: (one["rate"] * one["row_rate"], one["rate"]))
    return {"rate": chosen["rate"], "row_rate": chosen["row_rate"]}


def main(folder: Path) -> None:
    """Write rates.yaml and search.tsv into the folder."""
    rates, lines = {}, ["key\trate\trow_rate\tsteps\tgap\tseconds"]
    for path in sorted((folder / "search").glob("*.json")):
        tries = json.loads(path.read_text(encoding="utf-8"))["tries"]
        rates[path.stem] = best(path.stem, tries)
        for one in tries:
            cells = (one["rate"], one["row_rate"], one["steps_done"], one["gap"], round(one["train_s"], 1))
            lines.append("\t".join(map(str, (path.stem, *cells))))
    write_text(folder / "search.tsv", "\n".join([*lines, ""]))
    write_text(folder / "rates.yaml", yaml.safe_dump(rates, default_flow_style=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
