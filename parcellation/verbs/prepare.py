"""`prepare`: fingerprints of every session into the store; finished ones are skipped, faulty runs left out and listed.

Never loads torch, so that a thousand small jobs start fast.
"""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from tqdm import tqdm

from parcellation.bold import Bold
from parcellation.cleaning import check_kept, cleaner
from parcellation.config import Features, Study
from parcellation.connectivity import Fingerprint, average_runs, binarized, fingerprints
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.files import writable_folder
from parcellation.gifti import content_checksum
from parcellation.interruption import told_to_end
from parcellation.manifest import bold_paths, used_paths
from parcellation.meshes import geometry
from parcellation.parcels import all_vertices, check_parcels, region_parcels
from parcellation.store import Store, Unit, input_key
from parcellation.surfaces import Vertices, region_vertices, smoothing, target_set
from parcellation.timeseries import open_bold
from parcellation.twins import twins
from parcellation.verbs.index import cohort_units, manifest_of
from parcellation.verbs.warned import Warned, into, keep, unit_file
from parcellation.verbs.workspace import (
    GROUP,
    PARTICIPANT,
    Ground,
    Selection,
    Workspace,
    ground_key,
    model_header,
    note,
)

log = logging.getLogger(__name__)

MOST_KINDS = 8  # of different vertices; opening more headers than that to find two alike takes long


def prepare(study: Study, selection: Selection, level: str | None = None, part: tuple[int, int] | None = None) -> str:
    """Prepare the selected subjects and sessions; returns the lines to print.

    level: None for all of it. At `participant` these are a part of the cohort, so that nothing usable is no failure,
    and the store's index is not written; at `group` the index is written, of what other processes have prepared.
    part: (K, N) for the K-th of N parts of the subjects, which are all different; its level is `participant`.
    Raises BadData when no session is usable, or, if strict, when any run is not; UsageError for a part of the group.
    """
    if part is not None and level == GROUP:
        raise UsageError("--part: a part of the subjects is prepared at --level participant, got group")
    workspace = Workspace(study)
    frame = manifest_of(study, workspace, selection)
    if part is not None:
        level, frame = PARTICIPANT, _part_of(frame, *part)
    units = [(key, rows) for key, rows in frame.groupby(["subject", "session"], sort=False)]
    if selection.dry_run:
        return "\n".join(f"would prepare subject {s}, session {t}: {len(rows)} runs" for (s, t), rows in units)
    if level == GROUP:
        return _group(workspace, units, selection.strict)
    writable_folder(workspace.work)
    # From the whole cohort, so that processes that prepare one subject each stand on the same ground.
    ground = find_ground(study, workspace, manifest_of(study, workspace, Selection()))
    store = workspace.store(ground)
    maker = _Maker(study, ground, store, workspace)
    excluded: list[str] = []
    for (subject, session), rows in tqdm(units, desc="prepare", unit="session", disable=None):
        reasons = maker.make(subject, session, rows)
        if reasons is None:
            continue
        note(workspace, f"sub-{subject}_ses-{session}", reasons)
        excluded += reasons
    if level == PARTICIPANT:
        return _outcome(store, units, maker.kept, excluded)[1]
    store.write_index()
    usable, text = _outcome(store, units, maker.kept, excluded)
    return _checked(usable, text + _doubled(workspace, ground), selection.strict and excluded)


def _part_of(frame: pd.DataFrame, number: int, count: int) -> pd.DataFrame:
    """The rows of every `count`-th subject, from the `number`-th (from 1) on."""
    return frame[frame["subject"].isin(list(dict.fromkeys(frame["subject"]))[number - 1 :: count])]


def _group(workspace: Workspace, units: list, strict: bool) -> str:
    """What other processes have prepared, and why they left runs out."""
    ground = workspace.ground()
    store = workspace.store(ground)
    store.write_index()
    notes = [workspace.excluded / f"sub-{subject}_ses-{session}.txt" for (subject, session), _ in units]
    excluded = [line for note in notes if note.exists() for line in note.read_text(encoding="utf-8").splitlines()]
    usable, text = _outcome(store, units, 0, excluded)
    return _checked(usable, text + _doubled(workspace, ground), strict and excluded)


def _doubled(workspace: Workspace, ground: Ground) -> str:
    """Warnings of data that the cohort has more than once; who was taken out of its manifest, or renamed, is not."""
    cohort = workspace.store(ground, cohort_units(workspace.study, workspace))
    return "".join(f"\nwarning: {one}" for one in twins(cohort))


def _checked(usable: int, text: str, refused: object) -> str:
    if not usable or refused:
        raise BadData(text)
    return text


def _outcome(store: Store, units: list, kept: int, excluded: list[str]) -> tuple[int, str]:
    """How many of the units are there, and what is to be said of them."""
    there = set(store.units())
    usable = [key for key, _ in units if key in there]
    before = f", {kept} of them before" if kept else ""
    lines = [f"{len(usable)} of {len(units)} sessions prepared{before}: {store.folder}"]
    if excluded:
        lines += [f"{len(excluded)} runs left out:", *(f"  {reason}" for reason in excluded)]
    return len(usable), "\n".join(lines)


def find_ground(study: Study, workspace: Workspace, frame: pd.DataFrame) -> Ground:
    """Region, targets and exported vertices: the model's, those found before, or found now from a typical run.

    Raises BadData when no run can be opened.
    """
    if study.model.file is not None:
        key = {"model": model_header(study.model.file)["numbers"]}
        ground = Ground.from_json(model_header(study.model.file)["details"]["ground"])
        if not ground.parcels:
            brain = _with_region(_typical_run(study, frame).vertices, ground.region)
            ground = Ground(ground.region, ground.targets, brain)
    else:
        key = ground_key(study)
        if (known := workspace.known_ground(key)) is not None:
            return known
        ground = _ground_of(study, _typical_run(study, frame))
    workspace.remember(ground, key)
    return ground


def _ground_of(study: Study, bold: Bold) -> Ground:
    """The ground of a run's vertices; of parcels, those of the region, with all of them as targets."""
    if bold.parcels is None:
        region = region_vertices(study, bold.vertices.mesh)
        targets = target_set(study, bold.vertices.mesh, bold.vertices)
        return Ground(region, targets, _with_region(bold.vertices, region))
    if said := study.said("targets"):
        raise UsageError(f"targets.{min(said)}: in series of parcels all of them are targets; leave this out")
    return Ground(region_parcels(study, bold.parcels), bold.parcels, all_vertices(bold.parcels), parcels=True)


def _typical_run(study: Study, frame: pd.DataFrame) -> Bold:
    """The first run that another one, of another subject if possible, shares its vertices with; else the first of all.

    So one file on another mesh, or of one hemisphere, decides nothing, wherever it stands in the manifest.
    """
    seen, reasons = {}, []
    order = frame.assign(again=frame.duplicated("subject")).sort_values("again", kind="stable")
    for row in order.to_dict("records"):
        try:
            bold = _open(study, row)
        except (BadData, InputMissing, UsageError) as error:
            if told_to_end():
                raise
            reasons.append(error)
            continue
        digest = bold.vertices.digest()
        if digest in seen or len(seen) == MOST_KINDS:
            return seen.get(digest) or next(iter(seen.values()))
        seen[digest] = bold
    if not seen:
        kind = next((type(one) for one in reasons if isinstance(one, UsageError)), BadData)
        raise kind("no run can be opened:\n" + "\n".join(f"  {reason}" for reason in reasons))
    return next(iter(seen.values()))


def _with_region(brain: Vertices, region: Vertices) -> Vertices:
    """The vertices of a file and those of the region that it lacks, left hemisphere first: maps have no holes."""
    if brain.mesh != region.mesh:
        return region
    lacking = region[region.within(brain) < 0]
    sides = []
    for hemisphere in (0, 1):
        numbers = [part.number[part.hemisphere == hemisphere].tolist() for part in (brain, lacking)]
        sides.append(sorted(numbers[0] + numbers[1]))
    return Vertices.of(brain.mesh, *sides)


def _open(study: Study, row: dict[str, str]) -> Bold:
    return open_bold(bold_paths(row), study.data.space, float(row["tr"]) if row["tr"] else None)


class _Maker:
    """Makes units of one study."""

    def __init__(self, study: Study, ground: Ground, store: Store, workspace: Workspace):
        self.study, self.ground, self.store, self.workspace = study, ground, store, workspace
        self.kept = 0
        self._smoothing: dict[str, object] = {}
        self.settings = study.resolved()["data"] | {"connectivity": study.features.connectivity}
        for name in ("root", "manifest", "layout", "group", "tasks", "variants"):
            self.settings.pop(name)

    def make(self, subject: str, session: str, rows: pd.DataFrame) -> list[str] | None:
        """Make one unit unless it is there; returns why runs were left out, None if another process is at it."""
        runs = rows.to_dict("records")
        try:
            key = input_key(self._files(runs), self.settings | {"ground": self.ground.digest} | _times(runs))
        except InputMissing:
            key = {"incomplete": [str(path) for path in self._files(runs)]}
        if self.store.is_current(subject, session, key):
            self.kept += 1
            return _kept_reasons(self.store.header(subject, session))
        with self.store.claim(subject, session) as mine:
            if not mine:
                log.warning("subject %s, session %s: another process is at it", subject, session)
                return None
            return self._make(subject, session, runs, key)

    def _make(self, subject: str, session: str, runs: list[dict], key: dict) -> list[str]:
        made, reasons, missing, bolds, cleaning = [], [], [], [], {}
        warned: list[Warned] = []
        for row in runs:
            try:
                with into(warned):
                    bold, one, how = self._run(row)
            except (BadData, InputMissing, UsageError) as error:
                if told_to_end():
                    raise
                reasons.append(f"subject {subject}, session {session}, run {row['run']}: {error}")
                missing.append(isinstance(error, InputMissing))
                log.warning("left out: %s", reasons[-1])
                continue
            made.append(one)
            bolds.append(bold)
            cleaning[row["run"]] = how
        if made and (reason := self._too_short(made, bolds)):
            reasons.append(f"subject {subject}, session {session}: {reason}")
            made = []
        if made or not any(missing):  # else what was made before stays, with what it warned of
            keep(unit_file(self.workspace, subject, session), warned)
        if made:
            used = {path.name: content_checksum(path) for bold in bolds for path in bold.paths}
            self.store.write(self._unit(subject, session, made, bolds[0], key, cleaning | {"left_out": reasons}, used))
        elif not any(missing):
            # The files were read and found bad: what an earlier state of them gave is not this session's any more.
            self.store.path(subject, session).unlink(missing_ok=True)
        return reasons

    def _unit(self, subject, session, made: list[Fingerprint], bold: Bold, key, cleaning, sources) -> Unit:
        whole = average_runs(made)
        features: Features = self.study.features
        if features.connectivity == "binarized":
            whole = binarized(whole)
        return Unit(
            subject,
            session,
            whole.values,
            whole.mask,
            self.ground.region,
            self.ground.targets,
            whole.frames_kept,
            features,
            whole.target_mask,
            bold.repetition_time,
            cleaning,
            key,
            sources,
        )

    def _run(self, row: dict[str, str]) -> tuple[Bold, Fingerprint, dict]:
        settings = self.study.data
        bold = _open(self.study, row)
        check_parcels(bold.where, self.ground.atlas, bold.parcels)
        cleaning, kept = cleaner(settings, bold, row)
        check_kept(bold, cleaning, kept, settings.minimum_frames, settings.minimum_minutes_run)
        one = fingerprints(
            bold,
            self.ground.region,
            self.ground.targets,
            cleaning,
            kept,
            smoothing=self._smoother(bold),
            minimum_frames=settings.minimum_frames,
        )
        return bold, one, cleaning.to_json() | {"frames": bold.frames, "frames_kept": one.frames_kept}

    def _files(self, runs: list[dict[str, str]]) -> list[Path]:
        """Every file that the runs are made from."""
        return [path for row in runs for path in used_paths(row, self.study.data)]

    def _too_short(self, made: list[Fingerprint], bolds: list[Bold]) -> str | None:
        """Why the runs of a session are not enough together, or None."""
        if not (least := self.study.data.minimum_minutes_session):
            return None
        got = sum(one.frames_kept * bold.repetition_time / 60 for one, bold in zip(made, bolds, strict=True))
        return None if got >= least else f"expected at least {least:g} minutes to keep in the session, got {got:.2f}"

    def _smoother(self, bold: Bold):
        fwhm = self.study.data.smoothing_fwhm
        if fwhm is None:
            return None
        if bold.parcels is not None:
            raise UsageError(f"data.smoothing_fwhm: {bold.where}: series of parcels have no mesh to be smoothed along")
        key = bold.vertices.digest()
        if key not in self._smoothing:
            self._smoothing = {key: self._weights(bold.vertices, fwhm)}
        return self._smoothing[key]

    def _weights(self, vertices: Vertices, fwhm: float) -> sparse.csr_array:
        """Smoothing weights (vertex, vertex), with rows of what is needed: those of the whole cortex take long."""
        found = [part.within(vertices) for part in (self.ground.region, self.ground.targets.members)]
        needed = np.unique(np.concatenate(found))
        needed = needed[needed >= 0]
        rows = smoothing(geometry(self.study, vertices.mesh), vertices, fwhm, needed)
        place = sparse.csr_array((np.ones(len(needed)), (needed, np.arange(len(needed)))), (len(vertices), len(needed)))
        return place @ rows


def _times(runs: list[dict]) -> dict:
    """The repetition times that a manifest gives, if it does: they are in none of the files."""
    times = [row["tr"] for row in runs]
    return {"tr": times} if any(times) else {}


def _kept_reasons(header: dict) -> list[str]:
    return list(header["cleaning"].get("left_out", []))
