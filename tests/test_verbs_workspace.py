"""A new cohort's study: what comes from the model, and what may not contradict it."""

import nibabel as nib
import numpy as np
import pytest

from parcellation.bold_files import write_cifti
from parcellation.surfaces import Mesh, Vertices
from tests.studies import PATIENTS, RUN, command, snapshot

CONTRADICTIONS = {
    "region.hemisphere": ("region", {"hemisphere": "right"}, "'left'", "'right'"),
    "targets.kind": ("targets", {"kind": "parcels", "label_file": "a.annot"}, "'vertices'", "'parcels'"),
    "features.connectivity": ("features", {"connectivity": "binarized"}, "'correlation'", "'binarized'"),
    "features.components": ("features", {"components": 12}, "'auto'", "12"),
    "model.networks": ("model", {"networks": 3}, "2", "3"),
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_what_contradicts_the_model_is_65_with_key_expected_and_got(patients, key):
    section, change, expected, got = CONTRADICTIONS[key]
    study = patients.write_study("patients.yaml", PATIENTS, **{section: change})
    before = snapshot(patients.path)
    for verb in ("index", "prepare", "infer"):
        said = command(verb, study, code=65)
        assert key in said
        assert f"trained with {expected}" in said
        assert f"the study says {got}" in said
    assert snapshot(patients.path) == before


def test_what_agrees_with_the_model_may_be_said(patients):
    agreed = {"region": {"name": "broca", "hemisphere": "left"}, "features": {"connectivity": "correlation"}}
    study = patients.write_study("patients.yaml", PATIENTS, model={"networks": 2, "names": ["A", "B"]}, **agreed)
    assert "3 subjects inferred, 3 of them before" in command("infer", study)
    (path,) = patients.path.glob("results-patients/sub-P01/anat/*.dlabel.nii")
    assert [name for name, _ in nib.load(path).header.get_axis(0).label[0].values()] == ["???", "A", "B"]


def test_a_model_on_the_command_line(patients):
    study = patients.write_study("patients.yaml", PATIENTS, model=None)
    said = command("infer", study, "--model", patients.path / "work/model")
    assert "3 subjects inferred, 3 of them before" in said


def test_a_model_that_is_not_there_is_66(patients):
    study = patients.write_study("patients.yaml", PATIENTS, model={"file": "nowhere"})
    for verb in ("prepare", "infer"):
        assert "nowhere" in command(verb, study, code=66)


def test_data_on_another_mesh_are_refused_with_both_meshes(patients):
    path = patients.path / "OTHERS" / RUN.format("Q1", 1)
    series = np.random.default_rng(0).normal(size=(100, 80)).astype(np.float32)
    write_cifti(path, series, Vertices.of(Mesh("fsLR", (32492, 32492)), range(50), range(30)), 0.72)
    outputs = {"directory": "results-others", "work": "work-others"}
    study = patients.write_study("others.yaml", PATIENTS, data={"root": "OTHERS", "space": "fsLR"}, outputs=outputs)
    said = command("prepare", study, code=65)
    assert "fsaverage" in said
    assert "fsLR" in said
    command("infer", study, code=66)
    assert not (patients.path / "results-others").exists()


def test_fingerprints_of_other_targets_are_refused(patients):
    """A cohort that was prepared with a study of its own, before the model is named."""
    study = patients.write_study("own.yaml", PATIENTS, model=None, region={"hemisphere": "right"})
    command("prepare", study)
    said = command("infer", study, "--model", patients.path / "work/model", code=65)
    assert "region.hemisphere" in said
