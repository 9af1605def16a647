"""What a cluster does to a run and its jobs, on a real Slurm of one node; skipped where there is none."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import one_node, said, wait_for
from tests.studies import ROOT, Folder, command, contents, process, replace
from tests.test_pipelines import engines

pytestmark = pytest.mark.slurm
LONGEST = 600  # seconds that are waited for a job


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[dict]:
    """What a study says to use the Snakemake that has the plugin, while a Slurm of one node is up."""
    for path in engines():
        code = "import snakemake_executor_plugin_slurm"
        if subprocess.run([path.parent / "python", "-c", code], capture_output=True).returncode == 0:
            with one_node(tmp_path_factory.mktemp("slurm")):
                yield {"snakemake": str(path), "subjects_per_job": 2}
            return
    # The same environment: a user who runs on one machine may have Snakemake without the plugin.
    pytest.skip("needs Snakemake with its Slurm plugin")


@pytest.fixture(autouse=True)
def empty(cluster) -> Iterator[None]:
    """No job of a test that failed is left to the next one."""
    yield
    subprocess.run(["scancel", "--user=root"], check=True)
    wait_for(lambda: not jobs(), 60)


@pytest.fixture
def profile(tmp_path) -> Path:
    """The profile for Slurm, less patient; a job takes some seconds, and who asks too early asks again ten later."""
    text = (ROOT / "pipelines/profiles/slurm/config.yaml").read_text(encoding="utf-8")
    text = text.replace("checks: 20", "checks: 7").replace("wait: 60", "wait: 10")
    replace(tmp_path / "profile/config.yaml", text.encode())
    return tmp_path / "profile"


def jobs() -> list[str]:
    """Numbers of the jobs that wait or run."""
    return said("squeue", "--noheader", "--format=%A").split()


def log_of(folder: Folder, name: str) -> str:
    path = folder.path / f"work/workflow/logs/{name}.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def assert_trained_as_without_interruption(folder: Folder, study: Path) -> None:
    interrupted = folder.model.read_bytes()
    shutil.rmtree(folder.path / "work/model")
    command("train", study)
    assert folder.model.read_bytes() == interrupted


def test_a_run_survives_a_bad_subject_a_killed_leader_and_the_end_of_its_time(fresh, cluster, profile):
    """The whole graph, with a second start while the first and then an orphan job live; the same command finishes."""
    shutil.rmtree(fresh.path / "HCP/sim04")
    replace(fresh.run_file("sim05"), fresh.run_file("sim05").read_bytes()[:400])
    training = {"steps": 600, "checkpoint_every": 10}
    study = fresh.write_study(cluster=cluster | {"train": {"retries": 0, "gpus": 1}}, training=training)
    run = process("run", study, "--profile", profile)
    wait_for((fresh.model.parent / "checkpoint.safetensors").exists, LONGEST)
    assert "under way" in command("run", study, "--profile", profile, code=75)
    leader = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
    for pid in [run.pid, *map(int, leader.split())]:
        os.kill(pid, signal.SIGKILL)
    run.communicate()
    (job,) = jobs()
    assert job in command("run", study, "--profile", profile, code=75)
    assert "another process is training" in command("train", study, code=75)
    assert "GRES=gpu:1(IDX:" in said("scontrol", "--details", "show", "job", job)
    # As Slurm does before a job's time is up.
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    wait_for(lambda: not jobs(), 60)
    assert "exit code 75" in log_of(fresh, "train")
    assert not fresh.model.exists()

    assert "finished" in command("run", study, "--profile", profile)
    assert {path.name for path in fresh.results.glob("sub-*")} == {"sub-sim01", "sub-sim02", "sub-sim03"}
    assert "subject sim05, session 1" in (fresh.results / "report.html").read_text(encoding="utf-8")
    assert not fresh.half_written()
    assert_trained_as_without_interruption(fresh, study)


def test_a_training_is_requeued_and_cancelled_and_goes_on_each_time(fresh, cluster, profile, tmp_path):
    """Slurm starts the job again; then it is cancelled, and the run sends it again; in a folder with an odd name."""
    folder = Folder(fresh.path.rename(tmp_path / "it's a study; of two & more"))
    for name in ("sim03", "sim04", "sim05"):
        shutil.rmtree(folder.path / "HCP" / name)
    training = {"steps": 600, "checkpoint_every": 10, "subjects": ["sim01", "sim02"]}
    study = folder.write_study(cluster=cluster | {"train": {"retries": 1}}, training=training)
    run = process("run", study, "--profile", profile)
    try:
        wait_for((folder.model.parent / "checkpoint.safetensors").exists, LONGEST)
        (job,) = jobs()
        subprocess.run(["scontrol", "requeue", job], check=True)
        wait_for(lambda: "exit code 75" in log_of(folder, "train"), 60)
        wait_for(lambda: "continuing from step" in log_of(folder, "train"), LONGEST)
        assert jobs() == [job]
        assert "Restarts=1" in said("scontrol", "show", "job", job)
        subprocess.run(["scancel", job], check=True)
        wait_for(lambda: jobs() not in ([], [job]), LONGEST)
        wait_for(folder.model.exists, LONGEST)
        assert "continuing from step" in log_of(folder, "train")
    finally:
        run.send_signal(signal.SIGTERM)
        told = time.monotonic()
        text, _ = run.communicate(timeout=60)
    assert time.monotonic() - told < 10
    assert run.returncode == 75, text
    wait_for(lambda: not jobs(), 60)
    assert_trained_as_without_interruption(folder, study)


def test_subjects_are_prepared_by_the_tasks_of_a_job_array(fresh, cluster, finished):
    command("index", fresh.study)
    python = f"env PYTHONPATH={ROOT} OMP_NUM_THREADS=1 {sys.executable} -m parcellation"
    task = f"exec {python} prepare '{fresh.study}' --part $SLURM_ARRAY_TASK_ID/3"
    options = ["--array=1-3", "--wait", "--mem=1000", f"--output={fresh.path}/task-%a.txt"]
    subprocess.run(["sbatch", *options, "--wrap", task], check=True, capture_output=True, timeout=LONGEST)
    told = [(fresh.path / f"task-{task}.txt").read_text(encoding="utf-8") for task in (1, 2, 3)]
    assert [text.split(" sessions")[0] for text in told] == ["4 of 4", "3 of 3", "2 of 2"]
    assert "9 of 9 sessions prepared" in command("prepare", fresh.study, "--level", "group")
    assert contents(fresh.path / "work/fingerprints") == contents(finished.path / "work/fingerprints")
