"""Where a study keeps things, what it is grounded on, and which study a new cohort really has."""

import contextlib
import fcntl
import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, NothingSelected
from parcellation.files import write_json, write_text
from parcellation.gifti import content_checksum
from parcellation.identity import targets_from_json, targets_json, vertices_from_json, vertices_json
from parcellation.label_table import named_networks
from parcellation.labels import label_files
from parcellation.store import Store
from parcellation.surfaces import Targets, Vertices

log = logging.getLogger(__name__)

FROM_MODEL = ("region", "targets", "features", "model")
MOST_SAID = 300  # letters of an error that may quote a damaged file
FREE = ("label_file", "file", "names")  # what a study may say otherwise than the model's own


@dataclass(frozen=True)
class Selection:
    """What the command line narrows a verb to: subjects and sessions (None: all), and how strict to be."""

    participants: list[str] | None = None
    sessions: list[str] | None = None
    strict: bool = False
    dry_run: bool = False


@dataclass(frozen=True, eq=False)
class Ground:
    """What a study stands on: the region, the targets, and the cortical vertices that exported maps carry.

    parcels: whether the series are of parcels, which are the targets; the region is some of them, each by its first
    vertex.
    """

    region: Vertices
    targets: Targets
    brain: Vertices
    parcels: bool = False

    def to_json(self) -> dict:
        """Plain values that `from_json` restores exactly."""
        return {
            "region": vertices_json(self.region),
            "targets": targets_json(self.targets),
            "brain": vertices_json(self.brain),
            **({"parcels": True} if self.parcels else {}),
        }

    @classmethod
    def from_json(cls, content: dict) -> "Ground":
        """The inverse of `to_json`."""
        region, brain = vertices_from_json(content["region"]), vertices_from_json(content["brain"])
        return cls(region, targets_from_json(content["targets"]), brain, content.get("parcels", False))

    @property
    def atlas(self) -> Targets | None:
        """The parcels that the series are of; None for series of vertices."""
        return self.targets if self.parcels else None

    @property
    def digest(self) -> str:
        """SHA-256 of region and targets: fingerprints of equal digest can be compared."""
        content = self.to_json()
        return hashlib.sha256(json.dumps([content["region"], content["targets"]]).encode()).hexdigest()


PARTICIPANT, GROUP = "participant", "group"  # levels of a verb: each subject alone, what is made of all


class Workspace:
    """The folders of one study."""

    def __init__(self, study: Study):
        self.study, self.work, self.results = study, study.outputs.work, study.outputs.directory
        self.manifest, self.origin = self.work / "manifest.tsv", self.work / "manifest.json"
        self.ground_file = self.work / "ground.json"
        self.excluded, self.warned = self.work / "excluded", self.work / "warnings"
        self.posteriors = self.work / "posterior"
        self.deliverables, self.pages = self.work / "deliverables.txt", self.work / "pages.txt"
        self.checkpoint = self.work / "model" / "checkpoint.safetensors"
        self.model = study.model.file or self.work / "model"

    def ground(self) -> Ground:
        """The ground as prepared; raises InputMissing when nothing is prepared yet."""
        if not self.ground_file.exists():
            raise InputMissing(f"{self.ground_file}: nothing is prepared yet; run `parcellation prepare` first")
        return self._kept_ground()[1]

    def store(self, ground: Ground, only: Collection[tuple[str, str]] | None = None) -> Store:
        """The fingerprints of this ground; another region or other targets have a folder of their own."""
        return Store(self.work / "fingerprints" / ground.digest[:12], only)

    def remember(self, ground: Ground, key: dict) -> None:
        """Keep the ground, and what it was made from."""
        write_json(self.ground_file, {"key": key, "ground": ground.to_json()})

    def known_ground(self, key: dict) -> Ground | None:
        """The ground kept from the same settings, so that every process of a study stands on the same one."""
        if not self.ground_file.exists():
            return None
        kept, ground = self._kept_ground()
        return ground if kept == key else None

    def _kept_ground(self) -> tuple[object, Ground]:
        """The key that the ground is kept with, and the ground; raises BadData for a damaged file."""
        try:
            content = json.loads(self.ground_file.read_text(encoding="utf-8"))
            return content["key"], Ground.from_json(content["ground"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise BadData(
                f"{self.ground_file}: damaged ({error}); delete it and run `parcellation prepare` again"
            ) from error


@contextlib.contextmanager
def at_work(work: Path) -> Iterator[None]:
    """Let others know that a process is at work in a work folder, for as long as it lives; see `nobody_at_work`."""
    with contextlib.ExitStack() as stack:
        try:
            # For reading too: NFS gives a shared lock of nothing else.
            file = stack.enter_context(open(_in_use(work), "a+"))
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError as error:
            # No such folder yet, or one that may only be read: what that means is for the verb to say.
            log.debug("%s: not marked as in use: %s", work, error)
        yield


def nobody_at_work(work: Path) -> bool:
    """Whether no process, on any node that shares the folder, is at work in it."""
    try:
        with open(_in_use(work), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False


def _in_use(work: Path) -> Path:
    return work / "in_use.lock"


def note(workspace: Workspace, unit: str, reasons: list[str]) -> None:
    """Keep why something was left out of a unit of work, for the report; a file a unit, so that jobs never meet."""
    path = workspace.excluded / f"{unit}.txt"
    if reasons:
        write_text(path, "\n".join(reasons) + "\n")
    else:
        path.unlink(missing_ok=True)


def ground_key(study: Study) -> dict:
    """The settings that a ground depends on, with checksums of the files they name."""
    content = study.resolved()
    key = {name: content[name] for name in ("region", "targets")} | {"space": content["data"]["space"]}
    for name in ("region", "targets"):
        path = getattr(study, name).label_file
        files = label_files(path) if path is not None and path.exists() else []
        key[name] = key[name] | {"label_file": [content_checksum(one) for one in files]}
    return key


def training_subjects(study: Study, there: Sequence[str], groups: Mapping[str, str]) -> list[str]:
    """Who takes part in training, of the subjects that are there: those named, those of the group, or all.

    Raises NothingSelected when nobody is left, naming what was asked for.
    """
    chosen = list(there)
    if study.training.subjects is not None:
        named = [name.removeprefix("sub-") for name in study.training.subjects]
        if missing := sorted(set(named) - set(there)):
            raise NothingSelected(f"training.subjects: no fingerprints of {', '.join(missing[:5])}; prepare them first")
        chosen = [name for name in there if name in set(named)]
    if study.training.group is not None:
        chosen = [name for name in chosen if groups.get(name) == study.training.group]
    if not chosen:
        raise NothingSelected(f"training: nobody is of group {study.training.group!r} among {len(there)} subjects")
    return chosen


def model_header(folder: Path) -> dict:
    """What a model's JSON says, its study and ground being valid; raises InputMissing and BadData. Needs no torch."""
    path = Path(folder) / "model.json"
    if not path.exists():
        raise InputMissing(f"{folder}: no trained model there (model.json is missing); `parcellation train` makes one")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        _check_details(header["details"], header["family"]["cards"])
        return header
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, BadData) as error:
        said = " ".join(str(error).split())
        raise BadData(f"{path}: not a readable model: {type(error).__name__}: {said[:MOST_SAID]}") from error


def _check_details(details: dict, cards: dict) -> None:
    """Raise an error of Python's for details that no model of ours has: names of files are made of them."""
    # As it is in the file: a text that stands for a number is none.
    study = Study.model_validate_json(json.dumps(details["study"]), strict=True)
    ground = Ground.from_json(details["ground"])
    if not details["subjects"] or not all(isinstance(one, str) for one in details["subjects"]):
        raise ValueError("subjects: expected the names of those who were trained on")
    if not isinstance(details["sessions"], int):
        raise TypeError(f"sessions: expected how many, got {details['sessions']!r}")
    if (cards["subject"], cards["vertex"]) != (len(details["subjects"]), len(ground.region)):
        raise ValueError(f"cards: expected the training subjects and the region's vertices, got {cards}")
    names = study.model.names or (details.get("orientation") or {}).get("names")
    named_networks(study.model.networks, names, details.get("colours"))
    if ground.region.mesh.space != "none" and not ground.region.mesh.density:
        raise ValueError("ground: expected a known mesh")
    if ground.region.mesh != ground.brain.mesh:
        raise ValueError("ground: expected region and brain on one mesh")


def resolve(study: Study, model: Path | None = None) -> Study:
    """The study with region, targets, features and model from the trained model that it applies, if any.

    Raises BadData when the study itself says something else, naming the key, expected and got.
    """
    folder = model or study.model.file
    if folder is None:
        return study
    header = model_header(folder)
    trained, content = header["details"]["study"], study.resolved()
    for section in FROM_MODEL:
        for key in sorted(study.said(section)):
            # A key that is newer than the model had no effect on it: as if it had been left out.
            expected, got = trained[section].get(key, content[section][key]), content[section][key]
            if key not in FREE and expected != got:
                raise BadData(
                    f"{section}.{key}: the model {folder} was trained with {expected!r}, the study says {got!r}"
                )
        content[section] = trained[section]
    names = {"names": study.model.names} if study.model.names else {}
    content["model"] = content["model"] | names | {"file": str(Path(folder).resolve())}
    return Study.model_validate(content).model_copy(update={"cluster": study.cluster})
