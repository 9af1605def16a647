"""What is checked about a result: recovery of a known truth, and agreement of sessions inferred apart."""

import numpy as np
import pytest

from parcellation.config import load_study
from parcellation.verbs.checks import recovery, retest, truth_folder
from parcellation.verbs.infer import Inference
from parcellation.verbs.workspace import resolve
from tests.studies import damage


def inference(folder, name="study.yaml"):
    return Inference.of(resolve(load_study(folder.path / name)))


def test_the_truth_is_found_in_a_simulated_tree_only(finished, treated):
    assert truth_folder(load_study(finished.study)) == finished.path / "HCP"
    assert truth_folder(load_study(treated.path / "patients.yaml")) is None


def test_recovery_is_of_unseen_subjects_and_no_better_than_the_oracle(finished):
    found = recovery(inference(finished), finished.path / "HCP")
    assert found.subjects == 2
    assert list(found.scores) == ["parcellation", "group map (true)", "oracle"]
    # Two subjects of 304 vertices: the oracle is the best there is in expectation.
    assert found.scores["oracle"]["NLL"] <= found.scores["group map (true)"]["NLL"]
    assert found.scores["parcellation"]["NLL"] >= found.scores["oracle"]["NLL"]
    assert found.reliability["count"].sum() == 2 * 304
    for values in found.reliability.values():
        assert np.isfinite(values).all()


def test_retest_compares_sessions_of_those_who_have_two(finished):
    found = retest(inference(finished))
    assert len(found.within) == 4
    assert (found.within >= 0).all()
    assert (found.within <= 1).all()
    assert 0 <= found.between <= 1
    assert found.rows()[0]["subjects"] == 4
    # Both sessions of everybody, each from the other.
    assert found.reliability["count"].sum() == 4 * 2 * 304
    assert np.average(found.reliability["accuracy"], weights=found.reliability["count"]) == pytest.approx(
        found.within.mean()
    )


def test_retest_of_one_person_has_no_other_to_compare_with(finished):
    (row,) = retest(inference(finished), ["sim01"]).rows()
    assert row["agreement between subjects"] == "n/a"


def test_retest_without_second_sessions_is_none(finished):
    assert retest(inference(finished), ["sim05"]) is None


@pytest.mark.parametrize("check", [lambda run, folder: recovery(run, folder / "HCP"), lambda run, _: retest(run)])
def test_a_damaged_file_leaves_its_subject_out(study, check):
    whole = check(inference(study), study.path)
    damage(study.unit("sim04"))
    found = check(inference(study), study.path)
    count = (lambda one: one.subjects) if hasattr(whole, "subjects") else (lambda one: len(one.within))
    assert count(found) == count(whole) - 1
