"""The benchmark of shorter runs: its own target, and what is chosen where the model is right."""

import pytest

from pipelines.benchmarks.frames import compare


@pytest.mark.slow
def test_a_model_of_long_runs_stays_calibrated_on_shorter_ones(tmp_path):
    found = compare(40, tmp_path, noise=4.0, nx=20, ny=15, D=40)
    # Calibration errors of 20 subjects of 300 vertices scatter by about .005.
    for share in ("half", "quarter"):
        assert found[share]["apart"] < 0.01
        assert found[share]["long_nll"] < found[share]["same_nll"] + 0.01
        assert found[share]["same_accuracy"] < found["all"]["same_accuracy"]
    # The data are as the model has them, so that evidence is to be believed in full, and nothing is lost by asking.
    assert all(row["lambda"] >= 0.8 for row in found.values())
    assert found["all"]["same_accuracy"] > found["all"]["oracle_accuracy"] - 0.02
