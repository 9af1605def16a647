"""`run`: all verbs of a study as a graph of jobs, through Snakemake, on this machine or a cluster.

Two runs of one study never meet: the run's lock is held by this process and by Snakemake, for as long as either lives,
every verb marks the work folder as in use, and Slurm is asked for jobs that wait. All of these locks are the kernel's,
so they end with their processes; a lock of Snakemake's own that outlived it is then nobody's, and removed.
"""

import contextlib
import fcntl
import hashlib
import importlib.resources
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml

from parcellation import errors
from parcellation.config import Study
from parcellation.errors import FileFailure, InputMissing, ParcellationError, Stopped, UsageError
from parcellation.files import writable_folder, write_json
from parcellation.interruption import heard
from parcellation.verbs.plan import forget_unmade, graph_of, make_plan, write_settings
from parcellation.verbs.workspace import Selection, Workspace, nobody_at_work

log = logging.getLogger(__name__)

SHOWN = 5  # failed jobs that an error names
LOOK = 2.0  # seconds between two looks at whether all jobs have ended


def run(
    file: Path,
    study: Study,
    selection: Selection,
    profile: str = "local",
    jobs: int | None = None,
    population: str = "fixed",
    refinement: int | None = None,
) -> str:
    """Run everything of the study in `file` that is not done yet; returns the lines to print.

    profile: the name of one in `pipelines/profiles`, or a folder. population, refinement: as in `infer`. Raises
    Stopped when interrupted, or when a run of the study is under way; otherwise the error that its jobs ended with.
    """
    how, engine = _profile(profile), find_engine(study)
    options, work, graph = _options(profile, how, jobs), Workspace(study).work, graph_of(study)
    _check_paths(work, study.model.file, profile)
    if selection.dry_run:
        with _copy(work / "workflow") as folder:
            _write_plan(folder, file, study, selection.strict, population, refinement)
            return _planned([*_snakemake(engine, graph), *options], folder)
    folder = writable_folder(work / "workflow")
    with _alone(folder, work, profile) as lock:
        _write_plan(folder, file, study, selection.strict, population, refinement)
        command = [*_snakemake(engine, graph), *options]
        if any((folder / ".snakemake" / "locks").glob("*")):
            _follow([*command, "--unlock"], folder, lock)
        before = _log_times(folder)
        if _follow([*command, *_named(profile, work)], folder, lock, partial(_idle, work, how)):
            raise _failure(folder, before)
    return f"finished: {study.outputs.directory}"


def _write_plan(folder: Path, file: Path, study: Study, strict: bool, population: str, refinement: int | None) -> None:
    plan, settings = make_plan(file, study, folder, strict, population, refinement)
    write_settings(folder, settings)
    write_json(folder / "plan.json", plan)
    forget_unmade(plan)


def find_engine(study: Study) -> Path:
    """The `snakemake` to call: the study's, the one that `make` installs beside this environment, or that on PATH.

    Raises InputMissing, saying how to install it.
    """
    chosen = study.cluster.snakemake
    if chosen is not None and not os.access(chosen, os.X_OK):
        raise UsageError(f"cluster.snakemake: expected Snakemake's program, got {chosen}, which is not a program")
    beside = Path(sys.prefix).parent / ".venv-workflow" / "bin" / "snakemake"
    found = chosen or (beside if beside.exists() else shutil.which("snakemake"))
    if found is None:
        raise InputMissing(
            "run: needs Snakemake, which has an environment of its own. To install it:\n"
            f"  python3.11 -m venv workflow && workflow/bin/pip install -r {_pipelines('requirements.txt')}\n"
            "then put workflow/bin/snakemake on PATH, or name it in the study as cluster.snakemake"
        )
    return Path(found).absolute()  # it is called in another folder


def _pipelines(*parts: str) -> Path:
    return Path(str(importlib.resources.files("pipelines").joinpath(*parts)))


def _check_paths(work: Path, model: Path | None, profile: str) -> None:
    """Raises UsageError for what Snakemake quotes wrongly when it hands a job to a cluster: as Python does."""
    for name, path in (("outputs.work", work), ("model.file", model)):
        wrong = set(str(path)) & ({"\\", *'"$`'} if "'" in str(path) else {"\\"})
        if profile != "local" and wrong:
            raise UsageError(f"{name}: on a cluster, expected a path without {' '.join(sorted(wrong))}, got {path}")


def _profile(profile: str) -> Path:
    """The folder of a profile; raises UsageError where there is none."""
    shipped = _pipelines("profiles", profile)
    folder = shipped if shipped.is_dir() else Path(profile).resolve()
    if not folder.is_dir():
        names = ", ".join(sorted(path.name for path in _pipelines("profiles").iterdir() if path.is_dir()))
        raise UsageError(f"--profile: expected {names} or a folder, got {profile!r}")
    return folder


def _options(profile: str, folder: Path, jobs: int | None) -> list[str]:
    if profile != "local":
        return ["--profile", str(folder), *(["--jobs", str(jobs)] if jobs else [])]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return ["--profile", str(folder), "--cores", str(jobs or "all"), "--resources", f"mem_mb={memory}"]


def _snakemake(engine: Path, name: str) -> list[str]:
    """The call, to be made in the workflow's folder: what it hands on to its jobs as text names no path of a user's."""
    return [str(engine), "all", "--snakefile", str(_pipelines(name)), "--configfile", "plan.json", "--nocolor"]


def _named(profile: str, work: Path) -> list[str]:
    return [] if profile == "local" else ["--slurm-jobname-prefix", _job_name(work)]


def _job_name(work: Path) -> str:
    """What all of a work folder's jobs are called in Slurm, before Snakemake's own name of the run."""
    return f"parcellation-{hashlib.sha256(str(work.resolve()).encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def _copy(folder: Path) -> Iterator[Path]:
    """A copy of what is known of the jobs that are done, to plan in without changing it."""
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("said", "settings"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, Path(temporary) / name)
        yield Path(temporary)


def _planned(command: list[str], folder: Path) -> str:
    """What Snakemake would do: how many jobs of each rule."""
    done = subprocess.run(
        [*command, "--dry-run", "--quiet", "rules", "host"],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ParcellationError(f"the graph cannot be made:\n{done.stdout}{done.stderr}".strip())
    return done.stdout.strip() or "nothing to do"


@contextlib.contextmanager
def _alone(folder: Path, work: Path, profile: str) -> Iterator[int]:
    """Hold the run's lock, as an open file to hand on; raises Stopped when a process or a job of a run is alive."""
    with open(folder / "run.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Stopped(
                f"a run of this study is under way ({file.read().strip() or 'elsewhere'}); wait until it ends"
            ) from None
        if jobs := _queued(work, profile):
            raise Stopped(
                f"{work}: jobs of an earlier run wait or run in Slurm ({', '.join(jobs)}); wait until they end, or "
                f"cancel them: scancel {' '.join(jobs)}"
            )
        if not nobody_at_work(work):
            raise Stopped(
                f"{work}: a process is still at work here, perhaps of an earlier run; try again when it has ended"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield file.fileno()


def _queued(work: Path, profile: str) -> list[str]:
    """Slurm's jobs of this work folder."""
    if shutil.which("squeue") is None:
        return []
    done = subprocess.run(["squeue", "--me", "--noheader", "--format=%A %j"], capture_output=True, text=True)
    if done.returncode and profile != "local":
        raise FileFailure(f"squeue does not answer: {done.stderr.strip()}")
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip()]
    return [number for number, name in rows if name.startswith(_job_name(work))]


def _idle(work: Path, profile: Path) -> bool:
    """Whether no job of a run on Slurm is left; False where jobs are elsewhere, or it is not known."""
    settings = profile / "config.yaml"
    known = yaml.safe_load(settings.read_text(encoding="utf-8")) if settings.is_file() else None
    if (known or {}).get("executor") != "slurm":
        return False
    try:
        return not _queued(work, str(profile)) and nobody_at_work(work)
    except FileFailure:
        return False


def _environment() -> dict[str, str]:
    # Our libraries are not for the engine's Python.
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _follow(command: list[str], folder: Path, lock: int, idle: Callable[[], bool] = lambda: False) -> int:
    """Run a command in a folder to its end, and let its jobs end themselves when we are told to; returns its exit code.

    idle: whether no job of it is left. The command has a process group of its own, so that it is us who pass an
    interruption on, once.
    """
    log.info("%s", " ".join(command))
    with _undisturbed() as listen:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(), pass_fds=[lock], start_new_session=True, preexec_fn=listen
        )
        try:
            listen()
            return process.wait()
        except KeyboardInterrupt:
            heard()
            _end(process, idle)
            raise Stopped("run stopped; what was finished is kept, the same command continues") from None


def _end(process: subprocess.Popen, idle: Callable[[], bool]) -> None:
    """Tell a process group to end, and wait for it: not once it is idle, since the engine looks minutes later."""
    quiet = 0
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
                return
            quiet = quiet + 1 if idle() else 0
            if quiet == 2:
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _undisturbed() -> Iterator[Callable[[], object]]:
    """Signals to end are kept until the function that this yields is called, at the latest until the end.

    One that came while a process is being started would leave it to itself.
    """
    listen = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        yield listen
    finally:
        listen()


def _log_times(folder: Path) -> dict[Path, int]:
    """When each job's log was written, by the clock of whatever machine it is on."""
    return {path: path.stat().st_mtime_ns for path in sorted((folder / "logs").rglob("*.log"))}


def _failure(folder: Path, before: dict[Path, int]) -> ParcellationError:
    """The error of jobs that failed, whose logs are others than before: of the kind that they ended with, when one."""
    failed: dict[Path, int] = {}
    for path, time in _log_times(folder).items():
        code = _exit_code(path)
        # Clocks of machines differ, so that times say whether a log is new, and not what was first.
        if before.get(path) != time and code != 0:
            failed[path] = code
    if not failed:
        return ParcellationError("the workflow could not go on; Snakemake has said above why")
    lines = [f"{len(failed)} jobs failed; what was finished is kept, the same command continues"]
    lines += [f"  {path}: {_last_words(path)}" for path in list(failed)[:SHOWN]]
    codes = set(failed.values())
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ParcellationError)]
    kind = next((kind for kind in kinds if codes == {kind.exit_code}), ParcellationError)
    return kind("\n".join(lines))


def _exit_code(path: Path) -> int:
    """What a job's log ends with; 1 when it was ended before it could say."""
    words = (path.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1].split()
    return int(words[-1]) if words[-3:-1] == ["exit", "code"] else 1


def _last_words(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix("parcellation: ") for line in lines if line.startswith("parcellation: ")]
    return said[-1] if said else (lines[-1] if lines else "ended before it said anything")
