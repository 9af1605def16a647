"""What machines do: full disks, folders that may not be written or are gone, and clocks that jump."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parcellation.files import PART
from tests.children import child_of, ended
from tests.studies import call, command, contents, inferred, replace, snapshot

INFERRED = ("work/posterior", "results")
NOBODY = 65534  # the user and group of this number own nothing


# --- disks ---


def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() or shutil.which("mount") is None:
        # A disk that is really full or read-only has to be mounted, which only root may; CI is root.
        pytest.skip("needs a superuser who may mount")
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        # Containers commonly forbid it to root as well, and say so.
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def small_disk(folder: Path) -> contextlib.AbstractContextManager[Path]:
    """A disk of 64 MB of its own in the place of a folder, with what the folder holds."""
    aside = folder.with_name(folder.name + "-before")
    shutil.copytree(folder, aside) if folder.exists() else aside.mkdir()
    disk = contextlib.contextmanager(mounted)(folder, "-t", "tmpfs", "-o", "size=64m", "tmpfs")

    @contextlib.contextmanager
    def with_content() -> Iterator[Path]:
        with disk:
            shutil.copytree(aside, folder, dirs_exist_ok=True)
            yield folder

    return with_content()


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves so many bytes of the disk free."""
    path = disk / "filled"
    free = shutil.disk_usage(disk).free
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - leave, 1))
    return path


# Which folder is on the disk, what is to be made, and how many bytes there are for it: fewer than it takes.
FULL = {
    "prepare": ("work", ("work/fingerprints", "work/model", *INFERRED), 700_000),
    "train": ("work", ("work/model", *INFERRED), 150_000),
    "infer": ("results", INFERRED, 1_500_000),
    "report": ("results", ("results/report.html",), 200_000),
}


def numbers(folder: Path) -> dict[str, str]:
    """The files that do not name the place where they are made."""
    return {
        name: digest for name, digest in contents(folder).items() if name.endswith((".safetensors", ".nii", ".gii"))
    }


@pytest.mark.parametrize(
    "verb", ["prepare", *(pytest.param(one, marks=pytest.mark.slow) for one in FULL if one != "prepare")]
)
def test_on_a_full_disk_no_file_is_half_written_and_later_it_goes_on(verb, study, finished):
    """Some of what a verb writes fits, more does not: 74, whole files only; with space the same command goes on."""
    place, due, leave = FULL[verb]
    for name in due:
        target = study.path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    with small_disk(study.path / place) as disk:
        filled = fill(disk, leave)
        said = command(verb, study.study, code=74)
        assert "No space left on device" in said or "os error 28" in said
        assert str(disk) in said
        assert not list(disk.rglob(f"{PART}*"))
        assert numbers(disk).items() <= numbers(finished.path / place).items()
        filled.unlink()
        command(verb, study.study)
        made = numbers(disk)
        expected = numbers(finished.path / place)
        left = {name for name in expected if name not in made}
        assert made.items() <= expected.items()
        assert left == ({one for one in left if one.startswith(("model/", "posterior/"))} if place == "work" else set())


def test_an_output_on_a_full_disk_is_found_before_any_work(fresh):
    """Where not even an empty file fits."""
    command("index", fresh.study)
    before = snapshot(fresh.path / "HCP")
    with small_disk(fresh.path / "elsewhere") as disk:
        subprocess.run(["mount", "-o", "remount,nr_inodes=1", str(disk)], check=True)
        said = command("prepare", fresh.study, "-w", disk, code=73)
        assert f"{disk}: cannot be written to: No space left on device" in said
    assert snapshot(fresh.path / "HCP") == before


def test_an_output_that_may_only_be_read_is_73_before_any_work(study):
    before = snapshot(study.path)
    for _ in mounted(study.results, "--bind", "-o", "ro", str(study.results)):
        for verb in ("infer", "report"):
            said = command(verb, study.study, code=73)
            assert f"{study.results}: cannot be written to: Read-only file system" in said
    for _ in mounted(study.path / "work", "--bind", "-o", "ro", str(study.path / "work")):
        for verb in ("index", "prepare"):
            assert "cannot be written to: Read-only file system" in command(verb, study.study, code=73)
    assert snapshot(study.path) == before


# --- permissions ---


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.fixture
def readable(tmp_path):
    """Whether somebody else can reach what tests write: every folder on the way has to let them."""
    if os.geteuid():
        # Permissions bind everybody but root, so a child becomes somebody else, which only root may; CI is root.
        pytest.skip("needs a superuser, who can be somebody else")
    changed = []
    for folder in (tmp_path, *tmp_path.parents):
        mode = folder.stat().st_mode
        if not mode & 0o001:
            os.chmod(folder, mode | 0o001)
            changed.append((folder, mode))
    yield
    for folder, mode in changed:
        os.chmod(folder, mode)


def as_somebody_else(arguments: list[object], out: Path) -> tuple[int, str]:
    code = ended(child_of(arguments, out, as_nobody))
    return code, out.read_text()


@pytest.mark.usefixtures("readable")
def test_an_output_of_somebody_elses_is_73_before_any_work(study, tmp_path):
    before = snapshot(study.path)
    for verb, place in (("index", "work"), ("prepare", "work"), ("infer", "results"), ("report", "results")):
        code, said = as_somebody_else([verb, study.study], tmp_path / "said.txt")
        assert (code, "Traceback" in said) == (73, False), said
        assert f"{study.path / place}: cannot be written to: Permission denied" in said
    assert snapshot(study.path) == before


@pytest.mark.usefixtures("readable")
def test_a_run_that_may_not_be_read_is_left_out_and_named(fresh, tmp_path):
    path = fresh.run_file("sim02")
    replace(path, path.read_bytes())
    os.chmod(path, 0)
    os.chmod(fresh.path, 0o777)
    code, said = as_somebody_else(["prepare", fresh.study], tmp_path / "said.txt")
    assert code == 0, said
    assert f"{path}: cannot be read: Permission denied" in said
    assert "8 of 9 sessions prepared" in said
    os.chmod(path, 0o644)
    code, said = as_somebody_else(["prepare", fresh.study], tmp_path / "said.txt")
    assert (code, "9 of 9 sessions prepared, 8 of them before" in said) == (0, True), said


@pytest.mark.usefixtures("readable")
def test_a_study_or_a_model_that_may_not_be_read_is_named(study, tmp_path):
    replace(study.path / "other.yaml", study.study.read_bytes())
    os.chmod(study.path / "other.yaml", 0)
    code, said = as_somebody_else(["prepare", study.path / "other.yaml"], tmp_path / "said.txt")
    assert (code, "other.yaml: cannot be read as a text file" in said) == (64, True), said
    model = study.path / "work/model/model.json"
    replace(model, model.read_bytes())
    os.chmod(model, 0)
    code, said = as_somebody_else(["infer", study.study], tmp_path / "said.txt")
    assert (code, "model.json" in said, "Permission denied" in said) == (65, True, True), said


# --- folders that go away ---


@pytest.mark.parametrize(("verb", "gone", "event"), [
    ("prepare", "work/fingerprints", "_fingerprint.safetensors"),
    ("prepare", "HCP", "_fingerprint.safetensors"),
    pytest.param("infer", "results", "_dseg.dlabel.nii", marks=pytest.mark.slow),
    pytest.param("infer", "work", "_dseg.dlabel.nii", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_folder_that_is_gone_while_working_is_an_error_of_ours(verb, gone, event, study, finished, monkeypatch):
    """Removed as soon as a first file is in place; with it back, the same command makes the same."""
    for name in ("work/fingerprints", "work/model", *INFERRED) if verb == "prepare" else INFERRED:
        shutil.rmtree(study.path / name)
    plain, left = os.replace, [1]

    def replaced(source, target) -> None:
        plain(source, target)
        if event in str(target) and left:
            left.clear()
            shutil.rmtree(study.path / gone)

    monkeypatch.setattr(os, "replace", replaced)
    code, said = call(verb, study.study)
    assert code in (0, 65, 66, 74), said
    assert "Traceback" not in said
    assert code == 0 or str(study.path) in said
    monkeypatch.undo()
    shutil.copytree(finished.path / gone, study.path / gone, dirs_exist_ok=True)
    for name in ("work/fingerprints", "work/model", *INFERRED) if verb == "prepare" else INFERRED:
        shutil.rmtree(study.path / name, ignore_errors=True)
    command(verb, study.study)
    for name in ("work/fingerprints",) if verb == "prepare" else ("work/posterior", "results/sub-sim01"):
        assert contents(study.path / name) == contents(finished.path / name)


# --- clocks ---


@pytest.mark.parametrize("shift", [10 * 365 * 86400, pytest.param(-40 * 365 * 86400, marks=pytest.mark.slow)])
def test_no_decision_depends_on_the_time_of_day(shift, study, finished, monkeypatch):
    """The clock jumps, and every file that was made has another time: all of it is current, or made the same."""
    plain = time.time
    monkeypatch.setattr(time, "time", lambda: plain() + shift)
    for number, path in enumerate(sorted((study.path / "work").rglob("*"))):
        if path.is_file():
            replace(path, path.read_bytes())
            os.utime(path, (plain() + shift + 1000 * number,) * 2)
    before = snapshot(study.path / "HCP") | contents(study.path / "work") | inferred(study)
    assert "9 of them before" in command("prepare", study.study)
    assert "already" in command("train", study.study)
    assert "5 of them before" in command("infer", study.study)
    assert snapshot(study.path / "HCP") | contents(study.path / "work") | inferred(study) == before
    shutil.rmtree(study.results)
    shutil.rmtree(study.path / "work/posterior")
    command("infer", study.study)
    assert inferred(study) == inferred(finished)


def test_a_run_from_the_future_is_prepared_like_any_other(fresh, finished):
    path = fresh.run_file("sim02")
    replace(path, path.read_bytes())
    os.utime(path, (2**33, 2**33))
    command("prepare", fresh.study, "--participant-label", "sim02")
    assert "2 of them before" in command("prepare", fresh.study, "--participant-label", "sim02")
