"""Charts are drawn from any numbers that a run can give, and equal numbers give equal pictures."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

from parcellation.charts import DPI, density_curve, quantities, reliability_diagram, strips, training_curve


def pixels(png):
    return imread(io.BytesIO(png), format="png")[..., :3]


def blue(png):
    picture = pixels(png)
    return np.argwhere((picture[..., 2] > 0.6) & (picture[..., 0] < 0.1))


def test_a_point_above_the_diagonal_is_drawn_above_it():
    bins = [0.6, 0.9], np.array([10, 10])
    under, over = (blue(reliability_diagram(bins[0], [0.6 + by, 0.9 + by], bins[1])) for by in (-0.05, 0.05))
    assert over[:, 0].mean() < under[:, 0].mean() - 10


def test_empty_bins_are_left_out():
    bins = np.array([0.55, 0.75, 0.95])
    full = reliability_diagram(bins[1:], bins[1:], np.array([5, 9]))
    assert reliability_diagram(bins, np.array([np.nan, 0.75, 0.95]), np.array([0, 5, 9])) == full
    assert len(reliability_diagram(bins, bins, np.zeros(3)))


@pytest.mark.parametrize("loss", [[3.0], [1.0, 1.0, 1.0], [5.0, np.inf, 2.0], np.linspace(1e6, -1e6, 300)])
def test_any_training_can_be_drawn(loss):
    png = training_curve(loss)
    assert pixels(png).shape == (round(2.6 * DPI), round(5.2 * DPI), 3)
    assert png == training_curve(loss)


def test_a_falling_loss_falls():
    line = blue(training_curve(np.linspace(10, 0, 200)))
    left, right = (line[line[:, 1] < 300, 0].mean(), line[line[:, 1] > 600, 0].mean())
    assert left < right - 50


def test_a_density_that_rises_is_drawn_rising():
    numbers, error = np.array([2, 3, 4]), np.zeros(3)
    rising, falling = (blue(density_curve(numbers, np.array(values), error)) for values in ([1, 2, 3.0], [3, 2, 1.0]))

    def left_of_right(dots):
        return dots[dots[:, 1] < np.median(dots[:, 1]), 0].mean() - dots[dots[:, 1] > np.median(dots[:, 1]), 0].mean()

    assert left_of_right(rising) > 10
    assert left_of_right(falling) < -10


def test_strips_have_a_row_a_group_with_its_median():
    orange = np.array([[0.84, 0.37, 0.0]])
    groups = {"one": np.array([1.0, 2, 3, 4, 9])}
    line = (pixels(strips(groups, "x", orange)) < 0.25).all(-1)
    other = (pixels(strips({"one": groups["one"] + [0, 0, 2, 0, 0]}, "x", orange)) < 0.25).all(-1)
    assert line.any()
    assert (line != other).any()  # the median has moved
    assert strips(groups, "x", orange) == strips(groups, "x", orange)
    two = strips(groups | {"two": np.zeros(0)}, "x")
    assert len(pixels(two)) > len(pixels(strips(groups, "x")))


def test_quantities_stand_side_by_side_whatever_their_units():
    alone, both = (pixels(quantities(values)) for values in ({"p": np.array([0.1, 0.9])},
                   {"p": np.array([0.1, 0.9]), "frames": np.full(200, 1200)}))  # fmt: skip
    assert both.shape[1] == 2 * alone.shape[1]
    np.testing.assert_array_equal(both[:, : alone.shape[1] - 10], alone[:, :-10])
