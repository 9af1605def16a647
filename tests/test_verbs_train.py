"""`train`: one model from prepared sessions, refused where there is none to make, whole or not there."""

import contextlib
import json
import os
import shutil
from dataclasses import replace as replace_dataclass

import nibabel as nib
import numpy as np
import pytest

from parcellation.distributed import Team
from parcellation.errors import BadData
from parcellation.model_file import LabelPower, load_model
from parcellation.verbs import train as verb
from tests.studies import PATIENTS, command, damage, replace, snapshot


def test_training_before_anything_is_prepared_is_66(fresh):
    assert "parcellation prepare" in command("train", fresh.study, code=66)
    assert not (fresh.path / "work").exists()


def test_a_subject_without_fingerprints_is_named(prepared):
    study = prepared.write_study(training={"subjects": ["sim01", "sim88"]})
    assert "sim88" in command("train", study, code=18)


def test_a_group_that_is_nobodys_is_named(prepared):
    study = prepared.write_study(training={"subjects": None, "group": "controls"})
    assert "controls" in command("train", study, code=18)


@pytest.mark.parametrize("spoil", [damage, lambda path: replace(path, path.read_bytes()[:800])])
def test_a_damaged_unit_of_a_training_subject_is_65_and_named(prepared, spoil):
    spoil(prepared.unit("sim02"))
    assert prepared.unit("sim02").name in command("train", prepared.study, code=65)
    assert not prepared.model.exists()


def test_a_damaged_unit_of_somebody_else_does_not_matter(prepared, finished):
    damage(prepared.unit("sim05"))
    command("train", prepared.study)
    assert prepared.model.read_bytes() == finished.model.read_bytes()


def test_a_damaged_model_is_trained_again_to_the_same_bytes(study, finished):
    damage(study.model)
    assert "trained on 3 subjects" in command("train", study.study)
    assert study.model.read_bytes() == finished.model.read_bytes()


def test_a_damaged_checkpoint_is_65_and_says_what_to_do(prepared):
    replace(prepared.path / "work/model/checkpoint.safetensors", b"not a checkpoint")
    said = command("train", prepared.study, code=65)
    assert "checkpoint.safetensors" in said
    assert "remove it" in said


def test_files_of_another_time_make_the_same_model(study, finished):
    for path in (study.path / "HCP").rglob("*.nii"):
        replace(path, path.read_bytes())  # other tests' copies are links to the same file
        os.utime(path, (1e9, 1e9))
    assert "9 of 9 sessions prepared" in command("prepare", study.study)
    assert "trained on 3 subjects" in command("train", study.study)
    assert study.model.read_bytes() == finished.model.read_bytes()


def test_other_settings_make_another_model(study, finished):
    command("train", study.write_study(training={"seed": 1}))
    assert study.model.read_bytes() != finished.model.read_bytes()


def test_flows_of_sites_and_sizes_of_encodings_are_settings_that_the_model_keeps(study, finished):
    model = {"flows": {"mu_subject": "coupling", "log_kappa": "spline"}, "encoding_size": 3}
    command("train", study.write_study(model=model))
    said = json.loads((study.path / "work/model/model.json").read_text())
    assert said["family"]["flow"] == model["flows"]
    assert said["family"]["encoding_size"] == 3
    command("infer", study.study)
    maps = [folder.path / "results/sub-sim04" for folder in (study, finished)]
    assert [path.name for path in sorted(maps[0].rglob("*"))] == [path.name for path in sorted(maps[1].rglob("*"))]
    assert "expected one of precision" in command("train", study.write_study(model={"flows": {"mu": "x"}}), code=64)


def test_who_is_taken_out_of_the_manifest_takes_part_in_nothing(prepared):
    """Prepared fingerprints stay in the work folder; the manifest says who the cohort is."""
    shutil.rmtree(prepared.path / "HCP/sim02")
    shutil.rmtree(prepared.run_file("sim03", 2).parent)
    study = prepared.write_study(training={"subjects": None, "steps": 2})
    command("index", study)
    assert "trained on 4 subjects" in command("train", study)
    details = json.loads((prepared.path / "work/model/model.json").read_text(encoding="utf-8"))["details"]
    assert details["subjects"] == ["sim01", "sim03", "sim04", "sim05"]
    assert details["sessions"] == 6
    assert "4 subjects inferred" in command("infer", study)
    assert not (prepared.results / "sub-sim02").exists()


def test_a_study_that_applies_a_model_is_not_trained_over_it(study):
    """The folder of the applied model is another study's."""
    study.write_study("patients.yaml", PATIENTS, data={"root": "HCP"})
    command("prepare", study.path / "patients.yaml")
    before = snapshot(study.path)
    assert "model.file" in command("train", study.path / "patients.yaml", code=64)
    assert "model.file" in command("train", study.study, "--model", study.path / "work/model", code=64)
    assert snapshot(study.path) == before


def test_the_model_says_who_and_what_it_was_trained_on(finished):
    details = json.loads((finished.path / "work/model/model.json").read_text(encoding="utf-8"))["details"]
    assert details["subjects"] == ["sim01", "sim02", "sim03"]
    assert details["sessions"] == 6
    assert details["study"]["training"]["steps"] == 10
    losses = (finished.path / "work/model/training_loss.tsv").read_text(encoding="utf-8").splitlines()
    assert len(losses) == 11


OWN_LOGITS = {"template": "functional_parcellation_logits"}


@pytest.mark.parametrize("model", [{"scheme": "encoded"}, OWN_LOGITS, OWN_LOGITS | {"scheme": "encoded"}], ids=str)
def test_other_schemes_and_models_of_labels_go_the_whole_way(prepared, model):
    study = prepared.write_study(model=model, training={"steps": 2})
    assert "trained on 3 subjects" in command("train", study)
    trained = load_model(prepared.path / "work/model").family
    population = {site.name for site in trained.template.population_sites()}
    assert set(trained.fixed) == (population if trained.settings["scheme"] == "encoded" else set())
    assert "1 subjects inferred" in command("infer", study, "--participant-label", "sim04")
    probability = np.asarray(nib.load(*prepared.results.glob("sub-sim04/anat/*_probseg.dscalar.nii")).dataobj)
    assert np.isfinite(probability).all()
    assert 0.5 < probability.max() <= 1


def test_free_subjects_are_known_and_new_ones_are_refused(prepared):
    study = prepared.write_study(model={"scheme": "free"}, training={"steps": 2})
    assert "trained on 3 subjects" in command("train", study)
    assert "train a hybrid" in command("infer", study, code=64)


def test_a_model_that_is_not_of_networks_is_refused(prepared):
    study = prepared.write_study(model={"template": "gaussian_random_effects"})
    assert "expected a model of networks, got 'gaussian_random_effects'" in command("train", study, code=64)


def test_networks_that_have_collapsed_into_one_are_refused(finished):
    model = load_model(finished.path / "work/model")
    verb.check_networks(model)
    profiles = model.family.free["mu"]({})
    one = profiles.estimate.mean(-2, keepdim=True).expand_as(profiles.estimate)
    model.family.free["mu"].set(replace_dataclass(profiles, estimate=one, log_precision=0 * one + 20))
    words = "training: the networks' profiles have collapsed into one: 0.0% of the anchors' differences are left; fewer"
    with pytest.raises(BadData, match=words):
        verb.check_networks(model)


def test_a_training_that_collapses_is_65_and_leaves_no_model(prepared, monkeypatch):
    monkeypatch.setattr(verb, "separation", lambda mu, reference: 0.01)
    assert "collapsed into one: 1.0%" in command("train", prepared.study, code=65)
    assert not prepared.model.exists()


def test_refined_steps_in_several_processes_are_refused_before_any_work(prepared, monkeypatch):
    monkeypatch.setattr(verb, "team_of", lambda device: contextlib.nullcontext(Team(0, 2, device)))
    monkeypatch.setattr(verb, "unit_lock", lambda path: contextlib.nullcontext(True))
    monkeypatch.setattr(Team, "first", lambda self, make: make())
    said = command("train", prepared.write_study(training={"inner_steps": 2}), code=64)
    assert "training.inner_steps: expected a training in one process, got one in 2; start it without torchrun" in said
    assert not prepared.model.exists()


def test_one_session_a_subject_leaves_the_study_s_label_power_unchecked(prepared):
    for subject in ("sim01", "sim02", "sim03"):
        shutil.rmtree(prepared.run_file(subject, 2).parent)
    study = prepared.write_study(model={"label_power": 0.25}, training={"steps": 2})
    command("index", study)
    assert "0.25 and not checked" in command("train", study)
    assert load_model(prepared.path / "work/model").label_power == LabelPower(0.25, 0.0, False)
    command("infer", study, "--participant-label", "sim01")
    sidecar = json.loads(next(prepared.results.glob("sub-sim01/anat/*_probseg.json")).read_text(encoding="utf-8"))
    assert "unchecked" in sidecar["LabelPower"]
    command("report", study)
    assert "label power is 0.25 and unchecked" in (prepared.results / "report.html").read_text(encoding="utf-8")
