"""The cohort as a table, one row a run: read from a TSV or found in a tree, with everything missing or odd listed.

    frame, findings = discover(study)        # or read_manifest(path)
    write_manifest(frame, path)

A frame always has the columns of `data_manifest/manifest.schema.json`, all text; an empty value is not given.
`subject`, `session` and `run` are names, never numbers: 001 and 1e5 stay what they are. Paths in a frame are absolute.
"""

import csv
import difflib
import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pandas as pd

from parcellation.config import Data, Study
from parcellation.errors import BadData, InputMissing, NothingSelected
from parcellation.files import whole_file
from parcellation.findings import PREFIXES, Finding, natural
from parcellation.gifti import external_files
from parcellation.layouts import tree_runs

SCHEMA = json.loads(files("data_manifest").joinpath("manifest.schema.json").read_text(encoding="utf-8"))
COLUMNS = tuple(SCHEMA["properties"])
PATHS = tuple(name for name, column in SCHEMA["properties"].items() if column.get("format") == "path")
BOLD = ("bold", "bold_left", "bold_right")
# No scanner takes a minute for a frame; larger numbers are milliseconds.
LONGEST_REPETITION_TIME = 60.0


def bold_paths(row: Mapping[str, str]) -> tuple[Path, ...]:
    """The files of one run: one CIFTI file, or the left and the right hemisphere's."""
    return tuple(Path(row[name]) for name in BOLD if row[name])


def used_paths(row: Mapping[str, str], data: Data | None = None) -> tuple[Path, ...]:
    """The files of one run that a study with these settings reads; all that are named without settings.

    With those that hold the numbers of a GIFTI file, which nobody names.
    """
    used = {
        "confounds": data is None or data.confounds != "none",
        "motion": data is None or data.motion_limit is not None,
    }
    bold = [one for path in bold_paths(row) for one in (path, *external_files(path))]
    return tuple(bold) + tuple(Path(row[n]) for n in PATHS if n not in BOLD and row[n] and used.get(n, True))


def read_manifest(path: Path) -> pd.DataFrame:
    """Read and validate a manifest.

    Relative paths are relative to the manifest. Whether the files are there is for `check_files` to say: one faulty run
    does not make a faulty manifest. Raises InputMissing without a file, and BadData, naming the rows, when columns are
    missing, a value is not what the schema says, or rows are doubled.
    """
    path = Path(path)
    header, rows = _read_rows(path)
    _check_header(path, header)
    records, faults = [], []
    for line, values in rows:
        given = dict.fromkeys(COLUMNS, "") | {
            name: v for name, v in zip(header, values, strict=True) if name in COLUMNS
        }
        for name, prefix in PREFIXES.items():
            given[name] = given[name].removeprefix(prefix)
        faults += [f"line {line}: {fault}" for fault in _row_faults(given)]
        records.append(given | {name: _absolute(path, given[name]) for name in PATHS})
    frame = pd.DataFrame(records, columns=list(COLUMNS), dtype=object)
    faults += _doubled(frame, [f"line {line}" for line, _ in rows])
    if faults:
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise BadData("\n".join(f"{path}: {fault}" for fault in faults[:10] + more))
    return frame


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header and the rows that are not blank, each with its line in the file."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t", strict=True)
            rows = [(reader.line_num, row) for row in reader if any(row)]
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such manifest") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path}: cannot be read as a table of tab-separated UTF-8 text: {error}") from None
    if len(rows) < 2:
        raise BadData(f"{path}: expected a header and at least one run, got {len(rows)} lines with content")
    (_, header), rows = rows[0], rows[1:]
    for line, row in rows:
        if len(row) != len(header):
            raise BadData(f"{path}: line {line}: expected {len(header)} values as in the header, got {len(row)}")
    return header, rows


def _check_header(path: Path, header: list[str]) -> None:
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise BadData(f"{path}: column {doubled[0]!r} twice")
    missing = [name for name in SCHEMA["required"] if name not in header]
    if not any(set(one["required"]) <= set(header) for one in SCHEMA["oneOf"]):
        missing.append("bold (or bold_left and bold_right)")
    if missing:
        commas = "; values are separated by tabs, not commas" if len(header) == 1 and "," in header[0] else ""
        raise BadData(f"{path}: columns missing: {', '.join(missing)}; got {', '.join(header)}{commas}")
    for name in set(header) - set(COLUMNS):
        # A column of the user's own is welcome, a misspelt one would be lost in silence.
        near = difflib.get_close_matches(name.lower(), set(COLUMNS) - set(header), n=1, cutoff=0.8)
        if near:
            raise BadData(f"{path}: unknown column {name!r}; did you mean {near[0]!r}?")


def _row_faults(given: dict[str, str]) -> list[str]:
    faults = []
    for name, value in given.items():
        column = SCHEMA["properties"][name]
        required = name in SCHEMA["required"]
        if "pattern" in column and (value or required) and not re.fullmatch(column["pattern"], value):
            faults.append(f"{name}: expected {column['description']}, got {value!r}")
        elif not _is_plain(value):
            faults.append(f"{name}: expected text without control characters, got {value!r}")
    there = tuple(name for name in BOLD if given[name])
    if there not in (("bold",), ("bold_left", "bold_right")):
        faults.append(f"expected bold, or bold_left and bold_right, got {' and '.join(there) or 'neither'}")
    if not faults and given["tr"] and not 0 < float(given["tr"]) <= LONGEST_REPETITION_TIME:
        faults.append(f"tr: expected positive seconds, got {given['tr']} (are these milliseconds?)")
    return faults


def _is_plain(text: str) -> bool:
    """Whether a value can stand in a table of UTF-8 text."""
    return not re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text)


def _absolute(manifest: Path, value: str) -> str:
    return os.path.normpath(manifest.resolve().parent / value) if value else ""


def _doubled(frame: pd.DataFrame, names: list[str]) -> list[str]:
    """A line for every two rows that are the same run, and every file that is the bold, or the motion, of two."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, row in zip(names, frame.to_dict("records"), strict=True):
        places[f"sub-{row['subject']} ses-{row['session']} run-{row['run']}"].append(name)
        # One censor file may serve several runs; what a person did in one run is not what they did in another.
        for path in (*bold_paths(row), *sorted({row[name] for name in ("confounds", "motion")} - {""})):
            # Two names of one file, through links, are still the same data counted twice.
            # No file's name has a zero byte, which is a fault of its own.
            places[os.path.realpath(path) if "\0" not in str(path) else str(path)].append(name)
    return [f"{', '.join(rows)}: {what} more than once" for what, rows in places.items() if len(rows) > 1]


def write_manifest(frame: pd.DataFrame, path: Path) -> None:
    """Write a manifest whole, with paths relative to it; columns without any value are left out.

    Raises BadData when a value cannot stand in a table, and FileFailure when it cannot be written.
    """
    path = Path(path)
    folder = path.resolve().parent
    columns = [name for name in COLUMNS if name in SCHEMA["required"] or (frame[name] != "").any()]
    lines = [columns]
    for row in frame.to_dict("records"):
        values = [os.path.relpath(row[n], folder) if n in PATHS and row[n] else row[n] for n in columns]
        odd = [value for value in values if not _is_plain(value)]
        if odd:
            raise BadData(f"{path}: expected values without control characters, got {odd[0]!r}")
        lines.append(values)
    with whole_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(lines)


def discover(study: Study) -> tuple[pd.DataFrame, list[Finding]]:
    """The runs of a study's data, by its layout or its manifest, and what is missing, passed over or odd.

    Rows are ordered by subject, session, run. A run whose file is a stub (empty, a Git LFS pointer, a dead link) stays
    in the table and is listed, so that nobody disappears. Raises InputMissing, NotADataset when no run is found, and
    NothingSelected when the study's group is nobody's. Raises BadData when one file is the bold of two runs.
    """
    if study.data.layout == "manifest":
        frame, findings = read_manifest(study.data.manifest), []
    else:
        rows, findings = tree_runs(study.data)
        frame = pd.DataFrame([dict.fromkeys(COLUMNS, "") | row for row in rows], columns=list(COLUMNS), dtype=object)
        if doubled := _doubled(frame, [" + ".join(map(str, bold_paths(row))) for row in frame.to_dict("records")]):
            raise BadData("\n".join(f"{study.data.root}: {one}" for one in doubled[:10]))
    if study.data.group is not None:
        there = sorted(set(frame["group"]) - {""})
        frame = frame[frame["group"] == study.data.group].reset_index(drop=True)
        if frame.empty:
            raise NothingSelected(
                f"data.group: no run is of group {study.data.group!r}; groups: {there or 'none given'}"
            )
    return frame, sorted(findings + check_files(frame, study.data))


def check_files(frame: pd.DataFrame, data: Data | None = None) -> list[Finding]:
    """A finding for each file of a frame that is not there or holds no data; of a file the beginning is read, no more.

    data: the settings of a study, for which only the files that it reads are checked.
    """
    findings = []
    for row in frame.to_dict("records"):
        for path in dict.fromkeys(used_paths(row, data)):
            if fault := _file_fault(path):
                key = (row["subject"], row["session"], row["run"])
                findings.append(Finding("unreadable", f"{path}: {fault}", *key))
    return findings


def _file_fault(path: Path) -> str | None:
    """Why a file cannot hold data, or None."""
    try:
        if path.is_symlink() and not path.exists():
            return "a link to nothing; fetch its content first (`datalad get`)"
        if not path.is_file():
            return "a folder, not a file" if path.is_dir() else "not there"
        size = path.stat().st_size
        if size == 0:
            return "empty"
        # A pointer has about 130 bytes; only a small file is worth opening.
        if size < 1024 and path.read_bytes().startswith(b"version https://git-lfs.github.com/spec/"):
            return "a Git LFS pointer, not the data; fetch it first (`git lfs pull`)"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None


def select(frame: pd.DataFrame, participants: list[str] | None, sessions: list[str] | None) -> pd.DataFrame:
    """The rows of some subjects and sessions, named with or without `sub-` and `ses-`; None or empty selects all.

    Raises NothingSelected, naming it, for a name that is not in the frame, and when nothing is left.
    """
    whole = frame
    for column, wanted in (("subject", participants), ("session", sessions)):
        names = {name.removeprefix(PREFIXES[column]) for name in wanted or ()}
        there = sorted(set(whole[column]), key=natural)
        unknown = sorted(names - set(there), key=natural)
        if unknown:
            some = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
            raise NothingSelected(f"no {column} is called {', '.join(unknown)}; there are {some}")
        frame = frame[frame[column].isin(names)] if names else frame
    if frame.empty:
        raise NothingSelected(f"no run is of subjects {participants or 'any'} and sessions {sessions or 'any'}")
    return frame.reset_index(drop=True)
