"""The amortization gap, and what closes it: `make bench-gap`.

    python -m pipelines.benchmarks.gap [--cohorts var hard unusual]

Cohorts of `make_synth` through the product's store: 200 subjects train, 20 are unseen. *unusual* is *var* where 5 % of
the training subjects differ from the population by twice as much, and 5 % have three times the noise; of the unseen
ones, which are scored, ten are of the first kind and ten of the second.

    encoder     `parcellation infer`                        refine5, 20, 100   the same with --refine
    semi        a model of training.inner_steps 5, refined by as many; its gap is to the best in this model of its own
    iterative   the encoder's answer improved by 5 steps of a network that was trained to emit them

The gap is that of `diagnose`: ELBO of the best answer that is found for a subject and a population draw, less that of
the row's, on common random numbers, averaged over every second unseen subject and two population draws; errors are
Monte-Carlo standard errors of the average. ms: median over subjects of the whole inference of one, 64 draws, by the
clock. Prints a table and writes build/bench/gap.json.
"""

import argparse
import copy
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml

from parcellation.amortization_gap import Estimate
from parcellation.cohort import open_cohort
from parcellation.cohort_source import CohortSource
from parcellation.config import load_study
from parcellation.encoding import Encoding
from parcellation.files import write_json
from parcellation.iterative import Iterative, iterative_loss
from parcellation.plates import Batch
from parcellation.posterior import Posterior
from parcellation.refinement import Answer, LocalProblem, ascent_answer, best_answer, natural_answer
from parcellation.scores import calibration, match_networks
from parcellation.semi_amortized import at_draw
from parcellation.training import Plan, fit
from parcellation.verbs.diagnose import populations
from parcellation.verbs.infer import Inference
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make

INNER = 5  # steps of the semi-amortized training, and of the iterative network's
REFINED = {"encoder": 0, "refine5": 5, "refine20": 20, "refine100": 100}
PLAN = Plan(steps=100, batch=8, learning_rate=0.01, seed=0, subsample={})  # of the iterative network
POPULATIONS, EVALUATION, CHOICE, SEARCH = 2, 256, 256, 15  # draws, draws, draws, natural steps from each of two starts
KIND = 10  # unusual subjects of a kind, among the training subjects and among the unseen ones


class Remembering(Posterior):
    """A posterior that keeps the latest encodings, which the gap is measured of: refining again would take as long."""

    latest = None

    def refined(self, *subject) -> dict[str, Encoding]:
        """As a posterior does."""
        self.latest = super().refined(*subject)
        return self.latest


def main() -> None:
    """Print the table of every cohort and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", nargs="+", choices=("var", "hard", "unusual"), default=["var", "hard", "unusual"])
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for name in options.cohorts:
        for row, found in compare(name).items():
            figures |= {f"{name}.{row}.{key}": float(value) for key, value in found.items()}
        write_json(options.out / "gap.json", figures)
    print(f"written: {options.out / 'gap.json'}")


def compare(name: str) -> dict[str, dict[str, float]]:
    """Figures of every row on one cohort; printed as they come."""
    subjects, settings = synthetic.COHORTS["var" if name == "unusual" else name]
    cohort = make(seed=0, **settings)
    if name == "unusual":
        unusual(cohort)
    labels, rows = cohort["z"][-synthetic.UNSEEN :], {}
    print(f"\n{name}\n{'':12}" + "".join(f"{heading:>11}" for heading, _, _ in COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.prepare(cohort, subjects, Path(folder))
        del cohort
        for trained in (_plain, _semi):
            for row, found in of_model(*trained(study), labels).items():
                rows[row] = found | {"closed": 1 - found["gap"] / rows.get("encoder", found)["gap"]}
                line = "".join(
                    f"{format(scale * rows[row][key], style):>11}" for key, (_, style, scale) in _CELLS.items()
                )
                print(f"{row:12}{line}", flush=True)
    return rows


def unusual(cohort: dict) -> None:
    """Change the first training subjects and the unseen ones: half of them far from the population, half noisy."""
    first, count = np.arange(len(cohort["X"])), synthetic.UNSEEN
    unseen = first - (len(first) - count)
    far = (first < KIND) | ((unseen >= 0) & (unseen < count // 2))
    noisy = ((first >= KIND) & (first < 2 * KIND)) | (unseen >= count // 2)
    for s in np.flatnonzero(far | noisy):
        z, X = cohort["z"][s], cohort["X"][s]
        if far[s]:
            X += (cohort["mu_sub"][s] - cohort["mu_group"])[z].astype(X.dtype)
        else:
            X += 2 * (X - cohort["mu_ses"][s][:, z].astype(X.dtype))


def _plain(study: Path) -> tuple[Inference, dict[str, Remembering]]:
    """The default model: by the encoder, refined, and by the iterative network."""
    synthetic.trained(study)
    run = Inference.of(load_study(study))
    posteriors = {row: Remembering(run.model, run.posterior.draws, steps) for row, steps in REFINED.items()}
    network = Iterative(run.model.family, INNER)
    fit(network, _training(run), PLAN, estimator=iterative_loss)
    return run, posteriors | {"iterative": Remembering(run.model, run.posterior.draws, INNER, network.rule)}


def _semi(study: Path) -> tuple[Inference, dict[str, Remembering]]:
    """A model that is trained through refinement, and refined by as many steps."""
    content = yaml.safe_load(study.read_text())
    content["training"]["inner_steps"] = INNER
    study.write_text(yaml.safe_dump(content))
    synthetic.trained(study)
    run = Inference.of(load_study(study))
    return run, {"semi": Remembering(run.model, run.posterior.draws, run.posterior.refinement)}


def _training(run: Inference) -> CohortSource:
    cohort = open_cohort(run.cohort.store, run.cohort.feature_map, run.model.details["subjects"])
    return CohortSource(run.posterior.template, cohort, torch.device("cpu"))


def of_model(run: Inference, posteriors: Mapping[str, Remembering], labels: np.ndarray) -> dict[str, dict[str, float]]:
    """Gap, its error, accuracy, NLL and milliseconds of some ways to infer the unseen subjects by one model."""
    unseen = run.cohort.subjects[-synthetic.UNSEEN :]
    probability = {row: [] for row in posteriors}
    seconds, gaps = {row: [] for row in posteriors}, {row: [] for row in posteriors}
    for posterior in posteriors.values():  # the first of all pays for what is set up once
        replace(run, posterior=posterior).answer(unseen[0])
    for number, subject in enumerate(unseen):
        for row, posterior in posteriors.items():  # in turn, so that what else the machine does falls on all
            start = time.perf_counter()
            probability[row].append(replace(run, posterior=posterior).answer(subject).probability)
            seconds[row].append(time.perf_counter() - start)
        if number % 2 == 0:
            for row, found in gaps_of(run, posteriors, subject).items():
                gaps[row] += found
    return {
        row: {
            "gap": sum(one.value for one in gaps[row]) / len(gaps[row]),
            "gap_error": math.sqrt(sum(one.error**2 for one in gaps[row])) / len(gaps[row]),
            **{key: calibration(match_networks(np.stack(probability[row]), labels), labels)[key] for key in SCORES},
            "ms": 1000 * float(np.median(seconds[row])),
        }
        for row in posteriors
    }


def gaps_of(run: Inference, posteriors: Mapping[str, Remembering], subject: str) -> dict[str, list[Estimate]]:
    """Gap of every row at some population draws, to the best answer there, of the subject just inferred; in float64."""
    sessions, template = tuple(run.cohort.sessions(subject)), run.posterior.template
    observed, family = run.observed(subject, sessions), copy.deepcopy(run.posterior.family).double()
    batch = Batch.full(template.plates, observed.to("cpu", torch.float32))
    encodings = {
        row: one.latest if one.refinement else one.refined(subject, sessions, batch) for row, one in posteriors.items()
    }
    gaps = {row: [] for row in posteriors}
    for number, population in enumerate(populations(run, POPULATIONS)):
        doubled = observed.to("cpu", torch.float64)
        problem = LocalProblem.seeded(template.plates, doubled, population, run.model.digest, subject, number)
        at = {row: at_draw(one, number) for row, one in encodings.items()}
        rows = {
            row: Answer(family, {name: one.map(torch.Tensor.double) for name, one in each.items()}, row)
            for row, each in at.items()
        }
        ascended = ascent_answer(problem, next(iter(rows.values())))
        found = [natural_answer(problem, start, SEARCH) for start in (ascended, list(rows.values())[-1])]
        best = best_answer(problem, [*rows.values(), ascended, *found], CHOICE).bounds(problem, "evaluate", EVALUATION)
        for row, answer in rows.items():
            gaps[row].append(Estimate.of(best - answer.bounds(problem, "evaluate", EVALUATION)))
    return gaps


SCORES = ("accuracy", "nll")
COLUMNS = (("gap", ".3f", 1), ("error", ".3f", 1), ("closed %", ".0f", 100), ("accuracy", ".4f", 1), ("NLL", ".4f", 1))
COLUMNS = (*COLUMNS, ("ms", ".0f", 1))
_CELLS = dict(zip(("gap", "gap_error", "closed", *SCORES, "ms"), COLUMNS, strict=True))


if __name__ == "__main__":
    main()
