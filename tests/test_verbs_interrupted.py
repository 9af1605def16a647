"""A signal ends any verb in seconds with everything finished kept, and the same command goes on to the same files.

That of `run` is in test_pipelines.py: the whole way is long.
"""

import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from parcellation.cli import VERBS
from tests.studies import SIMULATION, Folder, command, contents, copied, process, replace

LONGEST = 10  # seconds from the signal to the end
SELF = """
import os, sys, time
from pathlib import Path
from parcellation.cli import main

event, words, count, number, told, arguments = {case!r}
seen = []

def watch(name, values):
    if name == event and len(seen) < count and words in str(values):
        seen.append(name)
        if len(seen) == count:
            Path(told).write_text(str(time.time()))
            os.kill(os.getpid(), number)

sys.addaudithook(watch)
sys.exit(main(arguments))
"""
MOVED, OPENED = "os.rename", "open"  # what Python says that a process does


@dataclass(frozen=True)
class Case:
    """A command on a finished study without what is `due`, and at the how many-th of which event it is told to end."""

    arguments: str
    due: tuple[str, ...]
    event: str
    words: str
    count: int = 1
    number: signal.Signals = signal.SIGTERM
    made: tuple[str, ...] = ("work",)

    @property
    def verb(self) -> str:
        return self.arguments.split()[0]


INFERRED, RESULTS = ("work/posterior", "results"), ("work", "results")
CASES = (
    Case("index STUDY", ("work", "results"), OPENED, ".dtseries.nii", 4),
    Case("prepare STUDY", ("work/fingerprints", "work/model", *INFERRED), MOVED, "_fingerprint", 3),
    Case("train STUDY", ("work/model", *INFERRED), MOVED, "checkpoint", 2),
    Case("train STUDY", ("work/model", *INFERRED), MOVED, "model.json", 1, signal.SIGINT),
    Case("networks STUDY --numbers 2 3", ("work/model", *INFERRED), MOVED, "networks/", 3, made=RESULTS),
    Case("infer STUDY", INFERRED, MOVED, "dseg.dlabel", 2, signal.SIGINT, RESULTS),
    Case("infer STUDY", INFERRED, MOVED, "sizes_network", made=RESULTS),
    Case("diagnose STUDY --participant-label sim01 sim02", (), MOVED, "_diagnosis", 2, made=RESULTS),
    Case("report STUDY", (), OPENED, "training_loss.tsv", made=("results",)),
    Case("compare RESULTS RESULTS --out OUT/overlap.tsv", (), OPENED, "probseg", 2, made=("out",)),
    Case("show RESULTS --out OUT/map.png", (), MOVED, "map.png", made=("out",)),
    Case("simulate SIMULATION OUT", (), MOVED, ".dtseries.nii", 3, signal.SIGINT, ("out",)),
    Case("demo OUT", (), MOVED, "_fingerprint", 9, made=("out/results", "out/results-person")),
)
QUICK = {("prepare", MOVED), ("train", MOVED)}  # the others are for `make test-slow`


def parameters():
    seen = set()
    for case in CASES:
        marks = () if (case.verb, case.event) in QUICK - seen else (pytest.mark.slow,)
        seen.add((case.verb, case.event))
        yield pytest.param(case, marks=marks, id=f"{case.verb}-{case.words.strip('_./*')}-{case.number.name}")


def test_every_verb_has_a_case():
    assert {case.verb for case in CASES} == set(VERBS) - {"run"}


@dataclass(frozen=True)
class Started:
    """A folder in which a case's command can be given."""

    folder: Folder
    case: Case

    @classmethod
    def anew(cls, case: Case, finished: Folder, path: Path) -> "Started":
        """The finished study at this path, less what the command is to make."""
        shutil.rmtree(path, ignore_errors=True)
        folder = Folder(copied(finished.path, path))
        for name in case.due:
            shutil.rmtree(path / name, ignore_errors=True)
        folder.write_study(training={"checkpoint_every": 2})
        replace(path / "small.yaml", yaml.safe_dump(SIMULATION | {"subjects": 3, "missing": {}}).encode())
        return cls(folder, case)

    @property
    def arguments(self) -> list[str]:
        path = self.folder.path
        names = {"STUDY": path / "study.yaml", "RESULTS": path / "results", "SIMULATION": path / "small.yaml"}
        words = [str(names.get(word, word)) for word in self.case.arguments.split()]
        return [*(str(path / word.lower()) if word.startswith("OUT") else word for word in words), "-v"]

    def made(self) -> dict[str, dict[str, str]]:
        return {name: contents(self.folder.path / name) for name in self.case.made}

    def told(self) -> tuple[int, float, str]:
        """Exit code, seconds from the signal to the end, and what was printed, of a process that is told to end."""
        case, told = self.case, self.folder.path / "told"
        what = (case.event, case.words, case.count, int(case.number), str(told), self.arguments)
        one = process(code=SELF.format(case=what))
        text, _ = one.communicate(timeout=600)
        assert told.exists(), f"never told to end\n{text}"
        return one.returncode, time.time() - float(told.read_text()), text


@pytest.mark.parametrize("case", list(parameters()))
def test_a_signal_ends_it_and_the_same_command_goes_on(case, finished, tmp_path):
    undisturbed = Started.anew(case, finished, tmp_path / "study")
    command(*undisturbed.arguments)
    expected = undisturbed.made()
    assert all(expected.values())
    again = Started.anew(case, finished, tmp_path / "study")
    code, seconds, text = again.told()
    assert code == 75, text
    assert "the same command continues" in text
    assert "Traceback" not in text
    assert seconds < LONGEST
    assert not again.folder.half_written()
    assert again.made() != expected
    command(*again.arguments)
    assert again.made() == expected
