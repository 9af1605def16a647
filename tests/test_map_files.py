"""Files in every format: nibabel, nilearn and Workbench give back the same integers, floats, names and vertices."""

import nibabel as nib
import numpy as np
import pytest
from nibabel.cifti2 import BrainModelAxis
from nilearn import surface

from parcellation.errors import BadData
from parcellation.label_table import named_networks
from parcellation.map_files import CORTEX, Cifti, Frame, Gifti, spread_mesh, write_surface
from parcellation.surfaces import Vertices
from tests.made import BRAIN, CAP, MESH, REGION, SURFACES
from tests.workbench import needs_workbench, workbench

FRAME = Frame(BRAIN[np.r_[0:642, 700:900]], REGION)
BOTH = Frame(BRAIN, Vertices.of(MESH, [5, 3, 600], [20, 7]))
NAMES = {2: ("Broca-anterior", "tiers & <'rest'>"), 17: None, 300: None}


def path_in(folder):
    return lambda hemi, extension: folder / f"{hemi}map{extension}"


def keys_of(K, count):
    """Every key, as far as there are vertices for all of them, in no order."""
    return np.random.default_rng(K).permutation(np.arange(count) % K + 1).astype(np.int32)


@pytest.mark.parametrize("K", [2, 17, 300])
def test_nibabel_and_nilearn_give_back_keys_and_names(tmp_path, K):
    networks, whole = named_networks(K, NAMES[K]), Frame(BRAIN, BRAIN)
    keys = keys_of(K, len(BRAIN))
    for style in (Cifti, Gifti):
        style(whole, networks, "seg").write_labels(path_in(tmp_path), keys)
    image = nib.load(tmp_path / "map.dlabel.nii")
    assert image.get_data_dtype() == np.int32
    np.testing.assert_array_equal(np.asanyarray(image.dataobj)[0], keys)
    expected = {0: "???"} | dict(enumerate(networks.names, 1))
    assert {key: name for key, (name, _) in image.header.get_axis(0).label[0].items()} == expected
    for side in "LR":
        path = tmp_path / f"hemi-{side}_map.label.gii"
        read = surface.load_surf_data(path)
        assert np.issubdtype(read.dtype, np.integer)
        np.testing.assert_array_equal(read, keys[BRAIN.hemisphere == "LR".index(side)])
        assert nib.load(path).labeltable.get_labels_as_dict() == expected


@needs_workbench
@pytest.mark.parametrize("K", [2, 17, 300])
def test_workbench_gives_back_keys_names_and_colours(tmp_path, K):
    networks, whole = named_networks(K, NAMES[K]), Frame(BRAIN, BRAIN)
    keys = keys_of(K, len(BRAIN))
    for style in (Cifti, Gifti):
        style(whole, networks, "seg").write_labels(path_in(tmp_path), keys)
    separated = [tmp_path / f"wb.{side}.label.gii" for side in "LR"]
    workbench("-cifti-separate", tmp_path / "map.dlabel.nii", "COLUMN",
              "-label", "CORTEX_LEFT", separated[0], "-label", "CORTEX_RIGHT", separated[1])  # fmt: skip
    for side, from_cifti in enumerate(separated):
        back = nib.load(from_cifti)
        np.testing.assert_array_equal(back.agg_data(), keys[BRAIN.hemisphere == side])
        assert back.labeltable.get_labels_as_dict() == {0: "???"} | dict(enumerate(networks.names, 1))
        colours = {label.key: np.rint(np.array(label.rgba[:3]) * 255) for label in back.labeltable.labels}
        assert all((colours[key] == colour).all() for key, colour in enumerate(networks.colours, 1))
    # The names on standard output, and each key with its colour on every second line.
    workbench("-label-export-table", tmp_path / "hemi-L_map.label.gii", tmp_path / "table.txt")
    lines = (tmp_path / "table.txt").read_text(encoding="utf-8").splitlines()
    assert dict(zip((int(line.split()[0]) for line in lines[1::2]), lines[::2], strict=True)) == dict(
        enumerate(networks.names, 1)
    )


def test_maps_of_the_cortex_hold_every_vertex_of_the_brain(tmp_path):
    values = {"a": np.random.default_rng(0).normal(size=len(FRAME.brain)).astype(np.float32)}
    for style in (Cifti, Gifti):
        style(FRAME, named_networks(2), "seg").write_cortex(path_in(tmp_path), values)
    image = nib.load(tmp_path / "map.dscalar.nii")
    np.testing.assert_array_equal(np.asanyarray(image.dataobj)[0], values["a"])
    assert image.header.get_axis(0).name.tolist() == ["a"]
    for side in (0, 1):
        read = surface.load_surf_data(tmp_path / f"hemi-{'LR'[side]}_map.func.gii")
        np.testing.assert_array_equal(read, spread_mesh(FRAME.brain, values["a"], side))


@needs_workbench
def test_workbench_gives_back_gifti_values_and_map_names(tmp_path):
    values = {name: np.random.default_rng(1).normal(size=5).astype(np.float32) for name in ("entropy", "a b & <c>")}
    Gifti(BOTH, named_networks(2), "seg").write_scalars(path_in(tmp_path), values)
    path = tmp_path / "hemi-R_map.func.gii"
    assert workbench("-file-information", path, "-only-map-names").splitlines() == list(values)
    workbench("-metric-math", "x", tmp_path / "copy.func.gii", "-var", "x", path)
    copied = nib.load(tmp_path / "copy.func.gii").agg_data()
    np.testing.assert_array_equal(np.stack(copied), np.stack([spread_mesh(BOTH.region, v, 1) for v in values.values()]))


def test_surfaces_come_back(tmp_path):
    for hemisphere, kind in ((0, "midthickness"), (1, "inflated")):
        path = tmp_path / f"{kind}.surf.gii"
        write_surface(path, SURFACES[hemisphere], hemisphere, kind)
        mesh = surface.load_surf_mesh(path)
        np.testing.assert_allclose(mesh.coordinates, SURFACES[hemisphere].coordinates, atol=1e-5)
        np.testing.assert_array_equal(mesh.faces, SURFACES[hemisphere].triangles)
        before = path.read_bytes()
        write_surface(path, SURFACES[hemisphere], hemisphere, kind)
        assert path.read_bytes() == before


@needs_workbench
def test_workbench_knows_whose_surface_it_is(tmp_path):
    write_surface(tmp_path / "a.surf.gii", SURFACES[1], 1, "inflated")
    said = workbench("-file-information", tmp_path / "a.surf.gii")
    assert "CortexRight" in said
    assert "INFLATED" in said.upper()
    areas = tmp_path / "areas.func.gii"
    workbench("-surface-vertex-areas", tmp_path / "a.surf.gii", areas)
    assert nib.load(areas).agg_data().sum() == pytest.approx(4 * np.pi * 50**2, rel=0.02)


def test_a_frame_spreads_values_to_their_vertices():
    values = np.arange(1, 6, dtype=np.float32)
    spread = BOTH.spread(values)
    assert spread[[5, 3, 600, 642 + 20, 642 + 7]].tolist() == values.tolist()
    assert np.count_nonzero(spread) == 5
    assert BOTH.spread_mesh(values, 1)[[20, 7]].tolist() == [4, 5]


def test_a_region_outside_the_file_is_refused():
    some = Vertices.of(MESH, [301, 302], [])
    with pytest.raises(BadData, match="1 are not"):
        Frame(Vertices.of(MESH, [301, 303], []), some)
    with pytest.raises(BadData, match="every vertex once"):
        Frame(BRAIN, Vertices.of(MESH, [301, 301], []))
    with pytest.raises(BadData, match="below"):
        Frame(BRAIN, Vertices.of(MESH, [301, 40000], []))
    with pytest.raises(BadData, match="one block"):
        Frame(BRAIN[np.array([0, 700, 1])], BRAIN[:1])


def test_both_hemispheres_have_their_structure(tmp_path):
    Cifti(FRAME, named_networks(2), "seg").write_labels(path_in(tmp_path), keys_of(2, len(CAP)))
    axis = nib.load(tmp_path / "map.dlabel.nii").header.get_axis(1)
    assert [name for name, _, _ in axis.iter_structures()] == list(CORTEX)
    assert set(axis.nvertices.values()) == {642}


def test_voxels_follow_the_cortex_as_zeros(tmp_path):
    """As in a file of all grayordinates: thalamus after both hemispheres, no value of it."""
    mask = np.zeros((4, 5, 6), bool)
    mask[1:3, 2, 3:5] = True
    volume = BrainModelAxis.from_mask(mask, "thalamus_left", np.diag([2, 2, 2, 1]))
    frame = Frame(BRAIN, REGION, volume)
    writer, keys = Cifti(frame, named_networks(2), "seg"), keys_of(2, len(CAP))
    writer.write_labels(path_in(tmp_path), keys)
    writer.write_scalars(path_in(tmp_path), {"a": keys / 2})
    for name in ("map.dlabel.nii", "map.dscalar.nii"):
        image = nib.load(tmp_path / name)
        axis = image.header.get_axis(1)
        assert len(axis) == len(BRAIN) + 4
        assert axis[axis.volume_mask] == volume
        values = np.asarray(image.dataobj)[0]
        assert not values[-4:].any()
        assert np.count_nonzero(values) == len(CAP)
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "map.dlabel.nii").dataobj)[0][frame.rows], keys)
    assert frame.density == "1k"


@needs_workbench
def test_workbench_reads_all_grayordinates(tmp_path):
    volume = BrainModelAxis.from_mask(np.ones((2, 2, 2), bool), "thalamus_left", np.eye(4))
    Cifti(Frame(BRAIN, REGION, volume), named_networks(2), "seg").write_labels(path_in(tmp_path), keys_of(2, len(CAP)))
    said = workbench("-file-information", tmp_path / "map.dlabel.nii")
    assert "ThalamusLeft" in said
    assert "CortexRight" in said
