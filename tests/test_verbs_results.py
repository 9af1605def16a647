"""What a results folder holds beside maps: names by orientation, sizes on the right surface, a scene if it can be."""

from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from nibabel.cifti2 import BrainModelAxis

from parcellation.colours import difference, network_colours
from parcellation.config import parse_study
from parcellation.errors import InputMissing, UsageError
from parcellation.label_table import named_networks
from parcellation.map_files import Cifti, Frame, brain_axis, write_surface
from parcellation.maps import Export, relief_path, surface_path
from parcellation.meshes import vertex_areas
from parcellation.surfaces import Mesh, Targets, Vertices
from parcellation.verbs import results
from parcellation.verbs.workspace import Ground
from tests.made import BRAIN, CAP, MESH, REGION, SURFACES, answer, frontal

MEMBERS = Vertices.of(MESH, [5, 200], [])
GROUND = Ground(REGION, Targets(("a", "b"), MEMBERS, np.arange(2)), BRAIN)


@pytest.fixture
def study(tmp_path):
    """A study whose surfaces are spheres."""
    names = {}
    for kind in ("midthickness", "inflated"):
        for side, surface in enumerate(SURFACES):
            write_surface(tmp_path / f"{'lr'[side]}h.{kind}.surf.gii", surface, side, kind)
        names[kind] = f"lh.{kind}.surf.gii"
    content = {"name": "a", "data": {"root": "HCP", "surfaces": names}, "outputs": {"directory": "out"}}
    return parse_study(content, tmp_path / "study.yaml")


def test_pairs_are_found_by_name_and_what_everybody_has_is_left_out():
    three = named_networks(3, ("a", "b", "c"))
    assert results.pairs_of([("c", "a"), ("a", "b"), ("c", "a")], three) == ((2, 0), (0, 1))
    assert results.pairs_of([("a", "b"), ("b", "a")], named_networks(2, ("a", "b"))) == ((1, 0),)
    with pytest.raises(UsageError, match="no network is called 'x'; expected names among a, b, c"):
        results.pairs_of([("a", "x")], three)


@pytest.fixture
def export(study):
    frame = Frame(BRAIN, REGION)
    return Export(study.outputs.directory, frame, named_networks(2), ("a", "b"), "broca2", (Cifti,), {})


MODEL = SimpleNamespace(family=None)  # of which nothing is asked where its answers are set


class Answers:
    """Stands for a model's posterior, of which only the population's maps are asked."""

    def __init__(self, maps):
        self.maps = lambda: np.repeat(maps[None], 20, 0)


@pytest.mark.parametrize(("flip", "names"), [(False, ["Broca-anterior", "Broca-posterior"]), (True, None)])
def test_names_come_from_the_place_of_the_networks(study, monkeypatch, flip, names):
    share = frontal()
    if flip:  # above and below each other
        top = SURFACES[0].coordinates[CAP, 2] > 0
        share = np.stack([np.where(top, 0.9, 0.1), np.where(top, 0.1, 0.9)], 1)
    monkeypatch.setattr(results, "applicable", lambda family: True)
    monkeypatch.setattr(results, "Posterior", lambda model: Answers(share))
    found = results.find_orientation(study, GROUND, MODEL)
    assert found["names"] == names
    assert found["share"] == (0 if flip else 1)


def test_without_a_surface_or_with_more_networks_nothing_is_decided(study, tmp_path):
    bare = parse_study({"name": "a", "data": {"root": "HCP"}}, tmp_path / "study.yaml")
    assert results.find_orientation(bare, GROUND, None) == {}
    three = study.model_copy(update={"model": study.model.model_copy(update={"networks": 3})})
    assert results.find_orientation(three, GROUND, None) == {}
    numbered = Vertices(Mesh("none", (4, 0)), np.zeros(4, np.uint8), np.arange(4, dtype=np.int32))
    assert results.find_orientation(study, Ground(numbered, GROUND.targets, numbered), None) == {}


def test_targets_shown_without_a_sphere_are_members_only(study):
    shown = results.shown_targets(study, GROUND)
    assert np.flatnonzero(shown >= 0).tolist() == [5, 200]


def test_sizes_are_measured_on_the_groups_surface_or_the_subjects_own(study, export, monkeypatch):
    larger = tuple(one._replace(coordinates=one.coordinates * 2) for one in SURFACES)
    monkeypatch.setattr(results, "own_midthickness", lambda study, mesh, one: larger if one == "02" else None)
    answers = [answer(name, frontal(), seed) for seed, name in enumerate(("02", "01"))]
    results.write_sizes(study, export, answers)
    table = pd.read_csv(export.out / "sizes_network.tsv", sep="\t", dtype={"participant_id": str})
    assert table.participant_id.tolist() == ["sub-01", "sub-01", "sub-02", "sub-02"]
    assert table.surface.tolist() == ["group", "group", "subject", "subject"]
    whole = vertex_areas(SURFACES[0])[CAP].sum()
    assert table.area.groupby(table.participant_id).sum().tolist() == pytest.approx([whole, 4 * whole], rel=1e-4)


def test_surfaces_relief_and_scene(study, export):
    results.write_scenes(export, ["01"])
    assert not export.out.exists()
    results.write_surfaces(study, export)
    assert surface_path(export.out, MESH, 1, "inflated").is_file()
    assert relief_path(export.out, MESH).is_file()
    results.write_scenes(export, ["01", "02", "03", "04"])
    scene = (export.out / "tpl-fsaverage/broca2.scene").read_text(encoding="utf-8")
    assert scene.count("<SceneInfo ") == 1 + 1 + results.EXAMPLES
    assert "../sub-03/anat/sub-03_space-fsaverage_seg-broca2_den-642_dseg.dlabel.nii" in scene
    assert "sub-04" not in scene
    assert (export.out / "tpl-fsaverage/broca2.wb.spec").is_file()


def manifest(path):
    return pd.DataFrame({"bold": [str(path)]})


def test_the_voxels_are_those_of_the_first_run(tmp_path):
    cortex = brain_axis(BRAIN)
    volume = BrainModelAxis.from_mask(np.ones((2, 1, 3), bool), "putamen_left", np.eye(4))
    series = nib.cifti2.SeriesAxis(0, 1, 3)
    for name, models in (("all", cortex + volume), ("cortex", cortex)):
        data = np.zeros((3, len(models)), np.float32)
        nib.save(nib.Cifti2Image(data, header=(series, models)), tmp_path / f"{name}.dtseries.nii")
    assert results.volume_of(manifest(tmp_path / "all.dtseries.nii")) == volume
    with pytest.raises(UsageError, match="no voxels"):
        results.volume_of(manifest(tmp_path / "cortex.dtseries.nii"))
    with pytest.raises(InputMissing, match="nowhere"):
        results.volume_of(manifest(tmp_path / "nowhere.nii"))


def test_many_networks_have_colours_by_what_lies_side_by_side(study, monkeypatch):
    K = 12
    monkeypatch.setattr(results, "applicable", lambda family: True)
    monkeypatch.setattr(results, "mean_map", lambda model: torch.from_numpy(frontal(K)))
    many = study.model_copy(update={"model": study.model.model_copy(update={"networks": K})})
    colours = np.array(results.find_colours(many, GROUND, MODEL))
    assert sorted(map(tuple, colours)) == sorted(map(tuple, network_colours(K)))
    # In order from front to back, each lies beside the next.
    assert difference(colours[:-1], colours[1:]).min() > 25
    assert results.find_colours(study, GROUND, None) is None
