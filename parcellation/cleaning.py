"""Cleaning of series: confounds, band-pass and censoring with the semantics of `nilearn.signal.clean`.

Every step acts on each vertex by itself and is linear, so blocks of vertices give what the whole run gives, and the
mean of cleaned series is the cleaned mean of the series. A censored frame counts nowhere: its value changes no result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from parcellation.censoring import read_censor, read_motion
from parcellation.config import Data
from parcellation.confounds import check_own, read_confounds, read_strategy
from parcellation.errors import BadData

# sosfiltfilt pads each end of a series by up to 33 frames (band-pass of order 5) and refuses one that is not longer.
FILTER_FRAMES = 34


@dataclass(frozen=True, eq=False)
class Cleaning:
    """What is removed from a run's series.

    confounds: regressors, shape (time, regressor), each scaled to unit variance first; None for none.
    band_pass: (low, high) in Hz, low 0 for a low-pass; detrend: a line and the mean are removed first.
    repetition_time: seconds, needed by the band-pass only.
    """

    confounds: pd.DataFrame | None = None
    band_pass: tuple[float, float] | None = None
    detrend: bool = False
    repetition_time: float = math.nan

    def apply(self, series: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Cleaned series (kept frame, vertex) float64 of series (time, vertex); kept: bool, shape (time,).

        The series must be finite in the kept frames. Order as in nilearn: with a band-pass, censored frames between
        kept ones are interpolated by cubic splines, those before the first and after the last are cut; then detrending,
        filtering, censoring and regression. Without a band-pass censoring comes first.
        """
        series = np.asarray(series, np.float64)
        if self.confounds is None and self.band_pass is None and not self.detrend:
            return series[kept]
        confounds = None if self.confounds is None else self.confounds.to_numpy(np.float64)
        if self.band_pass is None:
            return self._clean(series[kept], None if confounds is None else confounds[kept])
        span = slice(np.flatnonzero(kept)[0], np.flatnonzero(kept)[-1] + 1)
        confounds = None if confounds is None else _interpolated(confounds[span], kept[span])
        return self._clean(_interpolated(series[span], kept[span]), confounds, np.flatnonzero(kept[span]))

    def _clean(self, series: np.ndarray, confounds: np.ndarray | None, kept: np.ndarray | None = None) -> np.ndarray:
        from nilearn.signal import clean  # a second and 40 MiB, needed here only

        low, high = self.band_pass or (None, None)
        return clean(
            series,
            detrend=self.detrend,
            standardize=None,
            confounds=confounds,
            sample_mask=kept,
            high_pass=low or None,
            low_pass=high,
            t_r=None if self.band_pass is None else self.repetition_time,
        )

    def frames_needed(self) -> int:
        """Kept frames below which nothing would be left of a series, or the filter could not run."""
        regressors = (0 if self.confounds is None else self.confounds.shape[1]) + 2 * self.detrend
        return max(regressors + 3, FILTER_FRAMES if self.band_pass else 0)

    def to_json(self) -> dict:
        """Plain values that say what was done."""
        return {
            "confounds": [] if self.confounds is None else [str(name) for name in self.confounds],
            "band_pass": None if self.band_pass is None else list(self.band_pass),
            "detrend": self.detrend,
            "repetition_time": None if math.isnan(self.repetition_time) else self.repetition_time,
        }


def _interpolated(series: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The series (time, vertex) with censored frames replaced by cubic splines through the kept ones.

    Done here because nilearn 0.14.1 leaves a censored frame as it is when its mirror image in time is censored too
    (it complements indices bitwise). Its own interpolation then finds nothing to change.
    """
    if kept.all():
        return series
    time = np.arange(len(kept))
    series = series.copy()
    series[~kept] = CubicSpline(time[kept], series[kept])(time[~kept])
    return series


class Run(Protocol):
    """What cleaning asks of a run: its files, their names for messages, frames, and repetition time in seconds."""

    paths: tuple[Path, ...]
    frames: int
    repetition_time: float

    @property
    def where(self) -> str:
        """The file names, as error messages begin."""


def cleaner(settings: Data, run: Run, row: Mapping[str, str]) -> tuple[Cleaning, np.ndarray]:
    """The cleaning that a study asks for, for one run, and which frames are kept, bool, shape (time,).

    row: the run's in the manifest, of which `confounds`, `censor` and `motion` are read as far as the settings ask.
    Raises BadData when the run lacks what it takes, or a file is another run's by its name or its length, and
    InputMissing for a file that is not there.
    """
    table, kept = _confounds(settings, run, row)
    if row.get("censor"):
        kept = kept & read_censor(_own(run, row["censor"]), run.frames)
    if settings.motion_limit is not None:
        if not row.get("motion"):
            raise BadData(
                f"{run.where}: the study sets motion_limit and the manifest names no file of motion; name one, or "
                "leave data.motion_limit out"
            )
        kept = kept & (read_motion(_own(run, row["motion"]), run.frames) <= settings.motion_limit)
    if settings.band_pass is not None:
        _check_band(run, settings.band_pass[1])
    return Cleaning(table, settings.band_pass, settings.detrend, run.repetition_time), kept


def _own(run: Run, name: str) -> Path:
    check_own(Path(name), run.paths)
    return Path(name)


def _confounds(settings: Data, run: Run, row: Mapping[str, str]) -> tuple[pd.DataFrame | None, np.ndarray]:
    kept = np.ones(run.frames, bool)
    if settings.confounds == "none":
        return None, kept
    if not row.get("confounds"):
        raise BadData(
            f"{run.where}: the study asks for confounds and the manifest names no file of them; name one, or set "
            "data.confounds to none"
        )
    path = _own(run, row["confounds"])
    if settings.confounds == "all" or isinstance(settings.confounds, list):
        return read_confounds(path, run.frames, settings.confounds), kept
    return read_strategy(path, run.frames, settings.confounds)


def _check_band(run: Run, high: float) -> None:
    time = run.repetition_time
    if math.isnan(time):
        raise BadData(f"{run.where}: a band-pass needs the repetition time; say it in the manifest's `tr` column")
    if not high < 0.5 / time:
        limit = f"its repetition time of {time} s allows less than {0.5 / time:.4g} Hz"
        raise BadData(f"{run.where}: the study's band_pass ends at {high} Hz, {limit}")


def minutes(run: Run, kept: np.ndarray) -> float:
    """Minutes that count; NaN where the repetition time is not known."""
    return int(kept.sum()) * run.repetition_time / 60


def check_kept(run: Run, cleaning: Cleaning, kept: np.ndarray, frames: int, least: float = 0) -> None:
    """Raise BadData when fewer frames are kept than `frames`, cleaning needs, or are `least` minutes."""
    needed = max(frames, cleaning.frames_needed())
    if kept.sum() < needed:
        raise BadData(f"{run.where}: expected at least {needed} frames to keep, got {kept.sum()} of {run.frames}")
    if least and math.isnan(run.repetition_time):
        raise BadData(f"{run.where}: minutes need the repetition time; say it in the manifest's `tr` column")
    if least and minutes(run, kept) < least:
        raise BadData(f"{run.where}: expected at least {least:g} minutes to keep, got {minutes(run, kept):.2f}")
