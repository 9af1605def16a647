"""A simulated cohort in an HCP tree, taken the whole way once a test session, and copies of it to break."""

import contextlib
import hashlib
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml

from parcellation.cli import main
from tests.readme import cohort_yaml, study_commands, study_yaml

ROOT = Path(__file__).resolve().parents[1]
SIMULATION = {"subjects": 5, "train": 3, "sessions": 2, "frames": 100, "missing": {"sim05": [2]}, "seed": 3}
# The README's studies, and what a small simulated tree on fsaverage needs besides.
STUDY = yaml.safe_load(study_yaml()) | {"training": {"subjects": ["sim01", "sim02", "sim03"], "steps": 10}}
PATIENTS = yaml.safe_load(cohort_yaml())
for one in (STUDY, PATIENTS):
    one["data"]["space"] = "fsaverage"
    one["outputs"]["draws"] = 16
RUN = "{0}/MNINonLinear/Results/rfMRI_REST{1}_LR/rfMRI_REST{1}_LR_Atlas_MSMAll_hp2000_clean.dtseries.nii"
SUBJECTS = tuple(f"sim{number:02d}" for number in range(1, 6))
VERBS = tuple(line.split()[1] for line in study_commands())


def call(*arguments: object) -> tuple[int, str]:
    """Exit code and everything printed by one command, in this process; logging and signals stay as they were."""
    root, text = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = main([str(one) for one in arguments])
        return code, text.getvalue()
    finally:
        root.handlers[:], root.level = handlers, level
        for number, handler in signals.items():
            signal.signal(number, handler)


def command(*arguments: object, code: int = 0) -> str:
    """What one command printed, once it ended with this exit code."""
    got, text = call(*arguments)
    assert got == code, f"{' '.join(map(str, arguments))}: expected exit code {code}, got {got}\n{text}"
    assert "Traceback" not in text
    return text


def process(*arguments: object, code: str = "", **options) -> subprocess.Popen:
    """The same command, or Python code, as a process of its own, with its output in one pipe."""
    line = ["-c", code] if code else ["-m", "parcellation", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *line], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@dataclass(frozen=True)
class Folder:
    """A folder with a study in it: `HCP`, `study.yaml`, `work`, `results`."""

    path: Path
    said: dict[str, str] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        return self.path / "study.yaml"

    @property
    def model(self) -> Path:
        return self.path / "work/model/model.safetensors"

    @property
    def results(self) -> Path:
        return self.path / "results"

    def run_file(self, subject: str, session: int = 1) -> Path:
        return self.path / "HCP" / RUN.format(subject, session)

    def unit(self, subject: str, session: int = 1, work: str = "work") -> Path:
        (found,) = self.path.glob(f"{work}/fingerprints/*/sub-{subject}_ses-{session}_fingerprint.safetensors")
        return found

    def posterior(self, subject: str, work: str = "work") -> Path:
        return self.path / work / "posterior" / f"sub-{subject}_posterior.safetensors"

    def write_study(self, name: str = "study.yaml", base: dict = STUDY, **changes: dict) -> Path:
        """Write a study file: `base` with the keys of some sections changed; a section that is None is left out."""
        content = {k: dict(v) if isinstance(v, dict) else v for k, v in base.items()}
        for section, keys in changes.items():
            if isinstance(keys, dict):
                content[section] = content.get(section, {}) | keys
            elif keys is None:
                content.pop(section, None)
            else:
                content[section] = keys
        replace(self.path / name, yaml.safe_dump(content, sort_keys=False).encode())
        return self.path / name

    def without(self, *names: str) -> "Folder":
        """The same folder after these parts of it were removed."""
        for name in names:
            shutil.rmtree(self.path / name)
        return self

    def half_written(self) -> list[Path]:
        return list(self.path.rglob(".part-*"))


def replace(path: Path, content: bytes) -> None:
    """Write a file anew: copies of a folder share their files, which must not be written into."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def damage(path: Path) -> None:
    """Change one byte in the last quarter of a file."""
    content = bytearray(path.read_bytes())
    content[-len(content) // 5] ^= 0xFF
    replace(path, bytes(content))


def change_run(path: Path, change: Callable[[np.ndarray], np.ndarray], source: Path | None = None) -> None:
    """Write a dtseries whose series (time, vertex) are those of another one, or of the same one, changed."""
    image = nib.load(source or path)
    series = change(np.asarray(image.dataobj).astype(np.float32))
    time, models = (image.header.get_axis(one) for one in (0, 1))
    time = nib.cifti2.SeriesAxis(time.start, time.step, len(series), time.unit)
    new = nib.Cifti2Image(series, header=(time, models))
    new.nifti_header.set_intent("ConnDenseSeries")
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(new, path)


def copied(folder: Path, out: Path) -> Path:
    """A copy of a tree whose files are links to the same content: quick, and with the same times."""
    return Path(shutil.copytree(folder, out, copy_function=os.link))


def snapshot(*folders: Path) -> dict[str, tuple[int, str]]:
    """Time of change and checksum of every file but the log, with its time of day, and the lock of who is at work."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("log.txt", "in_use.lock")
    }


def contents(folder: Path) -> dict[str, str]:
    """Checksum of every file by its path in the folder; locks left out."""
    return {
        str(Path(path).relative_to(folder)): digest
        for path, (_, digest) in snapshot(folder).items()
        if not path.endswith(".lock")
    }


def inferred(folder: Folder) -> dict[str, str]:
    """What `infer` makes, without what names the place where it is made."""
    return {n: digest for n, digest in contents(folder.results).items() if n not in ("report.html", "logs/study.json")}


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Folder:
    """The study after all five verbs; not to be changed. `said` has what each of them printed."""
    folder = Folder(tmp_path_factory.mktemp("finished") / "study")
    replace(folder.path / "simulation.yaml", yaml.safe_dump(SIMULATION).encode())
    folder.said["simulate"] = command("simulate", folder.path / "simulation.yaml", folder.path / "HCP")
    folder.write_study()
    for verb in VERBS:
        folder.said[verb] = command(verb, folder.study)
    return folder


@pytest.fixture
def study(finished, tmp_path):
    """A finished study that a test may change; nothing half written may be left in it."""
    folder = Folder(copied(finished.path, tmp_path / "study"))
    yield folder
    assert not folder.half_written()


@pytest.fixture
def fresh(study) -> Folder:
    """The study before any verb."""
    return study.without("work", "results")


@pytest.fixture
def prepared(study) -> Folder:
    """The study after `prepare`."""
    return study.without("work/model", "work/posterior", "results")


@pytest.fixture(scope="session")
def treated(finished, tmp_path_factory) -> Folder:
    """A new cohort inferred with the finished model: P01 whole, P02 with one session, P03 with dead vertices."""
    folder = Folder(copied(finished.path, tmp_path_factory.mktemp("treated") / "study"))
    for subject, source, sessions in (("P01", "sim04", (1, 2)), ("P02", "sim04", (1,)), ("P03", "sim03", (1, 2))):
        for session in sessions:
            path = folder.path / "PATIENTS" / RUN.format(subject, session)
            kill = (lambda series: without_signal(series, folder)) if subject == "P03" else (lambda series: series)
            change_run(path, kill, folder.run_file(source, session))
    folder.write_study("patients.yaml", PATIENTS)
    for verb in ("index", "prepare", "infer"):
        folder.said[verb] = command(verb, folder.path / "patients.yaml")
    return folder


DEAD = (0, 7, 100)  # positions in the region


def region_columns(folder: Folder) -> np.ndarray:
    """Columns of a run's series that are the region's vertices, in the region's order."""
    models = nib.load(folder.run_file("sim01")).header.get_axis(1)
    mask = nib.load(next(folder.results.glob("tpl-*/*_dseg.dlabel.nii")))
    labelled = np.flatnonzero(np.asarray(mask.dataobj)[0])
    assert (mask.header.get_axis(1).vertex == models.vertex).all()
    return labelled


def without_signal(series: np.ndarray, folder: Folder) -> np.ndarray:
    """Series (time, vertex) that are constant at the region's vertices `DEAD`, once zero and once NaN."""
    columns = region_columns(folder)[list(DEAD)]
    series[:, columns[:2]] = 0
    series[:, columns[2:]] = np.nan
    return series


@pytest.fixture
def patients(treated, tmp_path):
    """The new cohort's folder that a test may change; nothing half written may be left in it."""
    folder = Folder(copied(treated.path, tmp_path / "study"))
    yield folder
    assert not folder.half_written()
