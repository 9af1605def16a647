"""`simulate`: the same cohort in every format gives the same fingerprints, and maps in the format of its data."""

import shutil

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import yaml

from parcellation.store import Store
from tests.studies import PATIENTS, command, contents, replace, snapshot

SETTINGS = {"subjects": 1, "train": 1, "sessions": 1, "frames": 60, "seed": 3}
FORMATS = ("cifti", "mgz", "gifti")
STEM = "space-fsaverage_seg-broca2_den-10k"


@pytest.fixture(scope="module")
def formats(finished, tmp_path_factory):
    """The same cohort in each format, prepared for the finished model: format -> its study."""
    out = tmp_path_factory.mktemp("formats")
    shutil.copytree(finished.path / "work/model", out / "model")
    studies = {}
    for one in FORMATS:
        replace(out / f"simulate-{one}.yaml", yaml.safe_dump(SETTINGS | {"format": one}).encode())
        command("simulate", out / f"simulate-{one}.yaml", out / one)
        data = {"layout": "manifest", "manifest": f"{one}/manifest.tsv", "space": "fsaverage"}
        outputs = {"directory": f"{one}-results", "work": f"{one}-work", "draws": 8}
        content = PATIENTS | {"data": data, "model": {"file": "model"}, "outputs": outputs}
        studies[one] = out / f"study-{one}.yaml"
        replace(studies[one], yaml.safe_dump(content).encode())
        command("prepare", studies[one])
    return studies


def unit(study, one):
    (folder,) = (study.parent / f"{one}-work/fingerprints").iterdir()
    return Store(folder).read("sim01", "1")


@pytest.mark.parametrize("one", FORMATS[1:])
def test_fingerprints_do_not_depend_on_the_format(formats, one):
    expected, got = unit(formats["cifti"], "cifti"), unit(formats[one], one)
    np.testing.assert_array_equal(got.fingerprint, expected.fingerprint)
    np.testing.assert_array_equal(got.mask, expected.mask)
    assert got.frames == expected.frames == 60
    assert got.repetition_time == expected.repetition_time


@pytest.mark.parametrize("one", ["mgz", "gifti"])
def test_maps_on_fsaverage_are_cifti_and_gifti_whatever_the_data(formats, one):
    command("infer", formats[one])
    results = formats[one].parent / f"{one}-results"
    anat = {path.name for path in (results / "sub-sim01/anat").iterdir()}
    assert anat == {
        f"sub-sim01_{STEM}_dseg.dlabel.nii",
        f"sub-sim01_{STEM}_probseg.dscalar.nii",
        f"sub-sim01_{STEM}_stat-uncertainty_boldmap.dscalar.nii",
        f"sub-sim01_hemi-L_{STEM}_dseg.label.gii",
        f"sub-sim01_{STEM}_dseg.json",
        f"sub-sim01_{STEM}_dseg.tsv",
        f"sub-sim01_hemi-L_{STEM}_probseg.func.gii",
        f"sub-sim01_{STEM}_probseg.json",
        f"sub-sim01_hemi-L_{STEM}_stat-uncertainty_boldmap.func.gii",
        f"sub-sim01_{STEM}_stat-uncertainty_boldmap.json",
    }
    labels = nib.load(results / f"sub-sim01/anat/sub-sim01_hemi-L_{STEM}_dseg.label.gii")
    keys = labels.darrays[0].data
    assert keys.shape == (10242,)
    assert (keys > 0).sum() == 304
    names = pd.read_csv(results / f"sub-sim01/anat/sub-sim01_{STEM}_dseg.tsv", sep="\t").name
    assert labels.labeltable.get_labels_as_dict() == {0: "???"} | dict(enumerate(names, 1))
    cifti = nib.load(results / f"sub-sim01/anat/sub-sim01_{STEM}_dseg.dlabel.nii")
    left = cifti.header.get_axis(1).name == "CIFTI_STRUCTURE_CORTEX_LEFT"
    np.testing.assert_array_equal(np.asarray(cifti.dataobj)[0, left], keys[cifti.header.get_axis(1).vertex[left]])
    probability = nib.load(results / f"sub-sim01/anat/sub-sim01_hemi-L_{STEM}_probseg.func.gii")
    values = np.stack([array.data for array in probability.darrays])
    np.testing.assert_allclose(values.sum(0)[keys > 0], 1, atol=1e-6)
    np.testing.assert_array_equal(values.argmax(0)[keys > 0] + 1, keys[keys > 0])


def test_the_answer_does_not_depend_on_the_format(formats):
    for one in ("cifti", "mgz"):
        command("infer", formats[one])
    files = [formats[one].parent / f"{one}-results/sub-sim01/func" for one in ("cifti", "mgz")]
    assert contents(files[0]) == contents(files[1])


def test_a_cohort_is_continued_and_not_overwritten(study):
    settings, out = study.path / "simulation.yaml", study.path / "HCP"
    before = snapshot(out)
    study.run_file("sim02").unlink()
    command("simulate", settings, out)
    after = snapshot(out)
    assert [path for path in before if before[path] != after[path]] == [str(study.run_file("sim02"))]
    assert {path: digest for path, (_, digest) in after.items()} == {p: digest for p, (_, digest) in before.items()}
    replace(settings, settings.read_bytes().replace(b"seed: 3", b"seed: 4"))
    assert "other settings" in command("simulate", settings, out, code=64)


def test_one_subject_of_a_cohort(study):
    command("simulate", study.path / "simulation.yaml", study.path / "new", "--participant-label", "sub-sim02")
    assert [path.name for path in (study.path / "new").glob("sim*")] == ["sim02"]
    path = next((study.path / "new").rglob("*.dtseries.nii"))
    assert path.read_bytes() == (study.path / "HCP" / path.relative_to(study.path / "new")).read_bytes()
    command("simulate", study.path / "simulation.yaml", study.path / "new", "--participant-label", "x", code=18)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("subject: 3", 64, "subject"),
        ("source: {bold: none.dtseries.nii}", 66, "none.dtseries.nii"),
        ("missing: {sim01: [1, 2]}\nsessions: 2", 64, "sim01"),
        ("labels: {group_map: map.npy}", 66, "map.npy"),
    ],
)
def test_wrong_settings(tmp_path, text, code, said):
    replace(tmp_path / "s.yaml", text.encode())
    assert said in command("simulate", tmp_path / "s.yaml", tmp_path / "out", code=code)
    assert not list(tmp_path.glob("out/sim*"))


def test_fingerprints_straight_into_a_store_are_trained_on(tmp_path):
    template = {"vertices": 40, "features": 12}
    replace(tmp_path / "s.yaml", yaml.safe_dump({"subjects": 6, "train": 4, "template": template}).encode())
    said = command("simulate", tmp_path / "s.yaml", tmp_path / "out", "--fingerprints")
    assert "6 subjects simulated" in said
    assert len(list((tmp_path / "out").rglob("*_fingerprint.safetensors"))) == 12
    before = snapshot(tmp_path / "out")
    command("simulate", tmp_path / "s.yaml", tmp_path / "out", "--fingerprints")
    assert snapshot(tmp_path / "out") == before
    content = yaml.safe_load((tmp_path / "out/study.yaml").read_bytes())
    content["training"]["steps"] = 2
    replace(tmp_path / "out/study.yaml", yaml.safe_dump(content).encode())
    assert "trained on 4 subjects" in command("train", tmp_path / "out/study.yaml")
