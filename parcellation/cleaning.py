"""Cleaning of series: confounds, band-pass and censoring with the semantics of `nilearn.signal.clean`.

Every step acts on each vertex by itself and is linear, so blocks of vertices give what the whole run gives, and the
mean of cleaned series is the cleaned mean of the series. A censored frame counts nowhere: its value changes no result.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from nilearn.signal import clean
from scipy.interpolate import CubicSpline

from parcellation.config import Data
from parcellation.errors import BadData, InputMissing
from parcellation.timeseries import Bold

log = logging.getLogger(__name__)

MISSING = {"", "n/a", "na", "nan"}
KEEP = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
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


def cleaner(settings: Data, bold: Bold, confounds: Path | None) -> Cleaning:
    """The cleaning that a study asks for, for one run; raises BadData when the run lacks what it takes."""
    table = None
    if settings.confounds != "none":
        if confounds is None:
            raise BadData(f"{bold.where}: the study asks for confounds and the manifest names no file of them")
        table = read_confounds(confounds, bold.frames, settings.confounds)
    if settings.band_pass is not None:
        time, high = bold.repetition_time, settings.band_pass[1]
        if math.isnan(time):
            raise BadData(f"{bold.where}: a band-pass needs the repetition time; say it in the manifest's `tr` column")
        if not high < 0.5 / time:
            limit = f"its repetition time of {time} s allows less than {0.5 / time:.4g} Hz"
            raise BadData(f"{bold.where}: the study's band_pass ends at {high} Hz, {limit}")
    return Cleaning(table, settings.band_pass, settings.detrend, bold.repetition_time)


def read_confounds(path: Path, frames: int, columns: str | list[str] = "all") -> pd.DataFrame:
    """Read a run's confounds, shape (frames, column) float64: TSV, CSV or columns set apart by spaces.

    A first line that holds words is the header; without one the columns are called "1", "2", ... Missing values
    (`n/a`, `nan`, empty) are allowed in the first row only, as of derivatives, and take the second row's value, which
    is what `nilearn.interfaces.fmriprep.load_confounds` does.

    Raises InputMissing without a file and BadData for a wrong number of rows, unknown columns, or what is no number.
    """
    path = Path(path)
    rows, header = _table(path)
    if len(rows) != frames:
        raise BadData(f"{path}: expected {frames} rows of confounds, one a frame of its run, got {len(rows)}")
    names = header or [str(number) for number in range(1, len(rows[0]) + 1)]
    if ragged := [number for number, row in enumerate(rows, 1) if len(row) != len(names)]:
        raise BadData(
            f"{path}: expected {len(names)} columns in every row, got {len(rows[ragged[0] - 1])} in {ragged[0]}"
        )
    chosen = names if columns == "all" else list(columns)
    if unknown := [name for name in chosen if name not in names]:
        raise BadData(f"{path}: has no confounds {', '.join(unknown)}; it has {', '.join(names[:20])}")
    words = [[row[names.index(name)] for row in rows] for name in chosen]
    return pd.DataFrame({name: _regressor(path, name, column) for name, column in zip(chosen, words, strict=True)})


def _table(path: Path) -> tuple[list[list[str]], list[str] | None]:
    """Rows of words of a text table, and its header if it has one."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path}: cannot be read as a text file: {error}") from error
    if not lines:
        raise BadData(f"{path}: an empty file")
    separator = next((mark for mark in "\t," if mark in lines[0]), None)
    rows = [[word.strip() for word in line.split(separator)] for line in lines]
    if any(_number(word) is None for word in rows[0]):
        return rows[1:], rows[0]
    return rows, None


def _number(word: str) -> float | None:
    """A number, NaN for a missing one, None for another word."""
    if word.lower() in MISSING:
        return math.nan
    try:
        return float(word)
    except ValueError:
        return None


def _regressor(path: Path, name: str, words: list[str]) -> np.ndarray:
    """A column of words as float64, its first value filled from the second if it is missing."""
    numbers = [_number(word) for word in words]
    if None in numbers:
        got = words[numbers.index(None)]
        raise BadData(f"{path}: expected numbers in column {name!r}, got {got!r}")
    values = np.array(numbers)
    if len(values) > 1 and np.isnan(values[0]):
        values[0] = values[1]
    if not np.isfinite(values).all():
        where = f"column {name!r}, frame {np.flatnonzero(~np.isfinite(values))[0] + 1}"
        raise BadData(f"{path}: a missing or infinite value in {where}; only the first frame's may be missing")
    return values


def read_censor(path: Path, frames: int) -> np.ndarray:
    """Read which frames are kept, bool, shape (frames,): one value a line, 1 or `true` kept, 0 or `false` left out.

    That is AFNI's convention. Because other programs mean the opposite, a header is allowed only if it says `keep`.
    Raises InputMissing without a file and BadData for a wrong number of lines, another header or other values.
    """
    path = Path(path)
    rows, header = _table(path)
    words = [word.lower() for row in ([header] if header else []) + rows for word in row]
    if words[0] == "keep":
        words = words[1:]
    if other := [word for word in words if word not in KEEP]:
        raise BadData(f"{path}: expected 1 (kept) or 0 (left out) a line, under no header or `keep`, got {other[0]!r}")
    if len(words) != frames:
        raise BadData(f"{path}: expected {frames} values, one a frame of its run, got {len(words)}")
    return np.array([KEEP[word] for word in words])
