"""The label table: unique names that every file gives back, and one colour a network."""

import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.label_table import Networks, named_networks


@pytest.mark.parametrize("names", [("a", "a"), ("a", ""), ("a", "???"), ("a", "b\tc"), ("a", " b"), ("a", "é")])
def test_names_that_a_file_would_not_give_back_are_refused(names):
    with pytest.raises(BadData, match="unique printable names"):
        named_networks(2, names)


def test_the_label_table_is_complete():
    table = Networks(("a", "b"), np.array([[255, 0, 0], [0, 255, 51]])).table()
    assert table == {0: ("???", (0, 0, 0, 0)), 1: ("a", (1, 0, 0, 1)), 2: ("b", (0, 1, 0.2, 1))}
