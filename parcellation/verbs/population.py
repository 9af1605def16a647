"""How subjects are inferred: with the trained model's population or that of the cohort itself, refined or not.

A re-inferred population is kept once found; the latest choice is remembered, for what is made of the answers.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from parcellation.cohort import Cohort
from parcellation.cohort_source import CohortSource
from parcellation.encoding import Encoding
from parcellation.errors import BadData, InputMissing
from parcellation.files import unit_lock, write_json
from parcellation.model_file import TrainedModel
from parcellation.population import check_size, identity, reinfer, with_population
from parcellation.tensor_file import keep_arrays, kept_arrays
from parcellation.verbs.warned import keeping
from parcellation.verbs.workspace import Workspace

log = logging.getLogger(__name__)

FIXED, REINFERRED = "fixed", "reinferred"
KINDS = (FIXED, REINFERRED)


@dataclass(frozen=True)
class Population:
    """What is known of the population that answers are given: its kind, and the subjects that it was found in.

    model: digest of the trained model; subjects: those it was trained on, or the whole new cohort; refinement: steps
    that improve an answer given the population.
    """

    kind: str
    model: str
    subjects: int
    refinement: int = 0

    def provenance(self) -> dict:
        """What sidecars say of it; of refinement only where there is any."""
        said = {"Model": self.model[:16], "Population": self.kind, "PopulationSubjects": self.subjects}
        return said | ({"RefinementSteps": self.refinement} if self.refinement else {})

    def sentence(self) -> str:
        """What the report says of it."""
        steps = f"{self.refinement} step{'s' if self.refinement > 1 else ''}"
        refined = f" Answers were refined by {steps} each." if self.refinement else ""
        if self.kind == FIXED:
            return f"The population is the model's, of its {self.subjects} training subjects.{refined}"
        return (
            f"The population was inferred again from all {self.subjects} subjects of this cohort, without training; "
            f"the answer of a subject depends on who else is in the cohort.{refined}"
        )


def chosen(workspace: Workspace, asked: str | None = None) -> str:
    """The kind that was asked for, or else the one of the latest answers: what a report is about."""
    return asked if asked is not None else _remembered(workspace).get("population", FIXED)


def chosen_refinement(workspace: Workspace, model: TrainedModel, asked: int | None, latest: bool) -> int:
    """Steps of refinement: those asked for, those of the latest answers if these are meant, or else the model's own.

    A model's own are the inner steps that it was trained through.
    """
    own = model.details["study"]["training"].get("inner_steps", 0)  # models of before have no such setting
    return asked if asked is not None else _remembered(workspace).get("refinement", own) if latest else own


def remember(workspace: Workspace, population: Population) -> None:
    """Keep how answers are given from now on."""
    write_json(_choice(workspace), {"population": population.kind, "refinement": population.refinement})


def _remembered(workspace: Workspace) -> dict:
    try:
        return dict(json.loads(_choice(workspace).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _choice(workspace: Workspace) -> Path:
    return workspace.posteriors / "population.json"


def population_model(
    workspace: Workspace, model: TrainedModel, cohort: Cohort, kind: str, look_only: bool = False
) -> tuple[TrainedModel, Population]:
    """The model with the population that subjects are to be given, and what is to be said of it.

    A re-inferred population is that of everybody in the cohort, whoever is inferred, and kept: jobs that run at once
    wait for the first of them. look_only: infer none anew; the trained model is returned where none is kept.
    Raises UsageError for a cohort of too few, and BadData when a subject's fingerprints cannot be read: whose
    population it is may not depend on that.
    """
    if kind == FIXED:
        return model, Population(kind, model.digest, len(model.details["subjects"]))
    check_size(len(cohort.subjects))
    population = Population(kind, model.digest, len(cohort.subjects))
    digest = identity(model, _units(cohort))
    path = workspace.work / "population.safetensors"
    if look_only:
        known = read_population(path, digest)
        return model if known is None else with_population(model, known, digest), population
    with unit_lock(workspace.posteriors / "locks" / "population.lock", wait=True):
        known = read_population(path, digest)
        if known is not None:
            return with_population(model, known, digest), population
        log.info("population: inferred again from %d subjects", len(cohort.subjects))
        device = next(model.family.parameters()).device
        with keeping(workspace.warned / "population.json"):
            result = reinfer(model, CohortSource(model.family.template, cohort, device), digest)
        write_population(path, result.family.fixed, digest)
    return result, population


def _units(cohort: Cohort) -> list[tuple[str, str, str]]:
    """Subject, session and checksum of everything that the cohort has."""
    return [
        (subject, session, cohort.store.header(subject, session)["checksum"])
        for subject in cohort.subjects
        for session in cohort.sessions(subject)
    ]


def write_population(path: Path, encodings: dict[str, Encoding], digest: str) -> None:
    """Keep encodings of population sites, whole."""
    tensors = {
        f"{name}.{part}": value.detach().cpu().numpy()
        for name, encoding in encodings.items()
        for part, value in encoding.parts().items()
    }
    keep_arrays(path, tensors, "digest", digest)


def read_population(path: Path, digest: str) -> dict[str, Encoding] | None:
    """The kept encodings by site, if they are those of this digest; None when not, or damaged."""
    try:
        found = kept_arrays(path, "digest", digest)
        if found is None:
            return None
        parts: dict[str, dict[str, torch.Tensor]] = {}
        for key, array in found[0].items():
            name, part = key.split(".")
            parts.setdefault(name, {})[part] = torch.from_numpy(array)
        return {name: Encoding(**tensors) for name, tensors in parts.items()}
    except (BadData, InputMissing, ValueError, TypeError):
        return None
