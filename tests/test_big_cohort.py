"""A cohort of 200 runs with 3 bad ones: it is finished, says so in a few lines, and ends with 0, or 65 if strict."""

import os
import re

import numpy as np
import pytest

from parcellation.bold import Bold
from parcellation.verbs import prepare as module
from tests.studies import change_run, command, contents, replace

SUBJECTS = 100
BAD = {"p007": "cut", "p042": "text", "p099": "short"}


@pytest.fixture
def cohort(fresh):
    """100 subjects of two runs, each a link to one of the simulated runs; three runs are bad in different ways."""
    sources = [fresh.run_file(f"sim0{number}", session) for number in (1, 2, 3) for session in (1, 2)]
    rows = ["subject\tsession\trun\tbold"]
    for number in range(SUBJECTS):
        for run in (1, 2):
            name = f"p{number:03d}"
            path = fresh.path / "DATA" / f"{name}_{run}.dtseries.nii"
            path.parent.mkdir(exist_ok=True)
            os.link(sources[(2 * number + run) % len(sources)], path)
            rows.append(f"{name}\t{1 + number % 2}\t{run}\t{path}")
    content = sources[0].read_bytes()
    paths = {name: fresh.path / "DATA" / f"{name}_2.dtseries.nii" for name in BAD}
    replace(paths["p007"], content[: len(content) // 2])
    replace(paths["p042"], b"not a series at all" * 100)
    change_run(paths["p099"], lambda series: series[:5], sources[0])
    replace(fresh.path / "manifest.tsv", ("\n".join(rows) + "\n").encode())
    fresh.write_study(data={"layout": "manifest", "manifest": "manifest.tsv", "root": None})
    return fresh


def left_out(said: str) -> list[str]:
    return [name for name in BAD if re.search(rf"{name}.*run.2", said)]


def test_index_counts_the_bad_ones_and_goes_on(cohort):
    said = command("index", cohort.study)
    assert f"{SUBJECTS} subjects" in said
    assert "200 runs" in said
    assert len(left_out(said)) >= 2  # how many frames there are, prepare says
    assert len(said.splitlines()) < 60
    assert "cannot be used" in command("index", cohort.study, "--strict", code=65)


def quick(monkeypatch) -> None:
    """Series are opened, checked and their frames counted; fingerprints are made once for all."""
    plain, made = module.fingerprints, {}

    def fingerprints(bold: Bold, region, targets, cleaning, kept, **settings):
        if bold.frames < 20:
            return plain(bold, region, targets, cleaning, kept, **settings)
        key = region.digest()
        if key not in made:
            made[key] = plain(bold, region, targets, cleaning, kept, **settings)
        return made[key]

    monkeypatch.setattr(module, "fingerprints", fingerprints)


def test_prepare_finishes_and_says_which_are_left_out(cohort, monkeypatch):
    quick(monkeypatch)
    said = command("prepare", cohort.study)
    assert "100 of 100 sessions prepared" in said
    assert "3 runs left out:" in said
    assert left_out(said) == list(BAD)
    assert "3 warnings" in said
    before = contents(cohort.path / "work/fingerprints")
    assert len([name for name in before if name.startswith("") and name.endswith(".safetensors")]) == SUBJECTS
    strict = command("prepare", cohort.study, "--strict", code=65)
    assert left_out(strict) == list(BAD)
    assert contents(cohort.path / "work/fingerprints") == before
    for name in BAD:
        reason = cohort.path / f"work/excluded/sub-{name}_ses-{1 + int(name[1:]) % 2}.txt"
        assert reason.read_text(encoding="utf-8").count("\n") == 1


def test_all_of_them_bad_is_65(cohort):
    for path in (cohort.path / "DATA").iterdir():
        replace(path, b"not a series at all" * 100)
    said = command("prepare", cohort.study, code=65)
    assert "no run can be opened" in said
    assert np.char.count(said, "\n") < 210
