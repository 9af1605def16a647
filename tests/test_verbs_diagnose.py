"""`diagnose`: kept one subject at a time, told in the table, in participants.tsv, in the report."""

import shutil

import pandas as pd
import pytest

from parcellation.amortization_gap import Budget
from parcellation.annealing import Schedule
from parcellation.refinement import Ascent
from parcellation.verbs import diagnose as verb
from tests.studies import SUBJECTS, command, damage, snapshot

QUICK = Budget(2, 20, 40, 8, Ascent(2, 2), Schedule(2, 2, 1, 2), 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(verb, "BUDGET", QUICK)


def table(folder, name="diagnostics/amortization_gap.tsv"):
    return pd.read_csv(folder.results / name, sep="\t", dtype=str, keep_default_na=False).set_index("participant_id")


def kept(folder, subject):
    return folder.path / f"work/diagnosis/sub-{subject}_diagnosis.json"


def test_before_anybody_is_inferred_is_66_and_others_are_18(study):
    assert "not inferred" in command("diagnose", study.study, "--participant-label", "nobody", code=18)
    assert "would diagnose subject sim01" in command("diagnose", study.study, "--dry-run")
    assert not (study.path / "work/diagnosis").exists()
    shutil.rmtree(study.path / "work/posterior")
    assert "parcellation infer" in command("diagnose", study.study, code=66)


def test_gaps_are_kept_and_told_in_every_place(study):
    maps = snapshot(study.results / "sub-sim01")
    said = command("diagnose", study.study, "-v", "--participant-label", "sim01", "sub-sim04")
    assert "2 subjects diagnosed" in said
    assert "seconds" in said  # the cost of a subject
    assert snapshot(study.results / "sub-sim01") == maps
    gaps, people = table(study), table(study, "participants.tsv")
    assert list(gaps.index) == ["sub-sim01", "sub-sim04"]
    assert list(people.index) == [f"sub-{subject}" for subject in SUBJECTS]
    for name in ("sub-sim01", "sub-sim04"):
        assert float(people.loc[name, "amortization_gap"]) == pytest.approx(float(gaps.loc[name, "amortization_gap"]))
    assert people.loc["sub-sim02", "amortization_gap"] == "n/a"
    assert gaps.loc["sub-sim01", "log_evidence_by"] in ("annealing", "not estimable")  # of 40 samples
    command("report", study.study)
    page = (study.results / "report.html").read_text(encoding="utf-8")
    assert 'id="gaps"' in page
    assert "For 2 of\n5 subjects" in page


def test_what_is_kept_is_not_made_again_and_a_rerun_is_the_same_to_the_byte(study):
    command("diagnose", study.study, "--participant-label", "sim01", "sim02")
    before = snapshot(study.path / "work", study.results)
    assert "2 of them before" in command("diagnose", study.study, "--participant-label", "sim01", "sim02")
    assert snapshot(study.path / "work", study.results) == before
    content = kept(study, "sim02").read_bytes()
    kept(study, "sim02").write_bytes(b"{")
    assert "1 of them before" in command("diagnose", study.study, "--participant-label", "sim01", "sim02")
    assert kept(study, "sim02").read_bytes() == content
    # A later `infer` forgets nothing.
    command("infer", study.study)
    assert table(study, "participants.tsv").loc["sub-sim02", "amortization_gap"] != "n/a"


def test_one_bad_subject_does_not_take_down_the_rest(study):
    damage(study.unit("sim04", 2))
    arguments = ("diagnose", study.study, "--participant-label", "sim03", "sim04")
    said = command(*arguments)
    assert "1 subjects diagnosed" in said
    assert study.unit("sim04", 2).name in said
    assert list(table(study).index) == ["sub-sim03"]
    assert study.unit("sim04", 2).name in command(*arguments, "--strict", code=65)
    assert command("diagnose", study.study, "--participant-label", "sim04", code=65)


def test_many_subjects_are_sampled_unless_all_are_wanted(study, monkeypatch):
    monkeypatch.setattr(verb, "SAMPLE", 2)
    said = command("diagnose", study.study, "--dry-run")
    assert "a sample of 2 of 5 subjects" in said
    assert said.count("would diagnose") == 2
    assert command("diagnose", study.study, "--dry-run") == said
    assert command("diagnose", study.study, "--dry-run", "--all").count("would diagnose") == 5


def test_what_is_diagnosed_is_the_answer_in_use(study):
    """After refinement the gap is what is left of it, and no gap of the encoder's answer is taken for it."""
    command("diagnose", study.study, "--participant-label", "sim01")
    before = float(table(study).loc["sub-sim01", "elbo"])
    command("infer", study.study, "--refine", "2", "--participant-label", "sim01")
    assert table(study, "participants.tsv").loc["sub-sim01", "amortization_gap"] == "n/a"
    command("diagnose", study.study, "--participant-label", "sim01")
    assert float(table(study).loc["sub-sim01", "elbo"]) != before
