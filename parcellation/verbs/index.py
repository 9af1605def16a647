"""`index`: the manifest of a study from its tree, or a check of one written by hand; nothing is computed."""

import logging
from pathlib import Path

import pandas as pd

from parcellation.config import Study
from parcellation.errors import BadData
from parcellation.files import writable_folder
from parcellation.manifest import check_files, discover, read_manifest, select, summary, write_manifest
from parcellation.verbs.workspace import Selection, Workspace

log = logging.getLogger(__name__)


def index(study: Study, selection: Selection) -> str:
    """Write `manifest.tsv` into the study's work folder; returns the lines to print."""
    workspace = Workspace(study)
    frame, findings = discover(study)
    frame = select(frame, selection.participants, selection.sessions)
    text = summary(frame, findings)
    if selection.dry_run:
        return text
    writable_folder(workspace.work)
    write_manifest(frame, workspace.manifest)
    return f"{text}\nwritten: {workspace.manifest}"


def check_manifest(path: Path, strict: bool = False) -> str:
    """Check a manifest by itself; returns the lines to print.

    Raises BadData when it contradicts itself, when no run can be read, or, if strict, when any cannot.
    """
    frame = read_manifest(path)
    findings = check_files(frame)
    text = summary(frame, findings)
    if len(findings) == len(frame) or (strict and findings):
        raise BadData(f"{path}: {len(findings)} of {len(frame)} runs cannot be read\n{text}")
    return text


def manifest_of(study: Study, workspace: Workspace, selection: Selection) -> pd.DataFrame:
    """The runs that a verb works on: of the manifest that `index` wrote, else as `index` would find them."""
    if workspace.manifest.exists():
        frame = read_manifest(workspace.manifest)
    else:
        frame, _ = discover(study)
    return select(frame, selection.participants, selection.sessions)
