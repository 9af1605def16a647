"""What the paper claims of its method, as numbers of finished runs."""

import math
from collections.abc import Sequence


def steps_to(run: dict, level: float) -> int | None:
    """The first evaluation with a gap of this level or less; None where there is none."""
    there = [one["step"] for one in run["points"] if one["step"] and one["gap"] is not None and one["gap"] <= level]
    return there[0] if there else None


def step_ratio(ours: Sequence[dict], baseline: dict) -> float | None:
    """How many times fewer steps ours need, the slowest of our methods, for the level that the baseline ends at.

    Each method by that of its runs which is there first: a schedule is a method's own, and its last steps are its best.
    The level is the baseline's gap and two Monte-Carlo errors, since it is known no better. None where one of our
    methods does not reach it, or the baseline failed.
    """
    last = baseline["points"][-1]
    if last["gap"] is None:
        return None
    needed: dict[str, float] = {}
    for run in ours:
        steps = steps_to(run, last["gap"] + 2 * last["error"])
        needed[run["method"]] = min(needed.get(run["method"], math.inf), math.inf if steps is None else steps)
    return baseline["steps_done"] / max(needed.values()) or None


def flatness(small: dict, large: dict) -> dict[str, float]:
    """Step time and memory of a large size, relative to those of a small one."""
    return {name: large[name] / small[name] for name in ("step_ms", "peak_mib")}


def weights_ratio(rival: dict, ours: dict) -> float:
    """How many times the weights of ours a rival has."""
    return rival["weights"] / ours["weights"]
