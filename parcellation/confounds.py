"""Confounds of a run: a table of regressors, some of its columns, or a strategy of nilearn's for fMRIPrep's table.

A table is one run's. It is never cut, filled up or taken from another run: rows must be as many as the run has frames.
"""

import math
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from parcellation.config import Confounds
from parcellation.errors import BadData, InputMissing

MISSING = {"", "n/a", "na", "nan"}
# Parts of a BIDS name that say which run a file is of.
WHOSE = ("sub", "ses", "task", "acq", "ce", "rec", "dir", "run")


def read_confounds(path: Path, frames: int, columns: str | list[str] = "all") -> pd.DataFrame:
    """Read a run's confounds, shape (frames, column) float64: TSV, CSV or columns set apart by spaces.

    A first line that holds words is the header; without one the columns are called "1", "2", ... Missing values
    (`n/a`, `nan`, empty) are allowed in the first row only, as of derivatives, and take the second row's value, which
    is what `nilearn.interfaces.fmriprep.load_confounds` does.

    Raises InputMissing without a file and BadData for a wrong number of rows, unknown columns, or what is no number.
    """
    path = Path(path)
    rows, header = read_words(path)
    _check_rows(path, len(rows), frames)
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


def _check_rows(path: Path, rows: int, frames: int) -> None:
    if rows != frames:
        raise BadData(f"{path}: expected {frames} rows of confounds, one a frame of its run, got {rows}")


def read_strategy(path: Path, frames: int, strategy: str | Confounds) -> tuple[pd.DataFrame, np.ndarray]:
    """Confounds by a strategy of `nilearn.interfaces.fmriprep`, shape (frames, column) float64, and frames to keep.

    path: fMRIPrep's table of the run; its JSON sidecar beside it is needed by `compcor`. strategy: a name that
    `load_confounds_strategy` knows, or what `load_confounds` is to be told. kept: bool, shape (frames,), without
    frames that did not reach a steady state yet and those that scrubbing censors.

    nilearn finds a table by an image's name and would take another run's where a part of the name is missing, so
    that it is shown a folder with this table alone.
    Raises InputMissing without the file and BadData for a wrong number of rows or a table that lacks what is asked for.
    """
    path = Path(path)
    _check_rows(path, len(read_words(path)[0]), frames)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # That scrubbing leaves nothing, or a component is not there, is an error of ours.
        warnings.simplefilter("ignore")
        for suffix in (".tsv", ".json"):
            if (source := path.with_suffix(suffix)).exists():
                os.symlink(source.resolve(), Path(folder, f"sub-1_desc-confounds_timeseries{suffix}"))
        try:
            table, kept = _load(str(Path(folder, "sub-1_space-fsLR_bold.dtseries.nii")), strategy)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            said = " ".join(str(error).replace(folder, str(path.parent)).split())
            raise BadData(f"{path}: not a table of confounds that the strategy can be taken from: {said}") from error
    mask = np.ones(frames, bool) if kept is None else np.isin(np.arange(frames), kept)
    values = table.to_numpy(np.float64)
    # Of no frame the mean is no number; that nothing is kept is said later, with what is needed.
    if wrong := np.argwhere(~np.isfinite(values) & mask.any()).tolist():
        where = f"column {str(table.columns[wrong[0][1]])!r}, frame {wrong[0][0] + 1}"
        raise BadData(f"{path}: a missing or infinite value in {where}; only the first frame's may be missing")
    return pd.DataFrame(values, columns=[str(name) for name in table]), mask


def _load(image: str, strategy: str | Confounds) -> tuple[pd.DataFrame, np.ndarray | None]:
    from nilearn.interfaces.fmriprep import load_confounds, load_confounds_strategy  # half a second, needed here only

    if isinstance(strategy, str):
        return load_confounds_strategy(image, strategy)
    return load_confounds(image, **(strategy.model_dump() | {"ica_aroma": "basic"}))


def check_own(path: Path, run: Sequence[Path]) -> None:
    """Raise BadData when a file is, by the parts of its BIDS name, of another run than the run's own files."""
    theirs = _entities(path)
    for one in run:
        ours = _entities(one)
        if other := [name for name in WHOSE if name in theirs and name in ours and theirs[name] != ours[name]]:
            name = other[0]
            raise BadData(
                f"{path}: of {name}-{theirs[name]}, and the run is of {name}-{ours[name]}: another run's file"
            )


def _entities(path: Path) -> dict[str, str]:
    return dict(re.findall(r"(?:^|_)([a-z]+)-([A-Za-z0-9]+)(?=_)", path.name))


def read_words(path: Path) -> tuple[list[list[str]], list[str] | None]:
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
