"""The report's section on anatomy: there where there are areas, and it says why where nothing can be compared."""

from dataclasses import dataclass

import nibabel as nib
import numpy as np
import pytest

from parcellation.config import parse_study
from parcellation.meshes import Mesh
from parcellation.store import numbered_vertices
from parcellation.surfaces import Vertices, region_vertices
from parcellation.verbs.anatomy import anatomy
from tests.studies import command

FSAVERAGE5 = Mesh("fsaverage", (10242, 10242))


def study_of(tmp_path, **sections):
    content = {"name": "a", "data": {"layout": "manifest", "manifest": "m.tsv"}} | sections
    return parse_study(content, tmp_path / "study.yaml")


def certain(labels):
    return np.eye(2)[labels]


@dataclass(frozen=True)
class Broca:
    study: object
    region: Vertices
    opercularis: np.ndarray  # bool


@pytest.fixture
def broca(tmp_path):
    study = study_of(tmp_path)
    region = region_vertices(study, FSAVERAGE5)
    one = study_of(tmp_path, region={"name": "part", "labels": ["parsopercularis"]})
    return Broca(study, region, region.within(region_vertices(one, FSAVERAGE5)) >= 0)


def test_the_regions_own_labels_are_compared_with(broca):
    (found,) = anatomy(broca.study, broca.region, certain(broca.opercularis.astype(int)))
    assert found.result.mean == 1
    assert found.result.significant
    assert {match.area for match in found.result.matches} == {"parsopercularis", "parstriangularis"}
    assert len(broca.region) == 304


def test_a_region_of_one_label_has_no_section(tmp_path):
    study = study_of(tmp_path, region={"name": "part", "labels": ["parsopercularis"]})
    region = region_vertices(study, FSAVERAGE5)
    assert anatomy(study, region, certain(np.arange(len(region)) % 2)) == []


def cut_at(place: int, numbers: np.ndarray, path) -> None:
    """Write a label file of two areas: the region's first vertices, and the others."""
    halves = np.zeros(10242, np.int32)
    halves[numbers] = np.where(np.arange(len(numbers)) < place, 1, 2)
    table = nib.gifti.GiftiLabelTable()
    for key, name in enumerate(("???", "L_low", "L_high")):
        label = nib.gifti.GiftiLabel(key)
        label.label = name
        table.labels.append(label)
    array = nib.gifti.GiftiDataArray(halves, "NIFTI_INTENT_LABEL", "NIFTI_TYPE_INT32")
    nib.save(nib.GiftiImage(darrays=[array], labeltable=table), path)


def test_an_atlas_of_one_large_area_is_not_compared_with(broca, tmp_path):
    cut_at(10, broca.region.number, tmp_path / "halves.L.label.gii")
    study = study_of(tmp_path, outputs={"atlas": "halves.L.label.gii"})
    _, atlas = anatomy(study, broca.region, certain(np.zeros(304, int)))
    assert atlas.result is None
    words = "halves.L.label.gii: expected two areas or more that have 5 % of the region's vertices each, got 2 with any"
    assert words in atlas.reason


def test_an_atlas_of_the_study_is_compared_with(broca, tmp_path):
    numbers = broca.region.number
    cut_at(100, numbers, tmp_path / "halves.L.label.gii")
    study = study_of(tmp_path, outputs={"atlas": "halves.L.label.gii"})
    own, atlas = anatomy(study, broca.region, certain((np.arange(len(numbers)) >= 100).astype(int)))
    assert atlas.areas == "the areas of halves.L.label.gii"
    assert [(match.area, match.dice) for match in atlas.result.matches] == [("low", 1.0), ("high", 1.0)]
    assert own.result.mean < 1


def test_an_atlas_that_is_not_there_is_said(broca, tmp_path):
    study = study_of(tmp_path, outputs={"atlas": "no.L.label.gii"})
    _, atlas = anatomy(study, broca.region, certain(np.zeros(304, int)))
    assert atlas.result is None
    assert "no such label file" in atlas.reason


def test_without_a_surface_it_says_why(broca, tmp_path, monkeypatch):
    monkeypatch.setattr("parcellation.verbs.anatomy.find_geometry", lambda study, mesh: None)
    (found,) = anatomy(broca.study, broca.region, certain(np.zeros(304, int)))
    assert found.result is None
    assert "No surface" in found.reason


def test_vertices_on_no_mesh_are_compared_with_nothing(tmp_path):
    vertices = numbered_vertices(30)
    assert anatomy(study_of(tmp_path), vertices, certain(np.arange(30) % 2)) == []
    (found,) = anatomy(study_of(tmp_path, outputs={"atlas": "a.L.label.gii"}), vertices, certain(np.arange(30) % 2))
    assert "lie on no surface" in found.reason


def test_the_page_has_the_section(finished):
    page = (finished.results / "report.html").read_text(encoding="utf-8")
    assert 'id="anatomy"' in page
    assert "random cuts" in page
    assert "parstriangularis" in page


def test_an_atlas_changes_no_answer(study):
    said = command("infer", study.write_study(outputs={"atlas": "none.L.label.gii"}))
    assert "5 of them before" in said
