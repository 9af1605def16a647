"""Killed at any moment, or many at one thing: what is there in the end is what one undisturbed process makes."""

import logging
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import nibabel as nib
import pytest
import yaml

from parcellation.errors import BadData
from parcellation.files import PART
from parcellation.verbs import diagnose, prepare, results, train
from tests.children import child_of, ended
from tests.studies import SIMULATION, Folder, contents, copied, inferred, replace
from tests.test_verbs_diagnose import QUICK as BUDGET

# --- killed at any moment ---

INFERRED = ("work/posterior", "results")
WARNED = "work/warnings"
# What a verb is to make, on a finished study, and what of it has to come out the same.
VERBS = {
    "index STUDY": (("work", "results"), ("work",)),
    "prepare STUDY": (("work/fingerprints", "work/model", WARNED, *INFERRED), ("work/fingerprints", WARNED)),
    "train STUDY": (("work/model", *INFERRED), ("work/model",)),
    "infer STUDY": (INFERRED, (*INFERRED, WARNED)),
    "infer STUDY --level participant": (INFERRED, INFERRED),
    "diagnose STUDY --participant-label sim01": (("work/diagnosis",), ("results",)),
    "report STUDY": (("results/report.html",), ("results",)),
    "networks STUDY --numbers 2": (("results/networks",), ("results",)),
    "compare RESULTS RESULTS --out OUT/overlap.tsv": (("out",), ("out",)),
    "show RESULTS --out OUT/map.png": (("out",), ("out",)),
    "simulate SIMULATION OUT": (("out",), ("out",)),
}
QUICK = ("prepare STUDY", "train STUDY")


def words_of(line: str, folder: Folder) -> list[str]:
    names = {"STUDY": folder.study, "RESULTS": folder.results, "SIMULATION": folder.path / "small.yaml"}
    words = [str(names.get(word, word)) for word in line.split()]
    return [str(folder.path / word.lower()) if word.startswith("OUT") else word for word in words]


class Trial:
    """One verb on a copy of the finished study without what it makes."""

    def __init__(self, line: str, finished: Folder, path: Path):
        self.line, self.finished, self.path = line, finished, path
        self.due, self.made = VERBS[line]

    def folder(self) -> Folder:
        """A new copy, in the same place, since sidecars and logs may name it."""
        shutil.rmtree(self.path, ignore_errors=True)
        folder = Folder(copied(self.finished.path, self.path))
        for name in self.due:
            target = self.path / name
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        folder.write_study(training={"checkpoint_every": 2})
        replace(self.path / "small.yaml", yaml.safe_dump(SIMULATION | {"subjects": 2, "missing": {}}).encode())
        return folder

    def result(self) -> dict[str, dict[str, str]]:
        """Checksums of all files; a name that begins as those do that are not whole says nothing to anybody."""
        found = {name: contents(self.path / name) for name in self.made if (self.path / name).exists()}
        return {name: {n: one for n, one in files.items() if PART not in n} for name, files in found.items()}

    def undisturbed(self) -> tuple[dict, float]:
        """What comes out, and the seconds that it takes."""
        folder, started = self.folder(), time.monotonic()
        child = child_of(words_of(self.line, folder), self.path.parent / "said.txt")
        assert ended(child) == 0, (self.path.parent / "said.txt").read_text()
        took = time.monotonic() - started
        expected = self.result()
        assert all(expected.values())
        return expected, took

    def killed(self, delay: float) -> bool:
        """Kill it after so many seconds, then give the command again; returns whether it was killed before its end."""
        folder = self.folder()
        child = child_of(words_of(self.line, folder), self.path.parent / "said.txt")
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), (self.path.parent / "said.txt").read_text()
        again = child_of(words_of(self.line, folder), self.path.parent / "said.txt")
        assert ended(again) == 0, (self.path.parent / "said.txt").read_text()
        if "STUDY" in self.line and "--level" not in self.line:
            assert list((self.path / "work").rglob(f"{PART}*")) == []
        return code != 0


def kill_often(lines: tuple[str, ...], kills: int, finished: Folder, folder: Path, seed: int) -> int:
    """Kill verbs in turn at random moments until so many were killed; each time the rerun gives the same files."""
    draw, done, trials = random.Random(seed), 0, 0
    known = {line: Trial(line, finished, folder / f"verb{number}") for number, line in enumerate(lines)}
    expected = {line: trial.undisturbed() for line, trial in known.items()}
    while done < kills:
        line = lines[trials % len(lines)]
        trials += 1
        assert trials < 4 * kills, f"only {done} of {trials} were killed"
        result, took = expected[line]
        moment = draw.uniform(0, took)
        done += known[line].killed(moment)
        assert known[line].result() == result, f"{line}: killed after {moment:.3f} of {took:.3f} s"
        if done % 10 == 0:
            print(f"{done} kills in {trials} trials of {len(lines)} commands", flush=True)
    return done


@pytest.fixture
def warned(monkeypatch):
    """Every step warns of something, in this process and those that it begets."""
    opened = prepare._open

    def odd(study, row):
        logging.getLogger("parcellation.somewhere").warning("%s: odd", row["bold"])
        return opened(study, row)

    def unreadable(study, mesh, subject):
        raise BadData(f"surface of {subject}: odd")

    monkeypatch.setattr(prepare, "_open", odd)
    monkeypatch.setattr(train, "close_anchors", lambda reference: [(0, 1)])
    monkeypatch.setattr(results, "own_midthickness", unreadable)


def test_a_kill_at_any_moment_changes_nothing(finished, tmp_path, warned):
    assert kill_often(QUICK, 4, finished, tmp_path, seed=1) == 4
    assert (tmp_path / "verb0" / WARNED / "sub-sim01_ses-1.json").exists()
    assert (tmp_path / "verb1" / "work" / "model" / "warnings.json").exists()


@pytest.mark.slow
def test_a_hundred_kills_over_all_verbs_change_nothing(finished, tmp_path, monkeypatch, warned):
    monkeypatch.setattr(diagnose, "BUDGET", BUDGET)  # the real one takes a minute
    assert kill_often(tuple(VERBS), 100, finished, tmp_path, seed=int(os.environ.get("KILL_SEED", "2"))) == 100


# --- many at one thing ---


def test_two_processes_on_the_same_units_make_each_once(fresh, finished, tmp_path):
    children = [child_of(["prepare", fresh.study], tmp_path / f"{one}.txt") for one in range(2)]
    said = [(ended(child), (tmp_path / f"{number}.txt").read_text()) for number, child in enumerate(children)]
    assert [code for code, _ in said] == [0, 0], said
    assert contents(fresh.path / "work/fingerprints") == contents(finished.path / "work/fingerprints")
    assert not fresh.half_written()


def test_two_trainings_of_one_model_are_one(prepared, finished, tmp_path):
    children = [child_of(["train", prepared.study], tmp_path / f"{one}.txt") for one in range(2)]
    codes = sorted(ended(child) for child in children)
    assert codes in ([0, 75], [0, 0]), [(tmp_path / f"{one}.txt").read_text() for one in range(2)]
    assert prepared.model.read_bytes() == finished.model.read_bytes()


@pytest.mark.slow
def test_eight_exporters_write_one_tree(study, finished, tmp_path):
    """All subjects by each of them at once: every file is whole, and what a single one would have written."""
    for name in INFERRED:
        shutil.rmtree(study.path / name)
    levels = ([], ["--level", "participant"])
    children = [child_of(["infer", study.study, *levels[n % 2]], tmp_path / f"{n}.txt") for n in range(8)]
    broken, done = [], threading.Event()

    def watch() -> None:
        """What is there under its name can be read at any time."""
        while not done.is_set():
            for path in study.results.rglob("*_dseg.dlabel.nii") if study.results.exists() else ():
                try:
                    assert (path.name.startswith(PART)) or nib.load(path).get_fdata().size
                except FileNotFoundError:
                    continue  # a file that is not whole yet was listed
                except Exception as error:
                    broken.append((path, error))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    codes = [ended(child) for child in children]
    done.set()
    watcher.join()
    assert codes == [0] * 8, [(tmp_path / f"{number}.txt").read_text() for number in range(8)]
    assert broken == []
    assert inferred(study) == inferred(finished)
