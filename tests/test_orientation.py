"""Which network is in front: decided for halves of a strip, undecided where the map does not say."""

import numpy as np
import pytest

from parcellation.orientation import orientation

X, Y, Z = np.meshgrid([0.0], np.arange(30.0), np.arange(10.0), indexing="ij")
STRIP = np.stack([X, Y, Z], -1).reshape(-1, 3)  # 30 mm from back to front, 10 mm high
AREAS = np.ones(len(STRIP))


def maps(first, draws=40):
    """Maps in which these vertices are network 0's with probability .9."""
    share = np.where(first, 0.9, 0.1)
    return np.repeat(np.stack([share, 1 - share], -1)[None], draws, 0)


@pytest.mark.parametrize(("first", "front"), [(STRIP[:, 1] > 14, 0), (STRIP[:, 1] < 15, 1), (STRIP[:, 1] > 24, 0)])
def test_a_strip_cut_across_has_a_front(first, front):
    found = orientation(maps(first), STRIP, AREAS)
    assert found.anterior == front
    assert found.share == 1
    assert found.separation == pytest.approx(15)
    ends = ("Broca-anterior", "Broca-posterior")
    assert found.names("broca") == (ends if front == 0 else ends[::-1])


@pytest.mark.parametrize(
    "first",
    [
        STRIP[:, 2] > 4,  # above the other
        STRIP[:, 1] % 2 == 0,  # between the other's stripes
        np.abs(STRIP[:, 1] - 14.5) > 7,  # on both sides of it
        np.zeros(len(STRIP), bool),  # nowhere
    ],
    ids=["dorsal", "stripes", "around", "empty"],
)
def test_other_arrangements_are_undecided(first):
    found = orientation(maps(first), STRIP, AREAS)
    assert found.anterior is None
    assert found.names("broca") is None


def test_draws_that_disagree_decide_nothing():
    front = STRIP[:, 1] > 14
    most = np.concatenate([maps(front, 37), maps(~front, 3)])
    assert orientation(most, STRIP, AREAS).share == pytest.approx(37 / 40)
    assert orientation(most, STRIP, AREAS).anterior is None
    assert orientation(np.concatenate([maps(front, 38), maps(~front, 2)]), STRIP, AREAS).anterior == 0


def test_the_order_of_the_networks_only_changes_their_places():
    some = np.random.default_rng(1).dirichlet([9, 9], (20, len(STRIP)))
    some[..., 0] += STRIP[:, 1] / 15
    one, other = orientation(some, STRIP, AREAS), orientation(some[..., ::-1], STRIP, AREAS)
    assert one.anterior == 1 - other.anterior
    assert one.separation == pytest.approx(other.separation)


def test_areas_count_not_vertices():
    """A sheet with ten times as many vertices in front has its centres where the area is."""
    dense = np.concatenate([STRIP, *[STRIP[STRIP[:, 1] > 20]] * 9])
    areas = np.where(dense[:, 1] > 20, 0.1, 1.0)
    found = orientation(maps(dense[:, 1] > 14), dense, areas)
    assert found.separation == pytest.approx(15)


def test_three_networks_have_no_front():
    with pytest.raises(ValueError, match="two networks"):
        orientation(np.ones((2, len(STRIP), 3)), STRIP, AREAS)
