"""What is said of files, settings and commands that are wrong: one test for each message that no other test has."""

import hashlib
import json
import re
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml
from nibabel.gifti import GiftiDataArray, GiftiImage
from scipy import sparse

from parcellation import load_result, simulate
from parcellation.annot import read_annot
from parcellation.config import parse_study
from parcellation.confounds import read_confounds, read_strategy
from parcellation.encoders import encoder_class
from parcellation.errors import BadData, NothingSelected, UsageError
from parcellation.family import scheme_sites
from parcellation.headers import read_header
from parcellation.labels import read_labels
from parcellation.layouts import load_layout
from parcellation.manifest import discover
from parcellation.map_files import Frame
from parcellation.maps import _checked
from parcellation.meshes import Mesh
from parcellation.plates import template_class
from parcellation.simulation import SimulationConfig, dead_vertices
from parcellation.smooth_basis import graph_laplacian, smooth_basis
from parcellation.store import Store, write_unit
from parcellation.surfaces import Vertices, _outside, wanted_labels
from parcellation.surrogates import Population, Source
from parcellation.templates.auto_encoder import AutoEncoder
from parcellation.timeseries import open_bold
from parcellation.verbs.run import _check_paths
from parcellation.verbs.topography import read_pairs
from pipelines.fuzz.encodings import surface_models
from tests.studies import STUDY, command, replace
from tests.test_annot import written as write_annot

MESH = Mesh("fsaverage", (642, 642))


# --- one test each: files ---


def test_labels_of_an_annot(tmp_path):
    path = write_annot(tmp_path / "lh.a.annot", [0] * 5, {0: "a"})
    content = Path(path or tmp_path / "lh.a.annot").read_bytes()
    replace(tmp_path / "b.annot", content[: 4 + 5 * 8] + b"\0\0\0\0")
    with pytest.raises(BadData, match=r"has no table of its labels; make it anew with one"):
        read_annot(tmp_path / "b.annot")


def gifti(path: Path, *lengths: tuple[int, ...]) -> Path:
    intent = "NIFTI_INTENT_TIME_SERIES"
    arrays = [GiftiDataArray(np.ones(length, np.float32), intent, "NIFTI_TYPE_FLOAT32") for length in lengths]
    GiftiImage(darrays=arrays).to_filename(path)
    return path


def test_series_of_gifti(tmp_path):
    left, right = gifti(tmp_path / "lh.a.func.gii", (642,), (642,)), gifti(tmp_path / "rh.a.func.gii", (642,))
    for read in (open_bold, read_header):
        with pytest.raises(BadData, match=r"hemispheres of different lengths, 2 and 1 frames"):
            read((left, right), "fsaverage")
    odd = gifti(tmp_path / "lh.b.func.gii", (642,), (641,))
    for read in (open_bold, read_header):
        with pytest.raises(BadData, match=r"expected one data array a frame, all of one length"):
            read((odd, odd), "fsaverage")
    many = gifti(tmp_path / "lh.c.func.gii", (642, 2), (642, 2))
    with pytest.raises(BadData, match=r"expected one data array a frame, or one of all frames, got 2 of \(642, 2\)"):
        open_bold((many, many), "fsaverage")


def test_series_that_are_a_volume(tmp_path):
    nib.freesurfer.MGHImage(np.ones((3, 4, 5, 6), np.float32), np.eye(4)).to_filename(tmp_path / "lh.a.mgh")
    with pytest.raises(BadData, match=r"a volume of 3 x 4 x 5 voxels; map it to the surface first"):
        open_bold((tmp_path / "lh.a.mgh",) * 2, "fsaverage")


def test_cifti_of_other_kinds(fresh, tmp_path):
    content = bytearray(fresh.run_file("sim01").read_bytes())
    path = tmp_path / "a.dtseries.nii"
    for intent, words in (
        (3007, "not of series; give the run's dtseries"),
        (3050, "CIFTI of intent 3050, not of series"),
    ):
        path.write_bytes(content[:504] + intent.to_bytes(4, "little") + content[508:])
        with pytest.raises(BadData, match=words):
            open_bold((path,))
    path.write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(BadData, match=r"a compressed file; .*\(CIFTI is kept uncompressed: `gunzip` it\)"):
        open_bold((path,))


def test_confounds(tmp_path):
    path = tmp_path / "c.tsv"
    path.write_text("a\tb\n1\tx\n2\t3\n")
    with pytest.raises(BadData, match=r"expected numbers in column 'b', got 'x'"):
        read_confounds(path, 2, "all")
    with pytest.raises(BadData, match=r"has no confounds z; it has a, b"):
        read_confounds(path, 2, ["z"])


def test_label_files(tmp_path):
    keys = GiftiDataArray(np.zeros(642, np.int32), "NIFTI_INTENT_LABEL", "NIFTI_TYPE_INT32")
    GiftiImage(darrays=[keys]).to_filename(tmp_path / "odd.label.gii")
    with pytest.raises(BadData, match=r"no hemisphere in its name; expected such as `lh.NAME` or `NAME.L.label.gii`"):
        read_labels(tmp_path / "odd.label.gii", MESH, (0,))


def test_dlabels_that_are_none(fresh, tmp_path):
    path = tmp_path / "a.dlabel.nii"
    path.write_bytes(fresh.run_file("sim01").read_bytes())
    with pytest.raises(BadData, match=r"expected labels by brain models \(a dlabel file\), got SeriesAxis"):
        read_labels(path, MESH, (0,))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0 1\nx y\n", "expected two whole numbers a line, the places of two neighbours"),
        ("0 1 2\n", "expected two whole numbers a line, got 3 in 1 lines"),
        ("0 9\n", "expected pairs of different places from 0 to 4, as the region has"),
        ("0 1\n1 0\n", "expected every pair once"),
    ],
)
def test_a_graph_of_neighbours(tmp_path, content, words):
    (tmp_path / "graph.tsv").write_text(content)
    with pytest.raises(BadData, match=words):
        read_pairs(tmp_path / "graph.tsv", 5)


# --- settings ---


def study_with(tmp_path, **data):
    return parse_study({"name": "s", "data": data}, tmp_path / "study.yaml")


def test_names_that_there_are_not(tmp_path):
    with pytest.raises(UsageError, match=r"data.layout: no layout is called 'hpc'; did you mean 'hcp'"):
        load_layout("hpc")
    with pytest.raises(UsageError, match=r"data.layout: no layout is called 'qqqq'; there are: manifest"):
        load_layout("qqqq")
    with pytest.raises(UsageError, match=r"region.name: no region is called 'moon'; known: .*; or set `labels`"):
        wanted_labels(parse_study({"name": "s", "data": {"root": "x"}, "region": {"name": "moon"}}, tmp_path).region)
    with pytest.raises(UsageError, match=r"model.template: expected one of auto_encoder, .*, got 'no'"):
        template_class("no")
    with pytest.raises(UsageError, match=r"encoder: expected one of .*, got 'no'"):
        encoder_class("no")


def test_a_group_that_nobody_is_of(tmp_path):
    (tmp_path / "m.tsv").write_text("subject\tsession\trun\tbold\tgroup\n1\t1\t1\ta.nii\tA\n")
    with pytest.raises(NothingSelected, match=r"data.group: no run is of group 'C'; groups: "):
        discover(study_with(tmp_path, layout="manifest", manifest="m.tsv", group="C"))


def test_a_simulation_with_more_dead_vertices_than_there_are():
    with pytest.raises(UsageError, match=r"dead_vertices: expected fewer than the region's 5, got 7"):
        dead_vertices(SimulationConfig(dead_vertices=7), 0, 5)


def test_graphs_without_a_basis():
    with pytest.raises(BadData, match=r"graph: expected symmetric weights of edges, none of them negative"):
        graph_laplacian(sparse.csr_array([[0, 1.0], [0, 0]]))
    with pytest.raises(BadData, match=r"smooth basis: expected vertices that have neighbours, got 3 without"):
        smooth_basis(sparse.csr_array((3, 3)), np.ones(3), 2)


# --- arrays ---


def vertices(*number: int, mesh: Mesh = MESH) -> Vertices:
    return Vertices.of(mesh, number, [])


def test_frames_that_do_not_fit():
    other = Mesh("fsLR", (642, 642))
    for brain, region, words in (
        (vertices(1, 2), vertices(1, mesh=other), "region: expected vertices of Mesh"),
        (vertices(1, 2), vertices(1, 3), "region: expected all 2 vertices to be in the file, 1 are not"),
        (vertices(), vertices(1), "brain: expected vertices, got none"),
        (vertices(1, 700), vertices(1), r"brain: expected vertex numbers below \(642, 642\), got 700"),
    ):
        with pytest.raises(BadData, match=words):
            Frame(brain, region)


def test_sources_of_surrogates_that_cannot_be_used():
    def source(series, numbers) -> Source:
        return Source(np.array(series, float), vertices(*numbers), np.array([0]), np.array([1]), 1.0, "made")

    good = [[1, 2], [2, 1]]
    with pytest.raises(BadData, match=r"source: expected finite series, got NaN or infinite values"):
        source([[1, np.nan], [2, 1]], (1, 2))
    with pytest.raises(BadData, match=r"source: expected vertices in ascending order, the left hemisphere first"):
        source(good, (2, 1))
    with pytest.raises(BadData, match=r"source: expected signal at every vertex, got constant series in its targets"):
        source([[1, 2], [2, 2]], (1, 2))


# --- verbs ---


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("show RESULTS --map consensus --participant-label sim01", 18, "only the population has this map; leave --"),
        ("show RESULTS --participant-label sim01 sim02 --out OUT.png", 18, "--out names one picture, but 2 "),
        ("infer STUDY --participant-label nobody", 18, "no fingerprints of subject nobody in "),
        ("infer STUDY --session-label 9", 18, "no fingerprints of session 9 of these subjects"),
        ("networks STUDY --numbers 1", 64, "networks: expected numbers of 2 or more, got "),
        ("simulate SIMULATION OUT --participant-label sim99", 18, "expected subjects sim01 to sim05, got ['sim99']"),
        ("run STUDY --profile nowhere", 64, "--profile: expected "),
        ("report STUDY --model nowhere", 66, "no trained model there (model.json is missing)"),
    ],
)
def test_what_a_command_says(arguments, code, words, study):
    names = {"STUDY": study.study, "RESULTS": study.results, "SIMULATION": study.path / "simulation.yaml"}
    names |= {"OUT": study.path / "out", "OUT.png": study.path / "out.png"}
    assert words in command(*(names.get(word, word) for word in arguments.split()), code=code)


@pytest.mark.parametrize(
    ("verb", "changes", "code", "words"),
    [
        ("train", {"training": {"subjects": ["sim99"]}}, 18, "training.subjects: no fingerprints of sim99"),
        ("train", {"training": {"subjects": None, "group": "x"}}, 18, "training: nobody is of group 'x' among "),
        ("train", {"model": {"file": "work/model"}}, 64, "train: this study applies the model "),
        (
            "train",
            {"model": {"template": "gaussian_random_effects"}},
            64,
            "model.template: expected a model of networks, got ",
        ),
        (
            "train",
            {"model": {"template": "functional_parcellation_logits", "topography": {"modes": 5}}},
            64,
            "model.topography: expected the model.template functional_parcellation, which alone has smooth maps, got ",
        ),
        ("train", {"model": {"scheme": {"mu": "free", "no": "free"}}}, 64, "model.scheme: expected sites among "),
        ("train", {"model": {"flows": {"mu": "no"}}}, 64, "flow of mu: expected one of precision, "),
        ("index", {"data": {"variants": ["zzz"]}}, 18, "no run has a variant to use"),
        ("run", {"cluster": {"snakemake": "nowhere/snakemake"}}, 64, "is not a program"),
        ("infer", {"outputs": {"contrasts": [["a", "b"]]}}, 64, "outputs.contrasts: no network is called 'a'; "),
    ],
)
def test_what_a_verb_says_of_a_study(verb, changes, code, words, study):
    assert words in command(verb, study.write_study(**changes), code=code)


def test_a_work_folder_of_another_study(study):
    said = command("index", study.write_study(base=STUDY | {"name": "another"}), code=64)
    assert "the work folder of the study 'broca'; give 'another' an outputs.work of its own" in said


def test_a_result_without_its_inputs(study):
    study.write_study(outputs={"grayordinates": "all"})
    manifest = study.path / "work/manifest.tsv"
    rows = manifest.read_text().splitlines()
    replace(manifest, ("\n".join([rows[0], *(row.replace("HCP", "GONE") for row in rows[1:])]) + "\n").encode())
    said = command("infer", study.study, code=66)
    assert "outputs.grayordinates: all: " in said
    assert "no such CIFTI file to take the voxels from" in said


def test_a_store_of_another_program(study):
    path = study.unit("sim02")
    replace(path, path.read_bytes()[:-9])
    said = command("infer", study.study)
    assert "not a whole fingerprint file (" in said
    assert "delete it and prepare again" in said
    identity = next(path.parent.glob("identity-*.json"))
    replace(identity, json.dumps({"vertices": []}).encode())
    assert "content does not match the digest in its name; delete the store" in command("infer", study.study, code=65)


def test_tables_of_an_annot(tmp_path):
    for keys in ({}, {1: "a"}):
        path = write_annot(tmp_path / "lh.a.annot", [0, 1], keys)
        content = path.read_bytes()
        if keys:  # the one label twice
            entry = content[-(4 + 4 + 2 + 16) :]
            content = content[: -len(entry) - 4] + (2).to_bytes(4, "big") + entry * 2
        path.write_bytes(content)
        words = "expected an index of its own for each label, got 1 for 'a'" if keys else "its table has no labels"
        with pytest.raises(BadData, match=words):
            read_annot(path)


def test_labels_of_one_hemisphere(tmp_path):
    axes = nib.cifti2.LabelAxis(["a"], [{0: ("?", (0, 0, 0, 0))}]), surface_models(vertices(1, 2))
    nib.Cifti2Image(np.zeros((1, 2), np.int32), axes).to_filename(tmp_path / "a.dlabel.nii")
    with pytest.raises(BadData, match=r"has no labels of the right hemisphere"):
        read_labels(tmp_path / "a.dlabel.nii", MESH, (0, 1))


def test_a_table_of_confounds_without_what_a_strategy_needs(tmp_path):
    (tmp_path / "c.tsv").write_text("a\tb\n1\t2\n2\t3\n")
    with pytest.raises(BadData, match=r"not a table of confounds that the strategy can be taken from"):
        read_strategy(tmp_path / "c.tsv", 2, "simple")


def test_smooth_noise_without_neighbours():
    source = Source(np.array([[1.0, 2], [2, 1]]), vertices(1, 2), np.array([0]), np.array([1]), 1.0, "made")
    with pytest.raises(BadData, match=r"weights: expected shape \(network, target\) = \(2, 1\), got \(2, 3\)"):
        Population(source, np.ones((2, 3)), np.ones((1, 2)))
    config = SimulationConfig(labels={"noise": "smooth"})
    with pytest.raises(
        BadData, match=r"smooth label noise: expected the neighbours of the region's vertices, got none"
    ):
        simulate._smooth(config, Population(source, np.ones((2, 1)), np.ones((1, 2))))


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("sideways", "model.scheme: expected free, encoded or hybrid, got 'sideways'"),
     ({"group": "no"}, "model.scheme: expected free or encoded for a site, got 'no'")],
)  # fmt: skip
def test_schemes_that_there_are_not(scheme, words, effects):
    with pytest.raises(UsageError, match=re.escape(words)):
        scheme_sites(effects[0], scheme)


def test_a_result_whose_map_is_no_cifti(study):
    path = next(study.results.glob("sub-sim01/anat/*_probseg.dscalar.nii"))
    nib.Nifti1Image(np.zeros((2, 2, 2), np.float32), np.eye(4)).to_filename(study.path / "a.nii")
    replace(path, (study.path / "a.nii").read_bytes())
    with pytest.raises(BadData, match=r"_probseg.dscalar.nii: expected a CIFTI-2 file, got Nifti1Image"):
        load_result(study.results).subject("sim01").probability  # noqa: B018


def test_a_path_that_a_cluster_cannot_be_given():
    with pytest.raises(UsageError, match=r"outputs.work: on a cluster, expected a path without \\, got a\\b"):
        _check_paths(Path("a\\b"), None, "slurm")


def test_no_engine_is_how_to_get_one(study, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(study.path / "nowhere/venv"))
    said = command("run", study.study, code=66)
    assert "run: needs Snakemake, which has an environment of its own. To install it:" in said


def test_a_decoder_that_there_is_not():
    with pytest.raises(UsageError, match=r"decoder: expected one of .*, got 'no'"):
        AutoEncoder(3, 2, "no")


def test_fingerprints_that_do_not_fit_their_precision(tmp_path):
    with pytest.raises(BadData, match=r"expected finite values that fit into float16, got 1000000000.0 at vertex 2"):
        write_unit(Store(tmp_path), "1", "1", np.array([[0.1], [0.2], [1e9]]), frames=5)


def test_an_identity_that_says_something_else(tmp_path):
    digest = hashlib.sha256(b"{}").hexdigest()
    (tmp_path / f"identity-{digest}.json").write_bytes(b"{}")
    with pytest.raises(BadData, match=r"expected vertices and targets of this program: "):
        Store(tmp_path).identity(digest)


def test_values_of_maps_that_are_no_numbers():
    with pytest.raises(BadData, match=r"entropy: expected finite values, got 1 others"):
        _checked(np.array([1, np.nan]), (2,), "entropy")


def test_a_mask_of_the_cortex_without_data(tmp_path):
    GiftiImage().to_filename(tmp_path / "mask.shape.gii")
    with pytest.raises(BadData, match=r"expected a mask of 642 vertices, got no data array"):
        _outside(tmp_path / "mask.shape.gii", 642)


def test_frames_of_a_source_beyond_its_end(fresh):
    source = {"bold": str(fresh.run_file("sim01")), "space": "fsaverage", "frames": [0, 9999]}
    replace(fresh.path / "more.yaml", yaml.safe_dump({"source": source}).encode())
    said = command("simulate", fresh.path / "more.yaml", fresh.path / "out", code=65)
    assert "source.frames: expected an end of at most 100, the frames of the run, got 9999" in said
