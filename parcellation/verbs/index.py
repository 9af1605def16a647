"""`index`: the manifest of a study from its tree, or a check of one written by hand; no series is read."""

import json
import logging
import os
from pathlib import Path

import pandas as pd

from parcellation.config import Data, Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.files import checksum, writable_folder, write_json
from parcellation.findings import Finding, summary
from parcellation.inventory import SPACE, UNUSABLE, by_subject, table_lines, take_stock, unusable, write_table
from parcellation.manifest import bold_paths, check_files, discover, read_manifest, select, write_manifest
from parcellation.verbs.warned import Warned, keep, plain
from parcellation.verbs.workspace import Selection, Workspace

log = logging.getLogger(__name__)

# Findings that the report need not repeat: a choice as it should be, and what `prepare` leaves out with its reason.
TOLD_OTHERWISE = ("variant passed over", *UNUSABLE)


def index(study: Study, selection: Selection) -> str:
    """Write `manifest.tsv` into the study's work folder; returns the lines to print.

    The manifest is always the whole cohort's: who is selected is looked at, and the others are left as they are. Of a
    whole cohort, `subjects.tsv` and `runs.tsv` say how much there is. A dry run opens no file.
    Raises BadData when no run can be used or, if strict, when any cannot, and when files contradict each other.
    """
    workspace = Workspace(study)
    owner = _kept_origin(workspace).get("study", study.name)
    if owner != study.name:
        raise UsageError(
            f"{workspace.work}: the work folder of the study {owner!r}; give {study.name!r} an outputs.work of its own"
        )
    cohort, findings = discover(study)
    frame = select(cohort, selection.participants, selection.sessions)
    findings = _concerning(frame, findings)
    if selection.dry_run:
        runs = [f"sub-{r['subject']} ses-{r['session']} run-{r['run']}: {_files(r)}" for r in frame.to_dict("records")]
        return "\n".join([summary(frame, findings), *runs])
    # Before the headers of a whole cohort are read; the folder itself is made when there is something to write.
    writable_folder(next(path for path in (workspace.work, *workspace.work.parents) if path.exists()))
    stock, text, findings = _taken(study.data, frame, findings)
    _check_usable(frame, findings, text, selection.strict)
    writable_folder(workspace.work)
    before = workspace.manifest.read_bytes() if workspace.manifest.exists() else b""
    write_manifest(cohort, workspace.manifest)
    write_json(workspace.origin, _origin(study, workspace))
    if len(frame) == len(cohort):
        write_table(workspace.work / "runs.tsv", stock)
        write_table(workspace.work / "subjects.tsv", by_subject(stock, findings))
        told = [Warned(one.kind, plain(f"{one.kind}: {one}")) for one in findings if one.kind not in TOLD_OTHERWISE]
        keep(workspace.warned / "index.json", told)
    word = "unchanged" if workspace.manifest.read_bytes() == before else "written"
    return f"{text}\n{word}: {workspace.manifest}"


def check_manifest(path: Path, strict: bool = False) -> str:
    """Check a manifest by itself; returns the lines to print.

    Raises BadData when it contradicts itself, when no run can be used, or, if strict, when any cannot. Without a study
    nobody has said yet how runs are cleaned, or which space a mesh is of that two spaces have.
    """
    frame = read_manifest(path)
    _, text, findings = _taken(Data(layout="manifest", manifest=path), frame, check_files(frame))
    _check_usable(frame, [one for one in findings if one.kind != SPACE], f"{path}\n{text}", strict)
    return text


def _files(row: dict[str, str]) -> str:
    return " + ".join(map(str, bold_paths(row)))


def _concerning(frame: pd.DataFrame, findings: list[Finding]) -> list[Finding]:
    """The findings of the data set, and those of a frame's subjects and sessions."""
    subjects, sessions = set(frame["subject"]) | {""}, set(frame["session"]) | {""}
    return [one for one in findings if one.subject in subjects and one.session in sessions]


def _taken(data: Data, frame: pd.DataFrame, findings: list[Finding]) -> tuple[pd.DataFrame, str, list[Finding]]:
    """The table of runs, what to print, and all findings."""
    stock, more = take_stock(data, frame, findings)
    findings = sorted([*findings, *more])
    first, *rest = summary(frame, findings).splitlines()
    return stock, "\n".join([first, *table_lines(by_subject(stock, findings)), *rest]), findings


def _check_usable(frame: pd.DataFrame, findings: list[Finding], text: str, strict: bool) -> None:
    bad = len(unusable(findings, UNUSABLE))
    if bad and (strict or bad == len(frame)):
        raise BadData(f"{bad} of {len(frame)} runs cannot be used\n{text}")


def manifest_of(study: Study, workspace: Workspace, selection: Selection) -> pd.DataFrame:
    """The runs that a verb works on: of the manifest that `index` wrote, else as `index` would find them.

    Raises BadData when `index` wrote it for other data than the study names now.
    """
    if workspace.manifest.exists():
        there, here = _kept_origin(workspace), _origin(study, workspace)
        differing = [key for key in here if there.get(key, here[key]) != here[key]]
        if differing:
            raise BadData(
                f"{workspace.manifest}: was written for another {' and '.join(differing)} than the study has now; "
                "run `parcellation index` again, or give this study an outputs.work of its own"
            )
        frame = read_manifest(workspace.manifest)
    else:
        frame, _ = discover(study)
    return select(frame, selection.participants, selection.sessions)


def cohort_units(study: Study, workspace: Workspace) -> set[tuple[str, str]] | None:
    """Subject and session of every run of the study: who was taken out of its manifest takes part in nothing.

    None, which stands for all that is prepared, where there is no manifest, as for simulated fingerprints.
    """
    try:
        frame = manifest_of(study, workspace, Selection())
    except InputMissing:
        return None
    return set(zip(frame["subject"], frame["session"], strict=True))


def _origin(study: Study, workspace: Workspace) -> dict:
    """What a manifest in the work folder depends on; paths relative to it, since folders move together."""
    data = study.data
    content = {name: getattr(data, name) for name in ("layout", "group", "tasks", "variants")} | {"study": study.name}
    if data.layout != "manifest":
        return content | {"root": os.path.relpath(data.root, workspace.work)}
    known = data.manifest.is_file()
    return content | {"manifest": checksum(data.manifest) if known else None}


def _kept_origin(workspace: Workspace) -> dict:
    if not workspace.origin.exists():
        return {}
    try:
        return dict(json.loads(workspace.origin.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadData(f"{workspace.origin}: damaged ({error}); delete it and run `parcellation index` again") from error
