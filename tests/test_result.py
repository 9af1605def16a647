"""A result that was written comes back as it was, under its vertices and names."""

import shutil
import subprocess
import sys

import numpy as np
import pandas
import pytest

import parcellation
from parcellation.errors import BadData, InputMissing, NotADataset, NothingSelected
from parcellation.map_files import Cifti, Gifti
from tests.made import CAP, POINTS, REGION, SURFACES, TARGETS, frontal, make_result
from tests.readme import ROOT, blocks

NAMES = ("Broca-anterior", "None")  # pandas would read the second as missing


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_result(tmp_path_factory.mktemp("made"), names=NAMES, styles=(Cifti, Gifti))


@pytest.fixture(scope="module")
def result(made):
    return parcellation.load_result(made.path)


def test_subjects_and_networks(result):
    assert result.subjects == ["sub-01", "sub-02", "sub-s03"]
    assert result.participants.loc["sub-01", "source_subject"] == "01"
    assert result.participants["flags"].isna().all()
    assert result.networks.names == NAMES
    assert result.networks.colours[0].tolist() == [0, 114, 178]
    assert (result.space, result.seg) == ("fsaverage", "broca2")


def test_the_region_is_the_one_that_was_written(result):
    np.testing.assert_array_equal(result.region.number, REGION.number)
    assert result.region.mesh == REGION.mesh
    assert set(result.index.get_level_values("hemisphere")) == {"L"}
    assert len(result.brain) == 1284


@pytest.mark.parametrize("name", ["01", "sub-02", "population"])
def test_maps_come_back(result, made, name):
    written = made.answers[name.removeprefix("sub-")]
    maps = result.population if name == "population" else result.subject(name)
    np.testing.assert_array_equal(maps.probability, written.probability)
    assert list(maps.probability) == list(NAMES)
    expected = np.array(NAMES)[written.probability.argmax(1)]
    assert maps.labels.tolist() == expected.tolist()
    assert maps.labels.index.equals(maps.probability.index)
    assert maps.keys.dtype == np.int32
    np.testing.assert_array_equal(maps.uncertainty["entropy"], written.entropy.astype(np.float32))
    assert maps.probability.loc[("L", CAP[7]), NAMES[0]] == written.probability[7, 0]
    profile = maps.profile.loc[NAMES[1]]
    assert profile.index.tolist() == list(TARGETS)
    np.testing.assert_allclose(profile["mean"], written.profile_mean[1], rtol=1e-5)
    np.testing.assert_allclose(maps.contrast["high"], written.contrast_high[0], rtol=1e-5)


def test_what_only_the_population_has(result, made):
    population = made.answers["population"]
    np.testing.assert_array_equal(result.population.uncertainty["consensus"], population.consensus.astype(np.float32))
    np.testing.assert_array_equal(result.population.betweensd, population.betweensd.astype(np.float32))
    split = np.stack([population.between, population.within], 1).astype(np.float32)
    np.testing.assert_array_equal(result.population.variability, split)
    assert "mutual information" in result.subject("01").uncertainty


def test_sizes(result):
    table = result.sizes
    assert table.loc[("sub-02", "None"), "vertices"] == (result.subject("02").labels == "None").sum()
    assert (table.vertices_low <= table.vertices_mean).all()


@pytest.mark.parametrize("what", ["labels", "entropy", "None"])
def test_a_surface_image_has_the_values_at_their_vertices(result, what):
    maps = result.subject("01")
    image = maps.surface_image(what)
    assert image.shape == (1284,)
    left = image.data.parts["left"]
    np.testing.assert_array_equal(left[CAP], maps.values(what))
    assert np.count_nonzero(left) <= len(CAP)
    assert not image.data.parts["right"].any()
    mesh = image.mesh.parts["left"]
    np.testing.assert_allclose(mesh.coordinates[CAP], POINTS[CAP] + [-60, 0, 0], atol=1e-4)
    np.testing.assert_array_equal(mesh.faces, SURFACES[0].triangles)


def test_wrong_names_are_refused_with_what_there_is(result):
    with pytest.raises(NothingSelected, match="sub-01"):
        result.subject("77")
    with pytest.raises(NothingSelected, match="Broca-anterior"):
        result.subject("01").values("Wernicke")


def test_folders_that_are_no_result(tmp_path, made):
    with pytest.raises(InputMissing, match="nowhere"):
        parcellation.load_result(tmp_path / "nowhere")
    with pytest.raises(NotADataset, match="none"):
        parcellation.load_result(tmp_path)
    folder = shutil.copytree(made.path, tmp_path / "copy")
    make_result(folder, {"01": frontal(3)})
    with pytest.raises(NotADataset, match=r"2: .*broca2.*broca3"):
        parcellation.load_result(folder)


def test_damaged_and_missing_files_are_named(tmp_path, made):
    result = parcellation.load_result(shutil.copytree(made.path, tmp_path / "copy"))
    maps = result.subject("01")
    (path,) = maps.anat.glob("*_probseg.dscalar.nii")
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(BadData, match="probseg"):
        _ = maps.probability
    shutil.rmtree(maps.func)
    with pytest.raises(InputMissing, match="stat-profile"):
        _ = maps.profile


def test_without_surfaces_there_is_no_image(tmp_path):
    make_result(tmp_path, surfaces=None)
    result = parcellation.load_result(tmp_path)
    assert result.surfaces() is None
    assert result.sizes.area.isna().all()
    with pytest.raises(InputMissing, match="inflated"):
        result.subject("01").surface_image()


def test_the_package_itself_stays_light():
    code = "import sys, parcellation; sys.exit(any(m in sys.modules for m in ('numpy', 'pandas', 'nibabel', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_documented_example_runs(made, tmp_path, monkeypatch):
    """docs/results.md, on a result with its names."""
    shutil.copytree(made.path, tmp_path / "results")
    make_result(tmp_path / "results", {"100307": frontal(), "100408": frontal(sharp=3)},
                ("Broca-anterior", "Broca-posterior"))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for text in blocks("python", "docs/results.md"):
        names: dict = {}
        exec(text, names)
        assert isinstance(names["sizes"], pandas.DataFrame)
        assert (tmp_path / "confidence.png").stat().st_size > 10_000
