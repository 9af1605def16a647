"""Vertices and targets as JSON: the same again, and whatever else the JSON says is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parcellation.identity import targets_from_json, targets_json, vertices_from_json, vertices_json
from parcellation.meshes import Mesh
from parcellation.surfaces import Targets, Vertices

MESH = Mesh("fsaverage", (12, 10))
places = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=8)


def vertices_at(rows: list[tuple[int, int]]) -> Vertices:
    both = np.array(rows, int).reshape(-1, 2)
    return Vertices(MESH, both[:, 0].astype(np.uint8), both[:, 1].astype(np.int32))


@settings(max_examples=40, deadline=None)
@given(rows=places, names=st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True), data=st.data())
def test_vertices_and_targets_come_back(rows, names, data):
    vertices = vertices_at(rows)
    again = vertices_from_json(json.loads(json.dumps(vertices_json(vertices))))
    assert again.digest() == vertices.digest()
    assert (again.number.dtype, again.hemisphere.dtype) == (np.int32, np.uint8)
    target = np.array(data.draw(st.lists(st.integers(0, len(names) - 1), min_size=len(rows), max_size=len(rows))), int)
    targets = targets_from_json(json.loads(json.dumps(targets_json(Targets(tuple(names), vertices, target)))))
    assert targets.names == tuple(names)
    np.testing.assert_array_equal(targets.target, target)


GOOD = {"space": "fsaverage", "counts": [12, 10], "hemisphere": [0, 0, 1], "number": [1, 11, 9]}


@pytest.mark.parametrize(
    "change",
    [
        {"space": "../elsewhere"},
        {"space": ["fsLR"]},
        {"counts": [12]},
        {"counts": [10**12, 10**12]},
        {"counts": [-1, 10]},
        {"counts": ["12", "10"]},
        {"counts": 3},
        {"hemisphere": [0, 0]},
        {"hemisphere": [0, 0, 2]},
        {"hemisphere": [[0], [0], [1]]},
        {"hemisphere": ["0", "0", "1"]},
        {"hemisphere": "001"},
        {"number": [1, 12, 9]},
        {"number": [1, -1, 9]},
        {"number": [1, 10**30, 9]},
        {"number": [1, 2.5, 9]},
        {"number": ["1", "2", "3"]},
        {"number": [[1], [2, 3], []]},
        {"number": None},
    ],
    ids=str,
)
def test_what_is_no_list_of_vertices_is_refused(change):
    with pytest.raises((ValueError, TypeError)):
        vertices_from_json(GOOD | change)


@pytest.mark.parametrize("target", [[0, 1], [0, 1, 2], [0, 1, -1], [[0], [1], [0]], "abc", None], ids=str)
def test_what_is_no_list_of_targets_is_refused(target):
    with pytest.raises((ValueError, TypeError)):
        targets_from_json({"names": ["a", "b"], "members": GOOD, "target": target})
