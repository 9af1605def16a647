"""Networks' colours can be told apart, by readers with deuteranopia too."""

import numpy as np
import pytest

from parcellation.colours import difference, far_apart, lab, network_colours


def closest(colours):
    first, second = np.triu_indices(len(colours), 1)
    return difference(colours[first], colours[second]).min()


def test_lab_of_known_colours():
    white, black, red = lab(np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0]]))
    np.testing.assert_allclose(white, [100, 0, 0], atol=0.02)
    np.testing.assert_allclose(black, [0, 0, 0], atol=0.02)
    # Published CIELAB of the sRGB red primary under D65, to the four digits of the conversion matrix.
    np.testing.assert_allclose(red, [53.24, 80.09, 67.20], atol=0.05)


def test_red_and_green_look_alike_to_a_deuteranope():
    red, green, blue = np.array([[200, 60, 0], [110, 110, 0], [0, 60, 200]])
    assert np.linalg.norm(lab(red) - lab(green)) > 50 > 30 > difference(red, green)
    assert difference(red, blue) > 50


@pytest.mark.parametrize(("count", "least"), [(2, 60), (8, 16), (17, 14)])
def test_networks_can_be_told_apart(count, least):
    colours = network_colours(count)
    assert colours.shape == (count, 3)
    assert colours.dtype == np.uint8
    assert closest(colours) > least


def test_a_thousand_networks_have_a_thousand_colours():
    assert len(np.unique(network_colours(1000), axis=0)) == 1000


def test_more_networks_keep_the_colours_of_the_first():
    np.testing.assert_array_equal(network_colours(20)[:9], network_colours(9))


def test_neighbours_differ_clearly_where_there_are_many():
    """Three hundred networks on a triangular sheet: the standard order has neighbours that look alike."""
    wide, count = 20, 300
    row, column = np.divmod(np.arange(count), wide)
    step = np.abs(row[:, None] - row), column[:, None] - column
    beside = (step[0] + np.abs(step[1]) == 1) | ((row[:, None] - row == 1) & (step[1] == 1))
    beside |= beside.T
    colours = far_apart(beside)
    assert len(np.unique(colours, axis=0)) == count
    assert set(map(tuple, colours)) == set(map(tuple, network_colours(count)))
    apart = difference(colours[:, None], colours[None])[beside]
    assert apart.min() > 10
    usual = network_colours(count)
    assert difference(usual[:, None], usual[None])[beside].min() < 10


def test_the_first_colours_go_to_networks_without_neighbours():
    np.testing.assert_array_equal(far_apart(np.zeros((3, 3), bool)), network_colours(3))
