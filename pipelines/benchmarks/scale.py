"""Training and inference of 50 to 1000 subjects, of Broca's area and of the whole cortex: `make bench-scale`.

    python -m pipelines.benchmarks.scale [--only broca50 hard200] [--folder build/bench/scale]

Fingerprints (two sessions, 64 targets) are drawn from the model itself into the store, on the vertices of fs_LR 32k;
the cohort of hard200 is that of the recovery benchmark. Each training is `parcellation train` in a process of its own:
CPU seconds after imports and those of each stage, milliseconds of a step, peak memory, MiB of fingerprints read from
the store. A new subject's milliseconds are those of its posterior alone (64 draws). With --steps, training is repeated
with fewer steps, and the table shows after how many the score of held-out subjects is within half a percent of the
best. infer1000 infers and exports the thousand in two processes. Figures of the sizes that are run replace theirs in
build/bench/scale.json.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from parcellation.config import load_study
from parcellation.files import write_json
from parcellation.scores import calibration, match_networks
from parcellation.simulate_fingerprints import simulate_fingerprints
from parcellation.simulation import SimulationConfig
from parcellation.store import Store, write_unit
from parcellation.surfaces import Mesh, Targets, Vertices
from parcellation.truth import subject_path
from parcellation.verbs.infer import Inference
from parcellation.verbs.simulate import fingerprint_content
from parcellation.verbs.workspace import Ground, Selection, Workspace
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make
from pipelines.benchmarks.prepare import CORTEX
from pipelines.benchmarks.process import peak_mib

TARGETS, UNSEEN, TIMED = 64, 10, 5  # subjects
SHARDS = 2
WITHIN = 0.005
# What a training consists of, by the functions of `verbs.train`.
STAGES = {
    "fit_features": "features",
    "_family": "start",
    "anchor": "anchor",  # a part of the start
    "_fit": "steps",
    "choose_label_power": "label_power",
    "refit_map": "map",
    "fit_retest_link": "retest_link",
    "training_reference": "reference",
}


@dataclass(frozen=True)
class Size:
    """A cohort: training subjects, vertices, networks, and what its study's training says that is no default."""

    subjects: int
    vertices: int
    networks: int
    training: tuple[tuple[str, int], ...] = ()


WHOLE = (("batch_subjects", 4), ("batch_vertices", 4096), ("threads", 1))
SIZES = {
    "broca50": Size(50, 1200, 2),
    "broca200": Size(200, 1200, 2),
    "broca1000": Size(1000, 1200, 2),
    "cortex7_100": Size(100, sum(CORTEX), 7, WHOLE),
    "cortex17_100": Size(100, sum(CORTEX), 17, WHOLE),
}
NAMES = (*SIZES, "hard200", "infer1000")


def main() -> None:
    """Measure the sizes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--steps", type=int, nargs="*", default=[], help="also train with so many steps")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/scale"))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "STUDY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, study = options.one
        print(json.dumps(CHILDREN[what.split(":")[0]](Path(study), *map(int, what.split(":")[1:]))))
        return
    path = options.out / "scale.json"
    for name in options.only:
        found = _hard() if name == "hard200" else _infer(options.folder) if name == "infer1000" else None
        found = found or _size(name, options.folder, options.steps)
        print(name, "  ".join(f"{key} {value:.4g}" for key, value in found.items()), flush=True)
        before = json.loads(path.read_text()) if path.exists() else {}
        kept = {key: value for key, value in before.items() if not key.startswith(f"{name}.")}
        write_json(path, kept | {f"{name}.{key}": value for key, value in found.items()})
    print("\n".join(conclusions(json.loads(path.read_text()))))
    print(f"written: {path}")


def conclusions(figures: dict[str, float]) -> list[str]:
    """What follows from the figures of several sizes, in words; nothing of sizes that are not there."""
    steps = {name: figures[f"{name}.step_ms"] for name in SIZES if f"{name}.step_ms" in figures}
    lines = []
    broca = {name: step for name, step in steps.items() if name.startswith("broca")}
    if len(broca) > 1:
        said, most = ", ".join(f"{name} {step:.1f}" for name, step in broca.items()), max(broca.values())
        lines.append(f"ms a step: {said}; the slowest {most / min(broca.values()) - 1:.0%} above the fastest")
    for name in ("cortex7_100", "cortex17_100"):
        if name in steps:
            cpu, peak = predicted(figures, name, 1000)
            whose = name.split("_")[0]
            lines.append(f"{whose} with 1000 subjects, predicted: training {cpu:.0f} CPU s, {peak:.0f} MiB")
    return lines


def predicted(figures: dict[str, float], name: str, subjects: int) -> tuple[float, float]:
    """CPU seconds and MiB of training with so many subjects, from those of a size.

    Three stages read the whole cohort, so they grow with it: features, anchors, and the map where it is refitted.
    Steps, and what is found from a sample of subjects, do not. Memory is a batch and what is kept, of fixed size.
    """
    more = subjects / SIZES[name].subjects
    growing = sum(figures.get(f"{name}.{stage}_s", 0.0) for stage in ("features", "anchor", "map"))
    return figures[f"{name}.train_cpu_s"] + (more - 1) * growing, figures[f"{name}.peak_mib"]


def _size(name: str, folder: Path, fewer: list[int]) -> dict[str, float]:
    """Train and infer one size; its store stays for infer1000 where it is that of a thousand."""
    size, place = SIZES[name], folder / name
    study = cohort(size, place)
    found = _child("train", study)
    found |= _child("new", study)
    for steps in fewer:
        again = _child("train", _with_steps(study, steps))
        score = _child("new", _with_steps(study, steps))["nll"]
        print(f"{name}: {steps} steps, {again['train_cpu_s']:.1f} CPU s, NLL {score:.5f}", flush=True)
        if score <= found["nll"] * (1 + WITHIN):
            found["cpu_s_within"] = min(again["train_cpu_s"], found.get("cpu_s_within", math.inf))
    if name != "broca1000":
        shutil.rmtree(place)
    return found


def _with_steps(study: Path, steps: int) -> Path:
    """The same study with fewer steps, and a model of its own."""
    content = yaml.safe_load(study.read_text())
    content["training"]["steps"] = steps
    path = study.with_name(f"steps{steps}.yaml")
    path.write_text(yaml.safe_dump(content))
    return path


def _hard() -> dict[str, float]:
    """The recovery benchmark's cohort `hard`: cost, accuracy and NLL."""
    import tempfile

    subjects, settings = synthetic.COHORTS["hard"]
    data = make(seed=0, **settings)
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.prepare(data, subjects, Path(folder))
        cost = synthetic.trained(study)
        posterior, milliseconds = synthetic.unseen(Inference.of(load_study(study)))
    labels = data["z"][-synthetic.UNSEEN :]
    scores = calibration(match_networks(posterior, labels), labels)
    return cost | {key: scores[key] for key in ("accuracy", "nll")} | {"new_subject_ms": milliseconds}


def _infer(folder: Path) -> dict[str, float]:
    """Infer and export a thousand subjects in two processes; minutes of the slower one."""
    place = folder / "broca1000"
    study = place / "study.yaml"
    if not study.exists():
        study = cohort(SIZES["broca1000"], place)
        _child("train", study)
    started = [_start(f"export:{shard}", study) for shard in range(SHARDS)]
    found = [_result(process) for process in started]
    workspace = Workspace(load_study(study))
    sizes = {"results_mib": _mib(workspace.results), "posterior_mib": _mib(workspace.posteriors)}
    shutil.rmtree(place)
    return {key: max(one[key] for one in found) for key in found[0]} | sizes


def _mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def _child(what: str, study: Path) -> dict[str, float]:
    return _result(_start(what, study))


def _start(what: str, study: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "pipelines.benchmarks.scale", "--one", what, str(study)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen) -> dict[str, float]:
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(process.args)}: exit status {process.returncode}")
    return json.loads(said.splitlines()[-1])


# What children do


def _train(study: Path) -> dict[str, float]:
    from parcellation.verbs import train

    times, plain, stages = [], train.fit, {}

    def timed(*args, **kwargs):
        progress = args[5]
        watched = lambda step, loss: (times.append(time.process_time()), progress(step, loss))  # noqa: E731
        return plain(*args[:5], watched, *args[6:], **kwargs)

    train.fit = timed
    for function, stage in STAGES.items():
        setattr(train, function, _clocked(getattr(train, function), f"{stage}_s", stages))
    Store.arrays = _counted(stages)
    start = time.process_time()
    train.train(load_study(study), Selection())
    seconds = time.process_time() - start
    peak = peak_mib()
    step = 1000 * float(np.mean(np.diff(times[len(times) // 10 :])))
    return {"step_ms": step, "train_cpu_s": seconds, "peak_mib": peak} | stages


def _clocked(function: Callable, name: str, seconds: dict[str, float]) -> Callable:
    """The function, whose CPU seconds are added to those of this name."""

    def clocked(*args, **kwargs):
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start

    return clocked


def _counted(seconds: dict[str, float]) -> Callable:
    """Reading of a unit, whose MiB are added: files are mapped, and the system counts no such bytes."""
    plain = Store.arrays

    def arrays(self, *args):
        header, tensors = plain(self, *args)
        mib = sum(tensor.nbytes for tensor in tensors.values()) / 2**20
        seconds["read_mib"] = seconds.get("read_mib", 0.0) + mib
        return header, tensors

    return arrays


def new_subjects(study: Path) -> dict[str, float]:
    """Posterior of unseen subjects: median milliseconds, and scores against the labels they were drawn with."""
    run = Inference.of(load_study(study))
    names = run.cohort.subjects[-UNSEEN:]
    seconds, answers = [], []
    for subject in names[: TIMED if len(run.cohort.vertices) > 10_000 else UNSEEN]:
        sessions = tuple(run.cohort.sessions(subject))
        observed = run.observed(subject, sessions)
        start = time.process_time()
        answer = run.posterior.subject(subject, sessions, observed, run.cohort.feature_map.back)
        seconds.append(time.process_time() - start)
        answers.append(answer.probability)
    truths = [np.load(subject_path(study.parent, name)) for name in names[: len(answers)]]
    labels = np.stack([one["labels"] for one in truths])
    scores = calibration(match_networks(np.stack(answers), labels), labels)
    peak = peak_mib()
    return {"new_subject_ms": 1000 * statistics.median(seconds), "new_peak_mib": peak} | {
        key: scores[key] for key in ("accuracy", "nll")
    }


def _export(study: Path, shard: int) -> dict[str, float]:
    from parcellation.maps import write_subject

    run = Inference.of(load_study(study))
    export, answers, start = run.export(), [], time.perf_counter()
    for subject in run.cohort.subjects[shard::SHARDS]:
        answers.append(run.posterior_of(subject, tuple(run.cohort.sessions(subject))))
    middle = time.perf_counter()
    for answer in answers:
        write_subject(export, answer)
    return {"infer_minutes": (middle - start) / 60, "export_minutes": (time.perf_counter() - middle) / 60}


CHILDREN = {"train": _train, "new": new_subjects, "export": _export}


# Cohorts


def cohort(size: Size, place: Path) -> Path:
    """Training and unseen subjects in a store on the vertices of fs_LR 32k; returns the study file."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    settings = SimulationConfig.model_validate(
        {
            "subjects": size.subjects + UNSEEN,
            "train": size.subjects,
            "networks": size.networks,
            "coverage": "cortex",
            "template": {"features": TARGETS, "vertices": size.vertices, "kappa": 6.0},
        }
    )
    content = fingerprint_content(list(settings.names[: size.subjects]))
    content["training"] |= dict(size.training)
    content["model"] = {"networks": size.networks}
    study = place / "study.yaml"
    study.write_text(yaml.safe_dump(content))
    workspace, ground = Workspace(load_study(study)), _ground(size.vertices)
    workspace.remember(ground, {})
    store = workspace.store(ground)
    known = dict(vertices=ground.region, targets=ground.targets, features=workspace.study.features)

    def write(subject: str, session: str, fingerprint: np.ndarray, mask: np.ndarray, frames: int) -> None:
        write_unit(store, subject, session, fingerprint, mask=mask, frames=frames, **known)

    simulate_fingerprints(settings, write, place)
    store.write_index()
    return study


def _ground(vertices: int) -> Ground:
    """The whole cortex, or so many vertices of its left hemisphere, with maps on the whole cortex."""
    brain = Vertices.of(Mesh("fsLR", (32492, 32492)), *(list(side) for side in _sides()))
    region = brain if vertices == len(brain) else brain[np.arange(vertices)]
    names = tuple(f"target-{number:04d}" for number in range(TARGETS))
    members = brain[np.linspace(0, len(brain) - 1, TARGETS).astype(int)]
    return Ground(region, Targets(names, members, np.arange(TARGETS)), brain)


def _sides() -> Iterator[np.ndarray]:
    for side, count in enumerate(CORTEX):
        yield np.sort(np.random.default_rng(side).permutation(32492)[:count])


if __name__ == "__main__":
    main()
