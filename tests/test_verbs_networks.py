"""`networks`: densities by number of networks, kept fit by fit; one that fails takes no other down."""

import numpy as np
import pandas as pd
import pytest

from parcellation.errors import BadData
from parcellation.verbs import networks as verb
from parcellation.verbs.networks import Scores, advice, table
from tests.studies import PATIENTS, command, snapshot


def scores(number: int, *values: float, failed: str = "") -> Scores:
    person = {f"s{n}": value for n, value in enumerate(values)}
    return Scores(number, {name: value - 1 for name, value in person.items()}, person, failed)


def test_a_number_that_fails_takes_no_other_down_and_finished_fits_are_kept(prepared, monkeypatch):
    right, tried = verb.fitted, []

    def sometimes(study, cohort, device):
        tried.append(study.model.networks)
        if study.model.networks == 3:
            raise BadData("collapsed")
        return right(study, cohort, device)

    monkeypatch.setattr(verb, "fitted", sometimes)
    said = command("networks", prepared.study, "--numbers", "4", "2", "3")
    assert "3 networks: collapsed" in said
    assert "predicted best with" in said
    assert tried == [2, 2, 2, 3, 4, 4, 4]
    folder = prepared.results / "diagnostics"
    found = pd.read_csv(folder / "networks.tsv", sep="\t", na_values="n/a")
    assert found.networks.tolist() == [2, 3, 4]
    assert found.subjects.tolist() == [3, 0, 3]
    assert np.isfinite(found.density[[0, 2]]).all()
    assert np.isnan(found.density[1])
    assert (folder / "networks.png").read_bytes().startswith(b"\x89PNG")
    before = snapshot(prepared.results)
    tried.clear()
    monkeypatch.setattr(verb, "fitted", right)
    assert "3 networks: collapsed" not in command("networks", prepared.study, "--numbers", "2", "3")
    assert tried == []
    assert set(snapshot(prepared.results)) == set(before)


def test_what_there_is_nothing_to_compare_in_is_refused(prepared):
    assert "expected numbers of 2 or more, got 1" in command("networks", prepared.study, "--numbers", "1", code=64)
    study = prepared.write_study(training={"subjects": ["sim01", "sim02"]})
    assert "expected at least 3 subjects" in command("networks", study, code=65)
    study = prepared.write_study(model={"template": "functional_parcellation_logits"})
    assert "labels of each session" in command("networks", study, code=64)
    assert not prepared.results.exists()


def test_a_study_that_applies_a_model_has_its_number(study):
    study.write_study("patients.yaml", PATIENTS)
    assert "which has a number already" in command("networks", study.path / "patients.yaml", code=64)


def test_a_dry_run_says_what_would_be_fitted(prepared):
    assert "would fit 10 networks 3 times to 3 subjects" in command("networks", prepared.study, "--dry-run")
    assert not prepared.results.exists()


def test_the_fewest_within_an_error_of_the_best_is_advised():
    rows = table(
        [scores(2, 0.0, 0.1, 0.0), scores(3, 1.0, 1.1, 1.0), scores(4, 1.1, 1.0, 1.03), scores(5, 0.5, 0.4, 0)]
    )
    said = " ".join(advice(rows))
    assert "best with 4 networks" in said
    assert "3 predict them as well" in said
    assert "still rises" not in said


def test_a_density_that_rises_to_the_end_singles_out_no_number():
    said = " ".join(advice(table([scores(2, 0.0, 0.1, 0.0), scores(3, 1.0, 1.1, 1.0)])))
    assert "do not single out a number" in said


def test_differences_are_paired_over_subjects():
    rows = table([scores(2, 0.0, 5.0, 9.0), scores(3, 1.0, 6.0, 10.0), scores(4, failed="collapsed")])
    assert rows.less_than_best.tolist()[:2] == pytest.approx([1.0, 0.0])
    assert rows.less_error.tolist()[:2] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert rows.failed.tolist() == ["", "", "collapsed"]


def test_without_two_sessions_the_population_predicts():
    rows = table([Scores(2, {"a": 1.0, "b": 2.0}, {}), Scores(3, {"a": 0.0, "b": 1.0}, {})])
    assert rows.density.tolist() == [1.5, 0.5]
