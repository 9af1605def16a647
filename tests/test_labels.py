"""Label files: every format gives the same vertices, names are matched, and what is wrong is said."""

import gzip
import logging

import nibabel as nib
import numpy as np
import pytest

from parcellation import labels as module
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.labels import read_labels
from parcellation.meshes import Mesh

FSLR5K = Mesh("fsLR", (4842, 4842))
FSAVERAGE3 = Mesh("fsaverage", (642, 642))
NAMES = {0: "???", 3: "parsopercularis", 7: "parstriangularis", 9: ""}


def write_dlabel(path, tables, rows, vertices=(range(4842), range(4842)), counts=(4842, 4842)):
    """tables: names per key, one a map; rows: keys, shape (map, row)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    models = [
        nib.cifti2.BrainModelAxis.from_surface(list(own), count, f"CORTEX_{side}")
        for own, count, side in zip(vertices, counts, ("LEFT", "RIGHT"), strict=True)
        if own is not None
    ]
    # nibabel writes no label of empty name.
    tables = [{key: (name, (0, 0, 0, 1)) for key, name in table.items() if name} for table in tables]
    axis = nib.cifti2.LabelAxis([f"map{i}" for i in range(len(tables))], tables)
    image = nib.Cifti2Image(np.asarray(rows, np.float32), (axis, sum(models[1:], models[0])))
    nib.save(image, path)


def write_gifti(path, keys, names, structure=None):
    meta = nib.gifti.GiftiMetaData(**({"AnatomicalStructurePrimary": structure} if structure else {}))
    image = nib.GiftiImage(
        darrays=[nib.gifti.GiftiDataArray(np.asarray(keys, np.int32), "NIFTI_INTENT_LABEL")], meta=meta
    )
    for key, name in names.items():
        label = nib.gifti.GiftiLabel(key, 0, 0, 0, 1)
        label.label = name
        image.labeltable.labels.append(label)
    nib.save(image, path)


def write_annot(path, keys, names):
    colours = np.zeros((len(names), 5), np.int64)
    colours[:, 0] = np.arange(len(names)) + 1
    nib.freesurfer.write_annot(path, np.asarray(keys), colours, names, fill_ctab=True)


def keys_of(n, **where):
    keys = np.zeros(n, int)
    for key, numbers in where.items():
        keys[numbers] = int(key[1:])
    return keys


class TestFormats:
    def test_dlabel_by_vertex_lists(self, tmp_path):
        left = np.arange(100, 4842)  # a medial wall is left out: rows are no vertex numbers
        rows = np.r_[keys_of(4742, k3=[0, 5], k7=[9]), keys_of(4842, k3=[1])]
        write_dlabel(tmp_path / "a.dlabel.nii", [NAMES], [rows], (left, range(4842)))
        got = read_labels(tmp_path / "a.dlabel.nii", FSLR5K, (0, 1))
        assert got.vertices("parsopercularis", 0).tolist() == [100, 105]
        assert got.vertices("parstriangularis", 0).tolist() == [109]
        assert got.vertices("parsopercularis", 1).tolist() == [1]
        assert (got.keys[0][:100] == module.ABSENT).all()

    def test_dlabel_of_several_maps_says_which(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        rows = np.stack([keys_of(9684, k3=[4]), keys_of(9684, k3=[5])])
        write_dlabel(tmp_path / "a.dlabel.nii", [NAMES, NAMES], rows)
        assert read_labels(tmp_path / "a.dlabel.nii", FSLR5K).vertices("parsopercularis", 0).tolist() == [4]
        assert "the first of its 2 maps is used, 'map0'" in caplog.text

    def test_gifti_pair_with_gaps_in_keys(self, tmp_path):
        write_gifti(tmp_path / "a.L.label.gii", keys_of(4842, k7=[2, 1]), NAMES)
        write_gifti(tmp_path / "a.R.label.gii", keys_of(4842, k7=[3]), NAMES, "CortexRight")
        for given in ("a.L.label.gii", "a.R.label.gii"):
            got = read_labels(tmp_path / given, FSLR5K, (0, 1))
            assert got.vertices("parstriangularis", 0).tolist() == [1, 2]
            assert got.vertices("parstriangularis", 1).tolist() == [3]

    def test_compressed_gifti(self, tmp_path):
        write_gifti(tmp_path / "lh.label.gii", keys_of(642, k3=[2]), NAMES)
        (tmp_path / "c-lh.label.gii.gz").write_bytes(gzip.compress((tmp_path / "lh.label.gii").read_bytes()))
        got = read_labels(tmp_path / "c-lh.label.gii.gz", FSAVERAGE3, (0,))
        assert got.vertices("parsopercularis", 0).tolist() == [2]

    def test_hemisphere_by_content(self, tmp_path):
        write_gifti(tmp_path / "atlas.label.gii", keys_of(642, k3=[2]), NAMES, "CortexRight")
        got = read_labels(tmp_path / "atlas.label.gii", FSAVERAGE3, (1,))
        assert got.vertices("parsopercularis", 1).tolist() == [2]
        assert got.keys[0] is None

    def test_annot(self, tmp_path):
        write_annot(tmp_path / "lh.a.annot", keys_of(642, k1=[5], k2=[6]), ["unknown", "44", "45"])
        got = read_labels(tmp_path / "lh.a.annot", FSAVERAGE3, (0,))
        assert got.vertices("L_44_ROI", 0).tolist() == [5]
        assert got.vertices("45", 0).tolist() == [6]
        assert got.vertices("45", 1).tolist() == []


class TestNames:
    @pytest.mark.parametrize(
        "name", ["L_44_ROI", "L_44", "44", "lh.44", "lh_44", "ctx-lh-44", "44_ROI", "44-L", "left_44"]
    )
    def test_one_label_in_all_manners(self, name):
        assert module.stem(name) == "44"
        assert module.side(name) == (None if name in ("44", "44_ROI") else 0)

    @pytest.mark.parametrize(
        ("name", "side"), [("R_47l_ROI", 1), ("7Networks_RH_Vis_1", 1), ("fs_LR", None), ("47l", None)]
    )
    def test_sides(self, name, side):
        assert module.side(name) == side

    @pytest.mark.parametrize(
        "name", ["???", "", "unknown", "L_???", "Medial_wall", "FreeSurfer_Defined_Medial_Wall", "corpuscallosum"]
    )
    def test_no_part_of_the_cortex(self, name):
        assert module.is_unnamed(name)

    @pytest.mark.parametrize("name", ["44", "L_1_ROI", "medialorbitofrontal", "7Networks_LH_Vis_1"])
    def test_parts_of_the_cortex(self, name):
        assert not module.is_unnamed(name)

    def test_exact_name_before_a_similar_one(self, tmp_path):
        write_gifti(tmp_path / "a.L.label.gii", keys_of(642, k1=[1], k2=[2]), {0: "???", 1: "L_a", 2: "a"})
        got = read_labels(tmp_path / "a.L.label.gii", FSAVERAGE3)
        assert got.vertices("a", 0).tolist() == [2]
        assert got.vertices("L_a", 0).tolist() == [1]

    def test_missing_label_names_the_nearest_and_the_count(self, tmp_path):
        write_gifti(tmp_path / "a.L.label.gii", keys_of(642, k3=[1]), NAMES)
        got = read_labels(tmp_path / "a.L.label.gii", FSAVERAGE3)
        assert got.missing(["parsopercularis"], (0,)) == ""
        message = got.missing(["parsopercularis", "parsopercularos"], (0,))
        assert (
            "'parsopercularos' is not among its 2 labels of the left hemisphere; nearest: 'parsopercularis'" in message
        )
        assert "'parstriangularis' has no vertices in the left" in got.missing(["parstriangularis"], (0,))
        assert "'R_parsopercularis' is not of the left" in got.missing(["R_parsopercularis"], (0,))


class TestErrors:
    def test_no_file(self, tmp_path):
        with pytest.raises(InputMissing, match=r"none\.annot: no such"):
            read_labels(tmp_path / "none.annot", FSAVERAGE3)

    def test_other_kind_of_file(self, tmp_path):
        with pytest.raises(UsageError, match=r"expected a label file \(\.dlabel\.nii"):
            read_labels(tmp_path / "a.mat", FSAVERAGE3)

    def test_other_hemisphere_needed(self, tmp_path):
        write_gifti(tmp_path / "a.L.label.gii", keys_of(642), NAMES)
        with pytest.raises(InputMissing, match=r"a\.R\.label\.gii: no such .* needed for the right"):
            read_labels(tmp_path / "a.L.label.gii", FSAVERAGE3, (0, 1))

    @pytest.mark.parametrize("name", ["a.L.label.gii", "lh.a.annot"])
    def test_another_mesh(self, tmp_path, name):
        write = write_annot if name.endswith("annot") else write_gifti
        write(tmp_path / name, np.zeros(642, int), ["unknown"] if name.endswith("annot") else NAMES)
        with pytest.raises(BadData, match=r"data's mesh fsLR_den-5k \(4842 vertices\), got 642"):
            read_labels(tmp_path / name, FSLR5K)

    def test_dlabel_of_another_mesh_or_one_hemisphere(self, tmp_path):
        write_dlabel(tmp_path / "a.dlabel.nii", [NAMES], [np.zeros(642)], (range(642), None), (642, 642))
        with pytest.raises(BadData, match="got 642 vertices in the left"):
            read_labels(tmp_path / "a.dlabel.nii", FSLR5K)
        with pytest.raises(BadData, match="no labels of the right"):
            read_labels(tmp_path / "a.dlabel.nii", FSAVERAGE3, (1,))

    def test_dlabel_of_vertices_that_no_mesh_has(self, tmp_path):
        path = tmp_path / "a.dlabel.nii"
        write_dlabel(path, [NAMES], [np.zeros(642)], (range(642), None), (642, 642))
        raw = path.read_bytes()
        assert b" 641</VertexIndices>" in raw
        path.write_bytes(raw.replace(b" 641</VertexIndices>", b" 642</VertexIndices>"))
        words = r"a\.dlabel\.nii: expected vertices below 642, as the mesh .* in its CIFTI header; a damaged file, copy"
        with pytest.raises(BadData, match=words):
            read_labels(path, FSAVERAGE3)

    def test_name_against_content(self, tmp_path):
        write_gifti(tmp_path / "a.L.label.gii", keys_of(642), NAMES, "CortexRight")
        with pytest.raises(BadData, match="one hemisphere and its content the other"):
            read_labels(tmp_path / "a.L.label.gii", FSAVERAGE3)

    def test_no_hemisphere(self, tmp_path):
        write_gifti(tmp_path / "a.label.gii", keys_of(642), NAMES)
        with pytest.raises(BadData, match="no hemisphere in its name"):
            read_labels(tmp_path / "a.label.gii", FSAVERAGE3)

    @pytest.mark.parametrize("name", ["a.dlabel.nii", "a.L.label.gii", "lh.a.annot"])
    def test_rubbish(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 20)
        with pytest.raises(BadData, match=r"cannot be read as a (label|GIFTI) file"):
            read_labels(tmp_path / name, FSAVERAGE3)

    def test_cifti_of_no_labels(self, tmp_path):
        model = nib.cifti2.BrainModelAxis.from_surface(range(642), 642, "CORTEX_LEFT")
        image = nib.Cifti2Image(np.zeros((1, 642), np.float32), (nib.cifti2.ScalarAxis(["a"]), model))
        nib.save(image, tmp_path / "a.dlabel.nii")
        with pytest.raises(BadData, match="got ScalarAxis by BrainModelAxis"):
            read_labels(tmp_path / "a.dlabel.nii", FSAVERAGE3)

    def test_gifti_of_no_labels(self, tmp_path):
        image = nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(np.zeros(642, np.float32))])
        nib.save(image, tmp_path / "a.L.label.gii")
        with pytest.raises(BadData, match="expected an array of label keys"):
            read_labels(tmp_path / "a.L.label.gii", FSAVERAGE3)
