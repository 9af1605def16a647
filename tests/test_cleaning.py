import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from nilearn.signal import clean

from parcellation.cleaning import Cleaning, cleaner, read_censor, read_confounds
from parcellation.config import Data
from parcellation.errors import BadData, InputMissing
from parcellation.surfaces import Mesh, Vertices
from parcellation.timeseries import Bold
from tests.shared_data import BRAINSPACE, needs_brainspace

FRAMES = 120
RNG = np.random.default_rng(0)
SERIES = RNG.normal(size=(FRAMES, 11)).cumsum(0) + 1000
CONFOUNDS = pd.DataFrame(RNG.normal(size=(FRAMES, 4)).cumsum(0), columns=list("abcd"))
# No frame is left out together with its mirror image in time: nilearn 0.14.1 does not interpolate such pairs.
KEPT = ~np.isin(np.arange(FRAMES), [0, 1, 30, 31, 32, 70, 115])
ALL = np.ones(FRAMES, bool)
SETTINGS = [
    {},
    {"detrend": True},
    {"confounds": CONFOUNDS},
    {"band_pass": (0.01, 0.1), "repetition_time": 2.0},
    {"band_pass": (0, 0.1), "repetition_time": 2.0, "confounds": CONFOUNDS},
    {"band_pass": (0.01, 0.1), "repetition_time": 2.0, "confounds": CONFOUNDS, "detrend": True},
]


def by_nilearn(kept, confounds=None, band_pass=(None, None), detrend=False, repetition_time=None):
    low, high = band_pass
    return clean(
        SERIES,
        detrend=detrend,
        standardize=None,
        confounds=confounds,
        high_pass=low or None,
        low_pass=high,
        t_r=repetition_time,
        sample_mask=np.flatnonzero(kept),
    )


@pytest.mark.parametrize("kept", [ALL, KEPT], ids=["all", "censored"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_it_is_what_nilearn_does(settings, kept):
    np.testing.assert_allclose(Cleaning(**settings).apply(SERIES, kept), by_nilearn(kept, **settings), atol=1e-9)


@pytest.mark.parametrize("kept", [ALL, KEPT], ids=["all", "censored"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_blocks_and_sums_give_what_the_whole_gives(settings, kept):
    cleaning = Cleaning(**settings)
    whole = cleaning.apply(SERIES, kept)
    blocks = [cleaning.apply(SERIES[:, part], kept) for part in (slice(0, 1), slice(1, 7), slice(7, 11))]
    np.testing.assert_allclose(np.hstack(blocks), whole, atol=1e-9)
    np.testing.assert_allclose(cleaning.apply(SERIES.sum(1, keepdims=True), kept)[:, 0], whole.sum(1), atol=1e-8)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("left_out", [[0], [119], [0, 119], [20, 99], [20, 21, 60, 98, 99], [0, 1, 2, 118, 119]])
def test_a_censored_frame_counts_nowhere(settings, left_out):
    """Also when a frame and its mirror image in time are left out, and when the value is not finite."""
    kept = ~np.isin(np.arange(FRAMES), left_out)
    other = SERIES.copy()
    other[~kept] = RNG.choice([np.nan, 1e6, -np.inf], size=other[~kept].shape)
    changed = dict(settings)
    if "confounds" in settings:
        changed["confounds"] = CONFOUNDS.mul(np.where(kept, 1, 1e5), axis=0)
    result = Cleaning(**changed).apply(other, kept)
    assert result.shape == (kept.sum(), SERIES.shape[1])
    np.testing.assert_array_equal(result, Cleaning(**settings).apply(SERIES, kept))


def test_nothing_of_the_confounds_is_left():
    cleaned = Cleaning(CONFOUNDS, detrend=True).apply(SERIES, KEPT)
    line = np.column_stack([np.ones(KEPT.sum()), np.arange(KEPT.sum())])
    regressors = np.column_stack([line, CONFOUNDS[KEPT]])
    expected = SERIES[KEPT] - regressors @ np.linalg.lstsq(regressors, SERIES[KEPT], rcond=None)[0]
    np.testing.assert_allclose(cleaned, expected, atol=1e-9)


def test_one_hot_confounds_that_censoring_empties_do_no_harm():
    spike = pd.DataFrame({"outlier": (np.arange(FRAMES) == 30).astype(float), "zero": np.zeros(FRAMES)})
    np.testing.assert_allclose(Cleaning(spike).apply(SERIES, KEPT), SERIES[KEPT], rtol=1e-12)


def test_frames_needed_and_description():
    assert Cleaning().frames_needed() == 3
    assert Cleaning(CONFOUNDS, detrend=True).frames_needed() == 9
    few = Cleaning(CONFOUNDS, (0.01, 0.1), True, 2.0)
    kept = np.arange(FRAMES) < few.frames_needed()
    assert np.isfinite(few.apply(SERIES, kept)).all()
    assert few.to_json() == {
        "confounds": list("abcd"),
        "band_pass": [0.01, 0.1],
        "detrend": True,
        "repetition_time": 2.0,
    }
    assert Cleaning().to_json()["repetition_time"] is None


# --- a study's settings ---


@pytest.fixture
def bold():
    vertices = Vertices(Mesh("fsLR", (4842, 4842)), np.zeros(0, np.uint8), np.zeros(0, np.int32))
    return Bold((Path("run.dtseries.nii"),), vertices, FRAMES, 2.0, (), ())


def test_a_study_chooses_the_cleaning(bold, tmp_path):
    CONFOUNDS.to_csv(tmp_path / "c.tsv", sep="\t", index=False)
    settings = Data(root=tmp_path, confounds=["d", "b"], band_pass=(0.01, 0.1), detrend=True)
    cleaning = cleaner(settings, bold, tmp_path / "c.tsv")
    assert list(cleaning.confounds) == ["d", "b"]
    assert (cleaning.band_pass, cleaning.detrend, cleaning.repetition_time) == ((0.01, 0.1), True, 2.0)
    assert cleaner(Data(root=tmp_path), bold, tmp_path / "absent.tsv").confounds is None


def test_what_a_study_cannot_have(bold, tmp_path):
    with pytest.raises(BadData, match="no file of them"):
        cleaner(Data(root=tmp_path, confounds="all"), bold, None)
    with pytest.raises(BadData, match=r"ends at 0.25 Hz.*less than 0.25 Hz"):
        cleaner(Data(root=tmp_path, band_pass=(0.01, 0.25)), bold, None)
    unknown = dataclasses.replace(bold, repetition_time=math.nan)
    with pytest.raises(BadData, match="`tr` column"):
        cleaner(Data(root=tmp_path, band_pass=(0.01, 0.1)), unknown, None)


# --- confounds ---


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


# --- censoring ---


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


@needs_brainspace
def test_confounds_of_the_real_run():
    path = BRAINSPACE / "sub-010188_ses-02_task-rest_acq-AP_run-01_confounds.txt"
    table = read_confounds(path, 652)
    assert table.shape == (652, 29)
    np.testing.assert_array_equal(table.to_numpy(), np.loadtxt(path))
    with pytest.raises(BadData, match=r"expected 163 rows.*got 652"):
        read_confounds(path, 163)
