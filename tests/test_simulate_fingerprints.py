import numpy as np
import pytest

from parcellation import truth
from parcellation.errors import BadData, UsageError
from parcellation.scores import calibration, oracle_posterior
from parcellation.simulate_fingerprints import simulate_fingerprints
from parcellation.simulation import SimulationConfig


def draw(out, logits=None, **settings):
    """A cohort as {(subject, session): (x, mask, frames)}."""
    units = {}

    def write(subject, session, fingerprint, mask, frames):
        units[subject, session] = (fingerprint, mask, frames)

    simulate_fingerprints(SimulationConfig(**settings), write, out, logits)
    return units


def profiles(out, names):
    return np.stack([truth.read_subject(out, name).fingerprints for name in names])


def test_scales_are_what_the_settings_say(tmp_path):
    scales = {"epsilon": 0.5, "sigma": 0.25, "kappa": 3.0, "features": 80, "vertices": 60}
    units = draw(tmp_path, subjects=60, sessions=3, template=scales)
    names = SimulationConfig(subjects=60).names
    mu_session = profiles(tmp_path, names)  # (subject, session, network, feature)
    assert mu_session.std(1, ddof=1).mean() == pytest.approx(0.25 * 0.886, rel=0.03)  # E of a sd of three: .886
    between = mu_session.mean(1) - truth.read_population(tmp_path)["mu"]
    assert between.std() == pytest.approx(np.sqrt(0.5**2 + 0.25**2 / 3), rel=0.03)
    residual = [
        units[name, str(session + 1)][0] - mu_session[index, session][truth.read_subject(tmp_path, name).labels]
        for index, name in enumerate(names)
        for session in range(3)
    ]
    assert np.std(residual) == pytest.approx(3.0, rel=0.01)
    assert {unit[2] for unit in units.values()} == {400}


def test_shorter_sessions_are_noisier_by_the_slope(tmp_path):
    template = {"frames": [400, 100], "slope": 0.5, "kappa": 2.0, "vertices": 400}
    units = draw(tmp_path, subjects=3, template=template)
    found = truth.read_subject(tmp_path, "sim02")
    for session, expected in (("1", 2.0), ("2", 2.0 * 4**0.25)):
        x, _, frames = units["sim02", session]
        residual = x - found.fingerprints[int(session) - 1][found.labels]
        assert residual.std() == pytest.approx(expected, rel=0.02)
        assert frames == {"1": 400, "2": 100}[session]


def test_sessions_differ_in_noise_where_asked(tmp_path):
    draw(tmp_path, subjects=200, template={"kappa_session": 0.3, "vertices": 4, "features": 2})
    names = SimulationConfig(subjects=200).names
    kappa = np.stack([truth._read(truth.subject_path(tmp_path, name))["kappa_session"] for name in names])
    assert np.log(kappa).std() == pytest.approx(0.3, rel=0.12)
    assert np.log(kappa).mean() == pytest.approx(np.log(8), abs=4 * 0.3 / np.sqrt(400))


def test_missing_sessions_and_dead_vertices(tmp_path):
    units = draw(tmp_path, subjects=2, missing={"sim01": [1]}, dead_vertices=3)
    assert set(units) == {("sim01", "2"), ("sim02", "1"), ("sim02", "2")}
    x, mask, _ = units["sim01", "2"]
    np.testing.assert_array_equal(np.flatnonzero(~mask), truth.read_subject(tmp_path, "sim01").dead)
    assert (x[~mask] == 0).all()
    assert x.dtype == np.float32


def test_a_subject_is_the_same_in_a_larger_cohort(tmp_path):
    few = draw(tmp_path / "few", subjects=2)
    many = draw(tmp_path / "many", subjects=4)
    np.testing.assert_array_equal(few["sim02", "2"][0], many["sim02", "2"][0])
    assert (few["sim01", "2"][0] != few["sim02", "2"][0]).all()


def test_the_oracle_is_calibrated_on_it(tmp_path):
    units = draw(tmp_path, subjects=30, template={"kappa": 6.0, "features": 40})
    prior = truth.read_population(tmp_path)["group_probability"]
    posteriors, labels = [], []
    for name in SimulationConfig(subjects=30).names:
        found = truth.read_subject(tmp_path, name)
        x = np.stack([units[name, session][0] for session in found.sessions])
        mask = np.stack([units[name, session][1] for session in found.sessions])
        posteriors.append(oracle_posterior(x, mask, found.fingerprints, prior, found.labels))
        labels.append(found.labels)
    result = calibration(np.stack(posteriors), np.stack(labels))
    assert 0.85 < result["accuracy"] < 0.97
    assert result["ece"] < 0.015
    group = calibration(np.broadcast_to(prior, (30, *prior.shape)), np.stack(labels))
    assert group["accuracy"] < result["accuracy"] - 0.05


def test_a_given_group_map_and_what_is_refused(tmp_path):
    logits = np.array([[9.0, 0.0], [0.0, 9.0]] * 10)
    draw(tmp_path, logits=logits, subjects=1)
    assert (truth.read_subject(tmp_path, "sim01").labels == logits.argmax(1)).mean() > 0.9
    with pytest.raises(UsageError, match="other settings"):
        draw(tmp_path, subjects=1)
    with pytest.raises(BadData, match="3 networks, got 2"):
        draw(tmp_path / "b", logits=logits, subjects=1, networks=3)


def test_smooth_labels_in_a_row(tmp_path):
    draw(tmp_path / "a", subjects=20, labels={"noise": "smooth"}, template={"features": 2})
    draw(tmp_path / "b", subjects=20, template={"features": 2})
    names = SimulationConfig(subjects=20).names

    def changes(out):
        return np.mean([np.diff(truth.read_subject(out, name).labels) != 0 for name in names])

    assert changes(tmp_path / "a") < 0.5 * changes(tmp_path / "b")
