"""`infer`: posterior and maps of subjects by a trained model, one subject at a time, without training."""

import hashlib
import json
import logging
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from parcellation import __version__
from parcellation.cohort import Cohort, FeatureMap, open_cohort
from parcellation.cohort_source import observe
from parcellation.config import Features, Study
from parcellation.derivative import methods_text, participant, write_dataset
from parcellation.errors import BadData, NothingSelected
from parcellation.files import PART, unit_lock, writable_folder, write_text
from parcellation.interruption import told_to_end
from parcellation.label_table import Networks
from parcellation.manifest import natural
from parcellation.map_files import Cifti, Gifti
from parcellation.maps import Export, bids_label, write_population, write_subject
from parcellation.model_file import TrainedModel, load_model
from parcellation.plates import Observed
from parcellation.posterior import PopulationPosterior, Posterior, SubjectPosterior
from parcellation.posterior_file import read_posterior, write_posterior
from parcellation.store import Store
from parcellation.verbs import results
from parcellation.verbs.gaps import kept_gap
from parcellation.verbs.index import cohort_units, manifest_of
from parcellation.verbs.novelty import Novelty
from parcellation.verbs.population import (
    FIXED,
    REINFERRED,
    Population,
    chosen,
    chosen_refinement,
    population_model,
    remember,
)
from parcellation.verbs.warned import keeping
from parcellation.verbs.workspace import GROUP, PARTICIPANT, Ground, Selection, Workspace, model_header, note

log = logging.getLogger(__name__)


def infer(
    study: Study,
    selection: Selection,
    population: str = FIXED,
    refinement: int | None = None,
    level: str | None = None,
) -> str:
    """Infer the selected subjects, export their maps and the population's; returns the lines to print.

    population: `fixed`, as the model has it, or `reinferred` from the whole cohort, whoever is selected. refinement:
    steps that improve each answer; None for those that the model was trained through, 0 unless its study says so.
    level: None for all of it. At `participant` these are a part of the cohort: their files alone are written, which no
    two processes share, and nobody to infer is no failure. At `group` nobody is inferred: the files of all together
    are written, of the answers that are kept.
    """
    run = Inference.of(study, population, selection.dry_run, refinement)
    subjects = [] if level == GROUP else run.selected(selection, part=level == PARTICIPANT)
    if selection.dry_run:
        return "\n".join(f"would infer subject {subject}" for subject in subjects)
    writable_folder(study.outputs.directory)
    remember(run.workspace, run.origin)
    export = run.export()
    kept, faults = run.infer(subjects, selection.sessions, export)
    if faults and level != PARTICIPANT and (len(faults) == len(subjects) or selection.strict):
        raise BadData("\n".join([f"{len(faults)} of {len(subjects)} subjects could not be inferred", *faults]))
    if level == GROUP:
        subjects, faults = run.noted()
        if len(faults) == len(subjects) or (faults and selection.strict):
            raise BadData("\n".join([f"{len(faults)} of {len(subjects)} subjects are not inferred", *faults]))
    lines = _said(run, len(subjects), kept, faults)
    if level != PARTICIPANT:
        run.write_dataset(export)
        lines += run.novelty.warnings([(answer.subject, answer.sessions) for answer in run.known()])
    return "\n".join(lines + [f"left out: {fault}" for fault in faults])


def _said(run: "Inference", subjects: int, kept: int, faults: list[str]) -> list[str]:
    before = f", {kept} of them before" if kept else ""
    lines = [f"{subjects - len(faults)} subjects inferred{before}: {run.study.outputs.directory}"]
    told = run.origin.kind == REINFERRED or run.origin.refinement
    return lines + ([run.origin.sentence()] if told else [])


@dataclass(frozen=True, eq=False)
class Inference:
    """A model, a cohort that fits it, and where answers are kept.

    model: with the population that subjects are given; origin: which population that is.
    """

    study: Study
    workspace: Workspace
    ground: Ground
    model: TrainedModel
    cohort: Cohort
    posterior: Posterior
    damaged: dict[str, BadData]
    origin: Population

    @classmethod
    def of(
        cls, study: Study, population: str | None = None, look_only: bool = False, refinement: int | None = None
    ) -> "Inference":
        """Everything of a study that is needed to infer; raises BadData when the cohort does not fit the model.

        population, refinement: as in `infer`; no population for those of the latest answers. look_only: infer no
        population anew.
        """
        workspace = Workspace(study)
        model_header(workspace.model)  # raises BadData for what no model of ours says
        model, ground = load_model(workspace.model), workspace.ground()
        features = Features.model_validate(model.details["study"]["features"])
        feature_map = FeatureMap.from_arrays(model.arrays, features)
        store = workspace.store(ground, cohort_units(study, workspace))
        whole, damaged = readable(store)
        cohort = open_cohort(store, feature_map, whole)
        model.check(cohort.identity)
        torch.set_num_threads(study.training.threads)
        steps = chosen_refinement(workspace, model, refinement, latest=population is None)
        model, origin = population_model(workspace, model, cohort, chosen(workspace, population), look_only)
        pairs = results.pairs_of(study.outputs.contrasts, results.networks_of(study, model))
        posterior, origin = Posterior(model, study.outputs.draws, steps, pairs=pairs), replace(origin, refinement=steps)
        return cls(study, workspace, ground, model, cohort, posterior, damaged, origin)

    def infer(self, subjects: list[str], sessions: Sequence[str] | None, export: Export) -> tuple[int, list[str]]:
        """Infer subjects, or take the answers that are kept, and write their maps; returns how many, and faults."""
        faults, kept = [], 0
        for subject in tqdm(subjects, desc="infer", unit="subject", disable=None):
            try:
                chosen = self.sessions(subject, sessions)
                known = self.kept(subject, chosen)
                write_subject(export, known or self.posterior_of(subject, chosen))
                self.novelty.of(subject, chosen)  # kept for what is made of all subjects
                kept += known is not None
                note(self.workspace, f"sub-{subject}", [])
            except BadData as error:
                if told_to_end():
                    raise
                faults.append(f"subject {subject}: {error}")
                note(self.workspace, f"sub-{subject}", faults[-1:])
                log.warning("left out: %s", faults[-1])
        return kept, faults

    def noted(self) -> tuple[list[str], list[str]]:
        """Everybody with fingerprints, and why some of them have no answer that is kept."""
        subjects = sorted([*self.cohort.subjects, *self.damaged], key=natural)
        there = {answer.subject for answer in self.known()}
        reasons = {
            subject: self.workspace.excluded / f"sub-{subject}.txt" for subject in subjects if subject not in there
        }
        return subjects, [
            path.read_text(encoding="utf-8").strip() if path.exists() else f"subject {subject}: not inferred yet"
            for subject, path in reasons.items()
        ]

    def selected(self, selection: Selection, part: bool = False) -> list[str]:
        """Subjects to infer, of those with fingerprints of any session that is asked for; a part may have none."""
        there = sorted([*self.cohort.subjects, *self.damaged], key=natural)
        wanted = [name.removeprefix("sub-") for name in selection.participants or there]
        if part:
            wanted = [name for name in wanted if name in there]
        if unknown := [name for name in wanted if name not in there]:
            names = f"{', '.join(unknown[:5])} in {self.cohort.store.folder}"
            raise NothingSelected(f"no fingerprints of subject {names}; run `parcellation prepare` first")
        chosen = [name for name in wanted if name in self.damaged or self.sessions(name, selection.sessions)]
        if not chosen and not part:
            raise NothingSelected(f"no fingerprints of session {', '.join(selection.sessions)} of these subjects")
        return chosen

    def sessions(self, subject: str, only: Sequence[str] | None = None) -> tuple[str, ...]:
        """A subject's sessions, or those of them that are named; raises BadData when one of its files is damaged."""
        if subject in self.damaged:
            raise self.damaged[subject]
        names = None if only is None else {name.removeprefix("ses-") for name in only}
        return tuple(name for name in self.cohort.sessions(subject) if names is None or name in names)

    def posterior_of(self, subject: str, sessions: tuple[str, ...]) -> SubjectPosterior:
        """A subject's answer, which is kept; half an answer of a process that was killed is removed."""
        with unit_lock(self.workspace.posteriors / "locks" / f"sub-{subject}.lock") as mine:
            for part in self.workspace.posteriors.glob(f"{PART}*-{self._path(subject).name}") if mine else ():
                part.unlink(missing_ok=True)
            if self.origin.refinement:
                log.info("subject %s: refining by %d steps", subject, self.origin.refinement)
            answer = self.answer(subject, sessions)
            write_posterior(self._path(subject), answer, self._whole_key(subject, sessions))
        return answer

    def answer(self, subject: str, sessions: tuple[str, ...] | None = None) -> SubjectPosterior:
        """A subject's answer from some sessions (all, if None), computed now."""
        sessions = tuple(self.cohort.sessions(subject)) if sessions is None else sessions
        observed = self.observed(subject, sessions)
        return self.posterior.subject(subject, sessions, observed, self.cohort.feature_map.back)

    def observed(self, subject: str, sessions: tuple[str, ...]) -> Observed:
        """A subject's data of these sessions, shapes (1, T, V, D)."""
        there = self.cohort.sessions(subject)
        read = self.cohort.read([self.cohort.subjects.index(subject)])
        return observe(read).select(1, torch.tensor([there.index(session) for session in sessions]))

    def kept(self, subject: str, sessions: tuple[str, ...] | None = None) -> SubjectPosterior | None:
        """The answer that is kept, if it is of these sessions (any, if None), this model and the same fingerprints."""
        found = read_posterior(self._path(subject))
        if found is None or not set(found[0].sessions) <= set(self.cohort.sessions(subject)):
            return None
        answer, key = found
        if sessions not in (None, answer.sessions) or key != self._whole_key(subject, answer.sessions):
            return None
        return answer

    def known(self) -> Iterator[SubjectPosterior]:
        """Answers of the subjects that are inferred with this model, in order."""
        for subject in self.cohort.subjects:
            if (answer := self.kept(subject)) is not None:
                yield answer

    def _path(self, subject: str) -> Path:
        return self.workspace.posteriors / f"sub-{subject}_posterior.safetensors"

    def key(self, subject: str, sessions: tuple[str, ...]) -> str:
        """What a posterior depends on: the model, the draws, refinement, and the content of the fingerprints."""
        units = [self.cohort.store.header(subject, session)["checksum"] for session in sessions]
        refined = [{"refinement": self.origin.refinement}] if self.origin.refinement else []
        content = [self.model.digest, self.study.outputs.draws, units, *refined]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _whole_key(self, subject: str, sessions: tuple[str, ...]) -> str:
        """What an answer depends on: its posterior, and the contrasts that are made of it."""
        key, pairs = self.key(subject, sessions), self.posterior.pairs
        return hashlib.sha256(json.dumps([key, pairs]).encode()).hexdigest() if pairs else key

    def population(self) -> PopulationPosterior:
        """The population's answer, compared with the subjects that are inferred."""
        probability = np.stack([answer.probability.astype(np.float32) for answer in self.known()])
        return self.posterior.of_population(probability, self.cohort.feature_map.back)

    @property
    def networks(self) -> Networks:
        """Networks with their colours; names: the study's, or those of the model's own study, or by orientation."""
        return results.networks_of(self.study, self.model)

    @property
    def seg(self) -> str:
        """Name of the segmentation in file names: region and number of networks."""
        trained = self.model.details["study"]
        return f"{trained['region']['name']}{trained['model']['networks']}"

    def export(self) -> Export:
        """Where and how maps are written: as CIFTI, and as GIFTI besides on fsaverage or where the study wants it."""
        outputs, volume = self.study.outputs, None
        if outputs.grayordinates == "all":
            volume = results.volume_of(manifest_of(self.study, self.workspace, Selection()))
        frame = results.export_frame(self.ground, volume)
        gifti = outputs.gifti or frame.region.mesh.space == "fsaverage"
        provenance = {"Draws": outputs.draws} | meaning(self.model) | self.origin.provenance()
        return Export(
            outputs.directory,
            frame,
            self.networks,
            self.ground.targets.names,
            self.seg,
            (Cifti, Gifti) if gifti else (Cifti,),
            provenance,
            results.shown_targets(self.study, self.ground),
            self.posterior.pairs,
            outputs.profile_maps,
        )

    def write_dataset(self, export: Export) -> None:
        """Population maps and the files that make the folder a data set."""
        with keeping(self.workspace.warned / "infer.json"):
            write_population(export, self.population())
            results.write_surfaces(self.study, export)
            results.write_sizes(self.study, export, self.known())
        results.write_scenes(export, sorted((answer.subject for answer in self.known()), key=natural))
        self.describe()
        self._write_list()

    def describe(self) -> None:
        """The files beside the maps that make the folder a data set."""
        rows = [self.row(answer) for answer in self.known()]
        facts = {"StudySHA256": self.study.digest()} | self.origin.provenance()
        write_dataset(self.study.outputs.directory, self.study.name, facts, rows, citation=self.methods(len(rows)))
        self._write_logs()

    def row(self, answer: SubjectPosterior) -> dict:
        """A subject's row of participants.tsv."""
        gap = self.gap(answer)
        lower_bound = None if gap is None else round(gap["averages"]["amortization_gap"]["value"], 3)
        novelty = self.novelty.columns(answer.subject, answer.sessions)
        return participant(answer, self.flags(answer), lower_bound) | novelty

    def gap(self, answer: SubjectPosterior) -> dict | None:
        """What `diagnose` found of this very answer, None where it has not looked."""
        return kept_gap(self.workspace, answer.subject, self.key(answer.subject, answer.sessions))

    @cached_property
    def novelty(self) -> Novelty:
        """How unlike the training cohort subjects are."""
        return Novelty(self.model.novelty, self.origin.model, self.cohort, self.workspace.work / "novelty")

    def flags(self, answer: SubjectPosterior) -> list[str]:
        """What to look at before a subject is used."""
        flags = []
        if len(answer.sessions) < self.cohort.most_sessions:
            flags.append("fewer sessions than others")
        if not answer.mask.all():
            flags.append("vertices without data")
        gap = self.gap(answer)
        return flags + (gap["flags"] if gap else []) + self.novelty.flags(answer.subject, answer.sessions)

    def methods(self, subjects: int) -> str:
        """The methods paragraph of this very run."""
        details = self.model.details
        region, mesh = details["study"]["region"], self.ground.region.mesh
        return methods_text(
            region=f"{region['name']} region ({region['hemisphere']})",
            vertices=len(self.ground.region),
            space=mesh.name,
            targets=len(self.ground.targets.names),
            networks=details["study"]["model"]["networks"],
            trained_on=len(details["subjects"]),
            subjects=subjects,
            draws=self.study.outputs.draws,
            settings=self.study.resolved() | {"features": details["study"]["features"]},
            population_of=self.origin.subjects if self.origin.kind == REINFERRED else None,
            modes=self.modes,
            deviations=bool(self.modes) and self.model.family.template.deviations,
            refinement=self.origin.refinement,
            parcels=self.ground.parcels,
        )

    @property
    def modes(self) -> int:
        """How many modes the model's map is smooth in; 0 for a free map."""
        phi = self.model.family.template.hyperparameters().get("phi")
        return 0 if phi is None else phi.shape[1]

    def _write_list(self) -> None:
        """Every file of the data set, for the workflow to name, and to make again what is deleted."""
        out, known = self.study.outputs.directory, {f"sub-{bids_label(answer.subject)}" for answer in self.known()}
        paths = [path.relative_to(out) for path in sorted(out.rglob("*")) if path.is_file()]
        listed = [path for path in paths if path.parts[0] in known or not path.parts[0].startswith("sub-")]
        # What a killed process has left half written is nothing that the next one makes.
        kept = [one for one in listed if one.suffix != ".html" and one.name != "log.txt" and PART not in one.name]
        write_text(self.workspace.deliverables, "".join(f"{path.as_posix()}\n" for path in kept))

    def _write_logs(self) -> None:
        logs = self.study.outputs.directory / "logs"
        write_text(logs / "study.json", json.dumps(self.study.resolved(), indent=2, sort_keys=True) + "\n")
        write_text(logs / "versions.txt", "".join(f"{name} {one}\n" for name, one in software_versions().items()))


def meaning(model: TrainedModel) -> dict[str, str]:
    """What the probabilities of the maps are, and what they are not, for sidecars."""
    power, link = model.label_power, model.retest_link
    how = "chosen on the training subjects" if power.checked else "unchecked"
    said = {
        "Probability": "of the label given the data; that another scan says the same is less probable",
        "LabelPower": f"{power.at(1):.4g} for one session, {how}",
    }
    if link.checked:
        said["RetestLink"] = (
            f"that another scan says the same: p^{link.own:.3g} times the population's p^{link.map:.3g}, scaled to 1"
        )
    return said


def readable(store: Store) -> tuple[list[str] | None, dict[str, BadData]]:
    """Subjects of a store whose files can be opened (None when there are no files), and the others with the reason."""
    subjects, damaged = {}, {}
    for subject, session in store.units():
        subjects[subject] = None
        try:
            store.header(subject, session)
        except BadData as error:
            if told_to_end():
                raise
            damaged.setdefault(subject, error)
    if subjects and len(damaged) == len(subjects):
        raise BadData("\n".join(str(error) for error in damaged.values()))
    return [subject for subject in subjects if subject not in damaged] or None, damaged


def software_versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    from importlib.metadata import version

    names = ("torch", "zuko", "numpy", "scipy", "nibabel", "nilearn", "scikit-learn")
    return {"parcellation": __version__, "python": platform.python_version()} | {n: version(n) for n in names}
