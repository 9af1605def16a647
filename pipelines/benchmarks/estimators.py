"""Variance and result of the estimators of the gradient, on random effects in closed form: `make bench-estimators`.

    python -m pipelines.benchmarks.estimators [--seeds 0 1] [--steps 1500]

Gaussian random effects, D = 8, 100 groups of 50 samples, standard deviations 1, two groups a step. Variance is the
trace of the gradient's covariance, in nats^2 per unit of parameter^2, at the same parameters and draws for all: before
training, after a tenth of it, and at the exact posterior. Of batches, it is what draws add to a batch's gradient, and
how batches differ beyond that. The gap is log p(x) minus the evidence lower bound of all data after training, at each
estimator's best rate of a stated grid. Writes build/bench/estimators.json.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from parcellation.elbo import Estimator, elbo, path_gradient, sgvb_a, sgvb_b
from parcellation.encoders import Encoding
from parcellation.family import Family
from parcellation.files import write_json
from parcellation.plates import Batch, gaussian_noise
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit

ESTIMATORS: tuple[Estimator, ...] = (sgvb_a, sgvb_b, path_gradient)
SCHEMES = ("hybrid", "encoded")
RATES = (0.01, 0.03)
GROUPS, REDUCED = 100, 2
BATCHES, DRAWS = 40, 10


def main() -> None:
    """Print both tables and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = variances(options.steps // 10) | gaps(options.seeds, options.steps)
    write_json(options.out / "estimators.json", figures)
    print(f"written: {options.out / 'estimators.json'}")


def problem(seed: int, scheme: str) -> tuple[Batch, Family]:
    """All data, and a family before training."""
    template = GaussianRandomEffects(8, 1.0, 1.0, 1.0)
    batch = Batch.full(template.plates, template.simulate(GROUPS, 50, torch.Generator().manual_seed(seed)))
    torch.manual_seed(seed)
    return batch, Family(template, batch.cards, scheme).double()


def variances(steps: int) -> dict[str, float]:
    """Variance of the hybrid's gradient before training, after some steps, and at the exact posterior."""
    figures = {}
    print(f"{'variance of the gradient':26}{'all data: draws':>18}{'batch of 2: draws':>20}{'batches':>12}")
    for point, prepare in (("start", None), ("middle", lambda b, f: _train(b, f, steps)), ("optimum", set_exact)):
        batch, family = problem(0, "hybrid")
        if prepare is not None:
            prepare(batch, family)
        for estimator in ESTIMATORS:
            row = _variance(estimator, family, batch)
            cells = f"{row['all_draws']:>18.3g}{row['batch_draws']:>20.3g}{row['batches']:>12.3g}"
            print(f"{point:10}{estimator.__name__:16}{cells}", flush=True)
            figures |= {f"variance.{point}.{estimator.__name__}.{name}": value for name, value in row.items()}
    return figures


def _train(batch: Batch, family: Family, steps: int) -> None:
    fit(family, Whole(family.template, batch), Plan(steps, REDUCED, 0.03, 0, {}))


@torch.no_grad()
def set_exact(batch: Batch, family: Family) -> None:
    """The hybrid at the exact posterior: sufficient statistics as encodings, and nothing to correct."""
    template, observed = family.template, batch.seen
    for flow in family.flows.values():
        for parameter in flow.correct.parameters():
            parameter.zero_()
    for parameter in family.encoder.combine["group"].parameters():
        parameter.zero_()  # a group's average, with a precision of its 50 samples
    spread = template.sd_group**2 + template.sd_sample**2 / observed.x.shape[1]
    log_precision = torch.full((1, 1, 8), GROUPS / spread).double().log()
    average = observed.x.mean((0, 1), keepdim=True)
    family.free["population"].set(Encoding(average, log_precision, average.new_zeros(1, 1, 1, 1)))
    evidence = float(template.log_evidence(observed))
    assert abs(elbo(family, batch, _noise(0), draws=3).mean - evidence) < 1e-6


def _variance(estimator: Estimator, family: Family, batch: Batch) -> dict[str, float]:
    whole = torch.stack([_gradient(estimator, family, batch, draw) for draw in range(DRAWS * 10)])
    parts = []
    for number in range(BATCHES):
        order = torch.randperm(GROUPS, generator=torch.Generator().manual_seed(number))
        part = family.template.reduce(batch, {"group": order[:REDUCED].sort().values})
        parts.append(torch.stack([_gradient(estimator, family, part, DRAWS * number + d) for d in range(DRAWS)]))
    parts = torch.stack(parts)  # (batch, draw, parameter)
    within = parts.var(1).mean(0).sum()
    between = parts.mean(1).var(0).sum() - within / DRAWS
    values = dict(all_draws=whole.var(0).sum(), batch_draws=within, batches=between.clamp_min(0))
    return {name: float(value) for name, value in values.items()}


def _gradient(estimator: Estimator, family: Family, batch: Batch, seed: int) -> torch.Tensor:
    family.zero_grad()
    estimator(family, batch, _noise(seed)).tensor.backward()
    return torch.cat([parameter.grad.flatten() for parameter in family.parameters()])


def _noise(seed: int):
    return gaussian_noise(torch.Generator().manual_seed(seed), "cpu", torch.float64)


def gaps(seeds: list[int], steps: int) -> dict[str, float]:
    """Gap to the exact evidence after training, for each scheme and estimator at its best rate."""
    figures = {}
    rates = "".join(f"{f'rate {rate:g}':>12}" for rate in RATES)
    print(f"\n{f'gap after {steps} steps, nats':26}{rates}{'ms a step':>12}")
    for scheme in SCHEMES:
        for estimator in ESTIMATORS:
            start = time.process_time()
            table = np.array([[_gap(seed, scheme, estimator, steps, rate) for seed in seeds] for rate in RATES])
            step_ms = 1000 * (time.process_time() - start) / (table.size * steps)
            best = int(np.nanargmin(table.mean(1)))
            cells = "".join(f"{value:>12.3g}" for value in table.mean(1))
            print(f"{scheme:10}{estimator.__name__:16}{cells}{step_ms:>12.2f}", flush=True)
            row = dict(gap=table[best].mean(), worst=table[best].max(), rate=RATES[best], step_ms=step_ms)
            figures |= {f"gap.{scheme}.{estimator.__name__}.{name}": float(value) for name, value in row.items()}
    return figures


def _gap(seed: int, scheme: str, estimator: Estimator, steps: int, rate: float) -> float:
    batch, family = problem(seed, scheme)
    fit(family, Whole(family.template, batch), Plan(steps, REDUCED, rate, seed, {}), estimator=estimator)
    evidence = float(family.template.log_evidence(batch.seen))
    return evidence - elbo(family, batch, _noise(seed), draws=200).mean


if __name__ == "__main__":
    main()
