"""`report`: one self-contained HTML page of a finished result."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas

from parcellation.config import Study
from parcellation.errors import InputMissing
from parcellation.files import writable_folder, write_text
from parcellation.manifest import natural
from parcellation.meshes import find_geometry
from parcellation.novelty import session_mean
from parcellation.rendering import curvature
from parcellation.report import PAGES, HeldOut, Reliability, ReportContent, write_report
from parcellation.twins import twins
from parcellation.verbs.anatomy import anatomy
from parcellation.verbs.checks import Recovery, Retest, recovery, retest, truth_folder
from parcellation.verbs.gaps import FOLDER, gap_row
from parcellation.verbs.index import cohort_units
from parcellation.verbs.infer import Inference, software_versions
from parcellation.verbs.population import REINFERRED
from parcellation.verbs.warned import into, of_result, plain
from parcellation.verbs.workspace import Selection, Workspace


def report(study: Study, selection: Selection, notes: tuple[str, ...] = ()) -> str:
    """Write report.html; returns the lines to print. Raises InputMissing when nobody is inferred yet."""
    run = Inference.of(study, look_only=selection.dry_run)
    path = study.outputs.directory / "report.html"
    if selection.dry_run:
        return f"would write {path}"
    subjects = sorted(run.known(), key=lambda answer: natural(answer.subject))
    if not subjects:
        raise InputMissing(f"{run.workspace.posteriors}: nobody is inferred yet; run `parcellation infer` first")
    writable_folder(study.outputs.directory)
    folder, units, warned = truth_folder(study), cohort_units(study, run.workspace), []
    with into(warned):
        found = recovery(run, folder) if folder is not None else None
        content = _content(run, subjects, found, notes)
    told = of_result(run.workspace, units, run.origin.kind == REINFERRED, warned)
    content = replace(content, warnings=[*_left_out(run, units), *content.warnings], warned=told)
    before = _times(path)
    pages = write_report(path, content)
    list_pages(run.workspace, pages)
    return f"{'unchanged' if _times(path) == before else 'written'}: {path}"


def _times(path: Path) -> dict[Path, int]:
    """When each page was written; one of equal content is not written again."""
    pages = [path, *(path.parent / PAGES).glob("*.html")]
    return {page: page.stat().st_mtime_ns for page in pages if page.is_file()}


def list_pages(workspace: Workspace, pages: list[Path]) -> None:
    """Keep the names of the subjects' pages, for the workflow to make again what is deleted."""
    names = [page.relative_to(workspace.results).as_posix() for page in pages]
    if names:
        write_text(workspace.pages, "".join(f"{name}\n" for name in names))
    else:
        workspace.pages.unlink(missing_ok=True)


def _content(run: Inference, subjects: list, found: Recovery | None, notes: tuple[str, ...]) -> ReportContent:
    agreement, population = retest(run), run.population()
    inferred = [(one.subject, one.sessions) for one in subjects]
    return ReportContent(
        title=f"Functional parcellation: {run.study.name}",
        summary=[*_summary(run, len(subjects)), *_origin(run), *notes],
        networks=run.networks,
        frame=run.export().frame,
        targets=run.ground.targets,
        population=population,
        subjects=subjects,
        participants=[run.row(one) for one in subjects],
        **surfaces(run),
        pairs=run.posterior.pairs,
        recovery=found and found.scores,
        reliability=_reliabilities(found, agreement),
        retest=agreement and agreement.rows(),
        held_out=held_out(run, inferred),
        gaps=[gap_row(one.subject, gap) for one in subjects if (gap := run.gap(one)) is not None],
        anatomy=[] if run.ground.parcels else anatomy(run.study, run.ground.region, population.probability),
        training_loss=_losses(run.workspace.model / "training_loss.tsv"),
        settings=run.study.resolved(),
        versions=software_versions(),
        citation=run.methods(len(subjects)),
        warnings=[*twins(run.cohort.store), *run.novelty.warnings(inferred)],
        notes=[*_notes(run, found), *run.novelty.notes(inferred)],
    )


def _summary(run: Inference, subjects: int) -> list[str]:
    trained, details = run.model.details["study"], run.model.details
    region = trained["region"]
    what = "parcels on" if run.ground.parcels else "vertices of"
    return [
        f"{region['name'].capitalize()} ({region['hemisphere']} hemisphere, {len(run.ground.region)} {what} "
        f"{run.ground.region.mesh.name}) was parcelled into {trained['model']['networks']} networks by its "
        f"connectivity with {len(run.ground.targets.names)} targets, in {subjects} "
        f"subject{'' if subjects == 1 else 's'}.",
        f"The model was trained on {len(details['subjects'])} subjects ({details['sessions']} sessions), {_both(run)} "
        f"of them among those below; the maps below were inferred with it without further training. "
        f"{run.origin.sentence()}",
    ]


def _both(run: Inference) -> int | str:
    """How many of the training subjects the maps are of."""
    return len(set(run.model.details["subjects"]) & set(run.cohort.subjects)) or "none"


def surfaces(run: Inference) -> dict:
    """Inflated surface to paint on, with the folding of the midthickness as relief; None where there is no surface."""
    if run.ground.parcels:
        return {"geometry": None, "relief": None}
    mesh = run.ground.region.mesh
    inflated = find_geometry(run.study, mesh, "inflated")
    folded = find_geometry(run.study, mesh, "midthickness")
    relief = None if folded is None else [curvature(*surface) for surface in folded]
    return {"geometry": inflated or folded, "relief": relief}


def _reliabilities(found: Recovery | None, agreement: Retest | None) -> list[Reliability]:
    """What can be said of how sure maps are: against the truth where it is known, and between sessions."""
    diagrams = []
    if found is not None:
        said = f"Stated probability of the label against the share of right labels, {found.subjects} unseen subjects."
        diagrams.append(Reliability(**found.reliability, said=said))
    if agreement is not None:
        stated = "that another session has the same label" if agreement.linked else "of the label from one session"
        no_claim = "" if agreement.linked else " This probability is of the label, not of another session’s."
        people = len(agreement.within)
        said = (
            f"Stated probability {stated} against the share of labels that the other session has too, "
            f"{people} subject{'' if people == 1 else 's'}.{no_claim}"
        )
        hit = "share that the other session has too"
        diagrams.append(Reliability(**agreement.reliability, said=said, hit=hit))
    return diagrams


def held_out(run: Inference, inferred: list[tuple[str, tuple[str, ...]]]) -> HeldOut | None:
    """How well people are predicted who were not trained on; None where the model cannot tell."""
    reference = run.novelty.reference
    if reference is None:
        return None
    found = [one for answer in inferred if (one := run.novelty.of(*answer)) is not None and not one.trained_on]
    densities = {
        "training subjects, each left out": np.array([session_mean(scores)[0] for scores in reference.scores]),
        "others of this report": np.array([one.density for one in found]),
    }
    return HeldOut(densities, by_networks(run.study.outputs.directory / FOLDER / "networks.tsv"))


def by_networks(path: Path) -> dict[str, np.ndarray] | None:
    """What `networks` found, if it has been run: the numbers that have a density."""
    if not path.exists():
        return None
    table = pandas.read_csv(path, sep="\t", na_values="n/a")
    table = table[table.density.notna()]
    return {name: table[name].to_numpy() for name in ("networks", "density", "less_error")} if len(table) else None


def _losses(path: Path) -> np.ndarray | None:
    return np.loadtxt(path, skiprows=1, usecols=1, ndmin=1) if path.exists() else None


def _left_out(run: Inference, units: set[tuple[str, str]] | None) -> list[str]:
    """What was left out and why, of the cohort's subjects and sessions; None for all."""
    wanted = None if units is None else {f"sub-{name}" for unit in units for name in (unit[0], "_ses-".join(unit))}
    files = sorted(run.workspace.excluded.glob("*.txt")) if run.workspace.excluded.exists() else []
    kept = [file for file in files if wanted is None or file.stem in wanted]
    return [f"Left out: {plain(line)}" for file in kept for line in file.read_text(encoding="utf-8").splitlines()]


def _notes(run: Inference, found: Recovery | None) -> list[str]:
    power = run.model.label_power
    notes = []
    if power.checked:
        notes.append(
            f"A vertex's evidence about its label is raised to the power {power.at(1):.3g} (one session), "
            f"{power.at(2):.3g} (two), chosen by predictive gain between halves of the training subjects' sessions."
        )
        if power.profiles != "session":
            notes.append(f"Vertices are compared with the fingerprints of the {power.profiles}, not of each session.")
    else:
        notes.append(
            f"The label power is {power.at(1):.3g} and unchecked: no training subjects had two sessions to compare, so "
            "how sure maps are is the study's assumption (model.label_power)."
        )
    link = run.model.retest_link
    if link.checked:
        notes.append(
            "Maps show what the data say of each label. How probable it is that another scan of the person says the "
            f"same is another number, the retest link: p^{link.own:.2f} times the population's p^{link.map:.2f}, "
            "scaled to sum to 1, fitted on halves of the training subjects' sessions."
        )
    if found is not None:
        notes.append(f"Recovery is scored on {found.subjects} subjects that the model was not trained on.")
    return notes


def _origin(run: Inference) -> list[str]:
    """Where a simulated cohort is from; nothing for a real one."""
    folder = truth_folder(run.study)
    if folder is None:
        return []
    source = json.loads((folder / "truth" / "settings.json").read_text(encoding="utf-8"))["source"]
    return [f"This cohort is simulated: {source}."]
