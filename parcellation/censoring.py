"""Which frames of a run count: a file that says so, XCP-D's outliers, or a limit on how far the head moved."""

from pathlib import Path

import numpy as np

from parcellation.confounds import MISSING, read_confounds, read_words
from parcellation.errors import BadData

KEEP = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
# Column of XCP-D's outliers (1 for an outlier), and of tables of motion (mm).
DISPLACEMENT = "framewise_displacement"


def read_censor(path: Path, frames: int) -> np.ndarray:
    """Read which frames are kept, bool, shape (frames,): one value a line, 1 or `true` kept, 0 or `false` left out.

    That is AFNI's convention. Because other programs mean the opposite, a header is allowed only if it says `keep`, or
    if it is that of XCP-D's outliers, see `_outliers`.
    Raises InputMissing without a file and BadData for a wrong number of lines, another header or other values.
    """
    path = Path(path)
    rows, header = read_words(path)
    if header is not None and DISPLACEMENT in header:
        return _outliers(path, rows, header, frames)
    words = [word.lower() for row in ([header] if header else []) + rows for word in row]
    if words[0] == "keep":
        words = words[1:]
    kept = _flags(path, words, "1 (kept) or 0 (left out) a line, under no header or `keep`")
    if len(kept) != frames:
        raise BadData(f"{path}: expected {frames} values, one a frame of its run, got {len(kept)}")
    return kept


def _outliers(path: Path, rows: list[list[str]], header: list[str], frames: int) -> np.ndarray:
    """Kept frames by XCP-D's `outliers.tsv`: 1 is an outlier.

    Most versions of XCP-D cut outliers out of the series that they write: a run that is shorter by just as many frames
    keeps all of them.
    """
    column = header.index(DISPLACEMENT)
    if ragged := [number for number, row in enumerate(rows, 1) if len(row) != len(header)]:
        raise BadData(f"{path}: expected {len(header)} columns in every row, got another number in row {ragged[0]}")
    outlier = _flags(path, [row[column].lower() for row in rows], f"1 (outlier) or 0 in column {DISPLACEMENT}")
    if frames == len(outlier):
        return ~outlier
    if frames == np.sum(~outlier):
        return np.ones(frames, bool)
    few = f"{np.sum(~outlier)} without its outliers"
    raise BadData(f"{path}: expected {frames} values, one a frame of its run, got {len(outlier)}, or {few}")


def _flags(path: Path, words: list[str], expected: str) -> np.ndarray:
    if other := [word for word in words if word not in KEEP]:
        raise BadData(f"{path}: expected {expected}, got {other[0]!r}")
    return np.array([KEEP[word] for word in words], bool)


def read_motion(path: Path, frames: int) -> np.ndarray:
    """Displacement of each frame from the one before, mm, float64, shape (frames,); 0 for a first that is unknown.

    One column, as HCP's `Movement_RelativeRMS.txt`, or the column `framewise_displacement` of a table.
    Raises InputMissing without a file and BadData for a wrong number of lines, several columns, or what is no distance.
    """
    path = Path(path)
    rows, header = read_words(path)
    if header is None and len(rows[0]) > 1:
        raise BadData(f"{path}: expected one column of mm, or a header with {DISPLACEMENT}, got {len(rows[0])} columns")
    if len(rows) != frames:
        raise BadData(f"{path}: expected {frames} values, one a frame of its run, got {len(rows)}")
    column = "1" if header is None else header[0] if len(header) == 1 else DISPLACEMENT
    motion = read_confounds(path, frames, [column])[column].to_numpy(np.float64, copy=True)
    first = rows[0][0 if header is None or len(header) == 1 else header.index(column)]
    # Nothing comes before the first frame. As a regressor its missing value is the second's, as a displacement it is 0.
    motion[0] = 0 if first.lower() in MISSING else motion[0]
    if (motion < 0).any():
        raise BadData(f"{path}: expected displacements in mm, got {motion.min():g}")
    return motion
