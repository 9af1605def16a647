"""Ours and the rivals against the exact evidence of Gaussian random effects: `make bench-gre`.

    python -m pipelines.benchmarks.gre [--only exp1_unit]

Experiments 1 and 3 of `pipelines/reproduce` (settings in its bench.yaml), once, with the learning rates stored in its
rates.yaml; rivals of experiment 3 have three minutes a size. Every run is a process of its own, two at a time. Writes
build/bench/gre.json: a gap is in nats; what a rival could not do is null.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from pipelines.reproduce.claims import step_ratio
from pipelines.reproduce.plan import arguments, key_of, runs

FOLDER = Path(__file__).parents[1] / "reproduce"
MEASURED = ("gap", "weights", "train_s", "step_ms", "peak_mib")
PAVI = ("pavi_f", "pavi_e", "hybrid")


def main() -> None:
    """Do the runs that are asked for, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="what the names of the runs have to begin with")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    planned = runs(yaml.safe_load((FOLDER / "bench.yaml").read_text()))
    chosen = {name: run for name, run in planned.items() if name.startswith(options.only)}
    folder = options.out / "gre"
    folder.mkdir(parents=True, exist_ok=True)
    # The long ones first, so that the two cores end together.
    order = sorted(chosen, key=lambda name: (chosen[name]["limit_s"], -chosen[name]["groups"]))
    with ThreadPoolExecutor(2) as pool:
        done = dict(zip(order, pool.map(lambda name: _run(name, chosen[name], folder), order), strict=True))
    out = options.out / "gre.json"
    out.write_text(json.dumps(figures(chosen, done), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"written: {out}")


def _run(name: str, options: dict, folder: Path) -> dict | None:
    """What a run measured; None where it did not end, as one that lacks memory."""
    out = folder / f"{name}.json"
    rates = ["--rates", str(FOLDER / "rates.yaml"), "--key", key_of(name)]
    module = [sys.executable, "-m", "pipelines.reproduce.experiments", str(out)]
    ended = subprocess.run([*module, *arguments(options).split(), *rates], capture_output=True, text=True)
    if ended.returncode:
        print(f"{name}: {ended.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    found = json.loads(out.read_text(encoding="utf-8"))
    gap = "failed" if found["gap"] is None else f"{found['gap']:.3g} nats"
    cost = f"{found['steps_done']} steps, {found['train_s']:.1f} s, {found['step_ms']:.2f} ms a step"
    print(f"{name}: {gap}, {cost}, {found['weights']} weights, {found['peak_mib']:.0f} MiB", flush=True)
    return found


def figures(planned: dict[str, dict], done: dict[str, dict | None]) -> dict[str, float | None]:
    """Figures by dotted names, as SETTING.exp1.METHOD.gap and SETTING.exp3.GROUPS.METHOD.FIGURE."""
    found: dict[str, float | None] = {}
    for name, options in planned.items():
        run, experiment = done[name], name.split("_")[0]
        if experiment == "exp1":
            found[f"{options['setting']}.exp1.{options['method']}.gap"] = run and run["gap"]
        elif experiment == "exp3":
            prefix = f"{options['setting']}.exp3.{options['groups']}.{options['method']}"
            found |= {f"{prefix}.{figure}": run and run[figure] for figure in MEASURED}
    first = [n for n, o in planned.items() if n.startswith("exp1") and o["setting"] == "unit"]
    ours = [done[name] | {"method": planned[name]["method"]} for name in first if done[name]]
    baseline = [run for run in ours if run["method"] == "baseline"]
    if baseline and set(PAVI) <= {run["method"] for run in ours}:
        found["unit.exp1.step_ratio"] = step_ratio([run for run in ours if run["method"] in PAVI], baseline[0])
    return found


if __name__ == "__main__":
    main()
