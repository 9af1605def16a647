"""`show`: one command, one picture, from the files of a result alone."""

import io

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.sparse.csgraph import dijkstra

from parcellation.meshes import path_lengths
from parcellation.result import load_result
from parcellation.verbs.show import nearest_source, picture
from tests.made import SURFACES, make_result
from tests.studies import command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_result(tmp_path_factory.mktemp("made"), names=("Broca-anterior", "Broca-posterior"))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pictures of a third of the width, in a tenth of the time."""
    monkeypatch.setattr("parcellation.verbs.show.WIDTH", 200)


def pixels(path):
    return np.rint(255 * imread(path)[..., :3])


def near(picture, colour):
    return int((np.abs(picture - colour).max(-1) < 60).sum())


def test_the_population_in_one_command(made):
    said = command("show", made.path)
    path = made.path / "figures" / "population_labels.png"
    assert said.strip() == f"written: {path}"
    shown = pixels(path)
    assert near(shown, (0, 114, 178)) > 200
    assert near(shown, (213, 94, 0)) > 200
    before = path.read_bytes()
    command("show", made.path)
    assert path.read_bytes() == before


def test_subjects_and_a_file_of_one_s_own(made, tmp_path):
    said = command("show", made.path, "--participant-label", "01", "sub-s03", "--map", "entropy")
    assert "sub-01_entropy.png" in said
    assert "sub-s03_entropy.png" in said
    one, other = (pixels(made.path / f"figures/sub-{name}_entropy.png") for name in ("01", "s03"))
    assert (one != other).any()
    command("show", made.path, "--participant-label", "01", "--out", tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 2000


@pytest.mark.parametrize("what", ["consensus", "betweensd", "confidence"])
def test_other_maps_of_the_population(made, tmp_path, what):
    command("show", made.path, "--map", what, "--out", tmp_path / "map.png")
    assert pixels(tmp_path / "map.png").std() > 20


def test_what_is_not_there_is_named(made, tmp_path):
    before = sorted(made.path.rglob("*"))
    assert "77" in command("show", made.path, "--participant-label", "77", code=18)
    assert "population" in command("show", made.path, "--participant-label", "01", "--map", "profile", code=18)
    assert "2 subjects" in command(
        "show", made.path, "--participant-label", "01", "02", "--out", tmp_path / "x.png", code=18
    )
    assert "expected a result" in command("show", tmp_path, code=16)
    assert "would show sub-01" in command("show", made.path, "--participant-label", "01", "--dry-run")
    assert sorted(made.path.rglob("*")) == before


def test_without_a_surface_labels_are_a_strip(tmp_path):
    make_result(tmp_path, surfaces=None)
    assert "written" in command("show", tmp_path)
    assert "no surface" in command("show", tmp_path, "--map", "entropy", code=66)


def test_both_contrast_ends_have_the_networks_colours(made):
    result = load_result(made.path)
    shown = pixels(io.BytesIO(picture(result, result.population, "profile")))
    assert near(shown, (0, 114, 178)) > 30
    assert near(shown, (213, 94, 0)) > 30


def test_the_nearest_vertex_along_the_mesh():
    lengths, sources = path_lengths(SURFACES[0]), np.array([600, 3, 77])
    distance = dijkstra(lengths, directed=False, indices=sources)
    np.testing.assert_array_equal(nearest_source(lengths, sources), distance.argmin(0))
