"""Which runs a configuration asks for: every method, size, setting of the noise and seed of every experiment.

Needs nothing but the standard library, since the workflow engine reads it in an environment of its own.
"""

import itertools
from collections.abc import Iterator


def runs(config: dict, rates: dict) -> dict[str, dict]:
    """Options of `experiments.Run` by the name of the run, in a stable order."""
    return {name: options for experiment in config["experiments"] for name, options in _of(experiment, config, rates)}


def _of(experiment: str, config: dict, rates: dict) -> Iterator[tuple[str, dict]]:
    plan = config["experiments"][experiment]
    seeds, sizes = range(config["repetitions"]), plan.get("encoding_sizes", [8])
    for setting, (groups, reduced), method in itertools.product(plan["settings"], plan["plates"], plan["methods"]):
        if groups > plan.get("most_groups", {}).get(method, groups):
            continue  # a method that cannot run at this size
        for size, seed in itertools.product(sizes, seeds):
            options = {
                "method": method,
                "setting": setting,
                "dimensions": plan["dimensions"],
                "groups": groups,
                "reduced": reduced,
                "encoding_size": size,
                "steps": plan.get("steps_of", {}).get(method, plan["steps"]),
                "rate": rates[setting][method],
                "seed": seed,
                "points": plan["points"],
                "limit_s": plan.get("limit_s", {}).get(method, 1e9),
            }
            yield f"{experiment}_{setting}_{method}_groups-{groups}_size-{size}_seed-{seed}", options


def arguments(options: dict) -> str:
    """The options as the command line of `experiments` takes them."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
