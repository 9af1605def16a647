"""A rival against ours: how many times our seconds of training it needs to come within half a nat.

    python -m pipelines.reproduce.race OUT.json --ours OURS.json ... --method cf_sa --groups 200 ...

Our time is that of the slowest of our methods to its first evaluation at which the gap is half a nat or less, in that
of its runs which is there first: a schedule is a method's own. The rival is trained from the start with 1, 3, 10, 30
and 100 times as much, each time with a schedule that fits, until it is there too or at its plateau: three times the
time makes its gap less than a tenth smaller.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parcellation.files import write_json
from pipelines.reproduce.experiments import Run, add_options, execute, stored_rates

TIMES = (1, 3, 10, 30, 100)
LEVEL = 0.5  # nats
PLATEAU = 0.9


def seconds_to(run: dict, level: float = LEVEL) -> float:
    """Seconds of training to the first evaluation with a gap of this level or less; all of them where it has none."""
    trained = [one for one in run["points"] if one["step"] and one["gap"] is not None]
    there = [one["seconds"] for one in trained if one["gap"] <= level]
    return there[0] if there else run["train_s"]


def slowest(ours: Sequence[dict]) -> float:
    """Seconds that the slowest of our methods needs, each in the best of its runs; its longest where none is there."""
    needed: dict[str, list[float]] = {}
    for run in ours:
        needed.setdefault(run["method"], []).append(seconds_to(run | {"train_s": math.inf}))
    longest = max(run["train_s"] for run in ours)
    return max(min(longest, *seconds) for seconds in needed.values())


def race(run: Run, ours: float) -> dict:
    """The rival's tries; `times` is the factor of the first that came within half a nat, None where none did.

    A try stops at the run's limit of time too; no longer one is then made.
    """
    tries: list[dict] = []
    for times in TIMES:
        limit = min(times * ours, run.limit_s)
        found = execute(replace(run, limit_s=limit, steps=10**8, points=1))
        cost = {"seconds": found["train_s"], "steps": found["steps_done"]}
        tries.append({"times": limit / ours, "gap": found["gap"], **cost})
        end = _end(tries) or ("limit" if limit == run.limit_s else "")
        if end:
            break
    there = [one["times"] for one in tries if one["gap"] is not None and one["gap"] <= LEVEL]
    return found | {"tries": tries, "ours_s": ours, "times": there[0] if there else None, "end": end or "100 times"}


def _end(tries: list[dict]) -> str:
    gaps = [one["gap"] for one in tries]
    if gaps[-1] is not None and gaps[-1] <= LEVEL:
        return "there"
    if len(gaps) > 1 and None not in gaps[-2:] and gaps[-1] > PLATEAU * gaps[-2]:
        return "plateau"
    return ""


def main() -> None:
    """Run one race from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ours", type=Path, nargs="+", required=True)
    parser.add_argument("--rates", type=Path, required=True)
    parser.add_argument("--key", required=True)
    options = stored_rates(vars(add_options(parser).parse_args()))
    out, ours = options.pop("out"), options.pop("ours")
    seconds = slowest([json.loads(path.read_text(encoding="utf-8")) for path in ours])
    write_json(out, race(Run(**options), seconds))


if __name__ == "__main__":
    main()
