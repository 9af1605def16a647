"""Simulation-based calibration of the posteriors, over data sets drawn from the prior: `make bench-sbc`.

    python -m pipelines.benchmarks.sbc [--only parcellation.narrow] [--gre 500] [--parcellation 200]

Gaussian random effects (`unit` and `paper` standard deviations; 20 groups of 20 samples in 2 dimensions):

    exact       draws from the closed-form posterior
    narrow, wide, shifted   the same with .7 or 1.4 of their sd, or moved by half an sd: what must be refused
    prior       draws from the prior: only the rank of the log likelihood can tell
    pavi_e_sa   PAVI-E trained over many other data sets of other sizes, applied without training
    hybrid      trained on every data set by itself

Functional parcellation (8 subjects, 2 sessions, 60 vertices, 8 features, 2 networks far apart, full data):

    settled     every site encoded, the population settled on all subjects, no training
    hybrid      the study's way: coordinate ascent, then training, on every data set by itself

with the prior as it is shipped, and with a narrow one, of scales that so few data can tell. Truth and inference always
have the same prior. Prints for every site p of the uniformity of its ranks (an exact posterior is refused at 1 %), the
factor of its sd and the shift (in sd) that would repair it, and the coverage of central intervals, all with standard
errors over data sets; writes build/bench/sbc.json, where the histograms are too.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parcellation.data_sets import PriorDataSets
from parcellation.family import Family
from parcellation.files import write_json
from parcellation.networks import constant
from parcellation.plates import Batch, Observed, Template, Values, gaussian_noise, seeded
from parcellation.population import nearest
from parcellation.sbc import LEVELS, Calibration, judge, ranks
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit, settle_population, warm_start
from pipelines.benchmarks.side_by_side import fit_all

GRE = {"unit": (1.0, 1.0, 1.0), "paper": (1.0, 0.2, 0.05)}
SIZES = {"group": (20, 20), "sample": (20, 20)}
TRAINED_SIZES = {"group": (2, 50), "sample": (10, 100)}
PARCELLATION = {"subject": (8, 8), "session": (2, 2), "vertex": (60, 60)}
NETWORKS, FEATURES, FRAMES = 2, 8, 400.0
# Means and sd's: differences between people and between sessions that are seen in the noise of 30 vertices.
NARROW = {"log_kappa": (-0.3, 0.3), "slope": (0.0, 1.0), "log_epsilon": (-1.2, 0.4), "log_sigma": (-1.5, 0.4)}
DRAWS = 999
CHUNK = 100  # data sets side by side
SHIPPED_STEPS, RATE = 200, 0.02  # as in a study

Answer = Callable[[int, Batch, int], dict[str, Tensor]]  # place of the data set, data, number of draws


def main() -> None:
    """Print the table of every posterior and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="what the names of the rows have to begin with")
    parser.add_argument("--gre", type=int, default=500, help="data sets")
    parser.add_argument("--parcellation", type=int, default=200, help="data sets")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {"levels": list(LEVELS)}
    for name, found in rows(options.only, options.gre, options.parcellation):
        print(f"\n{name}\n{table(found)}", flush=True)
        for site, one in found.items():
            figures |= {f"{name}.{site}.{key}": value for key, value in one.figures().items()}
        write_json(options.out / "sbc.json", figures)
    share = swapped(parcellation_source(NARROW, 1), options.parcellation)
    print(f"\nprior draws whose networks lie nearer to each other's reference than to their own: {share:.2%}")
    write_json(options.out / "sbc.json", figures | {"parcellation.swapped": share})
    print(f"written: {options.out / 'sbc.json'}")


def rows(only: str, gre: int, parcellation: int) -> Iterator[tuple[str, dict[str, Calibration]]]:
    """Name and diagnostics of every posterior whose name begins with `only`."""
    planned: dict[str, Callable[[], dict[str, Calibration]]] = {}
    for setting, sds in GRE.items():
        source = PriorDataSets(GaussianRandomEffects(2, *sds), SIZES, 1)
        for method, answers in GRE_METHODS.items():
            planned[f"gre.{setting}.{method}"] = lambda s=source, a=answers: calibrations(s, a(s, gre), gre)
    for prior, narrow in (("shipped", {}), ("narrow", NARROW)):
        source = parcellation_source(narrow, 1)
        for method, answers in PARCELLATION_METHODS.items():
            planned[f"parcellation.{prior}.{method}"] = lambda s=source, a=answers: calibrations(
                s, a(s, parcellation), parcellation
            )
    for name, row in planned.items():
        if name.startswith(only):
            yield name, row()


def calibrations(source: PriorDataSets, answer: Answer, count: int, draws: int = DRAWS) -> dict[str, Calibration]:
    """Diagnostics of all sites and of the log likelihood, over so many data sets."""
    rng, found = np.random.default_rng(0), {}
    for place in range(count):
        truth, whole = source.drawn(place)
        drawn = quantities(source.template, answer(place, whole.full, draws), whole.full.seen)
        for name, value in quantities(source.template, truth, whole.full.seen).items():
            one = ranks(value.double().numpy(), drawn[name].double().numpy(), rng)
            found.setdefault(name, []).append(one)
    return {name: judge(np.stack(ranked), draws) for name, ranked in found.items()}


def quantities(template: Template, values: Values, observed: Observed) -> dict[str, Tensor]:
    """What is ranked: every element of every site, and the log likelihood."""
    plates = tuple(range(-len(template.plates), 0))
    values = {site.name: values[site.name].to(observed.x) for site in template.sites}
    return values | {"log_likelihood": template.log_likelihood(values, observed).sum(plates)}


@torch.no_grad()
def draws_of(family: Family, place: int, batch: Batch, draws: int) -> dict[str, Tensor]:
    """Independent draws from q."""
    noise = gaussian_noise(seeded("draws", place), "cpu", batch.seen.x.dtype)
    return family.draw(batch, noise, path=False, draws=(draws,)).values


# Gaussian random effects


def exact(source: PriorDataSets, count: int) -> Answer:
    """Draws from the exact joint posterior."""
    return lambda place, batch, draws: source.template.posterior_draws(
        batch.seen.to("cpu", torch.float64), gaussian_noise(seeded("draws", place), "cpu", torch.float64), draws
    )


def distorted(factor: float, shift: float) -> Callable[[PriorDataSets, int], Answer]:
    """The exact posterior's draws about their means with another sd, moved by so many sd's."""

    def answers(source: PriorDataSets, count: int) -> Answer:
        def answer(place: int, batch: Batch, draws: int) -> dict[str, Tensor]:
            right = exact(source, count)(place, batch, draws)
            return {name: _distort(values, factor, shift) for name, values in right.items()}

        return answer

    return answers


def _distort(draws: Tensor, factor: float, shift: float) -> Tensor:
    mean = draws.mean(0)
    return mean + factor * (draws - mean) + shift * draws.std(0)


def from_the_prior(source: PriorDataSets, count: int) -> Answer:
    """Draws from the prior: the data are not looked at."""

    def answer(place: int, batch: Batch, draws: int) -> dict[str, Tensor]:
        one = gaussian_noise(seeded("draws", place), "cpu", torch.float64)
        return source.template.draw(batch.seen, lambda name, shape: one(name, (draws, *shape)))

    return answer


def amortized_effects(source: PriorDataSets, count: int, steps: int = 1000) -> Answer:
    """PAVI-E trained over data sets of other sizes."""
    others = PriorDataSets(source.template, TRAINED_SIZES, source.seed + 1, ("sample",))
    family = _made(Family, source.template, others.cards, "encoded")
    fit(family, others, Plan(steps, others.cards["group"], RATE, 0, {}))
    return lambda place, batch, draws: draws_of(family, place, batch, draws)


def hybrid_effects(source: PriorDataSets, count: int, steps: int = 500) -> Answer:
    """Hybrid families, each trained on its data set."""

    def families(sources: Sequence[Whole]) -> list[Family]:
        made = [_made(Family, source.template, one.cards, "hybrid") for one in sources]
        fit_all(made, sources, Plan(steps, SIZES["group"][1], RATE, 0, {}))
        return made

    return _one_by_one(source, count, families)


# Functional parcellation


def parcellation_source(priors: dict[str, tuple[float, float]], seed: int) -> PriorDataSets:
    """Data sets of the parcellation template, some of its scales with another prior (mean, sd)."""
    reference = torch.randn(NETWORKS, FEATURES, generator=seeded("reference"))
    template = FunctionalParcellation(reference, FRAMES)
    template.sites = tuple(
        replace(site, prior=_constant(priors[site.name], site.event)) if site.name in priors else site
        for site in template.sites
    )
    return PriorDataSets(template, PARCELLATION, seed, covariates=run_lengths)


def swapped(source: PriorDataSets, count: int) -> float:
    """Share of data sets whose profiles would have less prior cost under other names: labels could switch there."""
    reference, places = source.template.reference.double(), list(range(NETWORKS))
    drawn = [source.drawn(place)[0]["mu"] for place in range(count)]
    return float(np.mean([nearest(reference[None, None, None], mu) != places for mu in drawn]))


def _constant(prior: tuple[float, float], event: tuple[int, ...]) -> Callable[[Values, Observed], tuple]:
    return lambda values, observed: constant(observed, prior, event)


def run_lengths(mask: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Frames of every session: half, once or twice the reference length."""
    doubled = torch.randint(-1, 2, mask.shape[:2], generator=generator).double()
    return {"frames": (FRAMES * 2**doubled)[..., None]}


def settled(source: PriorDataSets, count: int) -> Answer:
    """Every site encoded, by an encoder without weights, and flows as they are made."""

    def answer(place: int, batch: Batch, draws: int) -> dict[str, Tensor]:
        family = _made(Family, source.template, batch.cards, "encoded")
        whole = Whole(source.template, batch)
        settle_population(family, whole, batch.cards["subject"], warm_start(family, whole, batch.cards["subject"]))
        return draws_of(family, place, batch, draws)

    return answer


def hybrid(source: PriorDataSets, count: int, steps: int = SHIPPED_STEPS) -> Answer:
    """Hybrid families, each by coordinate ascent and training on its data set, as `parcellation train` does it."""

    def families(sources: Sequence[Whole]) -> list[Family]:
        made = [_made(Family, source.template, one.cards, "hybrid") for one in sources]
        for family, one in zip(made, sources, strict=True):
            warm_start(family, one, one.cards["subject"])
        fit_all(made, sources, Plan(steps, PARCELLATION["subject"][1], RATE, 0, {}))
        return made

    return _one_by_one(source, count, families)


def _one_by_one(source: PriorDataSets, count: int, families: Callable[[Sequence[Whole]], list[Family]]) -> Answer:
    """Families of `count` data sets, made so many at a time, and draws from each."""
    made: list[Family] = []
    for start in range(0, count, CHUNK):
        made += families([source.at(place) for place in range(start, min(start + CHUNK, count))])
    return lambda place, batch, draws: draws_of(made[place], place, batch, draws)


def _made(make: Callable, *arguments) -> Family:
    """A family whose first weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments)


GRE_METHODS = {
    "exact": exact,
    "narrow": distorted(0.7, 0.0),
    "wide": distorted(1.4, 0.0),
    "shifted": distorted(1.0, 0.5),
    "prior": from_the_prior,
    "pavi_e_sa": amortized_effects,
    "hybrid": hybrid_effects,
}
PARCELLATION_METHODS = {"settled": settled, "hybrid": hybrid}


def table(found: dict[str, Calibration]) -> str:
    """One line a quantity."""
    covered = "".join(f"{f'{level:.0%}':>16}" for level in LEVELS)
    lines = [f"{'':20}{'p':>9}{'factor of sd':>16}{'shift':>16}{covered}  verdict"]
    for name, one in found.items():
        width = one.width
        pairs = [(width.factor, width.factor_error), (width.shift, width.shift_error)]
        pairs += zip(one.coverage, one.coverage_errors, strict=True)
        cells = "".join(f"{f'{value:.3f} ± {error:.3f}':>16}" for value, error in pairs)
        lines.append(f"  {name:18}{one.p:>9.2g}{cells}  {one.verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
