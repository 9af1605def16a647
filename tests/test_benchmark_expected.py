"""The table of what a study will need: figures in proportion, what is not measured has a dash."""

import json
import subprocess
import sys

import pytest

from pipelines.benchmarks.expected import NONE, table
from tests.studies import ROOT

FIGURES = {
    "prepare.float32.seconds": 9.0,
    "prepare.float32.peak_mib": 500.0,
    "prepare.float32.unit_mib": 0.5,
    "scale.broca50.train_cpu_s": 36.0,
    "scale.broca200.train_cpu_s": 72.0,
    "scale.broca1000.train_cpu_s": 108.0,
    "scale.broca1000.peak_mib": 1000.0,
    "scale.infer1000.infer_minutes": 12.0,
    "scale.infer1000.export_minutes": 18.0,
    "scale.infer1000.results_mib": 1000.0,
    "scale.infer1000.posterior_mib": 1000.0,
    "scale.cortex17_100.train_cpu_s": 7200.0,
}


def rows(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {first: rest for first, *rest in lines}


def test_figures_are_in_proportion_to_subjects():
    found = rows(table(FIGURES))
    assert len({len(cells) for cells in found.values()}) == 1
    # Four runs of 9 s, two units of half a MiB.
    assert found["`prepare`"] == ["524", "0.1", "1", "10", "10 MB", "105 MB", "1 GB"]
    assert found["`train`"][:4] == ["1,049", "0.01", "0.02", "0.03"]
    # Thirty minutes of two processes.
    assert found["`infer`"][1:] == ["0.01", "0.1", "1", "21 MB", "210 MB", "2.1 GB"]
    assert found["the data"][4:] == ["18 GB", "175 GB", "1.8 TB"]


def test_what_is_not_measured_has_a_dash():
    found = rows(table(FIGURES))
    assert found["`prepare`, cleaned and smoothed"][:4] == [NONE] * 4
    assert found["`train`, whole cortex, 17 networks"][1:4] == [NONE, "2", NONE]
    assert set(rows(table({}))["`infer`"]) == {NONE}


@pytest.mark.parametrize("there", [(), ("prepare",)])
def test_a_file_that_is_not_there_is_named_with_what_writes_it(there, tmp_path):
    for name in there:
        (tmp_path / f"{name}.json").write_text(json.dumps({}))
    command = [sys.executable, "-m", "pipelines.benchmarks.expected", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    missing = "scale" if there else "prepare"
    assert f"{missing}.json: no such file; `make bench-{missing}` writes it" in done.stderr
