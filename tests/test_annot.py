"""Files of FreeSurfer's annotations in both forms, whatever keys they have, and damaged ones."""

import struct

import nibabel as nib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcellation.annot import ABSENT, read_annot
from parcellation.errors import BadData
from tests.shared_data import CASES, needs_cases


def colour(key):
    return key % 250 + 1, key // 250 + 1, 7


def code(key):
    red, green, blue = colour(key)
    return red + (green << 8) + (blue << 16)


def text(name):
    raw = name.encode() + b"\0"
    return struct.pack(">i", len(raw)) + raw


def written(path, keys, names, form=2, order=None):
    """Write keys of vertices (None for no colour) and names of keys; form 1 has no keys but places."""
    order = range(len(keys)) if order is None else order
    pairs = [number for vertex in order for number in (vertex, 0 if keys[vertex] is None else code(keys[vertex]))]
    table = text("somewhere.ctab")
    if form == 2:
        table = struct.pack(">2i", -2, max(names, default=0) + 1) + table + struct.pack(">i", len(names))
    else:
        table = struct.pack(">i", len(names)) + table
    for key, name in names.items():
        table += (struct.pack(">i", key) if form == 2 else b"") + text(name) + struct.pack(">4i", *colour(key), 0)
    path.write_bytes(struct.pack(f">i{len(pairs)}i", len(keys), *pairs) + struct.pack(">i", 1) + table)
    return path


@pytest.mark.parametrize("form", [1, 2])
def test_both_forms_and_any_order_of_vertices(form, tmp_path):
    names = {0: "unknown", 1: "Pars Opercularis", 2: ""}
    path = written(tmp_path / "lh.a.annot", [1, 1, None, 2, 0], names, form, order=[4, 2, 0, 1, 3])
    keys, found = read_annot(path)
    assert keys.tolist() == [1, 1, ABSENT, 2, 0]
    assert found == names


def test_keys_with_gaps_have_their_own_names(tmp_path):
    """ThomasYeoLab/CBIG#10: where labels were numbered by their place, names moved to other parcels."""
    path = written(tmp_path / "lh.a.annot", [35, 3, 1000], {3: "three", 35: "thirty-five", 1000: "thousand"})
    keys, names = read_annot(path)
    assert [names[key] for key in keys] == ["thirty-five", "three", "thousand"]


def test_a_colour_that_is_not_in_the_table_is_no_label(tmp_path):
    path = written(tmp_path / "lh.a.annot", [1, 5, 2], {1: "one", 2: "two"})
    assert read_annot(path)[0].tolist() == [1, ABSENT, 2]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.dictionaries(st.integers(0, 40000), st.text("aé ._-7", max_size=9), min_size=1, max_size=8),
    chosen=st.lists(st.integers(0, 99), min_size=1, max_size=30),
)
def test_any_table_comes_back(names, chosen, tmp_path):
    keys = [sorted(names)[place % len(names)] if place < 90 else None for place in chosen]
    found, table = read_annot(written(tmp_path / "lh.a.annot", keys, names))
    assert table == names
    assert found.tolist() == [ABSENT if key is None else key for key in keys]


def test_what_is_damaged_is_refused(tmp_path):
    path = written(tmp_path / "lh.a.annot", [0, 1, 1], {0: "a", 1: "b"})
    raw = path.read_bytes()
    for end in range(len(raw)):
        path.write_bytes(raw[:end])
        with pytest.raises(BadData, match=r"lh\.a\.annot"):
            read_annot(path)
    for place, value, words in [
        (0, 2**31 - 1, "ends, or is damaged"),
        (0, -1, "ends, or is damaged"),
        (4, 1, "colour of every vertex once"),
        (28, 0, "no table"),
        (32, -3, "of form 1 or 2"),
    ]:
        path.write_bytes(raw[:place] + struct.pack(">i", value) + raw[place + 4 :])
        with pytest.raises(BadData, match=words):
            read_annot(path)


@needs_cases
def test_a_real_file_is_what_nibabel_reads():
    path = CASES / "freesurfer/lh.aparc_fsaverage5_nilearntest.annot"
    keys, _, names = nib.freesurfer.read_annot(path)
    found, table = read_annot(path)
    np.testing.assert_array_equal(found, keys)
    assert list(table.values()) == [name.decode() for name in names]
