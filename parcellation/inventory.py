"""What a cohort holds, before anything is computed: the frames and minutes of each run that count, or why none do.

Headers, file sizes and the small tables beside the series are read, and no series: what `prepare` would leave out for
them is known here.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from parcellation.cleaning import check_kept, cleaner, minutes
from parcellation.config import Data
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.files import write_text
from parcellation.findings import Finding, natural
from parcellation.headers import Header, read_header
from parcellation.interruption import told_to_end
from parcellation.manifest import bold_paths

# Kinds of findings for which a run cannot be used.
UNREADABLE, UNCLEANED, SHORT, MESH, SPACE = (
    "unreadable",
    "cannot be cleaned",
    "too short",
    "another mesh",
    "mesh not named",
)
UNUSABLE = (UNREADABLE, UNCLEANED, SHORT, MESH, SPACE)
# What the columns of the table of subjects count.
COUNTED = {
    "missing": ("missing run", "missing session", "missing hemisphere", "no usable variant"),
    "passed_over": ("variant passed over",),
}
SHOWN = 20  # subjects in a printed table


def take_stock(data: Data, frame: pd.DataFrame, findings: Collection[Finding]) -> tuple[pd.DataFrame, list[Finding]]:
    """The runs of a frame as a table, and what is wrong with those that cannot be used.

    findings: those of the frame's files, of which the unreadable ones are not opened again.
    Columns: subject, session, run, mesh, frames, frames_kept, minutes_kept, repetition_time (seconds); empty or NaN
    where it is not known, and no frames kept of a run that cannot be used.
    """
    known = unusable(findings)
    rows, found = [], []
    for row in tqdm(frame.to_dict("records"), desc="index", unit="run", disable=None):
        key = (row["subject"], row["session"], row["run"])
        facts = {"mesh": "", "frames": 0, "frames_kept": 0, "minutes_kept": 0.0, "repetition_time": math.nan}
        if key not in known:
            found += [Finding(kind, text, *key) for kind, text in _look(data, row, facts)]
        rows.append(dict(zip(("subject", "session", "run"), key, strict=True)) | facts)
    stock = pd.DataFrame(rows)
    found += _of_other_meshes(stock)
    return stock, found + _short_sessions(data, stock)


def _look(data: Data, row: dict[str, str], facts: dict) -> list[tuple[str, str]]:
    """Fill in what is known of a run; returns the kind and the text of what makes it useless."""
    paths, time = bold_paths(row), float(row["tr"]) if row["tr"] else None
    faults = []
    try:
        try:
            header = read_header(paths, data.space, time)
            facts["mesh"] = header.of
        except UsageError as error:
            # Which of two spaces it is does not change how much there is.
            faults, header = [(SPACE, str(error))], read_header(paths, "fsaverage", time)
    except (BadData, InputMissing) as error:
        if told_to_end():
            raise
        return [(UNREADABLE, str(error))]
    facts |= {"frames": header.frames, "repetition_time": header.repetition_time}
    return faults + _count(data, row, header, facts)


def _count(data: Data, row: dict[str, str], header: Header, facts: dict) -> list[tuple[str, str]]:
    try:
        cleaning, kept = cleaner(data, header, row)
    except (BadData, InputMissing) as error:
        if told_to_end():
            raise
        return [(UNCLEANED, str(error))]
    try:
        check_kept(header, cleaning, kept, data.minimum_frames, data.minimum_minutes_run)
    except BadData as error:
        return [(SHORT, str(error))]
    facts |= {"frames_kept": int(kept.sum()), "minutes_kept": minutes(header, kept)}
    return []


def _of_other_meshes(stock: pd.DataFrame) -> list[Finding]:
    """Runs on another mesh than most: nobody's vertices can be compared with theirs. Their frames do not count."""
    meshes = Counter(stock.loc[stock["mesh"] != "", "mesh"])
    if len(meshes) < 2:
        return []
    most = min(meshes, key=lambda name: (-meshes[name], name))
    other = stock[(stock["mesh"] != "") & (stock["mesh"] != most)]
    stock.loc[other.index, ["frames_kept", "minutes_kept"]] = 0
    return [
        Finding(MESH, f"on {row['mesh']}; most runs are on {most}", row["subject"], row["session"], row["run"])
        for row in other.to_dict("records")
    ]


def _short_sessions(data: Data, stock: pd.DataFrame) -> list[Finding]:
    """Sessions whose usable runs together are not long enough."""
    if not data.minimum_minutes_session:
        return []
    least, found = data.minimum_minutes_session, []
    for (subject, session), rows in stock.groupby(["subject", "session"], sort=False):
        got = rows["minutes_kept"].sum()
        if rows["frames_kept"].any() and not got >= least:
            text = f"expected at least {least:g} minutes to keep in the session, got {got:.2f}"
            found += [Finding(SHORT, text, subject, session, run) for run in rows.loc[rows["frames_kept"] > 0, "run"]]
            stock.loc[rows.index, ["frames_kept", "minutes_kept"]] = 0
    return found


def unusable(findings: Collection[Finding], kinds: Collection[str] = UNUSABLE) -> set[tuple[str, str, str]]:
    """The runs that cannot be used; a run has several files, and a finding is of one."""
    return {(one.subject, one.session, one.run) for one in findings if one.kind in kinds and one.run}


def by_subject(stock: pd.DataFrame, findings: Collection[Finding]) -> pd.DataFrame:
    """A row a subject: sessions, runs, how many of them are unusable, missing or have variants passed over, minutes."""
    bad, counts = unusable(findings), defaultdict(Counter)
    for one in findings:
        counts[one.subject][one.kind] += 1
    rows = []
    named = {one.subject for one in findings if one.subject}
    for subject in sorted(set(stock["subject"]) | named, key=natural):
        own = stock[stock["subject"] == subject]
        counted = {name: sum(counts[subject][kind] for kind in kinds) for name, kinds in COUNTED.items()}
        rows.append(
            {"subject": subject, "sessions": own["session"].nunique(), "runs": len(own)}
            | {"unusable": sum(key[0] == subject for key in bad)}
            | counted
            | {name: own[name].sum() for name in ("frames", "frames_kept")}
            | {"minutes_kept": own["minutes_kept"].sum(skipna=False)}
        )
    return pd.DataFrame(rows)


def table_lines(subjects: pd.DataFrame) -> list[str]:
    """The table of subjects as aligned text; of many subjects the first."""
    words = [[name.replace("_", " ") for name in subjects], *(map(_word, row) for row in subjects[:SHOWN].to_numpy())]
    words = [list(row) for row in words]
    widths = [max(len(row[column]) for row in words) for column in range(len(words[0]))]
    lines = ["  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in words]
    return lines + ([f"and {len(subjects) - SHOWN} more"] if len(subjects) > SHOWN else [])


def _word(value: object, form: str = ".2f") -> str:
    if isinstance(value, float):
        return "n/a" if math.isnan(value) else format(value, form)
    return str(value) or "n/a"


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as tab-separated text; what is not known is n/a."""
    rows = [list(table), *([_word(value, ".6g") for value in row] for row in table.itertuples(index=False))]
    write_text(path, "".join("\t".join(row) + "\n" for row in rows))
