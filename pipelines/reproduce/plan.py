"""Which runs a configuration asks for: every method, size, setting of the noise and seed of every experiment.

Rates are looked for first, by runs over a grid, for each method in each setting of each experiment; then every run is
done at the rates that were found. Needs nothing but the standard library, since the workflow engine reads it in an
environment of its own.
"""

import itertools
from collections.abc import Iterator

SEARCHED_SIZES = (0, 8)  # of encodings
UNLIMITED = 1e9  # seconds


def runs(config: dict) -> dict[str, dict]:
    """Options of `experiments.Run`, without rates, by the name of the run, in a stable order."""
    return {
        f"{key(one)}_groups-{one['groups']}_size-{one['encoding_size']}_steps-{one['steps']}_seed-{one['seed']}": {
            name: value for name, value in one.items() if name != "experiment"
        }
        for one in _every(config)
    }


def key(options: dict) -> str:
    """Whose rates a run has."""
    return f"{options['experiment']}_{options['setting']}_{options['method']}"


def key_of(name: str) -> str:
    """The same, from the name of a run."""
    return name.split("_groups-")[0]


def searches(config: dict) -> dict[str, dict]:
    """Options of `search` by key: the largest size that is searched, the fewest steps."""
    search, found = config["search"], {}
    for one in _every(config | {"repetitions": 1}):
        if one["groups"] > search["most_groups"] or one["encoding_size"] not in SEARCHED_SIZES:
            continue
        options = {name: value for name, value in one.items() if name not in ("experiment", "points")} | {
            "seed": search["seed"],
            "limit_s": min(one["limit_s"], search.get("limit_s_of", {}).get(one["method"], search["limit_s"])),
            "grid": search["rates"],
            "row_grid": search["row_rates"].get(one["method"], [1.0]),
        }
        known = found.get(key(one), options)
        if (known["groups"], -known["steps"]) <= (options["groups"], -options["steps"]):
            found[key(one)] = options
    return found


def races(config: dict) -> dict[str, tuple[dict, list[str]]]:
    """Runs of rivals against ours: their options, and the names of our runs at the same size, setting and seed.

    Ours are also those of the same experiment with short schedules.
    """
    every, found = runs(config), {}
    for experiment, plan in config["experiments"].items():
        race = plan.get("race")
        for name, rival in every.items() if race else ():
            if not name.startswith(f"{experiment}_") or rival["seed"] >= race["repetitions"]:
                continue
            if rival["method"] == race["method"] and rival["groups"] == race["groups"]:
                same = [n for n, one in every.items() if all(one[k] == rival[k] for k in ("setting", "groups", "seed"))]
                ours = [n for n in same if every[n]["method"] in race["against"] and n.startswith(experiment)]
                found[name] = (rival | {"limit_s": race["limit_s"]}, ours)
    return found


def _every(config: dict) -> Iterator[dict]:
    for experiment, plan in config["experiments"].items():
        seeds = range(config["repetitions"])
        for setting, (groups, reduced), method in itertools.product(plan["settings"], plan["plates"], plan["methods"]):
            if groups > plan.get("most_groups", {}).get(method, groups):
                continue  # a method that cannot run at this size
            steps = plan.get("steps_of", {}).get(method, plan["steps"])
            sizes = plan.get("encoding_sizes", {}).get(method, [0])
            for size, length, seed in itertools.product(sizes, steps, seeds):
                yield {
                    "experiment": experiment,
                    "method": method,
                    "setting": setting,
                    "dimensions": plan["dimensions"],
                    "groups": groups,
                    "reduced": reduced,
                    "encoding_size": size,
                    "steps": length,
                    "seed": seed,
                    "points": plan["points"],
                    "limit_s": plan.get("limit_s", {}).get(method, UNLIMITED),
                }


def arguments(options: dict) -> str:
    """The options as the command lines of `experiments`, `search` and `race` take them."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join(words)
