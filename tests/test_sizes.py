"""Sizes of networks: counts of the shown map, and intervals that are those of the draws."""

import numpy as np
import pytest

from parcellation.sizes import MEANINGS, network_sizes


@pytest.fixture
def draws():
    """A thousand draws of ten vertices: five of network 0 always, the others of network 1 with probability .3."""
    drawn = np.zeros((1000, 10), np.uint8)
    drawn[:, 5:] = np.random.default_rng(0).random((1000, 5)) < 0.3
    return drawn


def test_the_mean_over_draws_is_not_the_map_s_size(draws):
    table = network_sizes("sub-1", ["a", "b", "c"], np.zeros(10, int), draws, None, "none").set_index("network")
    assert list(table.reset_index().columns) == sorted(MEANINGS, key=["network", *MEANINGS].index)
    assert table.vertices.to_dict() == {"a": 10, "b": 0, "c": 0}
    # Binomial(5, .3): mean 1.5, and .168 of the draws have none; three standard errors of the mean.
    assert table.vertices_mean["b"] == pytest.approx(1.5, abs=3 * np.sqrt(5 * 0.3 * 0.7 / 1000))
    assert (table.vertices_low["b"], table.vertices_high["b"]) == (0, 3)
    assert table.vertices_mean.sum() == pytest.approx(10)
    assert (table.vertices_high["c"], table.vertices_mean["c"]) == (0, 0)
    assert table.area.isna().all()


def test_areas_are_those_of_the_vertices(draws):
    areas = np.arange(1.0, 11.0)
    shown = np.r_[np.zeros(9, int), 1]
    table = network_sizes("sub-1", ["a", "b"], shown, draws, areas, "group").set_index("network")
    assert table.area.to_dict() == {"a": 45, "b": 10}
    assert table.area_mean["b"] == pytest.approx(0.3 * areas[5:].sum(), rel=0.1)
    assert table.area_mean.sum() == pytest.approx(areas.sum())
    assert (table.surface == "group").all()
    assert (table.area_low <= table.area_mean).all()
    assert (table.area_mean <= table.area_high).all()
