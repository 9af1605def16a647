"""`index`: the manifest of a study from its tree, or a check of one written by hand; nothing is computed."""

import logging
from pathlib import Path

import pandas as pd

from parcellation.config import Study
from parcellation.errors import BadData
from parcellation.files import writable_folder
from parcellation.manifest import Finding, check_files, discover, read_manifest, select, summary, write_manifest
from parcellation.verbs.workspace import Selection, Workspace

log = logging.getLogger(__name__)


def index(study: Study, selection: Selection) -> str:
    """Write `manifest.tsv` into the study's work folder; returns the lines to print."""
    workspace = Workspace(study)
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
    """The runs that a verb works on: of the manifest that `index` wrote, else as `index` would find them."""
    if workspace.manifest.exists():
        frame = read_manifest(workspace.manifest)
    else:
        frame, _ = discover(study)
    return select(frame, selection.participants, selection.sessions)
