"""Pictures of maps: the right views, the networks' own colours, grey where nothing is known."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

from parcellation.charts import strips
from parcellation.figures import (
    Stage,
    one_hot,
    render_labels,
    render_scalar,
    render_strip,
    render_targets,
    strip_thumbnail,
    thumbnail,
)
from parcellation.label_table import named_networks
from parcellation.surfaces import Mesh, Vertices
from tests.spheres import sphere

COORDINATES, TRIANGLES = sphere()
GEOMETRY = ((COORDINATES, TRIANGLES), (COORDINATES, TRIANGLES))
NETWORKS = named_networks(2)
WIDTH = 120


def region(left, right=()):
    hemisphere = np.repeat(np.array([0, 1], np.uint8), [len(left), len(right)])
    return Vertices(Mesh("fsaverage", (642, 642)), hemisphere, np.array([*left, *right], np.int32))


def cap(direction, share=0.8):
    """Vertices around a direction, in reverse order of their numbers."""
    return np.flatnonzero(COORDINATES @ np.asarray(direction, float) / 50 > share)[::-1]


def pixels(png):
    return np.rint(255 * imread(io.BytesIO(png), format="png")[..., :3])


def near(picture, colour, within=45):
    return (np.abs(picture - colour).max(-1) < within).sum()


@pytest.fixture(scope="module")
def lateral():
    return cap([-1, 0, 0])


@pytest.fixture(scope="module")
def stage(lateral):
    return Stage.of(GEOMETRY, region(lateral), width=WIDTH)


def test_a_small_region_is_shown_close_up_from_where_it_faces(stage):
    assert [scene.name for scene in stage.scenes] == ["left, lateral"]
    assert stage.scenes[0].overview is not None
    assert stage.scenes[0].canvas.view.shape[1] == 2 * WIDTH
    medial = Stage.of(GEOMETRY, region(cap([1, 0, 0])), width=WIDTH)
    assert [scene.name for scene in medial.scenes] == ["left, medial"]


def test_regions_of_both_hemispheres_have_a_view_each():
    both = region(cap([-1, 0, 0]), cap([1, 0, 0], 0.9))
    views = Stage.of(GEOMETRY, both, width=WIDTH).scenes
    assert [scene.name for scene in views] == ["left, lateral", "right, lateral"]
    assert [len(scene.canvas.numbers) for scene in views] == [len(cap([-1, 0, 0])), len(cap([1, 0, 0], 0.9))]


def test_a_whole_cortex_is_shown_from_both_sides():
    stage = Stage.of(GEOMETRY, region(range(642), range(642)), width=WIDTH)
    names = [scene.name for scene in stage.scenes]
    assert names == ["left, lateral", "left, medial", "right, lateral", "right, medial"]
    assert all(scene.overview is None for scene in stage.scenes)
    probability = np.full((1284, 7), 1 / 7)
    assert pixels(render_labels(stage, probability, named_networks(7), "whole")).shape[1] > 800


def test_close_ups_leave_the_overview_out(stage):
    png = render_scalar(stage, np.zeros(len(stage.hemisphere)), "x", (0, 1))
    small = render_scalar(stage.close_ups(), np.zeros(len(stage.hemisphere)), "x", (0, 1))
    assert pixels(small).shape[1] < 0.7 * pixels(png).shape[1]


def test_a_certain_map_has_the_networks_colours_where_they_are(stage, lateral):
    keys = np.where(COORDINATES[lateral, 1] > 0, 1, 2)
    picture = pixels(thumbnail(stage, one_hot(keys, 2), NETWORKS))
    half = picture.shape[1] // 2
    for colour, here, there in zip(NETWORKS.colours, (slice(0, half), slice(half, None)), (1, 0), strict=True):
        sides = [near(picture[:, here], colour), near(picture, colour)]
        # The border runs between vertices, at most one spacing from the middle.
        assert sides[0] > 0.9 * sides[1] > 1000, there


def test_chance_is_grey_and_half_way_is_half_as_colourful(stage, lateral):
    def saturation(probability):
        shown = np.tile([probability, 1 - probability], (len(lateral), 1))
        centre = pixels(thumbnail(stage, shown, NETWORKS))[50:60, 50:60].reshape(-1, 3)
        return np.ptp(centre, axis=1).mean()

    assert saturation(0.5) == 0
    assert saturation(0.75) == pytest.approx(saturation(1.0) / 2, rel=0.05)


def test_vertices_without_data_are_hatched(stage, lateral):
    certain = one_hot(np.ones(len(lateral)), 2)
    plain = pixels(thumbnail(stage, certain, NETWORKS))
    none = np.zeros(len(lateral), bool)
    np.testing.assert_array_equal(pixels(thumbnail(stage, certain, NETWORKS, none)), plain)
    hatched = pixels(thumbnail(stage, certain, NETWORKS, ~none))
    share = near(hatched, NETWORKS.colours[0]) / near(plain, NETWORKS.colours[0])
    assert 0.2 < share < 0.8


def test_the_legend_has_every_network(stage, lateral):
    networks = named_networks(5)
    png = render_labels(stage, one_hot(np.ones(len(lateral)), 5), networks, "title")
    foot = pixels(png)[-220:]
    for colour in networks.colours:
        assert near(foot, colour, within=12) > 20
    assert png == render_labels(stage, one_hot(np.ones(len(lateral)), 5), networks, "title")


def test_more_networks_than_a_legend_holds_make_no_taller_picture(stage, lateral):
    png = render_labels(stage, one_hot(np.ones(len(lateral)), 300), named_networks(300))
    assert pixels(png).shape[0] < 700


def test_scalars_beyond_the_limits_have_the_colours_of_the_limits(stage, lateral):
    low, high, beyond = (
        render_scalar(stage, np.full(len(lateral), value), "bits", (0.0, 1.0)) for value in (0.0, 1.0, 7.0)
    )
    assert beyond == high
    yellow = [near(pixels(png), (253, 231, 37), within=60) for png in (low, high)]
    assert yellow[1] > 5 * yellow[0]


def test_targets_have_the_colours_of_their_signs():
    targets = region(range(0, 642, 4), range(0, 642, 4))
    values = np.where(targets.hemisphere == 0, 1.0, -1.0)
    picture = pixels(
        render_targets(Stage.cortex(GEOMETRY, width=WIDTH), targets, values, "contrast", ((213, 94, 0), (0, 114, 178)))
    )
    half = picture.shape[1] // 2
    brain = picture[: -int(0.7 * 160)]
    assert near(brain[:, :half], (0, 114, 178)) > 500 > near(brain[:, :half], (213, 94, 0))
    assert near(brain[:, half:], (213, 94, 0)) > 500 > near(brain[:, half:], (0, 114, 178))


def test_targets_need_only_the_hemispheres_that_are_known():
    png = render_targets(
        Stage.cortex((GEOMETRY[0], None), width=WIDTH), region(range(10)), np.zeros(10), "x", ((0, 0, 0), (9, 9, 9))
    )
    assert pixels(png).shape[1] < 1000


def test_a_strip_shows_the_vertices_in_order():
    probability = one_hot(np.repeat([1, 2], 50), 2)
    strip = pixels(strip_thumbnail(probability, NETWORKS))
    assert strip.shape[1] == 200
    assert (strip[:, :100] == NETWORKS.colours[0]).all()
    assert (strip[:, 100:] == NETWORKS.colours[1]).all()
    assert near(pixels(render_strip(probability, NETWORKS)), NETWORKS.colours[0], within=3) > 2000


def test_keys_as_certain_probabilities():
    assert one_hot(np.array([2, 1, 0]), 2).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_names_with_dollars_are_text(stage, lateral):
    """They would be formulas, and mostly wrong ones."""
    names = ("$\\frac{a$", "cost $5 to $10")
    networks = named_networks(2, names)
    assert render_labels(stage, one_hot(np.ones(len(lateral)), 2), networks, names[0])
    assert render_scalar(stage, np.ones(len(lateral)), names[0], (0, 1), title=names[1])
    assert strips({name: np.arange(3.0) for name in names}, names[1])
