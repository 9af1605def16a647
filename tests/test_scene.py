"""The Workbench scene: well-formed, with relative paths, and Workbench renders it without a display."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.image import imread

from parcellation.scene import Stage, Tab, write_scene, write_spec
from tests.made import make_result
from tests.workbench import needs_workbench, workbench

STEM = "tpl-fsaverage_hemi-{}_den-642_{}.surf.gii"
SURFACES = [tuple(STEM.format(side, kind) for side in "LR") for kind in ("inflated", "midthickness")]
STAGE = Stage(*SURFACES, (642, 642), (0,))
GROUP = "tpl-fsaverage_atlas-broca2_den-642_dseg.dlabel.nii"
ONE = "../sub-01/anat/sub-01_space-fsaverage_seg-broca2_den-642_dseg.dlabel.nii"
TABS = (Tab("population", (GROUP,)), Tab('sub <01> & "more"', (ONE, GROUP)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    make_result(out)
    write_scene(out / "tpl-fsaverage/b.scene", STAGE, [("both", TABS), ("one", TABS[:1])])
    write_spec(out / "tpl-fsaverage/b.wb.spec", STAGE, [GROUP, ONE])
    return out / "tpl-fsaverage"


def named(root, name):
    return [one for one in root.iter() if one.get("Name") == name]


def test_every_tab_has_its_layers_on_both_surfaces(folder):
    root = ET.parse(folder / "b.scene").getroot()
    assert [one.find("Name").text for one in root.iter("SceneInfo")] == ["both", "one"]
    both, one = root.findall("Scene")
    assert [tab.text for tab in named(both, "m_userName")] == [tab.name for tab in TABS]
    assert [layer.text for layer in named(both, "selectedMapFileNameWithPath")] == [GROUP, ONE, GROUP]
    assert {first.text for first in named(both, "m_firstSurfaceEnabled")} == {"true"}
    assert {right.text for right in named(both, "m_rightEnabled")} == {"false"}
    assert named(one, "m_tileTabsEnabled")[0].text == "false"
    for array in root.iter("ObjectArray"):
        assert int(array.get("Length")) == len(array)
    assert str(folder.parent) not in (folder / "b.scene").read_text(encoding="utf-8")


def test_every_file_of_the_spec_is_there_with_its_kind(folder):
    files = {one.text: one.attrib for one in ET.parse(folder / "b.wb.spec").getroot().iter("DataFile")}
    assert all((folder / name).is_file() for name in files)
    assert files[STEM.format("R", "inflated")]["Structure"] == "CORTEX_RIGHT"
    assert files[ONE]["DataFileType"] == "CONNECTIVITY_DENSE_LABEL"
    assert len(files) == 6


@needs_workbench
def test_workbench_reads_the_spec(folder):
    said = workbench("-file-information", folder / "b.wb.spec")
    assert GROUP in said
    assert STEM.format("L", "midthickness") in said


def share(picture, colour):
    """Share of the pixels that are near a colour, whatever the light makes of it."""
    unit = picture / np.maximum(np.linalg.norm(picture, axis=-1, keepdims=True), 1e-6)
    return float((unit @ (np.array(colour) / np.linalg.norm(colour)) > 0.97).mean())


@needs_workbench
def test_workbench_renders_the_scene_without_a_display(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    pictures = []
    for number in (1, 2):
        path = tmp_path / f"{number}.png"
        workbench("-show-scene", folder / "b.scene", number, path, 600, 300)
        pictures.append(imread(path)[..., :3])
    for picture in pictures:
        assert picture[0, 0].tolist() == [1, 1, 1]
        assert share(picture, (0, 114, 178)) > 0.01
        assert share(picture, (213, 94, 0)) > 0.01
    # Two spheres fill the window; of two tiles each has half of it.
    left, right = pictures[0][:, :300], pictures[0][:, 300:]
    assert min(share(left, (0, 114, 178)), share(right, (0, 114, 178))) > 0.01
    assert share(pictures[1], (0, 114, 178)) > 1.2 * share(pictures[0], (0, 114, 178))


def test_the_same_input_gives_the_same_bytes(folder, tmp_path):
    write_scene(tmp_path / "again.scene", STAGE, [("both", TABS), ("one", TABS[:1])])
    assert (tmp_path / "again.scene").read_bytes() == (folder / "b.scene").read_bytes()
