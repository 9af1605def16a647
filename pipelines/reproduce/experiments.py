"""One run of one method on the Gaussian random effects model, judged against the exact log evidence.

    python -m pipelines.reproduce.experiments OUT.json --method pavi_f --groups 100 --reduced 2 --dimensions 8

A run trains one method and writes what the figures and the table need: the gap to the exact evidence (all data, unit
weights, in nats, with its Monte-Carlo error) along the way, weights, seconds and memory. Methods that are trained over
many data sets are judged on data sets that they have not seen; the gap is the mean of these. For cascading flows the
bound is the augmented one, which lies below its evidence lower bound, so that its gap is an upper bound of its gap; the
result says so.

Seconds are CPU seconds of training alone. Data are made, and bounds evaluated, in processes of their own, so that peak
memory too is that of training. A time limit is known to the schedule of learning rates: a run that has to stop before
its last step is planned with as many as fit.
"""

import argparse
import copy
import math
import multiprocessing
import pickle
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from parcellation.approximation import Approximation
from parcellation.elbo import elbo
from parcellation.errors import BadData, Stopped
from parcellation.files import write_json
from parcellation.plates import Batch, gaussian_noise
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import DataSets, Plan, Source, Whole, fit
from pipelines.reproduce.methods import METHODS, SAMPLES, data_sets

SETTINGS = {"unit": (1.0, 1.0, 1.0), "paper": (1.0, 0.2, 0.05)}
DRAWS = 100  # of a gap, over all data sets
UNSEEN = 5  # data sets
HIGHEST = 1.0  # nats above the evidence that an estimate of a bound may lie; its own error is far smaller
TRIED, LOADED = 15, 2  # steps on a copy, which tell how many fit in a limit of time; in the first, libraries are loaded


@dataclass(frozen=True)
class Run:
    """What is run; every field is an option of the command.

    encoding_size: numbers in a vector that encodes a ground variable, 0 for the encoding itself (estimate and precision
    of every element). points: evaluations along the way, closer at the start; limit_s: seconds of training a run has.
    """

    method: str = "pavi_f"
    setting: str = "unit"
    dimensions: int = 8
    groups: int = 100
    reduced: int = 2
    encoding_size: int = 0
    steps: int = 5000
    rate: float = 0.02
    row_rate: float = 15.0
    seed: int = 0
    points: int = 10
    limit_s: float = 1e9

    @property
    def template(self) -> GaussianRandomEffects:
        """The model."""
        return GaussianRandomEffects(self.dimensions, *SETTINGS[self.setting])

    def data(self, number: int) -> Batch:
        """A data set of this seed, float32; training has number 0."""
        generator = torch.Generator().manual_seed(self.seed + 7919 * number)
        observed = self.template.simulate(self.groups, SAMPLES, generator)
        return Batch.full(self.template.plates, observed.to("cpu", torch.float32))


def apart(function: Callable[[], Any]) -> Any:
    """What a function returns, computed in a process of its own: neither its time nor its memory is this one's."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    # Plain bytes: a tensor sent as one would be shared memory, which ends with the process that made it.
    process = context.Process(target=lambda: send.send_bytes(pickle.dumps(function())))
    process.start()
    send.close()
    try:
        return pickle.loads(receive.recv_bytes())
    except EOFError as error:
        raise RuntimeError("the process that should have computed this has ended without a result") from error
    finally:
        process.join()


def bound(run: Run, approximation: Approximation, full: Batch, draws: int) -> tuple[float, float]:
    """Gap to the exact evidence and its Monte-Carlo error, in nats: all data, float64, the same draws every time."""
    double = Batch.full(run.template.plates, full.seen.to("cpu", torch.float64))
    noise = gaussian_noise(torch.Generator().manual_seed(1), "cpu", torch.float64)
    found = elbo(copy.deepcopy(approximation).double(), double, noise, draws)
    return float(run.template.log_evidence(double.seen)) - found.mean, found.standard_error


def is_gap(gap: float, error: float) -> bool:
    """Whether a gap is a number, and not that of a bound above the evidence, where arithmetic has broken down."""
    return math.isfinite(gap) and math.isfinite(error) and gap > -HIGHEST


@dataclass
class Record:
    """What is measured on the way: at each point the step, seconds of training so far, gap and its error.

    full: the data set of a method that is trained on one. What is no gap is None.
    """

    run: Run
    full: Batch | None
    points: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    since: float = 0.0

    def start(self) -> None:
        """Let the clock run."""
        self.since = time.process_time()

    def stop(self) -> None:
        """Stop the clock."""
        self.seconds += time.process_time() - self.since

    def add(self, step: int, approximation: Approximation) -> None:
        """Evaluate."""
        found = apart(lambda: self._evaluate(approximation))
        gap, error = found if is_gap(*found) else (None, None)
        self.points.append({"step": step, "seconds": self.seconds, "gap": gap, "error": error})

    def _evaluate(self, approximation: Approximation) -> tuple[float, float]:
        if self.full is not None:
            return bound(self.run, approximation, self.full, DRAWS)
        found = [bound(self.run, approximation, self.run.data(1 + k), DRAWS // UNSEEN) for k in range(UNSEEN)]
        gaps, errors = zip(*found, strict=True)
        return sum(gaps) / UNSEEN, sum(error**2 for error in errors) ** 0.5 / UNSEEN


def execute(run: Run) -> dict:
    """Train and measure one run; returns its settings and results as plain values."""
    torch.set_num_threads(1)
    method = METHODS[run.method]
    torch.manual_seed(run.seed)
    cards = {"group": run.groups, "sample": SAMPLES}
    approximation = method.build(run.template, cards, run.encoding_size)
    full = None if method.many else apart(lambda: run.data(0))
    many = data_sets(method, run.template, run.groups, run.seed) if method.many else None
    source = many or Whole(run.template, full)
    batch = source.cards["group"] if method.whole else run.reduced
    record = Record(run, full)
    record.add(0, approximation)
    run = replace(run, steps=_affordable(run, approximation, source, batch))
    done, failed = _train(run, approximation, source, batch, record)
    if not failed and record.points[-1]["gap"] is None:
        failed = "its bound is no number, or above the evidence"
    free = sum(one.rows.weight.numel() for one in approximation.free.values() if one.sparse)
    return asdict(run) | {
        "points": record.points,
        "gap": None if failed else record.points[-1]["gap"],
        "bound": "augmented" if method.augmented else "ELBO",
        "failed": failed,
        "finished": done == run.steps,
        "steps_done": done,
        "train_s": record.seconds,
        "step_ms": 1000 * record.seconds / max(done, 1),
        "weights": sum(parameter.numel() for parameter in approximation.parameters()),
        "weights_of_groups": free,
        "latents": run.dimensions * (run.groups + 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _affordable(run: Run, approximation: Approximation, source: Source | DataSets, batch: int) -> int:
    """Steps to plan for: those asked for, or as many as fit in the limit of time."""
    times: list[float] = []

    def enough() -> bool:
        return len(times) > LOADED + 1 and times[-1] - times[LOADED] > 0.05 * run.limit_s

    plan = Plan(TRIED, batch, run.rate, run.seed, {}, row_rate=run.row_rate)
    try:
        fit(
            copy.deepcopy(approximation),
            copy.copy(source),
            plan,
            progress=lambda *_: times.append(time.process_time()),
            stop=enough,
        )
    except Stopped:
        pass
    except BadData:
        return run.steps  # which will fail too
    step = (times[-1] - times[LOADED]) / (len(times) - 1 - LOADED)
    return max(1, min(run.steps, int(0.95 * run.limit_s / step)))


def evaluated(run: Run) -> set[int]:
    """Steps after which the bound is evaluated: closer at the start, where it changes fast."""
    return {max(1, round(run.steps * (k / run.points) ** 2)) for k in range(1, run.points + 1)}


def _train(run: Run, approximation, source: Source | DataSets, batch: int, record: Record) -> tuple[int, str]:
    """Train with evaluations; returns the number of steps done before the end or the time limit, and what failed."""
    plan = Plan(run.steps, batch, run.rate, run.seed, {}, row_rate=run.row_rate)
    at, done = evaluated(run), 0

    def progress(step: int, loss: float) -> None:
        nonlocal done
        done = step
        if step in at:
            record.stop()
            record.add(step, approximation)
            record.start()

    def late() -> bool:
        return record.seconds + time.process_time() - record.since > run.limit_s

    record.start()
    try:
        fit(approximation, source, plan, progress=progress, stop=late)
        record.stop()
    except Stopped:
        record.stop()
        record.add(done, approximation)
    except BadData as error:
        record.stop()
        return done, str(error)
    return done, ""


def add_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The fields of a run as options."""
    for one in fields(Run):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    return parser


def stored_rates(options: dict) -> dict:
    """Options of a run with the rates that the file `rates`, if there is one, has under `key`."""
    rates, key = options.pop("rates"), options.pop("key")
    return options | (yaml.safe_load(rates.read_text(encoding="utf-8"))[key] if rates else {})


def main() -> None:
    """Run one experiment from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rates", type=Path, help="file of rates by key, which then count")
    parser.add_argument("--key", help="whose rates")
    options = stored_rates(vars(add_options(parser).parse_args()))
    out = options.pop("out")
    write_json(out, execute(Run(**options)))


if __name__ == "__main__":
    main()
