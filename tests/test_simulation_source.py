import nibabel as nib
import numpy as np
import pytest
import yaml

from parcellation.errors import BadData, InputMissing
from parcellation.meshes import Mesh
from parcellation.parcels import parcels_of
from parcellation.simulate import simulate
from parcellation.simulation import SimulationConfig
from parcellation.simulation_source import population_of
from pipelines.fuzz.encodings import parcellated
from tests.studies import command, replace

COUNT, FRAMES = 10242, 40


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on fsaverage5 with signal everywhere but at left vertices 0 to 9."""
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(0)
    drift = np.linspace(-1, 1, FRAMES)
    paths = {}
    for side in ("left", "right"):
        series = generator.normal(size=(COUNT, FRAMES)).astype(np.float32) + 3 * drift.astype(np.float32)
        if side == "left":
            series[:10] = 0
        paths[f"bold_{side}"] = folder / f"{side}.mgz"
        nib.save(nib.MGHImage(series[:, None, None, :], np.eye(4)), paths[f"bold_{side}"])
    (folder / "confounds.tsv").write_text("drift\n" + "\n".join(f"{one:.6f}" for one in drift) + "\n")
    return paths | {"confounds": folder / "confounds.tsv", "space": "fsaverage", "repetition_time": 1.4}


def test_a_real_run_becomes_a_source(run):
    population = population_of(SimulationConfig(source=run | {"frames": [0, 30]}))
    source = population.source
    assert source.series.shape == (30, len(source.vertices))
    assert len(source.region) == 304
    targets = source.vertices_of(source.targets)
    assert targets.number.max() < 642
    assert not ((targets.number < 10) & (targets.hemisphere == 0)).any()  # no signal there
    assert source.repetition_time == 1.4
    assert "left.mgz + right.mgz" in source.origin
    assert population.weights.shape == (2, len(targets))
    # the confound, regressed out over the whole run, was most of the variance
    assert source.series.var() < 1.2
    assert population.neighbours.shape == (304, 304)
    assert 4 < population.neighbours.sum() / 304 < 6.1  # a triangulated patch


def test_the_whole_cortex_can_be_carried(run):
    source = population_of(SimulationConfig(source=run, coverage="cortex")).source
    assert len(source.vertices) == 2 * COUNT - 10
    assert source.vertices_of(source.targets).number.max() < 642


def test_without_a_run_the_source_says_that_it_is_synthetic(tmp_path):
    config = SimulationConfig(subjects=1, sessions=1, frames=50)
    population = population_of(config)
    assert "no real run" in population.source.origin
    # bands from anterior to posterior, over the 304 vertices
    assert np.bincount(population.logits.argmax(1)).tolist() == [152, 152]
    simulate(config, tmp_path)
    assert len(list(tmp_path.glob("sim01/MNINonLinear/Results/*/*.dtseries.nii"))) == 1


def test_given_weights_and_group_map(tmp_path):
    population = population_of(SimulationConfig())
    np.save(tmp_path / "w.npy", population.weights[:, ::-1])
    np.save(tmp_path / "g.npy", np.zeros((304, 2)))
    config = SimulationConfig(weights=tmp_path / "w.npy", labels={"group_map": tmp_path / "g.npy"})
    given = population_of(config)
    np.testing.assert_array_equal(given.weights, population.weights[:, ::-1])
    assert (given.logits == 0).all()
    with pytest.raises(BadData, match="expected 3 networks"):
        population_of(config.model_copy(update={"networks": 3}))
    with pytest.raises(InputMissing, match=r"x\.npy"):
        population_of(config.model_copy(update={"weights": tmp_path / "x.npy"}))
    (tmp_path / "t.npy").write_text("no array")
    with pytest.raises(BadData, match=r"numeric \.npy"):
        population_of(config.model_copy(update={"weights": tmp_path / "t.npy"}))


def test_frames_beyond_the_run_are_refused(run):
    with pytest.raises(BadData, match="at most 40"):
        population_of(SimulationConfig(source=run | {"frames": [0, 99]}))


def test_a_run_must_say_its_repetition_time(run, tmp_path):
    paths = {}
    for side in ("left", "right"):
        frames = [np.zeros(COUNT, np.float32)] * 3
        image = nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(one, datatype="NIFTI_TYPE_FLOAT32") for one in frames])
        paths[f"bold_{side}"] = tmp_path / f"{side}.func.gii"
        nib.save(image, paths[f"bold_{side}"])
    with pytest.raises(BadData, match=r"source\.repetition_time"):
        population_of(SimulationConfig(source=paths | {"space": "fsaverage"}))


def test_series_of_parcels_are_no_source(tmp_path):
    atlas = parcels_of(Mesh("fsLR", (4842, 4842)), ["L_a", "L_b"], [[(0, np.array([1]))], [(0, np.array([2, 3]))]])
    settings = {"bold": str(parcellated(tmp_path / "a.ptseries.nii", np.ones((2, 30), np.float32), atlas))}
    replace(tmp_path / "s.yaml", yaml.safe_dump({"source": settings}).encode())
    said = command("simulate", tmp_path / "s.yaml", tmp_path / "out", code=65)
    assert "source: expected series of vertices, got series of parcels" in said
    assert "a.ptseries.nii; give a dtseries" in said
