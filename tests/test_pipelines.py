"""The graph of jobs with a real Snakemake, on this machine; skipped where there is none. On Slurm: test_slurm.py."""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from parcellation.config import load_study
from parcellation.verbs.run import _environment, _snakemake, _write_plan
from tests.slurm import wait_for
from tests.studies import PATIENTS, Folder, command, contents, process, replace


def engines() -> list[Path]:
    """Every Snakemake there is: on PATH, and the one that `make` installs."""
    found = shutil.which("snakemake")
    beside = Path(sys.prefix).parent / ".venv-workflow" / "bin" / "snakemake"
    return [Path(path) for path in (found, beside) if path and Path(path).exists()]


@pytest.fixture
def engine() -> dict:
    """What a study says to use the Snakemake that is there."""
    if not engines():
        # It has an environment of its own, which `make test` does not make; CI makes it first.
        pytest.skip("needs Snakemake: make .venv-workflow/.installed")
    return {"snakemake": str(engines()[0]), "subjects_per_job": 2}


def planned(text: str) -> dict[str, int]:
    """Number of jobs of each rule in what a dry run says."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


RULES = {"index": 1, "prepare": 5, "prepared": 1, "train": 1, "infer": 3, "population": 1, "report": 1, "all": 1}


def test_the_graph_of_a_study(fresh, engine):
    text = command("run", fresh.write_study(cluster=engine), "--dry-run")
    assert planned(text) == RULES | {"total": sum(RULES.values())}
    assert not (fresh.path / "work").exists()


def test_the_graph_of_a_new_cohort_has_no_training(treated, engine, tmp_path):
    study = treated.write_study("more.yaml", PATIENTS, cluster=engine, outputs={"work": str(tmp_path / "work")})
    rules = {name: count for name, count in RULES.items() if name != "train"} | {"prepare": 3, "infer": 2}
    assert planned(command("run", study, "--dry-run")) == rules | {"total": sum(rules.values())}


ASKED = {"prepare": (1111, 11, 1), "train": (2222, 22, 2), "infer": (3333, 33, 3), "report": (4444, 44, 4)}
# The rules that ask for what a job of the study says.
JOBS = {"prepare": "prepare", "train": "train", "infer": "infer"} | dict.fromkeys(("prepared", "population"), "report")


def test_each_rule_asks_for_what_the_study_says(fresh, engine, tmp_path):
    jobs = {name: dict(zip(("memory", "minutes", "cpus"), asked, strict=True)) for name, asked in ASKED.items()}
    jobs["train"] |= {"gpus": 1, "partition": "gpu"}
    study = fresh.write_study(cluster=engine | jobs | {"partition": "short", "account": "brain"})
    _write_plan(tmp_path, study, load_study(study), False, "fixed", None)
    dry = [*_snakemake(Path(engine["snakemake"]), "Snakefile"), "--dry-run", "--cores", "8"]
    text = subprocess.run(dry, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True).stdout
    blocks = re.findall(r"^(?:rule|checkpoint) (\w+):\n((?:    .*\n)+)", text, re.MULTILINE)
    found = {name: block for name, block in blocks if name in JOBS or name == "report"}
    assert found.keys() == {*JOBS, "report"}
    for name, block in found.items():
        memory, minutes, cpus = ASKED[JOBS.get(name, name)]
        said = dict(pair.split("=", 1) for pair in re.search("resources: (.*)", block)[1].split(", "))
        assert (said["mem_mb"], said["runtime"], said["slurm_account"]) == (str(memory), str(minutes), "brain")
        assert said["slurm_partition"] == ("gpu" if name == "train" else "short")
        assert said.get("gpu") == ("1" if name == "train" else None)
        assert f"threads: {cpus}" in block or cpus == 1
        assert "log: logs/" in block


ODD = """it's a "study" of $HOME"""
# In place of Python: writes down what it is called with, an argument a line, and makes what the graph waits for.
SPY = r"""#!/bin/sh
cd "$(dirname "$0")"
printf '%s\n' "$@" >> called
case "$*" in
  *"infer "*"--level group"*)
    echo a.tsv > work/deliverables.txt
    mkdir results
    : > results/a.tsv;;
  *"parcellation report"*) : > results/report.html;;
esac
"""


def test_paths_may_have_spaces_and_quotes(tmp_path, engine, monkeypatch):
    folder = Folder(tmp_path / ODD)
    rows = [{"subject": name, "session": "1", "run": "1", "bold": f"{name} it's.dtseries.nii"} for name in ("a", "b")]
    for row in rows:
        replace(folder.path / row["bold"], b"not read by a plan")
    pd.DataFrame(rows).to_csv(folder.path / "manifest.tsv", sep="\t", index=False)
    base = {"name": "odd", "data": {"layout": "manifest", "manifest": "manifest.tsv"}}
    study = folder.write_study("study it's.yaml", base=base, cluster={"snakemake": engine["snakemake"]})
    replace(folder.path / "spy", SPY.encode())
    (folder.path / "spy").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder.path / "spy"))
    assert "finished" in command("run", study, "--jobs", 2)
    called = (folder.path / "called").read_text(encoding="utf-8").split("-m\nparcellation\n")[1:]
    assert sorted(one.split("\n")[0] for one in called) == sorted(
        ["index", "prepare", "prepare", "prepare", "train", "infer", "infer", "report"]
    )
    assert all(one.startswith(f"{one.split()[0]}\n{study}\n-v\n-w\n{folder.path / 'work'}\n") for one in called)
    assert planned(command("run", study, "--dry-run")) == {}
    braces = folder.write_study(base=base, cluster={"snakemake": engine["snakemake"]}, outputs={"work": "a{b}"})
    assert "without braces" in command("run", braces, code=64)


@pytest.mark.slow
def test_a_thousand_subjects_are_planned(tmp_path, engine):
    names = [f"s{number:04d}" for number in range(1000)]
    for name in names:
        replace(tmp_path / f"{name}.dtseries.nii", b"not read by a plan")
    rows = [{"subject": name, "session": "1", "run": "1", "bold": f"{name}.dtseries.nii"} for name in names]
    pd.DataFrame(rows).to_csv(tmp_path / "manifest.tsv", sep="\t", index=False)
    data = {"layout": "manifest", "manifest": "manifest.tsv"}
    study = Folder(tmp_path).write_study(
        base={"name": "many", "data": data}, cluster={"snakemake": engine["snakemake"]}
    )
    found = planned(command("run", study, "--dry-run"))
    assert found["prepare"] == 1000
    assert found["infer"] == 20


@pytest.mark.slow
def test_the_whole_way_on_this_machine(fresh, finished, engine):
    """With a subject that is bad altogether; interrupted; and with a file that is deleted afterwards."""
    replace(fresh.run_file("sim05"), fresh.run_file("sim05").read_bytes()[:400])
    study = fresh.write_study(cluster=engine)
    run = process("run", study, "--jobs", 2)
    said_of = fresh.path / "work/workflow/said"
    wait_for(lambda: len(list(said_of.glob("prepare/*"))) > 1, 120)
    run.send_signal(signal.SIGTERM)
    told = time.monotonic()
    text, _ = run.communicate(timeout=60)
    assert time.monotonic() - told < 10
    assert run.returncode == 75, text
    assert "the same command continues" in text
    assert not fresh.half_written()
    assert "finished" in command("run", study, "--jobs", 2)
    assert fresh.model.read_bytes() == finished.model.read_bytes()
    assert not (fresh.results / "sub-sim05").exists()
    assert "subject sim05, session 1" in (fresh.results / "report.html").read_text(encoding="utf-8")
    for subject in ("sim01", "sim04"):
        assert contents(fresh.results / f"sub-{subject}") == contents(finished.results / f"sub-{subject}")
    before = contents(fresh.results)
    (gone,) = fresh.results.glob("sub-sim03/anat/*.dlabel.nii")
    gone.unlink()
    assert "train" not in planned(command("run", study, "--dry-run"))
    command("run", study, "--jobs", 2)
    assert contents(fresh.results) == before
    # Other data of a subject, of which as many sessions are prepared as before: all that depends on them is due.
    replace(fresh.run_file("sim02"), fresh.run_file("sim02").read_bytes())
    due = {"prepare": 1} | {name: 1 for name in ("prepared", "train", "population", "report", "all")} | {"infer": 3}
    assert planned(command("run", study, "--dry-run")) == due | {"total": 9}
    command("run", study, "--jobs", 2)
    times = [(said_of / f"{name}.txt").stat().st_mtime_ns for name in ("prepared", "train", "population", "report")]
    assert times == sorted(times)
    assert contents(fresh.results) == before
    assert planned(command("run", study, "--dry-run")) == {}
