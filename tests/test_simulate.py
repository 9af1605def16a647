import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from parcellation import truth
from parcellation.errors import BadData, NothingSelected, UsageError
from parcellation.simulate import draw_run, draw_subject, noiseless_fingerprints, run_paths, simulate
from parcellation.simulation import SimulationConfig, bands
from parcellation.surfaces import Mesh, Vertices
from parcellation.surrogates import Population, Source, correlation

REGION, TARGETS, FRAMES = 30, 50, 120


@pytest.fixture(scope="module")
def population():
    """A source on fsaverage3: 30 region vertices in a row, 50 targets of which 3 are in the region, 10 others."""
    generator = np.random.default_rng(1)
    count = 87
    series = generator.normal(size=(FRAMES, 12)) @ generator.normal(size=(12, count))
    series = (series + generator.normal(size=series.shape)).astype(np.float32)
    hemisphere = np.repeat(np.array([0, 1], np.uint8), [60, 27])
    number = np.r_[np.arange(60) * 3, np.arange(27) * 5].astype(np.int32)
    vertices = Vertices(Mesh("fsaverage", (642, 642)), hemisphere, number)
    source = Source(series, vertices, np.arange(REGION), np.r_[[4, 11, 20], np.arange(30, 77)], 1.5, "made up")
    ones = np.ones(REGION - 1)
    row = sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1], shape=(REGION, REGION)))
    return Population(source, generator.normal(size=(2, TARGETS)), bands(-np.arange(REGION), 2, 1.5), row)


def cifti(out, name, session=1, direction="LR"):
    (path,) = run_paths(SimulationConfig(), name, session, direction)
    return np.asarray(nib.load(out / path).dataobj)


def test_a_cohort_lies_as_in_hcp_and_reads_back(tmp_path, population):
    config = SimulationConfig(subjects=3, train=2, runs=2, seed=5)
    simulate(config, tmp_path, population)
    path = tmp_path / "sim02/MNINonLinear/Results/rfMRI_REST2_RL/rfMRI_REST2_RL_Atlas_MSMAll_hp2000_clean.dtseries.nii"
    image = nib.load(path)
    series = draw_run(config, population, draw_subject(config, population, 1), 1, session=2, run=1)
    np.testing.assert_array_equal(np.asarray(image.dataobj), series)
    assert image.header.get_axis(0).step == 1.5
    np.testing.assert_array_equal(image.header.get_axis(1).vertex, population.source.vertices.number)
    manifest = pd.read_csv(tmp_path / "manifest.tsv", sep="\t", dtype=str)
    assert len(manifest) == 3 * 2 * 2
    assert all((tmp_path / one).is_file() for one in manifest.bold)
    assert manifest.groupby("subject").group.first().tolist() == ["train", "train", "test"]
    assert len(list(tmp_path.glob("sim*/MNINonLinear/Results/*/*.nii"))) == 12


def test_truth_on_disk(tmp_path, population):
    config = SimulationConfig(subjects=3, sessions=3, missing={"sim02": [2]}, seed=5)
    simulate(config, tmp_path, population)
    found = truth.read_subject(tmp_path, "sim02")
    subject = draw_subject(config, population, 1)
    assert found.sessions == ("1", "3")
    np.testing.assert_array_equal(found.labels, subject.labels)
    assert found.fingerprints.shape == (2, 2, TARGETS)
    settings = json.loads((tmp_path / "truth/settings.json").read_text())
    assert settings["source"] == "made up"
    assert Vertices.from_json(settings["region"]).number.tolist() == list(range(0, 90, 3))
    probability = truth.read_population(tmp_path)["group_probability"]
    np.testing.assert_allclose(probability.sum(1), 1)
    table = pd.read_csv(tmp_path / "truth/labels.tsv", sep="\t")
    np.testing.assert_array_equal(table.sim02, subject.labels + 1)
    people = pd.read_csv(tmp_path / "truth/participants.tsv", sep="\t", dtype=str)
    assert people.sessions.tolist() == ["1,2,3", "1,3", "1,2,3"]


def test_noiseless_fingerprints_are_those_of_a_run_without_noise(population):
    config = SimulationConfig(between_vertices=0.0, signal_to_noise=1e8, sessions=1)
    subject = draw_subject(config, population, 0)
    series = draw_run(config, population, subject, 0, 1)
    found = correlation(series[:, :REGION], series[:, population.source.targets])
    expected = np.tanh(noiseless_fingerprints(config, population, subject))[0][subject.labels]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_noise_and_vertices_own_parts_attenuate_connectivity(population):
    config = SimulationConfig(signal_to_noise=2.0, between_vertices=0.5, sessions=1, frames=20000)
    subject = draw_subject(config, population, 3)
    series = draw_run(config, population, subject, 3, 1)
    found = correlation(series[:, :REGION], series[:, population.source.targets])[:, 3:]
    expected = np.tanh(noiseless_fingerprints(config, population, subject))[0, :, 3:]
    for network in (0, 1):
        slope = np.polyfit(expected[network], found[subject.labels == network].mean(0), 1)[0]
        assert slope == pytest.approx(1 / np.sqrt(1 + 0.5**2 + 0.5), abs=0.12)


def test_truth_at_targets_inside_the_region_counts_their_noise(population):
    config = SimulationConfig(signal_to_noise=2.0, between_vertices=0.5, sessions=1, frames=20000)
    silent = config.model_copy(update={"signal_to_noise": 1e9})
    subject = draw_subject(config, population, 3)
    same = replace(subject, own=np.zeros_like(subject.own))
    clean = draw_run(silent, population, same, 3, 1)[:, :REGION]
    noisy = draw_run(config, population, subject, 3, 1)[:, population.source.targets[:3]]
    expected = np.tanh(noiseless_fingerprints(config, population, subject))[0, subject.labels, :3]
    # 20,000 frames of noise that is independent: known within 3 / sqrt(20000) = .02.
    np.testing.assert_allclose(correlation(clean, noisy), expected, atol=0.03)


def test_signal_to_noise_and_level_are_what_the_settings_say(population):
    config = SimulationConfig(signal_to_noise=0.25, between_subjects=0, between_sessions=0, between_vertices=0)
    silent = config.model_copy(update={"signal_to_noise": 1e9})
    subject = draw_subject(config, population, 0)
    noisy, clean = (draw_run(one, population, subject, 0, 1)[:, :REGION] for one in (config, silent))
    level = population.source.series[:, :REGION].var(0).mean()
    assert clean.var(0).mean() == pytest.approx(level, rel=1e-3)
    assert noisy.var(0).mean() == pytest.approx(level, rel=0.15)
    shared = np.array([np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(noisy.T, clean.T, strict=True)])
    assert shared.mean() == pytest.approx(0.2, abs=0.05)  # signal / (signal + noise)


def test_deviations_have_the_sizes_that_the_settings_say(population):
    config = SimulationConfig(sessions=40, between_subjects=0.5, between_sessions=0.3, between_vertices=0.8)
    subjects = [draw_subject(config, population, index) for index in range(40)]
    covariance = population.covariance

    def size(weights):
        return np.sqrt(np.einsum("...d,de,...e->...", weights, covariance, weights).mean())

    base = population.weights / population.size[:, None]
    assert size(base) == pytest.approx(1)
    assert size(subjects[0].own) == pytest.approx(0.8, rel=0.1)
    sessions = np.stack([one.weights for one in subjects])
    assert size(sessions - sessions.mean(1, keepdims=True)) == pytest.approx(0.3 * np.sqrt(39 / 40), rel=0.05)
    assert size(sessions.mean(1) - base) == pytest.approx(np.sqrt(0.5**2 + 0.3**2 / 40), rel=0.1)


def test_one_subject_alone_is_the_same_and_complete_ones_are_skipped(tmp_path, population):
    config = SimulationConfig(subjects=3, seed=2)
    simulate(config, tmp_path / "all", population)
    simulate(config, tmp_path / "one", population, subjects=["sub-sim02"])
    np.testing.assert_array_equal(cifti(tmp_path / "all", "sim02", 2), cifti(tmp_path / "one", "sim02", 2))
    name = "truth/sim02_truth.npz"
    assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert not (tmp_path / "one/truth/labels.tsv").exists()
    assert not (tmp_path / "one/sim01").exists()
    before = (tmp_path / "one" / name).stat().st_mtime_ns
    simulate(config, tmp_path / "one", population)
    assert (tmp_path / "one" / name).stat().st_mtime_ns == before
    for file in ("truth/labels.tsv", "truth/population.npz", "truth/settings.json", "manifest.tsv"):
        assert (tmp_path / "all" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()


def test_a_lost_run_is_written_again(tmp_path, population):
    config = SimulationConfig(subjects=1)
    simulate(config, tmp_path, population)
    (path,) = run_paths(config, "sim01", 2, "LR")
    content = cifti(tmp_path, "sim01", 2)
    (tmp_path / path).unlink()
    simulate(config, tmp_path, population)
    np.testing.assert_array_equal(cifti(tmp_path, "sim01", 2), content)


def test_another_cohorts_folder_is_refused(tmp_path, population):
    simulate(SimulationConfig(subjects=1), tmp_path, population)
    with pytest.raises(UsageError, match="other settings"):
        simulate(SimulationConfig(subjects=1, seed=1), tmp_path, population)
    with pytest.raises(NothingSelected, match="sim7"):
        simulate(SimulationConfig(subjects=1), tmp_path, population, subjects=["sim7"])


def test_seeds_subjects_sessions_and_runs_differ(population):
    config = SimulationConfig(sessions=2)
    runs = [
        draw_run(one, population, draw_subject(one, population, index), index, session, run)
        for one, index, session, run in (
            (config, 0, 1, 0),
            (config, 0, 1, 1),
            (config, 0, 2, 0),
            (config, 1, 1, 0),
            (config.model_copy(update={"seed": 1}), 0, 1, 0),
        )
    ]
    related = np.corrcoef([one[:, 80] for one in runs])
    assert np.abs(related - np.eye(5)).max() < 0.5


def test_what_one_setting_leaves_alone(population):
    config = SimulationConfig(sessions=2)
    other = SimulationConfig(sessions=3, signal_to_noise=0.5, labels={"noise": "smooth"})
    first, second = (draw_subject(one, population, 4) for one in (config, other))
    np.testing.assert_array_equal(first.weights, second.weights[:2])
    np.testing.assert_array_equal(first.own, second.own)


def test_missing_sessions_and_dead_vertices(tmp_path, population):
    config = SimulationConfig(subjects=2, missing={"sim01": [1]}, dead_vertices=4)
    simulate(config, tmp_path, population)
    assert sorted(one.name for one in tmp_path.glob("sim01/MNINonLinear/Results/*")) == ["rfMRI_REST2_LR"]
    dead = truth.read_subject(tmp_path, "sim01").dead
    flat = np.flatnonzero(np.ptp(cifti(tmp_path, "sim01", 2), axis=0) == 0)
    np.testing.assert_array_equal(flat, dead)  # region vertices come first here
    assert len(dead) == 4


def test_a_dead_target_has_no_connectivity(population):
    config = SimulationConfig(dead_vertices=REGION - 1)
    subject = draw_subject(config, population, 0)
    found = noiseless_fingerprints(config, population, subject)
    inside = np.isin([4, 11, 20], subject.dead)
    assert (found[..., :3][..., inside] == 0).all()
    assert inside.any()


def test_smooth_labels_need_neighbours(population):
    config = SimulationConfig(labels={"noise": "smooth"})
    lone = Population(population.source, population.weights, population.logits)
    with pytest.raises(BadData, match="neighbours"):
        draw_subject(config, lone, 0)
    labels = np.stack([draw_subject(config, population, index).labels for index in range(50)])
    rough = SimulationConfig()
    independent = np.stack([draw_subject(rough, population, index).labels for index in range(50)])
    assert (np.diff(labels) != 0).mean() < 0.6 * (np.diff(independent) != 0).mean()


@pytest.mark.parametrize("kind", ["mgz", "gifti"])
def test_fsaverage_files(tmp_path, population, kind):
    config = SimulationConfig(subjects=1, sessions=1, format=kind, frames=25)
    simulate(config, tmp_path, population)
    manifest = pd.read_csv(tmp_path / "manifest.tsv", sep="\t", dtype=str)
    right = nib.load(tmp_path / manifest.bold_right[0], mmap=False)
    series = draw_run(config, population, draw_subject(config, population, 0), 0, 1)
    found = np.stack([one.data for one in right.darrays], 1) if kind == "gifti" else np.asarray(right.dataobj)
    np.testing.assert_array_equal(found.reshape(642, 25)[np.arange(27) * 5], series[:, 60:].T)
    assert manifest.tr[0] == "1.5"
