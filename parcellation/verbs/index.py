"""`index`: the manifest of a study from its tree, or a check of one written by hand; nothing is computed."""

import json
import logging
import os
from pathlib import Path

import pandas as pd

from parcellation.config import Study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.files import checksum, writable_folder, write_json
from parcellation.manifest import Finding, check_files, discover, read_manifest, select, summary, write_manifest
from parcellation.verbs.workspace import Selection, Workspace

log = logging.getLogger(__name__)


def index(study: Study, selection: Selection) -> str:
    """Write `manifest.tsv` into the study's work folder; returns the lines to print."""
    workspace = Workspace(study)
    owner = _kept_origin(workspace).get("study", study.name)
    if owner != study.name:
        raise UsageError(
            f"{workspace.work}: the work folder of the study {owner!r}; give {study.name!r} an outputs.work of its own"
        )
    frame, findings = discover(study)
    frame = select(frame, selection.participants, selection.sessions)
    text = summary(frame, findings)
    unreadable = _unreadable(findings)
    if selection.strict and unreadable:
        raise BadData(f"{len(unreadable)} of {len(frame)} runs cannot be read\n{text}")
    if selection.dry_run:
        return text
    writable_folder(workspace.work)
    before = workspace.manifest.read_bytes() if workspace.manifest.exists() else b""
    write_manifest(frame, workspace.manifest)
    write_json(workspace.origin, _origin(study, workspace))
    word = "unchanged" if workspace.manifest.read_bytes() == before else "written"
    return f"{text}\n{word}: {workspace.manifest}"


def check_manifest(path: Path, strict: bool = False) -> str:
    """Check a manifest by itself; returns the lines to print.

    Raises BadData when it contradicts itself, when no run can be read, or, if strict, when any cannot.
    """
    frame = read_manifest(path)
    findings = check_files(frame)
    text = summary(frame, findings)
    unreadable = _unreadable(findings)
    if len(unreadable) == len(frame) or (strict and unreadable):
        raise BadData(f"{path}: {len(unreadable)} of {len(frame)} runs cannot be read\n{text}")
    return text


def _unreadable(findings: list[Finding]) -> set[tuple[str, str, str]]:
    """The runs with a file that cannot be read; a run has several files, and a finding is of one."""
    return {(one.subject, one.session, one.run) for one in findings if one.kind == "unreadable" and one.subject}


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


def _origin(study: Study, workspace: Workspace) -> dict[str, str | None]:
    """What a manifest in the work folder depends on; paths relative to it, since folders move together."""
    data = study.data
    content = {"study": study.name, "layout": data.layout, "group": data.group}
    if data.layout != "manifest":
        return content | {"root": os.path.relpath(data.root, workspace.work)}
    known = data.manifest.is_file()
    return content | {"manifest": checksum(data.manifest) if known else None}


def _kept_origin(workspace: Workspace) -> dict[str, str | None]:
    return json.loads(workspace.origin.read_text(encoding="utf-8")) if workspace.origin.exists() else {}
