"""`diagnose`: what subjects lose by an encoder, and what by the family of approximations; kept, one at a time."""

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from tqdm import tqdm

from parcellation.amortization_gap import Budget, Diagnosis, diagnose_member
from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, NothingSelected
from parcellation.family import Family
from parcellation.files import unit_lock, writable_folder
from parcellation.interruption import told_to_end
from parcellation.plates import Batch, seeded
from parcellation.posterior import SubjectPosterior
from parcellation.refinement import Answer, LocalProblem
from parcellation.semi_amortized import at_draw
from parcellation.verbs.gaps import FOLDER, gap_file, keep_gap, kept_gap, write_gaps
from parcellation.verbs.infer import Inference
from parcellation.verbs.workspace import Selection

log = logging.getLogger(__name__)

BUDGET = Budget()
SAMPLE = 20  # subjects that are diagnosed where nobody is named


def diagnose(study: Study, selection: Selection, everybody: bool = False) -> str:
    """Diagnose inferred subjects; returns the lines to print. Raises InputMissing when nobody is inferred yet.

    everybody: all of them, where it would be a sample.
    """
    run = Inference.of(study, look_only=True)
    answers = {answer.subject: answer for answer in run.known()}
    subjects, lines = selected(run, list(answers), selection.participants, everybody)
    if selection.dry_run:
        return "\n".join([*lines, *(f"would diagnose subject {subject}" for subject in subjects)])
    writable_folder(study.outputs.directory)
    before, faults = 0, []
    for subject in tqdm(subjects, desc="diagnose", unit="subject", disable=None):
        try:
            before += not _diagnosed(run, answers[subject])
        except BadData as error:
            if told_to_end():
                raise
            faults.append(f"left out: subject {subject}: {error}")
            log.warning("%s", faults[-1])
    if len(faults) == len(subjects) or (faults and selection.strict):
        raise BadData("\n".join([f"{len(faults)} of {len(subjects)} subjects could not be diagnosed", *faults]))
    known = {subject: found for subject, answer in answers.items() if (found := run.gap(answer)) is not None}
    write_gaps(study.outputs.directory, known, asdict(BUDGET))
    run.describe()
    old = f", {before} of them before" if before else ""
    done = f"{len(subjects) - len(faults)} subjects diagnosed{old}: {study.outputs.directory / FOLDER}"
    return "\n".join([*lines, done, *_summary(known), *faults])


def selected(
    run: Inference, there: Sequence[str], named: Sequence[str] | None, everybody: bool
) -> tuple[list[str], list[str]]:
    """Subjects to diagnose, of those inferred, and what to say of the choice: a sample, where many are not named."""
    if not there:
        raise InputMissing(f"{run.workspace.posteriors}: nobody is inferred yet; run `parcellation infer` first")
    if named is not None:
        wanted = [name.removeprefix("sub-") for name in named]
        if unknown := [name for name in wanted if name not in there]:
            raise NothingSelected(f"not inferred with this model: subject {', '.join(unknown[:5])}; run `infer` first")
        return wanted, []
    if everybody or len(there) <= SAMPLE:
        return list(there), []
    order = torch.randperm(len(there), generator=seeded(run.model.digest, "sample"))
    chosen = [there[position] for position in order[:SAMPLE].sort().values.tolist()]
    return chosen, [f"a sample of {SAMPLE} of {len(there)} subjects, drawn at random; --all diagnoses everybody"]


def _diagnosed(run: Inference, answer: SubjectPosterior) -> bool:
    """Diagnose a subject and keep it; returns whether it was not kept before."""
    key, subject = run.key(answer.subject, answer.sessions), answer.subject
    if kept_gap(run.workspace, subject, key, repr(BUDGET)) is not None:
        return False
    with unit_lock(gap_file(run.workspace, subject).parent / "locks" / f"sub-{subject}.lock"):
        start = time.perf_counter()
        found = of_subject(run, subject, answer.sessions, BUDGET)
        gap = found.average("amortization_gap")
        seconds = time.perf_counter() - start
        text = "subject %s: amortization gap at least %.2f (error %.2f) nats, %.0f seconds"
        log.info(text, subject, gap.value, gap.error, seconds)
        keep_gap(run.workspace, subject, key, repr(BUDGET), found.to_json())
    return True


def of_subject(run: Inference, subject: str, sessions: tuple[str, ...], budget: Budget) -> Diagnosis:
    """The diagnosis of a subject's answer from these sessions, in double precision: gaps are small beside evidences."""
    posterior = run.posterior
    family, observed = copy.deepcopy(posterior.family).double(), run.observed(subject, sessions)
    observed = observed.to(posterior.blank.x.device, torch.float64)
    problems = [
        LocalProblem.seeded(posterior.template.plates, observed, population, run.model.digest, subject, number)
        for number, population in enumerate(populations(run, budget.population_draws))
    ]
    given = _refined(run, subject, sessions, problems, family) if posterior.refinement else None
    return diagnose_member(family, problems, budget, lambda values: posterior.labels(values, observed), given)


def _refined(
    run: Inference, subject: str, sessions: tuple[str, ...], problems: list[LocalProblem], family: Family
) -> list[Answer]:
    """The answers in use at the problems' population draws, the first ones of the posterior's."""
    x = run.posterior.blank.x
    observed = run.observed(subject, sessions).to(x.device, x.dtype)
    encodings = run.posterior.refined(subject, sessions, Batch.full(run.posterior.template.plates, observed))
    at = [at_draw(encodings, number) for number in range(len(problems))]
    return [
        Answer(family, {name: one.map(torch.Tensor.double) for name, one in each.items()}, "as refined") for each in at
    ]


def populations(run: Inference, draws: int) -> list[dict[str, torch.Tensor]]:
    """The first of the draws of the population that everybody's maps are made with, float64."""
    sites, count = run.posterior.population, min(draws, run.posterior.draws)
    return [{name: value[number].double() for name, value in sites.items()} for number in range(count)]


def _summary(known: dict[str, dict]) -> list[str]:
    """The cohort's gaps in one line, and whom to look at."""
    gaps = sorted(found["averages"]["amortization_gap"]["value"] for found in known.values())
    lines = [f"amortization gap (lower bound), nats: median {gaps[len(gaps) // 2]:.2f}, largest {gaps[-1]:.2f}"]
    return lines + [f"subject {name}: {'; '.join(one['flags'])}" for name, one in known.items() if one["flags"]]
