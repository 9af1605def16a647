import math

import nibabel as nib
import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.timeseries import open_bold
from tests.run_files import RNG, everything, refusal, write_gifti, write_mgh


@pytest.mark.parametrize(("write", "suffix"), [(write_mgh, ".mgh"), (write_mgh, ".mgz"), (write_gifti, ".func.gii")])
@pytest.mark.parametrize("block", [1, 100, 10_000])
def test_pairs_are_left_then_right(tmp_path, write, suffix, block):
    left, right = RNG.normal(size=(2, 642, 6)).astype(np.float32)
    paths = write(tmp_path / f"lh{suffix}", left), write(tmp_path / f"rh{suffix}", right)
    bold = open_bold(paths, "fsaverage")
    np.testing.assert_equal(bold.repetition_time, math.nan if suffix == ".func.gii" else 1.4)
    np.testing.assert_array_equal(bold.vertices.number, [*range(642)] * 2)
    index = np.array([0, 5, 641, 642, 700, 1283])
    np.testing.assert_array_equal(everything(bold, block, index), np.vstack([left, right])[index])
    only = open_bold((None, paths[1]), "fsaverage")
    assert set(only.vertices.hemisphere) == {1}
    np.testing.assert_array_equal(everything(only, block), right)


def test_gifti_with_one_array_of_all_frames(tmp_path):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    image = nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(values, intent="NIFTI_INTENT_NONE", datatype="float32")])
    image.to_filename(tmp_path / "a.func.gii")
    bold = open_bold((tmp_path / "a.func.gii", None), "fsaverage")
    assert bold.frames == 6
    np.testing.assert_array_equal(everything(bold), values)


def test_pairs_that_do_not_belong_together(tmp_path):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    left = write_mgh(tmp_path / "lh.mgz", values)
    refusal((left, write_mgh(tmp_path / "a.mgz", values[:, :5])), "6 and 5 frames")
    refusal((left, write_mgh(tmp_path / "b.mgz", values, 720.0)), "different repetition times")
    refusal((left,), "one hemisphere")
    right = write_gifti(tmp_path / "a.func.gii", values, "CortexLeft")
    refusal((None, right), "expected the right hemisphere, got cortexleft")


def test_pairs_of_other_kinds(tmp_path):
    path = tmp_path / "a.func.gii"
    write_gifti(path, np.zeros((642, 1), np.int32), intent="NIFTI_INTENT_LABEL")
    refusal((None, path), "GIFTI with label data")
    write_gifti(path, np.zeros((642, 1), np.float32))
    path.write_bytes(path.read_bytes()[:-30])
    refusal((None, path), "cannot be read")
    path = tmp_path / "a.mgh"
    nib.MGHImage(np.zeros((4, 5, 6, 7), np.float32), np.eye(4)).to_filename(path)
    refusal((None, path), "volume of 4 x 5 x 6")


@pytest.mark.parametrize("suffix", [".mgh", ".mgz"])
def test_truncated_mgh(tmp_path, suffix):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    path = write_mgh(tmp_path / f"lh{suffix}", values)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    refusal((None, path))
    path.write_bytes(raw)
    bold = open_bold((None, path))
    path.write_bytes(raw[: len(raw) // 2])
    words = rf"lh\{suffix}: ends before its 6 frames; truncated, copy it again"
    with pytest.raises(BadData, match=words):
        everything(bold)
