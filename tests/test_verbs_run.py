"""`run`: the plan and its graph, who may start, what a failure says; the whole way is in test_pipelines.py."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from parcellation import report
from parcellation.config import load_study
from parcellation.errors import BadData, ParcellationError, Stopped, UsageError
from parcellation.files import unit_lock
from parcellation.interruption import interruptible
from parcellation.verbs.plan import forget_unmade, graph_of, make_plan, write_settings
from parcellation.verbs.run import _end, _failure, _follow, _idle, _job_name, _log_times, find_engine
from parcellation.verbs.workspace import at_work, nobody_at_work
from tests.slurm import wait_for
from tests.studies import PATIENTS, ROOT, SUBJECTS, Folder, change_run, command, replace, snapshot


@pytest.fixture
def engine(tmp_path, monkeypatch) -> Path:
    """A Snakemake that writes down how it was called, and fails when told to."""
    path = tmp_path / "bin/snakemake"
    replace(path, b'#!/bin/sh\necho "$@" >> "$(dirname "$0")/called"\nexit "$(cat "$(dirname "$0")/code")"\n')
    path.chmod(0o755)
    replace(path.parent / "code", b"0")
    fake_squeue(path, "")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nowhere/env"))
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def fake_squeue(engine: Path, lines: str, code: int = 0) -> None:
    """A Slurm with these jobs."""
    path = engine.parent / "squeue"
    replace(path, f"#!/bin/sh\necho '{lines}'\nexit {code}\n".encode())
    path.chmod(0o755)


def called(engine: Path) -> list[str]:
    return (engine.parent / "called").read_text(encoding="utf-8").splitlines()


def plan_of(study: Path, folder: Path, **how) -> tuple[dict, dict]:
    return make_plan(study, load_study(study), folder, strict=False, **how)


# Who runs it


def test_without_an_engine_is_66_and_says_how_to_get_one(fresh, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(fresh.path / "env"))
    monkeypatch.setenv("PATH", str(fresh.path))
    said = command("run", fresh.study, code=66)
    (file,) = [word for word in said.split() if word.endswith("requirements.txt")]
    assert "snakemake==" in Path(file).read_text(encoding="utf-8")
    assert not (fresh.path / "work").exists()


def test_an_engine_that_is_none_and_a_profile_that_is_none_are_64(fresh, engine):
    study = fresh.write_study(cluster={"snakemake": "study.yaml"})
    assert "cluster.snakemake" in command("run", study, code=64)
    assert "expected local, slurm or a folder" in command("run", fresh.write_study(), "--profile", "pbs", code=64)


def test_the_studys_engine_comes_first_then_the_one_beside_the_environment(fresh, engine, tmp_path, monkeypatch):
    assert find_engine(load_study(fresh.study)) == engine
    beside = tmp_path / "nowhere/.venv-workflow/bin/snakemake"
    beside.parent.mkdir(parents=True)
    shutil.copy(engine, beside)
    assert find_engine(load_study(fresh.study)) == beside
    study = fresh.write_study(cluster={"snakemake": str(engine)})
    assert find_engine(load_study(study)) == engine


def test_the_call(fresh, engine):
    assert "finished" in command("run", fresh.study, "--jobs", 3)
    (line,) = called(engine)
    words = line.split()
    assert words[0] == "all"
    assert "pipelines/Snakefile" in line
    assert "pipelines/profiles/local" in line
    assert words[words.index("--cores") + 1] == "3"
    config = fresh.path / "work/workflow" / words[words.index("--configfile") + 1]
    plan = json.loads(config.read_text(encoding="utf-8"))
    assert plan["subjects"] == list(SUBJECTS)
    command("run", fresh.study, "--profile", "slurm", "--jobs", 7)
    line = called(engine)[-1]
    assert "profiles/slurm" in line
    assert "--jobs 7" in line
    assert "--slurm-jobname-prefix parcellation-" in line


@pytest.mark.parametrize(
    ("name", "good"), [("it's", 1), ('a "b" $c', 1), ("it's $c", 0), ('it\'s "b"', 0), ("a\\b", 0)]
)
def test_a_path_that_the_engine_breaks_on_a_cluster_is_refused_there(name, good, fresh, engine):
    study = fresh.write_study(outputs={"work": name})
    if good:
        command("run", study, "--profile", "slurm")
    else:
        assert "outputs.work: on a cluster" in command("run", study, "--profile", "slurm", code=64)
    command("run", study)


@pytest.mark.parametrize(("section", "key"), [("outputs", "work"), ("outputs", "directory"), ("model", "file")])
def test_a_path_that_the_graph_would_take_for_a_wildcard_is_refused(section, key, tmp_path):
    study = Folder(tmp_path).write_study(**{section: {key: str(tmp_path / "a{b}")}})
    with pytest.raises(UsageError, match=f"{section}.{key}: expected a path without braces"):
        plan_of(study, tmp_path)


def test_data_that_are_not_there_are_said_before_any_job(fresh, engine):
    shutil.rmtree(fresh.path / "HCP")
    command("run", fresh.study, code=66)
    (fresh.path / "HCP").mkdir()
    command("run", fresh.study, code=16)
    assert not (engine.parent / "called").exists()


# Who may start


def test_a_second_run_is_refused_while_the_first_lives(fresh, engine):
    command("run", fresh.study)
    with open(fresh.path / "work/workflow/run.lock") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert f"process {os.getpid()} on" in command("run", fresh.study, code=75)
        assert "finished" not in command("run", fresh.study, "--dry-run")  # only looks
    command("run", fresh.study)


def test_a_run_is_refused_while_a_job_lives_and_the_engines_lock_is_left(fresh, engine):
    command("run", fresh.study)
    lock = fresh.path / "work/workflow/.snakemake/locks/0.input.lock"
    replace(lock, b"")
    with at_work(fresh.path / "work"):
        assert not nobody_at_work(fresh.path / "work")
        assert "still at work" in command("run", fresh.study, code=75)
    assert len(called(engine)) == 1
    command("run", fresh.study)
    assert ["--unlock" in line for line in called(engine)] == [False, True, False]


def test_jobs_that_wait_in_slurm_are_jobs_that_live(fresh, engine):
    command("run", fresh.study, "--profile", "slurm")
    words = called(engine)[-1].split()
    name = words[words.index("--slurm-jobname-prefix") + 1]
    fake_squeue(engine, f"17 {name}_0a1b\n18 other")
    said = command("run", fresh.study, code=75)
    assert "work: jobs of an earlier run wait or run in Slurm (17); wait until they end, or cancel them: scan" in said
    fake_squeue(engine, "", 1)
    assert "squeue does not answer" in command("run", fresh.study, "--profile", "slurm", code=74)
    command("run", fresh.study)  # no job of a local run is in Slurm


def test_verbs_mark_the_work_folder_as_in_use_and_a_killed_one_no_more(fresh):
    code = "import sys, time; from pathlib import Path; from parcellation.verbs.workspace import at_work\n"
    code += "with at_work(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    work = fresh.path / "work"
    work.mkdir()
    assert nobody_at_work(work)
    process = subprocess.Popen([sys.executable, "-c", code, str(work)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    assert not nobody_at_work(work)
    process.kill()
    process.communicate()
    assert nobody_at_work(work)


def test_locks_are_those_that_nfs_gives(fresh, engine, monkeypatch):
    """There a shared lock needs a file that is open for reading, an exclusive one a file open for writing."""
    plain, asked = fcntl.flock, []

    def flock(file, operation: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        if access == (os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        asked.append(operation & (fcntl.LOCK_SH | fcntl.LOCK_EX))
        plain(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    work = fresh.path / "work"
    work.mkdir()
    with at_work(work), unit_lock(work / "unit.lock") as mine:
        assert mine
        assert not nobody_at_work(work)
    command("run", fresh.study)
    assert set(asked) == {fcntl.LOCK_SH, fcntl.LOCK_EX}


# What a failure says


def test_a_failure_has_the_code_that_jobs_ended_with(fresh, engine):
    logs = fresh.path / "work/workflow/logs"
    replace(engine.parent / "code", b"1")
    assert "Snakemake has said above why" in command("run", fresh.study, code=1)
    replace(logs / "prepare/sub-a.log", b"INFO x: done\nINFO parcellation.cli: exit code 0\n")
    replace(logs / "train.log", b"parcellation: no good data\nINFO parcellation.cli: exit code 65\n")
    error = _failure(logs.parent, {})
    assert isinstance(error, BadData)
    assert "1 jobs failed" in str(error)
    assert str(logs / "train.log") in str(error)
    assert "no good data" in str(error)
    # Failures of an earlier run are no news, whatever the clock of the machine that wrote them.
    os.utime(logs / "train.log", (2**33, 2**33))
    before = _log_times(logs.parent)
    assert "Snakemake has said above why" in str(_failure(logs.parent, before))
    os.utime(logs / "train.log", (1, 1))
    assert "1 jobs failed" in str(_failure(logs.parent, before))
    replace(logs / "report.log", b"INFO x: at work\n")  # killed
    error = _failure(logs.parent, {})
    assert type(error) is ParcellationError
    assert "2 jobs failed" in str(error)


# The plan


def test_parts_are_all_subjects_once_and_a_model_that_is_there_is_not_trained(treated, tmp_path):
    study = treated.write_study("more.yaml", PATIENTS, cluster={"subjects_per_job": 2, "partition": "long"})
    plan, _ = plan_of(study, tmp_path)
    assert plan["parts"] == {"0001": ["P01", "P02"], "0002": ["P03"]}
    assert graph_of(load_study(study)) == "cohort.smk"
    assert plan["trained"] == str(treated.path / "work/model/model.json")
    assert f"--model {treated.path / 'work/model'}" in plan["command"]["infer"]
    assert plan["jobs"]["infer"]["partition"] == "long"
    plan, _ = plan_of(treated.study, tmp_path)
    assert plan["trained"] == "said/train.txt"


def test_a_training_on_several_gpus_has_a_process_for_each(fresh, tmp_path):
    plan, _ = plan_of(fresh.write_study(cluster={"train": {"gpus": 4}}), tmp_path)
    assert "torch.distributed.run --standalone --nproc-per-node 4 -m parcellation train" in plan["command"]["train"]
    assert "torch.distributed" not in plan["command"]["infer"]
    assert plan["jobs"]["train"]["minutes"] == 240


def test_inference_is_done_as_it_is_asked_for(fresh, tmp_path):
    plan, settings = plan_of(fresh.study, tmp_path)
    assert plan["inference"] == "--population fixed"
    refined, others = plan_of(fresh.study, tmp_path, population="reinferred", refinement=5)
    assert refined["inference"] == "--population reinferred --refine 5"
    assert {name for name in settings if settings[name] != others[name]} == {"infer"}
    more = fresh.write_study("gifti.yaml", outputs={"gifti": True})
    assert {name for name in settings if settings[name] != plan_of(more, tmp_path)[1][name]} == {"infer", "report"}


def test_what_is_told_to_end_waits_for_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr("parcellation.interruption.AGAIN", 0.2)
    script = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: (time.sleep(1), sys.exit()))\n"
    command_line = [sys.executable, "-c", f"{script}open('started', 'w').close()\ntime.sleep(30)\nopen('late', 'w')"]
    monkeypatch.chdir(tmp_path)

    def tell() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    with open(tmp_path / "lock", "w") as lock, pytest.raises(KeyboardInterrupt) as stopped, interruptible():
        _follow(command_line, tmp_path, lock.fileno())
    assert isinstance(stopped.value.__cause__, Stopped)
    assert not (tmp_path / "late").exists()


def test_what_is_told_to_end_while_it_starts_something_ends_that_too(tmp_path, monkeypatch):
    plain, started = subprocess.Popen, []

    def start(*arguments, **options):
        started.append(plain(*arguments, **options))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # other threads of a test's do not wait
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    with open(tmp_path / "lock", "w") as lock, pytest.raises(KeyboardInterrupt), interruptible():
        _follow(["sleep", "60"], tmp_path, lock.fileno())
    assert started[0].returncode == -signal.SIGINT


def test_an_engine_that_sleeps_while_no_job_is_left_is_not_waited_for(fresh, engine, tmp_path, monkeypatch):
    monkeypatch.setattr("parcellation.verbs.run.LOOK", 0.2)
    slurm, local = (ROOT / "pipelines/profiles" / name for name in ("slurm", "local"))
    work = fresh.path / "work"
    assert _idle(work, slurm)
    assert not _idle(work, local)
    replace(tmp_path / "empty/config.yaml", b"# as it comes")
    assert not _idle(work, tmp_path / "empty")
    fake_squeue(engine, f"17 {_job_name(work)}_0a1b")
    assert not _idle(work, slurm)
    fake_squeue(engine, "", 1)
    assert not _idle(work, slurm)
    script = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('on', 'w').close()\ntime.sleep(60)"
    )
    sleeper = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, start_new_session=True)
    wait_for((tmp_path / "on").exists, 60)
    answers = iter([True, False, True, True])
    _end(sleeper, lambda: next(answers))
    assert sleeper.returncode == -signal.SIGKILL
    assert next(answers, None) is None


def changed(study: Path, folder: Path) -> set[str]:
    """Settings files that writing them anew changes."""
    before = snapshot(folder / "settings")
    write_settings(folder, plan_of(study, folder)[1])
    after = snapshot(folder / "settings")
    names = {path for path in after if before.get(path) != after[path]}
    return {str(Path(path).relative_to(folder / "settings").with_suffix("")) for path in names}


def test_a_change_starts_again_what_it_concerns_and_nothing_else(fresh, tmp_path):
    folder = tmp_path / "workflow"
    everybody = {f"prepare/sub-{name}" for name in SUBJECTS}
    assert changed(fresh.study, folder) == everybody | {"index", "train", "infer", "report"}
    assert changed(fresh.study, folder) == set()
    assert changed(fresh.write_study(cluster={"account": "a", "train": {"memory": 9000}}), folder) == set()
    change_run(fresh.run_file("sim02"), lambda series: series + 1)
    assert changed(fresh.study, folder) == {"prepare/sub-sim02"}
    shutil.rmtree(fresh.path / "HCP/sim04")
    assert changed(fresh.study, folder) == {"index"}
    assert changed(fresh.write_study(training={"steps": 11}), folder) == {"train", "report"}
    assert changed(fresh.write_study(training={"steps": 11}, outputs={"draws": 8}), folder) == {"infer", "report"}
    pairs = {"draws": 8, "contrasts": [["network-02", "network-01"]]}
    assert changed(fresh.write_study(training={"steps": 11}, outputs=pairs), folder) == {"infer", "report"}
    study = fresh.write_study(training={"steps": 11}, outputs=pairs, data={"detrend": True})
    assert changed(study, folder) == {"index", "report"} | everybody - {"prepare/sub-sim04"}


def test_what_is_deleted_from_the_results_is_made_again(study, tmp_path):
    plan, _ = plan_of(study.write_study(cluster={"subjects_per_job": 2}), tmp_path)
    said = [tmp_path / f"said/{name}.txt" for name in ("infer/0001", "infer/0002", "infer/0003", "population")]

    def left() -> list[bool]:
        for path in said:
            replace(path, b"done")
        forget_unmade(plan)
        return [path.exists() for path in said]

    assert left() == [True] * 4
    next(study.results.glob("sub-sim03/anat/*.dlabel.nii")).unlink()
    assert left() == [True, False, True, False]
    command("infer", study.study)
    (study.results / "participants.tsv").unlink()
    assert left() == [True, True, True, False]


def test_a_subject_s_page_that_is_deleted_is_made_again(study, tmp_path, monkeypatch):
    for name in ("render", "render_subject"):  # what is on the pages is another test's
        monkeypatch.setattr(report, name, lambda content, *number: f"{content.paged} {number}")
    monkeypatch.setattr(report.ReportContent, "paged", True)
    assert "written" in command("report", study.study)
    page, plan = study.results / "report/sub-sim02.html", plan_of(study.study, tmp_path)[0]
    before = page.read_bytes()

    def left() -> list[bool]:
        said = [tmp_path / f"said/{name}.txt" for name in ("population", "report")]
        for path in said:
            replace(path, b"done")
        forget_unmade(plan)
        return [path.exists() for path in said]

    assert left() == [True, True]
    page.unlink()
    assert left() == [True, False]
    assert "written" in command("report", study.study)
    assert page.read_bytes() == before
    assert "unchanged" in command("report", study.study)
    monkeypatch.setattr(report.ReportContent, "paged", False)
    assert "written" in command("report", study.study)  # without pages none is missed
    assert left() == [True, True]
