"""The plan of a run, for the graph in `pipelines/`: who, which commands, what jobs ask for, and what each depends on.

What a job depends on besides other jobs' outputs is a small file in `settings/`, which is left as it is, with its time,
while nothing in it changes. So a new setting, subject or session starts again what it concerns and nothing else.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from parcellation.config import Study
from parcellation.errors import UsageError
from parcellation.manifest import discover, used_paths
from parcellation.maps import bids_label
from parcellation.verbs.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
# Jobs are told so many seconds before their time is up. SIGUSR1 would end torchrun and leave its processes behind.
SLURM_EXTRA = "--signal=TERM@120"
# Settings of outputs that every subject's files depend on.
OF_MAPS = ("draws", "gifti", "grayordinates", "contrasts", "profile_maps")


def make_plan(
    file: Path, study: Study, folder: Path, strict: bool, population: str = "fixed", refinement: int | None = None
) -> tuple:
    """The plan, and the content of each settings file by its name; file: the study's; folder: of the workflow's files.

    population, refinement: as in `infer`.
    Raises what `discover` raises for data that are not there, and UsageError for a path that the graph cannot have.
    """
    workspace = Workspace(study)
    outputs = study.outputs
    paths = {"outputs.work": outputs.work, "outputs.directory": outputs.directory, "model.file": study.model.file}
    for name, path in paths.items():
        # Snakemake would take what is in braces for a wildcard.
        if set("{}\n") & set(str(path)):
            raise UsageError(f"{name}: expected a path without braces and line breaks, for Snakemake")
    frame, _ = discover(study)
    subjects = list(dict.fromkeys(frame["subject"]))
    size = study.cluster.subjects_per_job
    starts = range(0, len(subjects), size)
    applied = study.model.file
    plan = {
        "folder": str(folder),
        "work": str(workspace.work),
        "results": str(workspace.results),
        "command": {verb: _command(study, verb, file) for verb in ("index", "prepare", "train", "infer", "report")},
        "inference": f"--population {population}" + ("" if refinement is None else f" --refine {refinement}"),
        "options": shlex.join(["-v", "-w", str(workspace.work)]),
        "strict": strict,
        "subjects": subjects,
        "parts": {f"{number:04d}": subjects[start : start + size] for number, start in enumerate(starts, 1)},
        "trained": str(applied / "model.json") if applied else "said/train.txt",
        "account": study.cluster.account,
        "slurm_extra": SLURM_EXTRA,
        "jobs": _jobs(study),
    }
    return plan, dict(_settings(study, frame, population, refinement))


def graph_of(study: Study) -> str:
    """The file of the graph: without training where a trained model is applied."""
    return "cohort.smk" if study.model.file else "Snakefile"


def write_settings(folder: Path, settings: dict[str, dict]) -> None:
    """Write the settings files that changed."""
    for name, content in settings.items():
        path, text = folder / "settings" / f"{name}.json", json.dumps(content, indent=1, sort_keys=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            # Without waiting for the disk, which takes minutes for a thousand files; one that is torn is written again.
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def forget_unmade(plan: dict) -> None:
    """Let the jobs run again whose files were deleted from the results since."""
    said = Path(plan["folder"]) / "said"
    gone = {name.split("/")[0] for name in _gone(plan, "deliverables.txt")}
    for part, subjects in plan["parts"].items():
        if gone & {f"sub-{bids_label(subject)}" for subject in subjects}:
            (said / "infer" / f"{part}.txt").unlink(missing_ok=True)
    if gone:
        (said / "population.txt").unlink(missing_ok=True)
    if _gone(plan, "pages.txt"):
        (said / "report.txt").unlink(missing_ok=True)


def _gone(plan: dict, listed: str) -> list[str]:
    """The files of a list in the work folder that are not in the results any more."""
    path = Path(plan["work"]) / listed
    names = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [name for name in names if not (Path(plan["results"]) / name).is_file()]


def _command(study: Study, verb: str, file: Path) -> str:
    """A verb as the shell is to run it; a training on several GPUs has a process for each."""
    gpus = study.cluster.train.gpus if verb == "train" else 0
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus), "-m"] if gpus > 1 else []
    model = ["--model", str(study.model.file)] if study.model.file and verb != "index" else []
    return shlex.join(
        ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", *start, "parcellation", verb, str(file), *model]
    )


def _jobs(study: Study) -> dict[str, dict]:
    cluster = study.cluster
    jobs = {name: getattr(cluster, name).model_dump() for name in ("prepare", "train", "infer", "report")}
    for job in jobs.values():
        job["partition"] = job["partition"] or cluster.partition
    return jobs


def _settings(study: Study, frame: pd.DataFrame, population: str, refinement: int | None) -> Iterator[tuple[str, dict]]:
    content = study.resolved()
    runs = frame.to_dict("records")
    yield "index", {"data": content["data"], "runs": runs}
    made = {name: content[name] for name in ("data", "region", "targets", "features")}
    for subject, rows in frame.groupby("subject", sort=False):
        rows = rows.to_dict("records")
        files = [_state(path) for row in rows for path in used_paths(row, study.data)]
        yield f"prepare/sub-{subject}", made | {"runs": rows, "files": files}
    graph = study.model.topography.graph
    known = {name: content[name] for name in ("features", "model", "training")}
    yield "train", known | ({} if graph is None else {"graph": _state(graph)})
    answers = {"names": study.model.names, "population": population, "refinement": refinement}
    maps = {name: content["outputs"][name] for name in OF_MAPS}
    yield "infer", answers | maps | {"results": str(study.outputs.directory)}
    yield "report", content


def _state(path: Path) -> list:
    """Size and time of a file; nothing where it is not there."""
    try:
        stat = path.stat()
        return [str(path), stat.st_size, stat.st_mtime_ns]
    except OSError:
        return [str(path)]
