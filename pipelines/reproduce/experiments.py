"""One run of one method on the Gaussian random effects model, judged against the exact log evidence.

    python -m pipelines.reproduce.experiments OUT.json --method pavi_f --groups 100 --reduced 2 --dimensions 8

A run trains one method on one data set and writes what the figures and the table need: the gap to the exact evidence
(all data, unit weights, in nats, with its Monte-Carlo error) along the way, weights, seconds and memory. Seconds are
those of training alone: evaluations stop the clock. For cascading flows the bound is the augmented one, which lies
below its evidence lower bound, so that its gap is an upper bound; the result says so.
"""

import argparse
import copy
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from parcellation.baselines.adavi import Adavi
from parcellation.baselines.cascading_flows import AmortizedCascadingFlows, CascadingFlows
from parcellation.baselines.per_variable import PerVariable
from parcellation.elbo import elbo
from parcellation.errors import Stopped
from parcellation.family import Family
from parcellation.files import write_json
from parcellation.plates import Batch, gaussian_noise
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit

SAMPLES = 50
SETTINGS = {"unit": (1.0, 1.0, 1.0), "paper": (1.0, 0.2, 0.05)}
DRAWS = 100


@dataclass(frozen=True)
class Run:
    """What is run; every field is an option of the command.

    points: evaluations along the way, evenly spaced; limit_s: seconds of training after which a run stops.
    """

    method: str = "pavi_f"
    setting: str = "unit"
    dimensions: int = 8
    groups: int = 100
    reduced: int = 2
    encoding_size: int = 8
    steps: int = 5000
    rate: float = 0.02
    seed: int = 0
    points: int = 10
    limit_s: float = 1e9


def _pavi(scheme: str) -> Callable[[GaussianRandomEffects, Batch, Run], Family]:
    return lambda template, full, run: Family(template, full.cards, scheme, encoding_size=run.encoding_size or None)


METHODS: dict[str, Callable] = {
    "pavi_f": _pavi("free"),
    "pavi_e": _pavi("encoded"),
    "hybrid": _pavi("hybrid"),
    "baseline": lambda template, full, run: PerVariable(template, full.cards),
    "cf": lambda template, full, run: CascadingFlows(template, full.cards),
    "cf_sa": lambda template, full, run: AmortizedCascadingFlows(template, full.cards, run.dimensions),
    "adavi": lambda template, full, run: Adavi(template, full.cards, run.dimensions),
}
AUGMENTED = {"cf", "cf_sa"}


@dataclass
class Record:
    """What is measured on the way: at each point the step, seconds of training so far, gap and its error."""

    evidence: float
    points: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    since: float = 0.0

    def start(self) -> None:
        """Let the clock run."""
        self.since = time.process_time()

    def stop(self) -> None:
        """Stop the clock."""
        self.seconds += time.process_time() - self.since

    def add(self, step: int, approximation, full: Batch) -> None:
        """Evaluate the bound with all data in float64, from the same draws at every point."""
        copied = copy.deepcopy(approximation).double()
        noise = gaussian_noise(torch.Generator().manual_seed(1), "cpu", torch.float64)
        bound = elbo(copied, full, noise, DRAWS)
        gap = self.evidence - bound.mean
        self.points.append({"step": step, "seconds": self.seconds, "gap": gap, "error": bound.standard_error})


def execute(run: Run) -> dict:
    """Train and measure one run; returns its settings and results as plain values."""
    torch.set_num_threads(1)
    template = GaussianRandomEffects(run.dimensions, *SETTINGS[run.setting])
    observed = template.simulate(run.groups, SAMPLES, torch.Generator().manual_seed(run.seed))
    full = Batch.full(template.plates, observed)
    single = Batch.full(template.plates, observed.to("cpu", torch.float32))
    torch.manual_seed(run.seed)
    approximation = METHODS[run.method](template, single, run)
    record = Record(float(template.log_evidence(observed)))
    record.add(0, approximation, full)
    done = _train(run, approximation, Whole(template, single), record, full)
    free = sum(one.rows.weight.numel() for one in approximation.free.values() if one.sparse)
    weights = sum(parameter.numel() for parameter in approximation.parameters())
    return asdict(run) | {
        "points": record.points,
        "gap": record.points[-1]["gap"],
        "bound": "augmented" if run.method in AUGMENTED else "ELBO",
        "finished": done == run.steps,
        "steps_done": done,
        "train_s": record.seconds,
        "step_ms": 1000 * record.seconds / max(done, 1),
        "weights": weights,
        "weights_of_groups": free,
        "latents": run.dimensions * (run.groups + 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _train(run: Run, approximation, source: Whole, record: Record, full: Batch) -> int:
    """Train with evaluations; returns the number of steps done before the end or the time limit."""
    plan = Plan(run.steps, run.reduced, run.rate, run.seed, {})
    at = {round(run.steps * k / run.points) for k in range(1, run.points + 1)}
    done = 0

    def progress(step: int, loss: float) -> None:
        nonlocal done
        done = step
        if step in at:
            record.stop()
            record.add(step, approximation, full)
            record.start()

    def late() -> bool:
        return record.seconds + time.process_time() - record.since > run.limit_s

    record.start()
    try:
        fit(approximation, source, plan, progress=progress, stop=late)
        record.stop()
    except Stopped:
        record.stop()
        record.add(done, approximation, full)
    return done


def main() -> None:
    """Run one experiment from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    for one in fields(Run):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    options = vars(parser.parse_args())
    out = options.pop("out")
    write_json(out, execute(Run(**options)))


if __name__ == "__main__":
    main()
