import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from nilearn.signal import clean

from parcellation.bold import Bold
from parcellation.cleaning import Cleaning, check_kept, cleaner, minutes
from parcellation.config import Data
from parcellation.errors import BadData
from parcellation.surfaces import Mesh, Vertices
from tests.fmriprep_tables import fmriprep_table

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
    cleaning, kept = cleaner(settings, bold, {"confounds": str(tmp_path / "c.tsv")})
    assert list(cleaning.confounds) == ["d", "b"]
    assert (cleaning.band_pass, cleaning.detrend, cleaning.repetition_time) == ((0.01, 0.1), True, 2.0)
    assert kept.all()
    cleaning, _ = cleaner(Data(root=tmp_path), bold, {"confounds": str(tmp_path / "absent.tsv")})
    assert cleaning.confounds is None


def test_frames_count_that_nothing_censors(bold, tmp_path):
    """The user's file, the limit on motion and the strategy's own censoring act together."""
    row = {name: str(tmp_path / f"{name}.tsv") for name in ("confounds", "censor", "motion")}
    Path(row["censor"]).write_text("".join(f"{frame != 3:d}\n" for frame in range(FRAMES)))
    Path(row["motion"]).write_text("".join(f"{0.3 * (frame in (3, 7))}\n" for frame in range(FRAMES)))
    table = fmriprep_table(FRAMES)
    table.loc[50, "framewise_displacement"] = 9
    table.to_csv(row["confounds"], sep="\t", index=False, na_rep="n/a")
    settings = {"root": tmp_path, "motion_limit": 0.2, "confounds": {"strategy": ["motion", "scrub"], "scrub": 0}}
    _, kept = cleaner(Data(**settings), bold, row)
    assert np.flatnonzero(~kept).tolist() == [3, 7, 50]
    _, kept = cleaner(Data(**settings | {"motion_limit": 0.3, "confounds": "none"}), bold, row)
    assert np.flatnonzero(~kept).tolist() == [3]
    with pytest.raises(BadData, match="no file of motion"):
        cleaner(Data(**settings), bold, row | {"motion": ""})


@pytest.mark.parametrize("column", ["confounds", "censor", "motion"])
def test_a_file_of_another_run_is_refused_by_its_name(bold, tmp_path, column):
    """PennLINC/xcp_d#1062, in a manifest written by hand: of the right length, and of another run."""
    run = dataclasses.replace(bold, paths=(tmp_path / "sub-01_task-rest_run-2_space-fsLR_den-91k_bold.dtseries.nii",))
    own, other = (tmp_path / f"sub-01_task-rest_run-{number}_desc-confounds_timeseries.tsv" for number in (2, 1))
    for path in (own, other):
        path.write_text("1\n" * FRAMES)
    settings = Data(root=tmp_path, confounds="all", motion_limit=2)
    row = dict.fromkeys(("confounds", "censor", "motion"), str(own))
    assert cleaner(settings, run, row)[1].all()
    with pytest.raises(BadData, match="run-1, and the run is of run-2: another run's file"):
        cleaner(settings, run, row | {column: str(other)})


def test_what_a_study_cannot_have(bold, tmp_path):
    with pytest.raises(BadData, match="no file of them"):
        cleaner(Data(root=tmp_path, confounds="all"), bold, {})
    with pytest.raises(BadData, match=r"ends at 0.25 Hz.*less than 0.25 Hz"):
        cleaner(Data(root=tmp_path, band_pass=(0.01, 0.25)), bold, {})
    unknown = dataclasses.replace(bold, repetition_time=math.nan)
    with pytest.raises(BadData, match="`tr` column"):
        cleaner(Data(root=tmp_path, band_pass=(0.01, 0.1)), unknown, {})


@pytest.mark.parametrize("frames", [1, 2, 3, 5, FRAMES])
def test_too_few_frames_or_minutes_are_an_error(bold, frames):
    """PennLINC/xcp_d#1047, nipreps/mriqc#1090: 1, 2 or 5 frames, and 3 left after censoring."""
    kept = np.arange(FRAMES) < frames
    assert minutes(bold, kept) == pytest.approx(frames * 2.0 / 60)
    if frames < 20:
        with pytest.raises(BadData, match=f"at least 20 frames to keep, got {frames} of {FRAMES}"):
            check_kept(bold, Cleaning(), kept, 20)
    else:
        check_kept(bold, Cleaning(), kept, 20, least=4.0)
        with pytest.raises(BadData, match=r"at least 4.1 minutes to keep, got 4.00"):
            check_kept(bold, Cleaning(), kept, 20, least=4.1)
    unknown = dataclasses.replace(bold, repetition_time=math.nan)
    with pytest.raises(BadData, match="minutes need the repetition time"):
        check_kept(unknown, Cleaning(), ALL, 20, least=1)
    assert math.isnan(minutes(unknown, ALL))
