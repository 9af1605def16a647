"""Confounds: tables of any program, strategies as nilearn has them, and never another run's."""

import json
import shutil
from pathlib import Path

import nilearn.interfaces.fmriprep as fmriprep
import numpy as np
import pandas as pd
import pytest

from parcellation.config import Confounds, Data, parse_study
from parcellation.confounds import check_own, read_confounds, read_strategy
from parcellation.errors import BadData, InputMissing, UsageError
from tests.fmriprep_tables import MOTION, fmriprep_table
from tests.shared_data import BRAINSPACE, needs_brainspace

FRAMES = 120
CONFOUNDS = pd.DataFrame(np.random.default_rng(0).normal(size=(FRAMES, 4)), columns=list("abcd"))


@pytest.mark.parametrize("separator", ["\t", ",", " ", ", "])
@pytest.mark.parametrize("header", [True, False])
def test_confounds_with_and_without_header(tmp_path, separator, header):
    path = tmp_path / "c.txt"
    lines = [separator.join(f"{value:.17g}" for value in row) for row in CONFOUNDS.to_numpy()]
    path.write_text("\n".join(([separator.join("abcd")] if header else []) + lines) + "\n\n")
    table = read_confounds(path, FRAMES)
    assert list(table) == (list("abcd") if header else ["1", "2", "3", "4"])
    np.testing.assert_array_equal(table.to_numpy(), CONFOUNDS.to_numpy())


def test_first_values_of_derivatives_are_the_second_ones(tmp_path):
    path = tmp_path / "c.tsv"
    path.write_text("x\tx_derivative1\n1\tn/a\n2\t5\n3\t6\n")
    np.testing.assert_array_equal(read_confounds(path, 3).to_numpy(), [[1, 5], [2, 5], [3, 6]])
    path.write_text("x\tx_derivative1\n1\tn/a\n2\tn/a\n3\t6\n")
    with pytest.raises(BadData, match="'x_derivative1', frame 1"):
        read_confounds(path, 3)
    assert read_confounds(path, 3, ["x"]).shape == (3, 1)


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("a\tb\n1\t2\n", "all", "expected 3 rows.*got 1"),
        ("a\tb\n1\t2\n1\t2\n1\n", "all", "expected 2 columns in every row, got 1 in 3"),
        ("a\tb\n1\t2\n1\tx\n1\t2\n", "all", "numbers in column 'b'"),
        ("a\tb\n1\t2\n1\tinf\n1\t2\n", "all", "column 'b', frame 2"),
        ("a\tb\n1\t2\n1\t2\n1\t2\n", ["a", "z"], "no confounds z; it has a, b"),
        ("", "all", "empty"),
    ],
)
def test_confounds_that_do_not_fit(tmp_path, text, columns, words):
    (tmp_path / "c.tsv").write_text(text)
    with pytest.raises(BadData, match=words):
        read_confounds(tmp_path / "c.tsv", 3, columns)


def test_confounds_that_cannot_be_read(tmp_path):
    with pytest.raises(InputMissing):
        read_confounds(tmp_path / "c.tsv", 3)
    (tmp_path / "c.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match="text file"):
        read_confounds(tmp_path / "c.tsv", 3)


@needs_brainspace
def test_confounds_of_the_real_run():
    path = BRAINSPACE / "sub-010188_ses-02_task-rest_acq-AP_run-01_confounds.txt"
    table = read_confounds(path, 652)
    assert table.shape == (652, 29)
    np.testing.assert_array_equal(table.to_numpy(), np.loadtxt(path))
    with pytest.raises(BadData, match=r"expected 163 rows.*got 652"):
        read_confounds(path, 163)


# Strategies

NILEARN = Path(fmriprep.__file__).parent / "data/test-v21_desc-confounds_timeseries.tsv"
IMAGE = "sub-01_task-rest_space-fsLR_den-91k_bold.dtseries.nii"
NAME = "sub-01_task-rest_desc-confounds_timeseries.tsv"


@pytest.fixture
def table(tmp_path) -> Path:
    """A table of fMRIPrep's that nilearn ships for its tests: 30 frames, 3 of them before the steady state."""
    for suffix in (".tsv", ".json"):
        shutil.copy(NILEARN.with_suffix(suffix), (tmp_path / NAME).with_suffix(suffix))
    return tmp_path / NAME


def same(ours, theirs, frames):
    (table, kept), (expected, sample_mask) = ours, theirs
    assert list(table) == list(expected)
    np.testing.assert_array_equal(table.to_numpy(), expected.to_numpy())
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(frames) if sample_mask is None else sample_mask)


@pytest.mark.parametrize("name", ["simple", "scrubbing", "compcor"])
def test_named_strategies_are_nilearns(table, name):
    if name == "scrubbing":  # which would leave nothing of those 30 frames
        moving(80).to_csv(table, sep="\t", index=False, na_rep="n/a")
    frames = len(pd.read_csv(table, sep="\t"))
    theirs = fmriprep.load_confounds_strategy(str(table.parent / IMAGE), name)
    same(read_strategy(table, frames, name), theirs, frames)


def moving(frames: int) -> pd.DataFrame:
    """A table with three frames of motion, two of them with three frames between."""
    table = fmriprep_table(frames)
    table.loc[[20, 24, 60], "framewise_displacement"] = 3.0
    return table


@pytest.mark.parametrize("scrub", [0, 3, 5])
def test_scrubbing_is_nilearns(table, scrub):
    moving(80).to_csv(table, sep="\t", index=False, na_rep="n/a")
    said = {"strategy": ["wm_csf", "scrub"], "wm_csf": "full", "scrub": scrub, "fd_threshold": 0.5}
    ours = read_strategy(table, 80, Confounds(**said))
    same(ours, fmriprep.load_confounds(str(table.parent / IMAGE), **said), 80)
    assert np.sum(~ours[1]) == {0: 3, 3: 3, 5: 6}[scrub]


def test_scrubbing_that_leaves_nothing_keeps_nothing(table):
    assert not read_strategy(table, 30, "scrubbing")[1].any()


@pytest.mark.parametrize(
    "said",
    [
        {"strategy": ["motion"], "motion": "basic"},
        {"strategy": ["motion", "global_signal"], "motion": "derivatives", "global_signal": "power2"},
        {"strategy": ["high_pass", "compcor"], "compcor": "temporal", "n_compcor": 2},
        {"strategy": ["high_pass", "compcor"], "compcor": "anat_separated", "n_compcor": "all"},
    ],
)
def test_any_strategy_of_load_confounds_is_nilearns(table, said):
    frames = len(pd.read_csv(table, sep="\t"))
    theirs = fmriprep.load_confounds(str(table.parent / IMAGE), **said)
    same(read_strategy(table, frames, Confounds(**said)), theirs, frames)


def test_frames_before_the_steady_state_do_not_count(table):
    frames = len(pd.read_csv(table, sep="\t"))
    assert np.flatnonzero(~read_strategy(table, frames, "simple")[1]).tolist() == [0, 1, 2]


def test_a_first_value_that_is_missing_is_the_second_one(tmp_path):
    fmriprep_table(40).to_csv(tmp_path / NAME, sep="\t", index=False, na_rep="n/a")
    table, kept = read_strategy(tmp_path / NAME, 40, "simple")
    assert table.shape == (40, 24 + 2 + 2)
    assert kept.all()
    derivatives = table[[f"{name}_derivative1" for name in MOTION]].to_numpy()
    np.testing.assert_array_equal(derivatives[0], derivatives[1])


def test_what_no_strategy_can_be_taken_from(tmp_path, table):
    path = tmp_path / "sub-02_desc-confounds_timeseries.tsv"
    whole = fmriprep_table(40)

    def refused(frame: pd.DataFrame, strategy="simple", frames=40) -> str:
        frame.to_csv(path, sep="\t", index=False, na_rep="n/a")
        with pytest.raises(BadData) as caught:
            read_strategy(path, frames, strategy)
        assert str(path) in str(caught.value)
        return str(caught.value)

    assert "expected 39 rows of confounds, one a frame of its run, got 40" in refused(whole, frames=39)
    assert "rot_x" in refused(whole.drop(columns="rot_x"))
    assert "global_signal" in refused(whole.filter(like="trans"), Confounds(strategy=["global_signal"]))
    later = whole.copy()
    later.loc[7, "trans_x_derivative1"] = np.nan
    assert "'trans_x_derivative1', frame 8; only the first frame's may be missing" in refused(later)
    second = whole.copy()
    second.loc[1, "trans_x_derivative1"] = np.nan
    assert "'trans_x_derivative1', frame 1" in refused(second)
    assert "json" in refused(whole, "compcor")
    with pytest.raises(InputMissing):
        read_strategy(tmp_path / "none.tsv", 40, "simple")


def test_another_runs_table_beside_it_is_never_taken(table):
    """nilearn would look for a table by every part of an image's name."""
    other = table.with_name("sub-01_desc-confounds_timeseries.tsv")
    table.rename(other)
    with pytest.raises(InputMissing):
        read_strategy(table, 30, "simple")


@pytest.mark.parametrize("name", ["sub", "ses", "task", "acq", "dir", "run"])
def test_a_file_is_another_runs_by_any_part_of_its_name(name):
    parts = {"sub": "01", "ses": "1", "task": "rest", "acq": "x", "dir": "AP", "run": "1"}
    run = Path("_".join(f"{key}-{value}" for key, value in parts.items()) + "_space-fsLR_bold.dtseries.nii")
    other = "_".join(f"{key}-{value}2" if key == name else f"{key}-{value}" for key, value in parts.items())
    check_own(Path("_".join(f"{key}-{value}" for key, value in parts.items()) + "_outliers.tsv"), [run])
    check_own(Path("motion.txt"), [run])
    with pytest.raises(BadData, match=f"{name}-{parts[name]}2, and the run is of {name}-{parts[name]}: another"):
        check_own(Path(f"{other}_outliers.tsv"), [run])


def test_a_study_says_a_strategy_as_load_confounds_does(tmp_path):
    said = {"strategy": ["motion", "high_pass", "global_signal"], "motion": "basic"}
    data = parse_study({"name": "s", "data": {"root": "x", "confounds": said}}, tmp_path / "study.yaml").data
    assert data.confounds == Confounds(**said)
    assert json.loads(data.model_dump_json())["confounds"]["scrub"] == 5
    assert Data.model_validate(data.model_dump(mode="json")) == data
    for wrong in ("simpel", {"strategy": ["motoin"]}, {"strategy": []}, {"strategy": ["compcor"]}, {"motion": "full"}):
        with pytest.raises(UsageError, match=r"data.confounds"):
            parse_study({"name": "s", "data": {"root": "x", "confounds": wrong}}, tmp_path / "study.yaml")
