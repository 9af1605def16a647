"""`report`: one page of a finished result; what was left out is on it."""

import shutil

import numpy as np

from parcellation.config import load_study
from parcellation.verbs.infer import Inference
from parcellation.verbs.report import by_networks, held_out
from tests.studies import command, replace, snapshot


def test_before_anybody_is_inferred_is_66(study):
    shutil.rmtree(study.path / "work/posterior")
    shutil.rmtree(study.results)
    assert "parcellation infer" in command("report", study.study, code=66)
    assert not study.results.exists()


def test_before_training_is_66(prepared):
    assert "parcellation train" in command("report", prepared.study, code=66)


def test_runs_that_were_left_out_are_on_the_page_and_nothing_else_is_written(study):
    path = study.run_file("sim05")
    replace(path, path.read_bytes()[:-1000])
    command("prepare", study.study)
    command("infer", study.study)
    before = snapshot(study.path)
    assert "written" in command("report", study.study)
    after = snapshot(study.path)
    assert {path for path in after if after[path] != before.get(path)} == {str(study.results / "report.html")}
    page = (study.results / "report.html").read_text(encoding="utf-8")
    assert "truncated" in page
    assert path.name in page
    # A study that has lost a subject's only session has lost the subject.
    assert "4 subjects" in page
    shutil.rmtree(path.parent)
    command("index", study.study)
    command("report", study.study)
    # Of what is not in the study any more nothing is said.
    assert "truncated" not in (study.results / "report.html").read_text(encoding="utf-8")


def test_the_page_has_every_subject_and_no_more(finished):
    page = (finished.results / "report.html").read_text(encoding="utf-8")
    for subject in ("sim01", "sim05"):
        assert f"sub-{subject}" in page
    assert "sim06" not in page


def test_people_who_were_not_trained_on_are_told_from_those_who_were_left_out(finished):
    run = Inference.of(load_study(finished.study))
    found = held_out(run, [(one.subject, one.sessions) for one in run.known()])
    training, others = found.densities.values()
    assert (len(training), len(others)) == (3, 2)
    assert np.isfinite([*training, *others]).all()
    assert found.by_networks is None


def test_what_networks_found_is_shown(finished, tmp_path):
    (tmp_path / "networks.tsv").write_text("networks\tdensity\tless_error\n2\t1.5\t0\n3\tn/a\tn/a\n4\t1.25\t0.5\n")
    table = by_networks(tmp_path / "networks.tsv")
    assert {name: values.tolist() for name, values in table.items()} == {
        "networks": [2, 4], "density": [1.5, 1.25], "less_error": [0, 0.5]
    }  # fmt: skip
