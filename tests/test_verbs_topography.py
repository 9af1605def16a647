"""`model.topography` in a study: a mesh, a graph, neither; and files that are no graph of the region."""

import logging

import numpy as np
import pytest
import yaml

from parcellation.config import load_study, parse_study
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.meshes import Mesh
from parcellation.model_file import load_model
from parcellation.store import numbered_vertices
from parcellation.surfaces import Vertices
from parcellation.verbs.infer import Inference
from parcellation.verbs.simulate import simulate
from parcellation.verbs.topography import read_pairs, study_basis
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection
from tests.studies import command


def a_study(tmp_path, **topography):
    content = {"name": "s", "data": {"layout": "manifest", "manifest": "m.tsv"}, "model": {"topography": topography}}
    return parse_study(content, tmp_path / "study.yaml")


def patch(count: int = 200) -> Vertices:
    """The first vertices of the left fsaverage5, which are all over the sphere, and their subdivisions."""
    return Vertices.of(Mesh("fsaverage", (10242, 10242)), np.arange(count), [])


def test_it_is_off_unless_asked_for(tmp_path):
    assert study_basis(a_study(tmp_path), patch()) is None
    content = {"name": "s", "data": {"layout": "manifest", "manifest": "m.tsv"}, "model": {"topography": "none"}}
    assert parse_study(content, tmp_path / "study.yaml").model.topography.modes == 0


def test_a_region_on_a_mesh_has_the_modes_of_the_mesh(tmp_path):
    whole = Vertices.of(Mesh("fsaverage", (10242, 10242)), np.arange(10242), [])
    basis = study_basis(a_study(tmp_path, modes=4), whole)
    assert basis.phi.shape == (10242, 4)
    assert basis.eigenvalues[1] > 0


def test_without_a_mesh_it_is_off_and_that_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert study_basis(a_study(tmp_path, modes=5), numbered_vertices(9)) is None
    assert "the vertices are on no mesh" in caplog.text


def test_a_graph_says_who_is_near(tmp_path):
    np.savetxt(tmp_path / "pairs.tsv", np.c_[np.arange(8), np.arange(1, 9)], fmt="%d", delimiter="\t")
    basis = study_basis(a_study(tmp_path, modes=5, graph="pairs.tsv"), numbered_vertices(9))
    assert np.allclose(basis.eigenvalues, 2 - 2 * np.cos(np.pi * np.arange(5) / 9), atol=1e-12)


@pytest.mark.parametrize(
    "text", ["0\t1\t2\n", "0\t9\n", "-1\t2\n", "3\t3\n", "0\t1\n1\t0\n", "0\tone\n"],
    ids=["three columns", "beyond", "negative", "itself", "twice", "no number"],
)  # fmt: skip
def test_a_table_that_is_no_graph_of_the_region_is_refused(tmp_path, text):
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(BadData, match=r"pairs\.tsv: expected"):
        read_pairs(tmp_path / "pairs.tsv", 9)


def test_a_graph_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(InputMissing, match="no such file"):
        study_basis(a_study(tmp_path, modes=5, graph="none.tsv"), numbered_vertices(9))


@pytest.fixture
def fingerprints(tmp_path):
    """A small cohort of fingerprints of a row of vertices, and its study with some changes."""
    settings = {"subjects": 6, "train": 6, "template": {"vertices": 40, "features": 8, "kappa": 1.0}}
    (tmp_path / "simulation.yaml").write_text(yaml.safe_dump(settings))
    out = tmp_path / "cohort"
    simulate(tmp_path / "simulation.yaml", out, Selection(), fingerprints=True)
    np.savetxt(out / "pairs.tsv", np.c_[np.arange(39), np.arange(1, 40)], fmt="%d")

    def study(**model):
        content = yaml.safe_load((out / "study.yaml").read_text())
        content |= {"model": model, "training": content["training"] | {"steps": 3}}
        (out / "study.yaml").write_text(yaml.safe_dump(content))
        return load_study(out / "study.yaml")

    return study


def test_a_study_with_a_graph_is_trained_and_inferred_and_another_graph_is_another_model(fingerprints):
    study = fingerprints(topography={"modes": 5, "graph": "pairs.tsv"})
    train(study, Selection())
    run = Inference.of(study)
    assert run.model.family.template.topography.phi.shape == (40, 5)
    assert np.allclose(run.answer(run.cohort.subjects[0]).probability.sum(-1), 1)
    assert "already" in train(study, Selection(dry_run=True))
    path = study.model.topography.graph
    path.write_text(path.read_text() + "0 39\n")
    assert "would train" in train(study, Selection(dry_run=True))
    path.unlink()
    with pytest.raises(InputMissing, match=r"pairs\.tsv: no such file, which model\.topography\.graph names"):
        train(study, Selection())


def test_without_a_graph_the_model_is_the_free_one(fingerprints):
    study = fingerprints(topography={"modes": 5})
    train(study, Selection())
    assert load_model(study.outputs.work / "model").family.template.topography is None


def test_a_model_without_smooth_maps_refuses_them(fingerprints):
    study = fingerprints(topography={"modes": 5, "graph": "pairs.tsv"}, template="functional_parcellation_logits")
    with pytest.raises(UsageError, match=r"model\.topography"):
        train(study, Selection())


@pytest.mark.slow
def test_a_cohort_on_a_mesh_goes_the_whole_way(prepared):
    prepared.write_study(model={"topography": {"modes": 8}})
    for verb in ("train", "infer", "report"):
        command(verb, prepared.study)
    assert load_model(prepared.path / "work/model").family.template.topography.phi.shape[1] == 8
    assert (prepared.results / "report.html").exists()
