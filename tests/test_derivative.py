"""The root of the derivative says what it is, who is in it, and nothing of when it was made."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from parcellation import __version__
from parcellation.config import parse_study
from parcellation.derivative import methods_text, participant, write_dataset
from parcellation.errors import BadData


def posterior(subject, mask=(True, True, False)):
    probability = np.array([[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]])
    return SimpleNamespace(
        subject=subject, sessions=("1", "2"), frames=(1200.0, 1100.0), probability=probability, mask=np.array(mask)
    )


def dataset(out, subjects, **more):
    rows = [participant(posterior(subject)) for subject in subjects]
    write_dataset(out, "Broca", {"StudySHA256": "abc123"}, rows, citation="# Cite\n", **more)


def test_a_participant_row_counts_what_has_data():
    row = participant(posterior("0100307"), flags=["short", "noisy"])
    assert row["participant_id"] == "sub-0100307"
    assert (row["sessions"], row["frames"], row["masked_vertices"]) == (2, 2300, 1)
    assert row["mean_confidence"] == pytest.approx(0.625)  # the vertex without data does not count
    assert row["flags"] == "short; noisy"


def test_a_subject_without_any_data_has_no_confidence(tmp_path):
    write_dataset(tmp_path, "B", {}, [participant(posterior("1", mask=[False] * 3))], citation="")
    table = pandas.read_csv(tmp_path / "participants.tsv", sep="\t", dtype=str, keep_default_na=False)
    assert table.loc[0, "mean_confidence"] == "n/a"
    assert table.loc[0, "flags"] == "n/a"


def test_the_description_names_software_study_and_sources(tmp_path):
    dataset(tmp_path, ["2"], sources=["https://example.org/hcp"], code_url="https://example.org/code")
    description = json.loads((tmp_path / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    software = description["GeneratedBy"][0]
    assert software["Version"] == __version__
    assert software["StudySHA256"] == "abc123"
    assert software["CodeURL"] == "https://example.org/code"
    assert description["SourceDatasets"] == [{"URL": "https://example.org/hcp"}]


def test_participants_keep_leading_zeros_in_order(tmp_path):
    dataset(tmp_path, ["0200", "0100"])
    table = pandas.read_csv(tmp_path / "participants.tsv", sep="\t", dtype=str)
    assert table.participant_id.tolist() == ["sub-0100", "sub-0200"]
    columns = json.loads((tmp_path / "participants.json").read_text())
    assert list(table.columns) == sorted(columns, key=list(table.columns).index)


def test_two_subjects_of_one_label_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadData, match="a_b, a-b"):
        dataset(tmp_path, ["a_b", "a-b"])
    assert not list(tmp_path.iterdir())


def test_everything_beyond_the_standard_is_ignored(tmp_path):
    dataset(tmp_path, ["1"])
    patterns = (tmp_path / ".bidsignore").read_text().splitlines()
    assert {"*.html", "CITATION.md", "*.dscalar.nii", "*.func.gii", "*_network.tsv"} < set(patterns)


def test_the_methods_text_states_the_run():
    facts = dict(region="left Broca's area", vertices=304, space="fsaverage5", targets=1175, networks=2)
    text = methods_text(**facts, trained_on=16, subjects=9, draws=64)
    for number in (
        "304 vertices",
        "1175 cortical targets",
        "into 2 functional",
        "16 subjects",
        "9 subjects",
        "64 post",
    ):
        assert number in text
    assert "PAVI" in text
    assert "inferred again" not in text
    assert "Series" not in text
    parcels = methods_text(**facts, trained_on=16, subjects=9, draws=64, parcels=True)
    assert "304 parcels" in parcels
    assert not re.search("vertex|vertices", parcels)
    again = methods_text(**facts, trained_on=16, subjects=9, draws=64, population_of=30)
    assert "inferred again from the 30 subjects of the present cohort" in again
    assert "smooth" not in again
    smooth = methods_text(**facts, trained_on=16, subjects=9, draws=64, modes=30)
    assert "first 30 Laplacian modes" in smooth
    assert "deviations of subjects" not in smooth
    own = methods_text(**facts, trained_on=16, subjects=9, draws=64, modes=30, deviations=True)
    assert "deviations of subjects" in own


def test_the_methods_text_says_what_the_study_sets():
    facts = dict(region="broca region (left)", vertices=304, space="fsaverage5", targets=1175, networks=2)
    facts |= dict(trained_on=16, subjects=9, draws=64)
    plain = parse_study({"name": "a", "data": {"root": "HCP"}}, Path("study.yaml")).resolved()
    text = methods_text(**facts, settings=plain)
    assert "Series were taken as they were distributed; runs of fewer than 20 frames were left out" in text
    assert "freed of the region's mean, centred over targets and scaled to unit length" in text
    data = {"root": "HCP", "confounds": ["csf", "rot_x"], "band_pass": [0.008, 0.1], "smoothing_fwhm": 4}
    features = {"remove_region_mean": False, "center": False, "unit_norm": False}
    study = parse_study({"name": "a", "data": data, "features": features}, Path("study.yaml")).resolved()
    text = methods_text(**facts, settings=study)
    assert "regression of csf, rot_x, band-pass filtering at 0.008 to 0.1 Hz and smoothing" in text
    assert "FWHM 4.0 mm" in text
    assert "; fingerprints were" not in text


@pytest.mark.parametrize(
    ("confounds", "said"),
    [
        ("all", "regression of all confounds of their files"),
        ("simple", "confounds by the strategy simple"),
        ({"strategy": ["motion", "wm_csf"]}, "fMRIPrep's confounds (motion, wm_csf)"),
    ],
)
def test_the_methods_text_says_which_confounds(confounds, said):
    data = {"root": "HCP", "confounds": confounds, "motion_limit": 0.5}
    study = parse_study({"name": "a", "data": data}, Path("study.yaml")).resolved()
    text = methods_text(
        region="r", vertices=1, space="s", targets=1, networks=2, trained_on=1, subjects=1, draws=1, settings=study
    )
    assert said in text
    assert "movements of more than 0.5 mm" in text
