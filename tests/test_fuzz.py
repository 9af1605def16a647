"""The fuzz itself: sound samples are read, some hundred damaged ones are refused, and planted bugs are found."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcellation import cifti_series
from pipelines.fuzz import __main__ as command
from pipelines.fuzz.campaign import run
from pipelines.fuzz.mutations import mutated
from pipelines.fuzz.readers import READERS, readers_of
from pipelines.fuzz.samples import write_samples
from pipelines.fuzz.worker import Task, inputs
from tests.readme import ROOT


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return write_samples(tmp_path_factory.mktemp("samples") / "s")


def task(files, folder, count, readers="pipelines.fuzz.readers", seed=0):
    return Task(tuple(map(str, files)), readers, str(folder), seed, 0, 1, count)


def test_every_sound_sample_is_read_by_one_of_its_readers(samples):
    read = set()
    for path in samples:
        taken = set()
        for name, reader in readers_of(path).items():
            if name == "series" and path.name.endswith(".dlabel.nii"):
                continue
            reader(path)
            taken.add(name)
        assert taken, path
        read |= taken
    assert read == {name for group in READERS.values() for name in group}


def test_a_number_stands_for_the_same_bytes(samples, tmp_path):
    first, again, other = (
        [path.read_bytes() for _, path, _ in inputs(task(samples, tmp_path / name, 60, seed=seed))]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    assert first != other


def test_most_inputs_are_changed_and_some_a_little(samples):
    contents = [path.read_bytes() for path in samples]
    changed = [mutated(contents[0], contents, np.random.default_rng(k)) for k in range(200)]
    assert sum(one != contents[0] for one in changed) > 150
    # Changes of single bytes get deeper into a reader than those of whole blocks.
    same_length = [one for one in changed if len(one) == len(contents[0])]
    few = [sum(a != b for a, b in zip(one, contents[0], strict=True)) for one in same_length]
    assert sum(0 < count <= 8 for count in few) > 40


def test_some_hundred_damaged_files_are_refused_or_read(samples, tmp_path):
    campaign = run(task(samples, tmp_path / "damaged", 12 * len(samples)), 1, tmp_path / "kept")
    assert campaign.findings == {}, "\n".join(campaign.lines())
    assert campaign.inputs == 12 * len(samples)
    assert set(campaign.reads) == {name for group in READERS.values() for name in group}
    assert all(campaign.accepted[name] < count for name, count in campaign.reads.items())
    # Not all are refused at the door.
    assert sum(campaign.accepted.values()) > 0.15 * sum(campaign.reads.values())


# Copies of a reader, each a module of its own, all fed with the same inputs.
PLANTED = """
import sys
import numpy as np

def copy(name, source):
    module = type(sys)(name)
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
    def read(path):
        bold = module.open_cifti(path, "fsaverage")
        return [values for _, values in bold.rows(np.arange(len(bold.vertices)))]
    return read

copies = {{name: copy(name, source) for name, source in {sources!r}.items()}}

def readers_of(path):
    return copies
"""
BUGS = {
    "sound": [],
    "type": [("parsed(path, lambda _: nifti.get_data_dtype())", "nifti.get_data_dtype()")],
    "endless": [("    _check_intent(path,", "    while header['intent_code'] < 0: pass\n    _check_intent(path,")],
    "memory": [("    check_stored(path, rows, frames, dtype)", "    bytearray(min(abs(rows) * abs(frames), 2**33))")],
    "size": [
        ("    check_size(path, offset + rows", "    (lambda *_: None)(path, offset + rows"),
        ("    check_nifti_2(path)\n", ""),
        ("if len(raw) < count * self.frames:", "if not len(raw):"),
    ],
}


def test_bugs_planted_in_copies_of_a_reader_are_found(samples, tmp_path):
    sources = dict.fromkeys(BUGS, inspect.getsource(cifti_series))
    for name, changes in BUGS.items():
        for old, new in changes:
            assert sources[name].count(old) == 1
            sources[name] = sources[name].replace(old, new)
    readers = tmp_path / "planted.py"
    readers.write_text(PLANTED.format(sources=sources), encoding="utf-8")
    files = [path for path in samples if path.name.endswith(".dtseries.nii")]
    given = replace(task(files, tmp_path / "damaged", 400, str(readers)), limit=0.3)
    campaign = run(given, 1, tmp_path / "kept")
    found = {alike[0].reader: alike[0].finding for alike in campaign.findings.values()}
    assert found.keys() == BUGS.keys() - {"sound"}, "\n".join(campaign.lines())
    assert "no end within" in found["endless"]
    assert "MemoryError" in found["memory"]
    assert len(list((tmp_path / "kept").iterdir())) == len(campaign.findings)


def test_the_command_counts_its_inputs_and_ends_with_1_for_findings(tmp_path, capsys):
    readers = tmp_path / "bad.py"
    readers.write_text("def readers_of(path):\n    return {'bad': lambda path: 1 / 0}\n", encoding="utf-8")
    assert command.main(["--inputs", "30", "--keep", str(tmp_path / "kept"), "--readers", str(readers)]) == 1
    said = capsys.readouterr().out
    assert "30 inputs in" in said
    assert "bad                30 read, 0 taken, 30 refused" in said
    assert "(30 times) bad: ZeroDivisionError" in said
    assert "1 findings" in said


def test_a_worker_that_dies_is_one_finding_and_the_others_go_on(samples, tmp_path):
    readers = tmp_path / "dies.py"
    text = "import os\ndef readers_of(path):\n    return {'dies': lambda _: path.suffix == '.mgz' and os._exit(3)}\n"
    readers.write_text(text, encoding="utf-8")
    campaign = run(task(samples, tmp_path / "damaged", len(samples), str(readers)), 1, tmp_path / "kept")
    assert campaign.inputs == len(samples)
    assert [alike[0].finding for alike in campaign.findings.values()] == ["the process died (3)"]


def test_the_makefile_has_it():
    assert "-m pipelines.fuzz" in (Path(ROOT) / "Makefile").read_text(encoding="utf-8")
