"""An answer comes back from its file as it was, with its key, and not at all from a damaged one."""

from dataclasses import fields

import numpy as np
import pytest

from parcellation.posterior import SubjectPosterior
from parcellation.posterior_file import ARRAYS, read_posterior, write_posterior


@pytest.fixture
def answer() -> SubjectPosterior:
    generator, (vertices, networks, targets, contrasts, draws) = np.random.default_rng(0), (5, 3, 4, 3, 6)
    shapes = {"probability": (vertices, networks), "entropy": (vertices,), "mutual_information": (vertices,)}
    shapes |= {name: (networks, targets) for name in ARRAYS if name.startswith("profile")}
    shapes |= {name: (contrasts, targets) for name in ARRAYS if name.startswith("contrast")}
    arrays = {name: generator.random(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {"mask": np.arange(vertices) > 0, "label_draws": generator.integers(networks, size=(draws, vertices))}
    return SubjectPosterior("01", ("1", "2"), (1200.0, 1100.0), **arrays)


def test_an_answer_comes_back_with_its_key(answer, tmp_path):
    write_posterior(tmp_path / "one", answer, "key")
    again, key = read_posterior(tmp_path / "one")
    assert key == "key"
    for one in fields(SubjectPosterior):
        assert np.array_equal(getattr(again, one.name), getattr(answer, one.name)), one.name


def test_equal_answers_are_equal_files(answer, tmp_path):
    for name in ("one", "two"):
        write_posterior(tmp_path / name, answer, "key")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("cut", [0, 20, -1])
def test_a_damaged_file_or_none_is_no_answer(answer, tmp_path, cut):
    write_posterior(tmp_path / "one", answer, "key")
    whole = (tmp_path / "one").read_bytes()
    (tmp_path / "one").write_bytes(whole[:cut])
    assert read_posterior(tmp_path / "one") is None
    assert read_posterior(tmp_path / "two") is None
