"""The benchmark on real fingerprints: the plain mixture on planted networks, and files that are not there."""

import json
import sys

import numpy as np
import pytest

from parcellation.scores import calibration, match_networks, unit
from pipelines.benchmarks import real
from pipelines.benchmarks.plain_mixture import fit_plain_mixture


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, np.ndarray]:
    """Fingerprints (10, 2, 60, 12) of three networks, and the labels (10, 60), a fifth of them a subject's own."""
    g = np.random.default_rng(0)
    group = np.arange(60) % 3
    labels = np.where(g.random((10, 60)) < 0.2, g.integers(0, 3, (10, 60)), group)
    profiles = unit(g.standard_normal((3, 12)))
    x = profiles[labels][:, None] + 0.25 * g.standard_normal((10, 2, 60, 12))
    return unit(x - x.mean(-1, keepdims=True)), labels


def test_the_plain_mixture_finds_planted_networks(planted):
    x, labels = planted
    mixture = fit_plain_mixture(x[:7], 3)
    found = calibration(match_networks(mixture.posterior(x[7:]), labels[7:]), labels[7:])
    assert found["accuracy"] > 0.9
    assert found["ece"] < 0.06
    assert 0 <= mixture.share <= 1


def test_an_empty_network_has_the_population_s_profile(planted):
    x, _ = planted
    mixture = fit_plain_mixture(x[:7], 3)
    blind = np.full((1, 1, 60, 12), 0.0)
    assert np.isfinite(mixture.subject_profiles(blind)).all()


def test_sets_that_are_not_there_are_skipped(tmp_path, monkeypatch, capsys):
    arguments = [
        "real",
        "--hcp30",
        str(tmp_path / "no.npz"),
        "--mdtb",
        str(tmp_path / "none.npz"),
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    real.main()
    assert capsys.readouterr().out.count("skipped") == 2
    assert not (tmp_path / "real.json").exists()


def test_another_file_of_the_same_shape_is_run(planted, tmp_path, monkeypatch):
    x, _ = planted
    np.savez(tmp_path / "other.npz", data=x.transpose(0, 1, 3, 2).astype(np.float16))
    arguments = ["real", "--sets", "mdtb", "--mdtb", str(tmp_path / "other.npz"), "--networks", "3", "--splits", "2"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--steps", "2", "--out", str(tmp_path)])
    real.main()
    figures = json.loads((tmp_path / "real.json").read_text())
    asked = {"gain", "gain_minus_plain", "gain_se", "cosine", "cosine_subject", "group_cosine", "group_cosine_subject"}
    asked |= {"agreement", "between", "confidence", "ece", "nll", "ece_link", "nll_link", "lambda"}
    asked |= {"ece_pooled", "ece_link_pooled"}
    assert {f"mdtb.3.{key}" for key in asked} <= set(figures)
    assert figures["mdtb.3.agreement"] > figures["mdtb.3.between"]
    assert 0 < figures["mdtb.3.ece_link_pooled"] <= figures["mdtb.3.ece_link"]
