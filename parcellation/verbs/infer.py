"""`infer`: posterior and maps of subjects by a trained model, one subject at a time, without training."""

import hashlib
import json
import logging
import platform
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tqdm import tqdm

from parcellation import __version__
from parcellation.cohort import Cohort, FeatureMap, open_cohort
from parcellation.config import Features, Study
from parcellation.derivative import methods_text, participant, write_dataset
from parcellation.errors import BadData, NothingSelected
from parcellation.files import unit_lock, whole_file, writable_folder, write_text
from parcellation.maps import Cifti, Export, Frame, Gifti, named_networks, write_population, write_subject
from parcellation.model_file import TrainedModel, load_model
from parcellation.posterior import PopulationPosterior, Posterior, SubjectPosterior
from parcellation.training import observe
from parcellation.verbs.index import manifest_of
from parcellation.verbs.workspace import Ground, Selection, Workspace

log = logging.getLogger(__name__)


def infer(study: Study, selection: Selection) -> str:
    """Infer the selected subjects, export their maps and the population's; returns the lines to print."""
    run = Inference.of(study)
    subjects = run.selected(selection)
    if selection.dry_run:
        return "\n".join(f"would infer subject {subject}" for subject in subjects)
    writable_folder(study.outputs.directory)
    export = run.export()
    faults = []
    for subject in tqdm(subjects, desc="infer", unit="subject", disable=None):
        try:
            write_subject(export, run.posterior_of(subject))
        except BadData as error:
            faults.append(f"subject {subject}: {error}")
            log.warning("left out: %s", faults[-1])
    if len(faults) == len(subjects) or (faults and selection.strict):
        raise BadData("\n".join([f"{len(faults)} of {len(subjects)} subjects could not be inferred", *faults]))
    run.write_dataset(export)
    lines = [f"{len(subjects) - len(faults)} subjects inferred: {study.outputs.directory}"]
    return "\n".join(lines + [f"left out: {fault}" for fault in faults])


@dataclass(frozen=True, eq=False)
class Inference:
    """A model, a cohort that fits it, and where answers are kept."""

    study: Study
    workspace: Workspace
    ground: Ground
    model: TrainedModel
    cohort: Cohort
    posterior: Posterior

    @classmethod
    def of(cls, study: Study) -> "Inference":
        """Everything of a study that is needed to infer; raises BadData when the cohort does not fit the model."""
        workspace = Workspace(study)
        model = load_model(workspace.model)
        ground = workspace.ground()
        features = Features.model_validate(model.details["study"]["features"])
        feature_map = FeatureMap.from_arrays(model.arrays, features)
        cohort = open_cohort(workspace.store(ground), feature_map)
        model.check(cohort.identity)
        torch.set_num_threads(study.training.threads)
        return cls(study, workspace, ground, model, cohort, Posterior(model, study.outputs.draws))

    def selected(self, selection: Selection) -> list[str]:
        """Subjects to infer, of those with fingerprints."""
        wanted = [name.removeprefix("sub-") for name in selection.participants or self.cohort.subjects]
        if unknown := [name for name in wanted if name not in self.cohort.subjects]:
            raise NothingSelected(f"no fingerprints of subject {', '.join(unknown[:5])} in {self.cohort.store.folder}")
        return wanted

    def posterior_of(self, subject: str) -> SubjectPosterior:
        """A subject's answer, from its file when it was made from the same model and fingerprints."""
        path = self.workspace.posteriors / f"sub-{subject}_posterior.safetensors"
        sessions = tuple(self.cohort.sessions(subject))
        units = [self.cohort.store.header(subject, session)["checksum"] for session in sessions]
        key = hashlib.sha256(json.dumps([self.model.digest, self.study.outputs.draws, units]).encode()).hexdigest()
        if (known := read_posterior(path, key)) is not None:
            return known
        with unit_lock(self.workspace.posteriors / "locks" / f"sub-{subject}.lock"):
            answer = self.answer(subject)
            write_posterior(path, answer, key)
        return answer

    def answer(self, subject: str) -> SubjectPosterior:
        """A subject's answer, computed now."""
        sessions = tuple(self.cohort.sessions(subject))
        read = self.cohort.read([self.cohort.subjects.index(subject)])
        observed = observe(read).select(1, torch.arange(len(sessions)))
        return self.posterior.subject(subject, sessions, observed, self.cohort.feature_map.back)

    def known(self) -> Iterator[SubjectPosterior]:
        """Answers of the subjects that are inferred, in order."""
        for subject in self.cohort.subjects:
            path = self.workspace.posteriors / f"sub-{subject}_posterior.safetensors"
            if path.exists() and (answer := read_posterior(path)) is not None:
                yield answer

    def population(self) -> PopulationPosterior:
        """The population's answer, compared with the subjects that are inferred."""
        probability = np.stack([answer.probability.astype(np.float32) for answer in self.known()])
        return self.posterior.of_population(probability, self.cohort.feature_map.back)

    @property
    def networks(self):
        """Networks with the names that the model was trained with, and their colours."""
        model = self.model.details["study"]["model"]
        return named_networks(model["networks"], model["names"])

    @property
    def seg(self) -> str:
        """Name of the segmentation in file names: region and number of networks."""
        trained = self.model.details["study"]
        return f"{trained['region']['name']}{trained['model']['networks']}"

    def export(self) -> Export:
        """Where and how maps are written: CIFTI on fs_LR and for CIFTI input, else GIFTI."""
        frame = Frame(self.ground.brain, self.ground.region)
        style = Gifti if self._is_gifti() else Cifti
        provenance = {"Draws": self.study.outputs.draws, "Model": self.model.digest[:16]}
        out = self.study.outputs.directory
        return Export(out, frame, self.networks, self.ground.targets.names, self.seg, style, provenance)

    def _is_gifti(self) -> bool:
        frame = manifest_of(self.study, self.workspace, Selection())
        return bool((frame["bold_left"] != "").any() or (frame["bold_right"] != "").any())

    def write_dataset(self, export: Export) -> None:
        """Population maps and the files that make the folder a data set."""
        write_population(export, self.population())
        rows = [participant(answer, self.flags(answer)) for answer in self.known()]
        citation = self.methods(len(rows))
        write_dataset(self.study.outputs.directory, self.study.name, self.study.digest(), rows, citation=citation)
        self._write_logs()

    def flags(self, answer: SubjectPosterior) -> list[str]:
        """What to look at before a subject is used."""
        flags = []
        if len(answer.sessions) < self.cohort.most_sessions:
            flags.append("fewer sessions than others")
        if not answer.mask.all():
            flags.append("vertices without data")
        return flags

    def methods(self, subjects: int) -> str:
        """The methods paragraph of this very run."""
        details = self.model.details
        region = details["study"]["region"]
        mesh = self.ground.region.mesh
        return methods_text(
            region=f"{region['name']} ({region['hemisphere']})",
            vertices=len(self.ground.region),
            space=mesh.name,
            targets=len(self.ground.targets.names),
            networks=details["study"]["model"]["networks"],
            trained_on=len(details["subjects"]),
            subjects=subjects,
            draws=self.study.outputs.draws,
        )

    def _write_logs(self) -> None:
        logs = self.study.outputs.directory / "logs"
        write_text(logs / "study.json", json.dumps(self.study.resolved(), indent=2, sort_keys=True) + "\n")
        versions = "".join(f"{name} {version}\n" for name, version in software_versions().items())
        write_text(logs / "versions.txt", versions)


def software_versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    from importlib.metadata import version

    names = ("torch", "zuko", "numpy", "scipy", "nibabel", "nilearn", "scikit-learn")
    return {"parcellation": __version__, "python": platform.python_version()} | {n: version(n) for n in names}


ARRAYS = ("probability", "entropy", "mutual_information", "mask", "profile_mean", "profile_low", "profile_high")


def write_posterior(path: Path, answer: SubjectPosterior, key: str) -> None:
    """Keep a subject's answer, whole."""
    arrays = {name: np.ascontiguousarray(getattr(answer, name)) for name in ARRAYS}
    rest = {f.name: getattr(answer, f.name) for f in fields(answer) if f.name not in ARRAYS}
    with whole_file(path) as temporary:
        save_file(arrays, temporary, metadata={"key": key, "answer": json.dumps(rest)})


def read_posterior(path: Path, key: str | None = None) -> SubjectPosterior | None:
    """A subject's kept answer; None when there is none, when it is damaged, or when it has another key."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            if key is not None and metadata.get("key") != key:
                return None
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
            rest = json.loads(metadata["answer"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return SubjectPosterior(rest["subject"], tuple(rest["sessions"]), tuple(rest["frames"]), **arrays)
