"""Which frames count: a user's file, XCP-D's outliers with or without the outliers in the series, and motion."""

import numpy as np
import pytest

from parcellation.censoring import read_censor, read_motion
from parcellation.errors import BadData, InputMissing


@pytest.mark.parametrize(
    "text", ["1\n0\n1\n", "keep\n1\n0\n1", "true\nFalse\nTRUE", "1 0 1", "1.0\n0.0\n1.0\n", "1,0,1"]
)
def test_one_is_kept(tmp_path, text):
    (tmp_path / "c.txt").write_text(text)
    assert read_censor(tmp_path / "c.txt", 3).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\n0\n", "expected 3 values.*got 2"),
        ("outlier\n1\n0\n1\n", "got 'outlier'"),
        ("1\n2\n0\n", "got '2'"),
        ("", "empty"),
    ],
)
def test_censoring_that_does_not_fit(tmp_path, text, words):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(BadData, match=words):
        read_censor(tmp_path / "c.txt", 3)
    with pytest.raises(InputMissing):
        read_censor(tmp_path / "absent.txt", 3)


OUTLIERS = "framewise_displacement\n0\n1\n0\n0\n"


@pytest.mark.parametrize("text", [OUTLIERS, "framewise_displacement\tfiltered\n0\t1\n1\t1\n0\t1\n0\t0\n"])
def test_outliers_of_xcpd_are_left_out_unless_they_are_cut_out_already(tmp_path, text):
    path = tmp_path / "outliers.tsv"
    path.write_text(text)
    assert read_censor(path, 4).tolist() == [True, False, True, True]
    assert read_censor(path, 3).tolist() == [True, True, True]
    for frames in (2, 5):
        with pytest.raises(BadData, match=f"expected {frames} values.*got 4, or 3 without its outliers"):
            read_censor(path, frames)


def test_displacements_are_no_outliers(tmp_path):
    path = tmp_path / "motion.tsv"
    path.write_text("framewise_displacement\n0.1\n0.3\n")
    with pytest.raises(BadData, match=r"1 \(outlier\) or 0 in column framewise_displacement, got '0.1'"):
        read_censor(path, 2)
    path.write_text("framewise_displacement\tx\n1\n0\t1\n")
    with pytest.raises(BadData, match="expected 2 columns in every row"):
        read_censor(path, 2)


@pytest.mark.parametrize(
    "text",
    [
        "0\n0.25\n0.5\n",
        " 0.0 \n 2.5e-1 \n 0.5",
        "n/a\n0.25\n0.5\n",
        "trans_x\tframewise_displacement\n1\tn/a\n1\t0.25\n1\t0.5\n",
        "relative_rms\n0\n0.25\n0.5\n",
    ],
)
def test_motion_is_in_mm_and_a_first_one_that_is_unknown_is_none(tmp_path, text):
    (tmp_path / "m.txt").write_text(text)
    np.testing.assert_array_equal(read_motion(tmp_path / "m.txt", 3), [0, 0.25, 0.5])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0\n1\n", "expected 3 values, one a frame of its run, got 2"),
        ("0 1\n0 1\n0 1\n", "expected one column of mm.*got 2 columns"),
        ("0\nn/a\n1\n", "frame 2; only the first"),
        ("0\n-1\n1\n", "expected displacements in mm, got -1"),
        ("a\tb\n1\t2\n1\t2\n1\t2\n", "no confounds framewise_displacement"),
        ("", "empty"),
    ],
)
def test_motion_that_does_not_fit(tmp_path, text, words):
    (tmp_path / "m.txt").write_text(text)
    with pytest.raises(BadData, match=words):
        read_motion(tmp_path / "m.txt", 3)
    with pytest.raises(InputMissing):
        read_motion(tmp_path / "none.txt", 3)
