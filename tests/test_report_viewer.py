"""The data of the interactive surface are those of the files, and no name in them ends the script that holds them."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parcellation.label_table import named_networks
from parcellation.map_files import Frame
from parcellation.report_parts import viewer as module
from parcellation.report_parts.viewer import FULL, MOST, label_probabilities, safe_json, script, tenth, viewer
from parcellation.surfaces import Vertices
from tests.test_report import COORDINATES, MESH, NUMBERS, TRIANGLES, content_of, posterior_of


def unpack(text, kind):
    return np.frombuffer(base64.b64decode(text), np.dtype(kind).newbyteorder("<"))


def data_of(content):
    return json.loads(viewer(content).data)


def test_the_mesh_comes_back_to_a_thousandth_of_a_millimetre():
    (side,) = data_of(content_of())["hemispheres"]
    middle = (COORDINATES.min(0) + COORDINATES.max(0)) / 2
    points = unpack(side["points"], np.int16).reshape(-1, 3) * side["unit"] + middle
    np.testing.assert_allclose(points, COORDINATES, atol=1e-3)
    np.testing.assert_array_equal(unpack(side["triangles"], np.uint16).reshape(-1, 3), TRIANGLES)
    np.testing.assert_array_equal(unpack(side["vertices"], np.uint32), NUMBERS)
    np.testing.assert_array_equal(unpack(side["rows"], np.uint32), np.arange(len(NUMBERS)))
    assert side["name"] == "left"


def test_maps_of_everybody_come_back():
    content = content_of()
    data = data_of(content)
    assert [one["name"] for one in data["people"]] == ["population", "sub-01", "sub-02", "sub-03"]
    for one, posterior in zip(data["people"], [content.population, *content.subjects], strict=True):
        probability = unpack(one["p"], np.uint16).reshape(-1, 2) / 65535
        np.testing.assert_allclose(probability, posterior.probability, atol=2 / 65535)
        np.testing.assert_allclose(unpack(one["entropy"], np.uint16) / 65535, posterior.entropy, atol=1 / 65535)
    assert data["people"][0]["missing"] is None
    np.testing.assert_array_equal(unpack(data["people"][1]["missing"], np.uint8), ~content.subjects[0].mask)
    maps = {one["key"]: one for one in data["people"][0]["maps"]}
    assert list(maps) == ["consensus", "betweensd", "between", "within"]
    for key, one in maps.items():
        values = getattr(content.population, key).reshape(len(NUMBERS), -1)[:, 0]
        np.testing.assert_allclose(unpack(one["values"], np.uint16) / 65535 * one["high"], values, atol=1e-4)


@given(st.integers(2, 12), st.integers(0, 1000), st.floats(0.05, 5))
@settings(max_examples=40, deadline=None)
def test_the_label_read_from_them_is_that_of_the_files(networks, seed, sharp):
    probability = np.random.default_rng(seed).dirichlet(np.full(networks, sharp), 30).astype(np.float32)
    probability[:10] = np.float32(1 / networks)  # ties go to the first
    probability[10:20, 1] = probability[10:20, 0] = np.minimum(probability[10:20].max(1), 0.5)
    probability[12:20, 1] += np.float32(1e-6)  # less than a step of 16 bits
    quantised, which = label_probabilities(probability)
    label = quantised.argmax(1) if which is None else np.take_along_axis(which, quantised.argmax(1)[:, None], 1)[:, 0]
    np.testing.assert_array_equal(label, probability.argmax(1))
    assert quantised.shape[1] == (networks if networks <= FULL else MOST)
    assert quantised.max() <= 65535


def test_of_many_networks_the_most_probable_are_kept():
    probability = np.random.default_rng(0).dirichlet(np.ones(FULL + 1), 20)
    quantised, which = label_probabilities(probability)
    np.testing.assert_allclose(quantised / 65535, np.take_along_axis(probability, which, 1), atol=2 / 65535)
    assert (np.diff(quantised, axis=1) <= 0).all()
    assert (quantised[:, -1] / 65535 >= np.sort(probability, 1)[:, -MOST - 1] - 2 / 65535).all()


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=30)
def test_json_in_the_page_ends_no_element(name, text):
    content = {name + "</script><!--<script>&": [text, None, 1.5]}
    written = safe_json(content)
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == content


def test_names_that_would_end_the_script_do_not():
    names = ("</script><script>alert(1)</script>", "<!--<script>")
    found = viewer(content_of(networks=named_networks(2, names)))
    assert "<" not in found.data
    assert [one["name"] for one in json.loads(found.data)["networks"]] == list(names)


def test_the_script_itself_ends_no_element():
    assert not re.search("</script|<!--", script())


def test_what_takes_too_much_room_is_left_out(monkeypatch):
    content = content_of()
    each = len(NUMBERS) * 6
    monkeypatch.setattr(module, "PEOPLE_LIMIT", 2 * each)
    assert viewer(content).people == ("population", "sub-01", "sub-02")
    assert viewer(replace(content, gallery_limit=2)).people == ("population",)


def test_of_two_large_hemispheres_the_one_with_more_of_the_region_is_shown(monkeypatch):
    cut = len(NUMBERS) // 3
    region = Vertices.of(MESH, NUMBERS[:cut], NUMBERS[cut:])
    geometry = ((COORDINATES, TRIANGLES), (COORDINATES, TRIANGLES))
    content = content_of(geometry=geometry, frame=Frame(Vertices.of(MESH, range(642), range(642)), region))
    both = data_of(content)["hemispheres"]
    assert viewer(content).sides == ("left", "right")
    np.testing.assert_array_equal(unpack(both[1]["rows"], np.uint32), np.arange(cut, len(NUMBERS)))
    monkeypatch.setattr(module, "MESH_LIMIT", 1)
    assert viewer(content).sides == ("right",)


def test_one_subject_has_no_maps_of_differences():
    content = content_of()
    one = replace(content, subjects=content.subjects[:1], participants=content.participants[:1])
    assert viewer(one).maps == ()
    assert viewer(replace(content, geometry=None)) is None


@pytest.mark.parametrize(("value", "top"), [(0, 0.1), (0.1, 0.1), (0.11, 0.2), (0.3, 0.3), (1, 1)])
def test_colour_bars_end_at_a_tenth(value, top):
    assert tenth(value) == pytest.approx(top)


def test_a_whole_cortex_of_many_networks_fits():
    content = content_of(
        population=posterior_of(networks=12), networks=named_networks(12), subjects=[], participants=[]
    )
    (one,) = data_of(content)["people"]
    assert len(unpack(one["p"], np.uint16)) == len(unpack(one["which"], np.uint16)) == MOST * len(NUMBERS)
