"""What the paper claims of its method, as numbers of finished runs."""

from collections.abc import Sequence


def steps_to(run: dict, level: float) -> int | None:
    """The first evaluation with a gap of this level or less; None where there is none."""
    there = [one["step"] for one in run["points"] if one["step"] and one["gap"] is not None and one["gap"] <= level]
    return there[0] if there else None


def step_ratio(ours: Sequence[dict], baseline: dict) -> float | None:
    """How many times fewer steps ours need, the slowest of them, for the level that the baseline ends at.

    The level is its gap and two Monte-Carlo errors, since it is known no better. None where one of ours does not reach
    it, or the baseline failed.
    """
    last = baseline["points"][-1]
    if last["gap"] is None:
        return None
    steps = [steps_to(run, last["gap"] + 2 * last["error"]) for run in ours]
    return None if None in steps else baseline["steps_done"] / max(steps)


def flatness(small: dict, large: dict) -> dict[str, float]:
    """Step time and memory of a large size, relative to those of a small one."""
    return {name: large[name] / small[name] for name in ("step_ms", "peak_mib")}


def weights_ratio(rival: dict, ours: dict) -> float:
    """How many times the weights of ours a rival has."""
    return rival["weights"] / ours["weights"]
