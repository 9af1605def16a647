"""Connectome Workbench, where it is installed, gives back what was written."""

import nibabel as nib
import numpy as np

from tests.workbench import needs_workbench, workbench

pytestmark = needs_workbench


def test_information_on_every_map(finished):
    folders = finished.results.glob("tpl-*"), finished.results.glob("sub-sim01/anat")
    paths = [path for folder in folders for one in folder for path in one.iterdir() if path.suffix in (".nii", ".gii")]
    assert len(paths) == (9 + 9 + 4) + (3 + 3)
    for path in paths:
        said = workbench("-file-information", path)
        assert path.name in said
        assert "Structure:" in said or "CortexLeft" in said


def test_labels_come_back_as_the_same_integers_and_names(finished, tmp_path):
    (path,) = finished.results.glob("sub-sim01/anat/*_dseg.dlabel.nii")
    image = nib.load(path)
    workbench("-cifti-separate", path, "COLUMN", "-label", "CORTEX_LEFT", tmp_path / "left.label.gii")
    back = nib.load(tmp_path / "left.label.gii")
    models = image.header.get_axis(1)
    left = models.name == "CIFTI_STRUCTURE_CORTEX_LEFT"
    expected = np.zeros(10242, np.int32)
    expected[models.vertex[left]] = np.asarray(image.dataobj)[0, left]
    np.testing.assert_array_equal(back.darrays[0].data, expected)
    table = image.header.get_axis(0).label[0]
    assert back.labeltable.get_labels_as_dict() == {key: name for key, (name, _) in table.items()}


def test_probabilities_come_back_bit_for_bit(finished, tmp_path):
    (path,) = finished.results.glob("sub-sim01/anat/*_probseg.dscalar.nii")
    image = nib.load(path)
    workbench("-cifti-separate", path, "COLUMN", "-metric", "CORTEX_LEFT", tmp_path / "left.func.gii")
    back = np.stack([array.data for array in nib.load(tmp_path / "left.func.gii").darrays])
    models = image.header.get_axis(1)
    left = models.name == "CIFTI_STRUCTURE_CORTEX_LEFT"
    np.testing.assert_array_equal(back[:, models.vertex[left]], np.asarray(image.dataobj)[:, left])
    said = workbench("-file-information", path, "-only-map-names")
    assert tuple(said.split()) == tuple(name for name, _ in list(table_of(finished).values())[1:])


def table_of(finished):
    (path,) = finished.results.glob("sub-sim01/anat/*_dseg.dlabel.nii")
    return nib.load(path).header.get_axis(0).label[0]
