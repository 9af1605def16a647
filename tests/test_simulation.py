from importlib.resources import files

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax

from parcellation.errors import InputMissing, UsageError
from parcellation.simulation import (
    SimulationConfig,
    bands,
    dead_vertices,
    diffusion,
    draw_labels,
    group_probability,
    load_simulation,
    present_sessions,
    smoothed_map,
    stream,
)


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def sheet(n):
    """Neighbours on an n x n grid."""
    line = sparse.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1], shape=(n, n))
    eye = sparse.eye_array(n)
    return sparse.csr_array(sparse.kron(line, eye) + sparse.kron(eye, line))


def load(folder, text):
    path = folder / "simulation.yaml"
    path.write_text(text)
    return load_simulation(path)


def test_paths_of_a_file_are_relative_to_it(tmp_path):
    config = load(tmp_path, "subjects: 3\nweights: w.npy\nsource: {bold: run.dtseries.nii, frames: [0, 10]}\n")
    assert (config.subjects, config.names) == (3, ["sim01", "sim02", "sim03"])
    assert config.weights == tmp_path / "w.npy"
    assert config.source.paths == (tmp_path / "run.dtseries.nii",)
    assert load(tmp_path, "") == SimulationConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("subject: 3", "subject: "),
        ("labels: {nois: smooth}", "labels.nois: "),
        ("subjects: [", "not valid YAML"),
        ("missing: 1.0", "probability"),
        ("subjects: 1000000000000\nmissing: {sim01: [1]}", "subjects: "),
        ("frames: 1000000000000", "frames: "),
        ("missing: {sim99: [1]}", "sim99"),
        ("missing: {sim01: [1, 2]}", "not all"),
        ("source: {bold_left: x.mgz}", "bold_right"),
        ("source: {frames: [9, 3]}", "first < end"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputMissing, match="simulation file"):
        load_simulation(tmp_path / "none.yaml")


def test_groups():
    config = SimulationConfig(subjects=24)
    assert [config.group(index) for index in (0, 15, 16, 23)] == ["train", "train", "test", "test"]
    assert SimulationConfig(subjects=24, train=3).group(3) == "test"


def test_streams_of_different_purposes_are_different():
    draws = {stream(0, *where).random() for where in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0), (0, 1, 0))}
    assert len(draws) == 5


def test_missing_sessions():
    config = SimulationConfig(subjects=500, sessions=3, missing=0.5)
    present = [present_sessions(config, index) for index in range(500)]
    assert min(map(len, present)) == 1
    # Each of three is missing half the time, but for the 1/8 x 1/3 of cases where it is kept so that one is left.
    share = np.mean([one in sessions for sessions in present for one in (1, 2, 3)])
    assert share == pytest.approx(1 / 2 + 1 / 24, abs=3 * 0.5 / np.sqrt(1500))
    config = SimulationConfig(subjects=3, sessions=3, missing={"sim02": [1, 3]})
    assert [present_sessions(config, index) for index in range(3)] == [(1, 2, 3), (2,), (1, 2, 3)]


def test_more_sessions_leave_the_first_ones_as_they_were():
    two, three = (SimulationConfig(sessions=count, missing=0.3) for count in (2, 3))
    for index in range(24):
        if len(present_sessions(two, index)) == 2:
            assert present_sessions(three, index)[:2] == (1, 2)


def test_dead_vertices_are_distinct_and_not_all():
    config = SimulationConfig(dead_vertices=5)
    assert len(set(dead_vertices(config, 0, 10).tolist())) == 5
    assert (dead_vertices(config, 0, 100) != dead_vertices(config, 1, 100)).any()
    with pytest.raises(UsageError, match="fewer than the region's 5"):
        dead_vertices(config, 0, 5)


def test_bands_lie_in_order_and_share_the_region(generator):
    coordinate = generator.normal(size=300)
    for networks in (2, 3, 7):
        logits = bands(coordinate, networks, 1.5)
        order = logits.argmax(1)[np.argsort(-coordinate)]
        assert (np.diff(order) >= 0).all()  # network 0 where the coordinate is largest
        assert np.bincount(order).max() - np.bincount(order).min() <= 1
    odds = np.diff(bands(np.arange(100.0), 2, 1.5), axis=1)[:, 0]
    np.testing.assert_allclose(np.diff(odds), np.diff(odds)[0])


def test_a_smoothed_map_follows_the_map(generator):
    labels = np.repeat([0, 1, 2], [60, 60, 24])
    logits = smoothed_map(labels, sheet(12), contrast=2.0, steps=3)
    assert (logits.argmax(1) == labels).mean() > 0.95
    assert logits.std() == pytest.approx(2)
    blurred = smoothed_map(labels, sheet(12), contrast=2.0, steps=30)
    edge = slice(48, 72)
    assert softmax(blurred[edge], 1).max(1).mean() < softmax(logits[edge], 1).max(1).mean()


def test_smooth_noise_has_variance_1_everywhere_and_is_smooth(generator):
    neighbours = sheet(12)
    operator = diffusion(neighbours, 10)
    np.testing.assert_allclose((operator @ operator.T).diagonal(), 1)
    related = (operator @ operator.T).toarray()
    assert related[neighbours.toarray() > 0].min() > 0.8
    assert related[0, -1] < 0.01


@pytest.mark.parametrize("steps", [0, 6])
def test_labels_have_the_group_probability_for_both_kinds_of_noise(generator, steps):
    config = SimulationConfig(networks=3, labels={"temperature": 0.7})
    logits = bands(np.arange(36.0), 3, 1.0)
    smooth = diffusion(sheet(6), steps) if steps else None
    draws = np.stack([draw_labels(logits, 0.7, generator, smooth) for _ in range(3000)])
    found = (draws[..., None] == np.arange(3)).mean(0)
    np.testing.assert_allclose(found, group_probability(config, logits), atol=4.5 * 0.5 / np.sqrt(3000))


def test_smooth_labels_agree_with_their_neighbours(generator):
    neighbours, logits = sheet(12), np.zeros((144, 2))

    def agreement(smooth):
        labels = np.stack([draw_labels(logits, 1.0, generator, smooth) for _ in range(40)])
        first, second = neighbours.nonzero()
        return (labels[:, first] == labels[:, second]).mean()

    assert agreement(None) == pytest.approx(0.5, abs=0.03)
    assert agreement(diffusion(neighbours, 10)) > 0.75


@pytest.mark.parametrize("name", ["simulated-cohort", "simulated-fingerprints"])
def test_the_examples_are_valid(name):
    example = files("pipelines").joinpath("studies", f"{name}.yaml")
    assert load_simulation(example).sessions == 2
