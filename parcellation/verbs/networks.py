"""`networks`: how well people are predicted by models of several numbers of networks, and what that supports.

Subjects are left out in folds. For every number of networks and every fold a model is fitted to the others, as `train`
begins: by coordinate ascent, with label power and map, which gradient steps then hardly move. The subjects left out are
scored by `held_out_density`. A fit is kept as soon as it is finished, and one that fails takes no other down.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from parcellation.charts import density_curve
from parcellation.cohort import fit_features, open_cohort
from parcellation.cohort_source import CohortSource
from parcellation.config import Study
from parcellation.errors import BadData, ParcellationError, UsageError
from parcellation.files import whole_file, writable_folder, write_json
from parcellation.held_out_density import held_out_density
from parcellation.interruption import told_to_end
from parcellation.maps import write_table
from parcellation.plates import template_class
from parcellation.store import Store
from parcellation.verbs.gaps import FOLDER
from parcellation.verbs.index import cohort_units
from parcellation.verbs.topography import check_topography
from parcellation.verbs.train import fitted, whom_to_train_on
from parcellation.verbs.workspace import Ground, Selection, Workspace

log = logging.getLogger(__name__)

NUMBERS = tuple(range(2, 11))
FOLDS = 5
SUBJECTS = 100  # spread over the cohort: enough for differences between numbers
LEAST = 3  # of whom one is left out
COLUMNS = {
    "networks": "Number of networks",
    "subjects": "Subjects left out of the fits that they are scored by",
    "density": "Mean log predictive density of a value of their fingerprints, nats, in the units of the features: "
    "given half of the person's sessions; given the population where nobody has two sessions",
    "density_population": "The same given the population alone",
    "less_than_best": "Mean over subjects of how much lower the density is than at the best number, nats a value",
    "less_error": "Its standard error over subjects",
    "failed": "Why there is no density",
}


@dataclass(frozen=True)
class Scores:
    """Densities at one number of networks by subject, or why there are none."""

    networks: int
    population: dict[str, float]
    person: dict[str, float]
    failed: str = ""


def networks(study: Study, selection: Selection, numbers: Sequence[int] | None = None) -> str:
    """Score these numbers of networks (2 to 10, if None); returns the lines to print, the advice last.

    Raises UsageError for a study that applies a trained model, and for numbers below 2; BadData with fewer than three
    subjects, or when every number fails.
    """
    if study.model.file is not None:
        raise UsageError(f"networks: this study applies the model {study.model.file}, which has a number already")
    if "session" in template_class(study.model.template).reducible:
        raise UsageError(
            f"networks: expected a model.template with one label a vertex, got {study.model.template}, which has "
            "labels of each session: these cannot be scored"
        )
    numbers = NUMBERS if numbers is None else numbers
    if wrong := [number for number in numbers if number < 2]:
        raise UsageError(f"networks: expected numbers of 2 or more, got {wrong[0]}")
    workspace = Workspace(study)
    ground = workspace.ground()
    check_topography(study, ground.parcels)
    store = workspace.store(ground, cohort_units(study, workspace))
    people = whom_to_train_on(study, workspace, store)
    people = [people[at] for at in np.unique(np.linspace(0, len(people) - 1, min(SUBJECTS, len(people))).astype(int))]
    if len(people) < LEAST:
        raise BadData(f"networks: expected at least {LEAST} subjects, of whom one is left out, got {len(people)}")
    folds = [people[first::FOLDS] for first in range(min(FOLDS, len(people)))]
    numbers = sorted(set(numbers))
    if selection.dry_run:
        return "\n".join(f"would fit {k} networks {len(folds)} times to {len(people)} subjects" for k in numbers)
    writable_folder(study.outputs.directory)
    torch.set_num_threads(study.training.threads)
    scores = []
    with tqdm(total=len(numbers) * len(folds), desc="networks", unit="fit", disable=None) as bar:
        for number in numbers:
            scores.append(_scores(_Fits(study, workspace, ground, store, number), people, folds, bar.update))
    return _outcome(study.outputs.directory / FOLDER, scores)


@dataclass(frozen=True)
class _Fits:
    """The fits of one number of networks."""

    study: Study
    workspace: Workspace
    ground: Ground
    store: Store
    number: int

    def of(self, known: list[str], left_out: list[str]) -> dict[str, dict]:
        """Densities of the subjects left out of a fit to the others; kept, and computed once."""
        key, path = self._key(known, left_out), self.workspace.work / "networks" / f"{self.number}_{left_out[0]}.json"
        if (kept := _kept(path, key)) is not None:
            return kept
        model = self.study.model.model_copy(update={"networks": self.number, "names": None})
        study = self.study.model_copy(update={"model": model})
        cohort = open_cohort(self.store, fit_features(self.store, known, study.features), known)
        trained = fitted(study, cohort, torch.device("cpu"))
        others = open_cohort(self.store, cohort.feature_map, left_out)
        source = CohortSource(trained.family.template, others, torch.device("cpu"), memory=0)
        found = {}
        for position, subject in enumerate(left_out):
            found[subject] = asdict(held_out_density(trained, source.batch(torch.tensor([position])).seen))
        write_json(path, {"key": key, "density": found})
        return found

    def _key(self, known: list[str], left_out: list[str]) -> str:
        content = self.study.resolved()
        model = {key: value for key, value in content["model"].items() if key not in ("networks", "names", "file")}
        units = [[*unit, self.store.header(*unit)["checksum"]] for unit in self.store.units() if unit[0] in {*known}]
        units += [[*unit, self.store.header(*unit)["checksum"]] for unit in self.store.units() if unit[0] in left_out]
        settings = [self.number, self.ground.digest, content["features"], model, self.study.training.seed, units]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _kept(path: Path, key: str) -> dict[str, dict] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["density"] if content["key"] == key else None
    except (OSError, ValueError, KeyError):
        return None


def _scores(fits: _Fits, people: list[str], folds: list[list[str]], done) -> Scores:
    """Densities of everybody at one number of networks; a fit that fails gives its reason."""
    found: dict[str, dict] = {}
    for fold in folds:
        try:
            found |= fits.of([name for name in people if name not in fold], fold)
        except ParcellationError as error:
            if told_to_end():
                raise
            log.warning("%d networks: %s", fits.number, error)
            return Scores(fits.number, {}, {}, str(error).splitlines()[0])
        finally:
            done()
    person = {name: one["person"] for name, one in found.items() if one["person"] is not None}
    return Scores(fits.number, {name: one["population"] for name, one in found.items()}, person)


def _outcome(folder: Path, scores: list[Scores]) -> str:
    """Write table, sidecar and figure; returns the advice."""
    rows = table(scores)
    known = rows[rows.failed == ""]
    if known.empty:
        raise BadData("\n".join(["no number of networks could be fitted", *rows.failed]))
    write_table(folder / "networks.tsv", rows)
    write_json(folder / "networks.json", {name: {"Description": text} for name, text in COLUMNS.items()})
    with whole_file(folder / "networks.png") as temporary:
        temporary.write_bytes(density_curve(known.networks, known.density, known.less_error))
    lines = [f"{row.networks:>3} networks: {row.failed or _line(row)}" for row in rows.itertuples()]
    return "\n".join([*lines, *advice(rows), f"written: {folder / 'networks.tsv'}, {folder / 'networks.png'}"])


def _line(row) -> str:
    return f"{row.density:.4f} nats a value, {row.less_than_best:.4f} (error {row.less_error:.4f}) below the best"


def table(scores: Sequence[Scores]) -> pd.DataFrame:
    """A row a number of networks, with the columns of `COLUMNS`; NaN where it failed."""
    own = any(one.person for one in scores)
    values = {one.networks: one.person if own else one.population for one in scores if not one.failed}
    best = max(values, key=lambda number: np.mean(list(values[number].values())), default=None)
    rows = []
    for one in scores:
        row = dict.fromkeys(COLUMNS, np.nan) | {"networks": one.networks, "subjects": 0, "failed": one.failed}
        if not one.failed:
            less = np.array([values[best][name] - value for name, value in values[one.networks].items()])
            row |= {
                "subjects": len(less),
                "density": np.mean(list(values[one.networks].values())),
                "density_population": np.mean(list(one.population.values())),
                "less_than_best": less.mean(),
                "less_error": less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else 0.0,
            }
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def advice(rows: pd.DataFrame) -> list[str]:
    """What the densities support, in words."""
    known = rows[rows.failed == ""]
    best = int(known.networks[known.density.idxmax()])
    enough = int(known.networks[known.less_than_best <= known.less_error].min())
    lines = [f"people who were left out are predicted best with {best} networks of the numbers tried"]
    if enough < best:
        lines.append(f"{enough} predict them as well, within a standard error: the fewest that these data support")
    if best == known.networks.max():
        lines.append(
            "the density still rises at the largest number: these data do not single out a number, they allow more "
            "detail; choose by what the networks are for, and look at how sure their maps are"
        )
    elif enough == best:
        lines.append("no other number is within a standard error of it")
    return [*lines, "a better prediction of fingerprints is no proof that borders are anatomical"]
