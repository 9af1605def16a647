"""What a GPU makes of a thousand subjects: `make gpu-check` (at most 8 minutes) and `make gpu-bench`.

    python -m pipelines.benchmarks.gpu [--full] [--device cuda] [--size thousand]

    agree    a small cohort trained on the CPU and on the device: Dice of the label maps of unseen subjects
    broca    1000 subjects of Broca's area from the store, `parcellation train` with the hybrid and with PAVI-E for
             every site: seconds on the clock, from the open store to the saved model
    cortex   steps with 1000 subjects of the whole cortex and 17 networks for 90 s, and the whole training's time that
             follows from them; with --full all its steps. Fingerprints are drawn on the device whenever a step asks for
             them: on disk they would be 15 GB

What training ends with on the CPU, to tell unusual people (`training_reference`), is in broca's time and not in
cortex's. With `--device cpu --size tiny` everything runs anywhere, and measures nothing. Writes build/bench/gpu.json.
"""

import argparse
import contextlib
import logging
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from parcellation.config import Training, load_study
from parcellation.errors import Stopped
from parcellation.family import Family
from parcellation.files import write_json
from parcellation.label_power import choose_label_power, fit_retest_link
from parcellation.model_file import TrainedModel
from parcellation.plates import Batch, Observed
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.training import Plan, anchor, fit, settle_population, warm_start
from parcellation.verbs.infer import Inference
from parcellation.verbs.train import CHUNK, FREE_PASSES, ROW_RATE, matmul_precision, train
from parcellation.verbs.workspace import Selection, Workspace
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make
from pipelines.benchmarks.scale import SIZES, TARGETS, Size, cohort, new_subjects

SCHEMES = ("hybrid", "encoded")
SAMPLE = 64  # subjects that the start of the whole cortex is timed with; it grows with them in one pass only
FRAMES = 1200.0
PROFILES, SUBJECT, SESSION, NOISE = 1.0, 0.3, 0.2, 6.0  # standard deviations of what is drawn on the device
OWN = 0.2  # share of a subject's vertices whose label is not the population's


@dataclass(frozen=True)
class Scale:
    """Sizes of the three parts, and how long the steps of the whole cortex may go on; agree: cohort and steps."""

    agree: tuple[dict, int]
    broca: Size
    cortex: Size
    seconds: float


SCALES = {
    "thousand": Scale(
        (dict(S=40, noise=2.0), 200),
        SIZES["broca1000"],
        Size(1000, SIZES["cortex17_100"].vertices, 17, SIZES["cortex17_100"].training),
        90.0,
    ),
    "tiny": Scale(
        (dict(S=26, nx=8, ny=6, D=8, noise=0.5), 5),
        Size(12, 40, 2, (("steps", 4),)),
        Size(12, 60, 3, (("batch_subjects", 4), ("batch_vertices", 30), ("steps", 6))),
        1.0,
    ),
}


def main() -> None:
    """Run all parts on a device; on a machine without it, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="what is done without --full")
    parser.add_argument("--full", action="store_true", help="train the whole cortex to the end")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=SCALES, default="thousand")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device here: nothing is measured")
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    size, device = SCALES[options.size], torch.device(options.device)
    figures: dict[str, float | str] = {"device": _name(device)}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in {
            "agree": lambda: agree(*size.agree, Path(folder) / "agree", options.device),
            "broca": lambda: broca(size.broca, Path(folder) / "broca", options.device),
            "cortex": lambda: cortex(size.cortex, device, math.inf if options.full else size.seconds),
        }.items():
            found = part()
            print(name, "  ".join(f"{key} {value:.4g}" for key, value in found.items()), flush=True)
            figures |= {f"{name}.{key}": value for key, value in found.items()}
            write_json(options.out / "gpu.json", figures)
    print(f"written: {options.out / 'gpu.json'}")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def agree(settings: dict, steps: int, folder: Path, device: str) -> dict[str, float]:
    """Dice of unseen subjects' label maps, networks averaged, between a model of the CPU and one of the device."""
    data = make(seed=0, **settings)
    folder.mkdir(parents=True)
    study = synthetic.prepare(data, len(data["X"]) - synthetic.UNSEEN, folder)
    content = yaml.safe_load(study.read_text())
    content["training"]["steps"] = steps
    study.write_text(yaml.safe_dump(content))
    one, other = (_labels(study, where) for where in ("cpu", device))
    shared = [2 * ((one == k) & (other == k)).sum() / ((one == k).sum() + (other == k).sum()) for k in np.unique(one)]
    return {"dice": float(np.mean(shared))}


def _labels(study: Path, device: str) -> np.ndarray:
    """Labels of the unseen subjects by a model that is trained on this device, shape (subject, vertex)."""
    read = load_study(study)
    # The other device's model and its last checkpoint, from which training would go on: no key tells the device.
    shutil.rmtree(Workspace(read).model, ignore_errors=True)
    train(read, Selection(), device)
    return synthetic.unseen(Inference.of(read))[0].argmax(-1)


def broca(size: Size, folder: Path, device: str) -> dict[str, float]:
    """Seconds of training from the store, by scheme, and scores of unseen subjects."""
    study, figures = cohort(size, folder), {}
    for scheme in SCHEMES:
        content = yaml.safe_load(study.read_text())
        content["model"]["scheme"] = scheme
        path = study.with_name(f"{scheme}.yaml")
        path.write_text(yaml.safe_dump(content))
        start = time.perf_counter()
        train(load_study(path), Selection(), device)
        figures[f"{scheme}.train_s"] = time.perf_counter() - start
        scores = new_subjects(path)
        figures |= {f"{scheme}.{key}": scores[key] for key in ("accuracy", "nll")}
    return figures


def cortex(size: Size, device: torch.device, seconds: float) -> dict[str, float]:
    """Steps for so many seconds, and the time of the whole training that follows from them."""
    chosen = Training(**dict(size.training))
    torch.set_float32_matmul_precision(matmul_precision(chosen.precision, device.type))
    source = Drawn(size, device)
    family, sample, start = _started(source, min(SAMPLE, size.subjects))
    subsample = {"vertex": chosen.batch_vertices} if chosen.batch_vertices else {}
    plan = Plan(chosen.steps, chosen.batch_subjects, chosen.learning_rate, chosen.seed, subsample, row_rate=ROW_RATE)
    took = _timed_steps(family, source, plan, seconds)
    steps = took[0] + (chosen.steps - 1) * statistics.median(took[1:] or took)
    model = TrainedModel(family, {}, {}, {})
    chosen_s = _clock(lambda: (choose_label_power(model, source), fit_retest_link(model, source)), device)[1]
    one_pass = _clock(lambda: source.batch(torch.arange(min(CHUNK, size.subjects))), device)[1] / CHUNK
    predicted = start + (size.subjects - sample) * one_pass + steps + chosen_s
    figures = {"step_ms": 1000 * statistics.median(took[1:] or took), "steps": len(took), "start_s": start}
    figures |= {"calibrate_s": chosen_s, "predicted_s": predicted}
    if device.type == "cuda":
        figures["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return figures


def _started(source: "Drawn", count: int) -> tuple[Family, int, float]:
    """A family near its answer, found with so many subjects, and the seconds that took."""

    def start() -> Family:
        few = source.first(count)
        reference = anchor(few, FunctionalParcellation.plates, source.mu.shape[0], 0, CHUNK).float()
        template = FunctionalParcellation(reference.to(source.device), FRAMES)
        family = Family(template, source.cards).to(source.device)
        source.template = few.template = template
        settle_population(family, source, CHUNK, warm_start(family, few, CHUNK, FREE_PASSES))
        return family

    family, seconds = _clock(start, source.device)
    return family, count, seconds


def _timed_steps(family: Family, source: "Drawn", plan: Plan, seconds: float) -> list[float]:
    """Seconds of each step, until the plan or the time is over."""
    times = [time.perf_counter()]
    until = times[0] + seconds
    told = dict(progress=lambda *_: times.append(time.perf_counter()), stop=lambda: time.perf_counter() > until)
    with contextlib.suppress(Stopped):
        fit(family, source, plan, **told)
    return np.diff(times).tolist()


def _clock(function: Callable, device: torch.device) -> tuple[object, float]:
    """What a function returns, and its seconds, with all that the device still does for it."""
    start = time.perf_counter()
    answer = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return answer, time.perf_counter() - start


class Drawn:
    """A source of subjects who are drawn on the device whenever a batch has them, each time the same."""

    template: FunctionalParcellation

    def __init__(self, size: Size, device: torch.device, sessions: int = 2):
        self.device, self.size = device, size
        self.cards = dict(subject=size.subjects, session=sessions, vertex=size.vertices)
        self.mu = PROFILES * self._normal(torch.Generator(device).manual_seed(0), size.networks, TARGETS)
        self.bands = torch.arange(size.vertices, device=device) * size.networks // size.vertices

    def first(self, count: int) -> "Drawn":
        """The first subjects alone."""
        return Drawn(Size(count, self.size.vertices, self.size.networks), self.device, self.cards["session"])

    def batch(self, index: Tensor) -> Batch:
        """The batch of these subjects."""
        sizes = (len(index), self.cards["session"], self.cards["vertex"])
        x = torch.empty(*sizes, TARGETS, device=self.device)
        for place, member in enumerate(index.tolist()):
            self._draw(member, x[place])
        mask = torch.ones(sizes, dtype=torch.bool, device=self.device)
        frames = torch.full((*sizes[:2], 1), FRAMES, device=self.device)
        observed = Observed(x, mask, {"frames": frames})
        return Batch(observed, observed, {"subject": index.to(self.device)}, self.cards)

    def _draw(self, member: int, x: Tensor) -> None:
        """Fill in one subject, shape (session, vertex, feature), of mean square about 1."""
        generator, (K, D) = torch.Generator(self.device).manual_seed(1 + member), self.mu.shape
        own = torch.rand(x.shape[1], generator=generator, device=self.device) < OWN
        other = torch.randint(K, (x.shape[1],), generator=generator, device=self.device)
        labels = torch.where(own, other, self.bands)
        subject = self.mu + SUBJECT * self._normal(generator, K, D)
        for session in x:
            profiles = subject + SESSION * self._normal(generator, K, D)
            session.copy_(profiles[labels]).add_(NOISE * self._normal(generator, *session.shape))
        x /= (PROFILES**2 + SUBJECT**2 + SESSION**2 + NOISE**2) ** 0.5

    def _normal(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=self.device)


if __name__ == "__main__":
    main()
