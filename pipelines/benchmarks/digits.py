"""Auto-encoding variational Bayes on scikit-learn's handwritten digits, 8 x 8 pixels: `make bench-digits`.

    python -m pipelines.benchmarks.digits [--steps 4000] [--draws 1000]

1500 digits train, 297 are unseen. With a linear Gaussian decoder (probabilistic principal components, grey pixels) what
is learned is held against the greatest evidence in closed form. With a Bernoulli decoder (pixels above half of full
ink) there is none: the evidence lower bound stands beside the importance-weighted evidence, with its standard error and
effective number of draws, and beside the evidence of independent pixels. All in nats a digit. Writes
build/bench/digits.json.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from parcellation.elbo import elbo
from parcellation.family import Family
from parcellation.files import write_json
from parcellation.importance import importance_evidence
from parcellation.plates import Batch, Observed, gaussian_noise
from parcellation.templates.auto_encoder import AutoEncoder, greatest_evidence
from parcellation.training import Plan, Whole, fit

TRAINED = 1500
LATENTS = (2, 5, 10, 20)
RATES = {"linear_gaussian": 0.03, "bernoulli": 0.006}  # at 0.01 two dimensions collapse onto their prior


def main() -> None:
    """Print both tables and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = linear_gaussian(options.steps) | bernoulli(options.steps, options.draws)
    write_json(options.out / "digits.json", figures)
    print(f"written: {options.out / 'digits.json'}")


def pixels() -> tuple[torch.Tensor, torch.Tensor]:
    """Ink of every pixel in [0, 1], of the digits for training and of the unseen, shape (N, 64)."""
    x = torch.from_numpy(load_digits().data) / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:TRAINED]], x[order[TRAINED:]]


def train(decoder: str, x: torch.Tensor, latents: int, steps: int) -> Family:
    """A trained auto-encoder of these pixels."""
    torch.manual_seed(0)
    template = AutoEncoder(x.shape[1], latents, decoder)
    batch = whole(x)
    family = Family(template, batch.cards, "encoded").to(x.dtype)
    fit(family, Whole(template, batch), Plan(steps, 100, RATES[decoder], 0, {}))
    return family


def whole(x: torch.Tensor) -> Batch:
    """All these pixels as the data of a model."""
    return Batch.full(AutoEncoder.plates, Observed(x, torch.ones(len(x), dtype=torch.bool)))


def noise(x: torch.Tensor):
    """The same noise for every model."""
    return gaussian_noise(torch.Generator().manual_seed(0), "cpu", x.dtype)


@torch.no_grad()
def linear_gaussian(steps: int) -> dict[str, float]:
    """What probabilistic principal components lose against the greatest evidence."""
    figures, x = {}, pixels()[0]
    print(f"{'linear Gaussian':18}{'ELBO':>10}{'evidence':>10}{'greatest':>10}{'short of it by':>16}")
    for latents in LATENTS:
        with torch.enable_grad():
            family = train("linear_gaussian", x, latents, steps)
        bound = elbo(family, whole(x), noise(x), draws=20).mean / len(x)
        evidence = float(family.template.generative.log_evidence(x).mean())
        best = float(greatest_evidence(x, latents)) / len(x)
        print(
            f"{latents:2} dimensions     {bound:10.3f}{evidence:10.3f}{best:10.3f}{best - evidence:16.3f}", flush=True
        )
        row = dict(elbo=bound, evidence=evidence, greatest=best)
        figures |= {f"linear_gaussian.{latents}.{name}": value for name, value in row.items()}
    return figures


def bernoulli(steps: int, draws: int) -> dict[str, float]:
    """Bounds of the evidence of unseen and of trained digits."""
    figures = {}
    x, unseen = ((part > 0.5).float() for part in pixels())
    share = (x.sum(0) + 0.5) / (len(x) + 1)
    alone = float((unseen * share.log() + (1 - unseen) * (-share).log1p()).sum(1).mean())
    print(f"\nBernoulli; independent pixels {alone:.3f}")
    print(f"{'':25}{'ELBO':>10}{'importance-weighted':>22}{'effective draws: least, median':>33}")
    for latents in LATENTS:
        family = train("bernoulli", x, latents, steps)
        for name, part in (("trained", x[: len(unseen)]), ("unseen", unseen)):
            bound = elbo(family, whole(part), noise(part), draws=50).mean / len(part)
            got = importance_evidence(family, whole(part), noise(part), draws)
            evidence, error = (
                float(got.log_evidence.mean()),
                float(got.standard_error.square().sum().sqrt()) / len(part),
            )
            effective = got.effective_draws
            least, median = float(effective.min()), float(effective.median())
            print(
                f"{latents:2} dimensions, {name:9}{bound:10.3f}{evidence:14.3f} +- {error:.3f}"
                f"{f'{least:.0f}, {median:.0f} of {draws}':>33}",
                flush=True,
            )
            row = dict(elbo=bound, evidence=evidence, error=error, least_effective=least, median_effective=median)
            figures |= {f"bernoulli.{latents}.{name}.{key}": value for key, value in row.items()}
    return figures | {"bernoulli.independent": alone}


if __name__ == "__main__":
    main()
