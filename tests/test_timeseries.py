"""Real files of other programs, opened."""

import nibabel as nib
import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.timeseries import open_bold
from tests.run_files import everything, refusal
from tests.shared_data import BRAINSPACE, CASES, LEMON, needs_brainspace, needs_cases, needs_lemon


@needs_cases
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cifti/MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii", "cifti-version-convert"),
        ("cifti/Conte69.parcellations_VGD11b.32k_fs_LR.dlabel.nii", "dlabel"),
        ("cifti/ciftiTools_Conte69.MyelinAndCorrThickness.6k_fs_LR.dscalar.nii", "dscalar"),
        ("cifti/truncated_4S156_den-91k.dlabel.nii", "dlabel"),
        ("freesurfer/test.mgz", "one hemisphere"),
        ("gifti/task.func.gii", "one hemisphere"),
    ],
)
def test_real_files_of_other_kinds(name, word):
    refusal((CASES / name,), word)


@needs_cases
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("freesurfer/test.mgz", "volume of 3 x 4 x 5"),
        ("gifti/ColumnMajorOrder.gii", "pointset"),
        ("gifti/Lobules.label.gii", "label"),
        ("gifti/external.gii", "pointset"),
        ("gifti/lh.Yeo2011.gii", "label"),
        ("freesurfer/lh.aparc_fsaverage5_nilearntest.annot", "not a file of one hemisphere"),
    ],
)
def test_real_hemispheres_of_other_kinds(name, word):
    with pytest.raises(BadData, match=word):
        open_bold((CASES / name, None))


@needs_cases
@pytest.mark.parametrize("name", ["wb_float64_single_timepoint_5k", "wb_int16scaled_10tp_5k"])
def test_other_encodings_by_workbench(name):
    path = CASES / "cifti" / f"{name}.dtseries.nii"
    bold = open_bold((path,))
    assert bold.repetition_time == 1.4
    np.testing.assert_allclose(everything(bold, 1000), nib.load(path).get_fdata().T, rtol=1e-6, atol=1e-7)


@needs_cases
@needs_lemon
def test_old_medial_wall_and_real_windows():
    bold = open_bold((CASES / "cifti/Conte69.MyelinAndCorrThickness.32k_fs_LR.dtseries.nii",))
    assert (bold.frames, len(bold.vertices)) == (2, 60951)
    assert np.sum(bold.vertices.hemisphere == 0) == 30424
    path, *_ = sorted(LEMON.glob("*pseudo1*.dtseries.nii"))
    bold = open_bold((path,))
    assert (bold.frames, bold.repetition_time, len(bold.vertices)) == (163, 1.4, 8856)
    np.testing.assert_array_equal(everything(bold), nib.load(path).get_fdata(dtype=np.float32).T)


@needs_cases
def test_ascii_and_compressed_gifti_agree():
    folder = CASES / "gifti"
    texts, packed = (
        everything(open_bold((folder / f"wb_{name}.L.5k.func.gii", None))) for name in ("ASCII", "GZIP_BASE64_BINARY")
    )
    assert texts.shape == (4842, 5)
    np.testing.assert_allclose(texts, packed, rtol=1e-5, atol=1e-6)


@needs_brainspace
def test_real_mgz_pair():
    paths = tuple(sorted(BRAINSPACE.glob("*.mgz")))
    bold = open_bold(paths, "fsaverage")
    assert (bold.frames, bold.repetition_time, len(bold.vertices)) == (652, 1.0, 20484)
    values = everything(bold)
    constant = np.ptp(values, axis=1) == 0
    assert (constant[:10242].sum(), constant[10242:].sum()) == (888, 881)
    right = np.asarray(nib.load(paths[1]).dataobj, np.float32).reshape(10242, 652)
    np.testing.assert_array_equal(values[10242:], right)
