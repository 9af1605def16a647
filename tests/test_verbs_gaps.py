"""Kept diagnoses: whose they are, and the table that people open."""

import json
import math

import pandas as pd
import pytest

from parcellation.amortization_gap import AtDraw, Diagnosis, Estimate, Evidence, MapChange
from parcellation.config import Study
from parcellation.verbs.gaps import COLUMNS, gap_file, gap_row, keep_gap, kept_gap, write_gaps
from parcellation.verbs.workspace import Workspace


def at_draw(refused: bool = False, hopeless: bool = False) -> AtDraw:
    plain, annealed = Estimate(-99.0, 0.1), Estimate(-98.5, 0.2)
    believed = None if hopeless else annealed if refused else plain
    weights = (12.0, 0.9, 3.0, "worth 12 draws, fewer than 100") if refused else (900.0, -math.inf, 1.2, "")
    evidence = Evidence(plain, *weights, annealed if refused else None, 0.5 if refused else None, believed)
    elbo = {"encoder": Estimate(-104.0, 0.1), "encodings refined": Estimate(-101.0, 0.1)}
    elbo["flows refined"] = Estimate(-100.5, 0.1)
    gaps = (Estimate(3.0, 0.2), Estimate(0.5, 0.1), Estimate(3.5, 0.2))
    approximation = believed and Estimate(believed.value + 100.5, 0.15)
    return AtDraw("coordinate ascent", elbo, *gaps, evidence, approximation, {"mu_subject": (9.0, 9.5)})


def diagnosis(*draws: AtDraw) -> dict:
    found = Diagnosis(draws, 50, MapChange(3, 0.06, 0.004, 0.11)).to_json()
    return json.loads(json.dumps(found, allow_nan=False))


def test_a_row_says_what_was_found():
    row = gap_row("AB_1", diagnosis(at_draw(), at_draw()))
    assert row.keys() <= COLUMNS.keys()
    assert row["participant_id"] == "sub-AB1"
    assert (row["amortization_gap"], row["encoder_gap"], row["sharing_gap"]) == (3.5, 3.0, 0.5)
    assert row["amortization_gap_per_observation"] == pytest.approx(3.5 / 50)
    assert row["amortization_gap_error"] == pytest.approx(0.2 / 2**0.5, abs=1e-3)
    assert row["approximation_gap"] == 1.5
    assert (row["elbo"], row["log_evidence"]) == ("-104.000", "-99.000")
    assert (row["log_evidence_by"], row["effective_draws"], row["pareto_k"]) == ("importance", 900, None)
    assert row["flags"] == "refinement changes the map"


def test_what_is_not_estimable_is_called_so():
    row = gap_row("a", diagnosis(at_draw(), at_draw(refused=True)))
    assert row["log_evidence_by"] == "annealing at 1 of 2 draws"
    assert (row["effective_draws"], row["pareto_k"], row["weights_sd"]) == (12, 0.9, 3)
    assert gap_row("a", diagnosis(at_draw(refused=True)))["log_evidence_by"] == "annealing"
    row = gap_row("a", diagnosis(at_draw(), at_draw(refused=True, hopeless=True)))
    assert row["log_evidence_by"] == "not estimable"
    assert row["approximation_gap"] is None
    assert row["amortization_gap"] == 3.5  # a bound needs no evidence


def test_a_diagnosis_is_kept_for_one_answer_and_budget(tmp_path):
    workspace = Workspace(Study(name="a", data={"layout": "hcp", "root": tmp_path}, outputs={"work": tmp_path}))
    found = diagnosis(at_draw())
    assert kept_gap(workspace, "a", "key") is None
    keep_gap(workspace, "a", "key", "much", found)
    assert kept_gap(workspace, "a", "key") == kept_gap(workspace, "a", "key", "much") == found
    assert kept_gap(workspace, "a", "another") is None
    assert kept_gap(workspace, "a", "key", "little") is None
    gap_file(workspace, "a").write_text("{")
    assert kept_gap(workspace, "a", "key") is None


def test_the_table_and_its_sidecar(tmp_path):
    write_gaps(tmp_path, {"a": diagnosis(at_draw()), "b": diagnosis(at_draw(refused=True, hopeless=True))}, {"n": 1})
    table = pd.read_csv(tmp_path / "diagnostics/amortization_gap.tsv", sep="\t", dtype=str, keep_default_na=False)
    assert list(table.columns) == list(COLUMNS)
    assert list(table["participant_id"]) == ["sub-a", "sub-b"]
    assert list(table["log_evidence"]) == ["-99.000", "n/a"]
    sidecar = json.loads((tmp_path / "diagnostics/amortization_gap.json").read_text())
    assert sidecar["Columns"].keys() == COLUMNS.keys()
    assert sidecar["Subjects"].keys() == {"sub-a", "sub-b"}
    assert sidecar["Settings"] == {"n": 1}
