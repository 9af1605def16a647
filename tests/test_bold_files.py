import nibabel as nib
import numpy as np
import pytest

from parcellation.bold_files import write_cifti, write_pair
from parcellation.surfaces import Mesh, Vertices

SERIES = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
MESH = Mesh("fsaverage", (642, 642))
VERTICES = Vertices(MESH, np.array([0, 0, 0, 1, 1], np.uint8), np.array([3, 9, 600, 0, 641], np.int32))


def test_cifti_carries_vertices_times_and_values(tmp_path):
    path = tmp_path / "a" / "run.dtseries.nii"
    write_cifti(path, SERIES, VERTICES, 0.72)
    image = nib.load(path)
    np.testing.assert_array_equal(np.asarray(image.dataobj), SERIES)
    assert image.get_data_dtype() == np.float32
    assert image.nifti_header.get_intent()[0] == "ConnDenseSeries"
    time, models = (image.header.get_axis(one) for one in (0, 1))
    assert (time.start, time.step, time.unit) == (0, 0.72, "SECOND")
    np.testing.assert_array_equal(models.vertex, VERTICES.number)
    assert [name for name, _, _ in models.iter_structures()] == [
        "CIFTI_STRUCTURE_CORTEX_LEFT",
        "CIFTI_STRUCTURE_CORTEX_RIGHT",
    ]
    assert set(models.nvertices.values()) == {642}
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_cifti_of_one_hemisphere(tmp_path):
    path = tmp_path / "run.dtseries.nii"
    right = Vertices(MESH, VERTICES.hemisphere[3:], VERTICES.number[3:])
    write_cifti(path, SERIES[:, 3:], right, 1.0)
    assert nib.load(path).header.get_axis(1).name[0] == "CIFTI_STRUCTURE_CORTEX_RIGHT"


@pytest.mark.parametrize("suffix", ["mgh", "mgz", "func.gii"])
def test_pairs_hold_the_whole_mesh(tmp_path, suffix):
    paths = tuple(tmp_path / f"run_hemi-{side}_bold.{suffix}" for side in "LR")
    write_pair(paths, SERIES, VERTICES, 1.4)
    for side, path in enumerate(paths):
        # nibabel leaves a loaded .mgh open, which only bytes avoid.
        image = nib.MGHImage.from_bytes(path.read_bytes()) if suffix == "mgh" else nib.load(path)
        if suffix == "func.gii":
            found = np.stack([one.data for one in image.darrays], 1)
            assert image.meta["AnatomicalStructurePrimary"] == ("CortexLeft", "CortexRight")[side]
        else:
            found = np.asarray(image.dataobj).reshape(642, 7)
            assert image.header.get_zooms()[3] == pytest.approx(1400)
        here = VERTICES.hemisphere == side
        np.testing.assert_array_equal(found[VERTICES.number[here]], SERIES[:, here].T)
        assert np.abs(np.delete(found, VERTICES.number[here], axis=0)).max() == 0
