"""Maps: nibabel, nilearn and Connectome Workbench all give back the same integers, floats and names."""

import json
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import nibabel
import numpy as np
import pandas
import pytest
from nilearn import surface

from parcellation.errors import BadData
from parcellation.label_table import named_networks
from parcellation.map_files import Cifti, Frame, Gifti
from parcellation.maps import Export, bids_label, shown_labels, write_population, write_subject
from parcellation.surfaces import Mesh, Vertices
from tests.made import BRAIN, REGION, SURFACES, expected_maps, make_result
from tests.workbench import validate_bids

workbench = pytest.mark.skipif(shutil.which("wb_command") is None, reason="Connectome Workbench is not installed")

TARGETS = ("L_001", "L_002", "R_001")
NAMES = ("Broca-anterior", "Broca-posterior", "tiers & <'rest'>")
DSEG = "anat/sub-0100307_space-fsLR_seg-broca3_den-32k_dseg"
PROBSEG = "anat/sub-0100307_space-fsLR_seg-broca3_den-32k_probseg"
STATS = ("entropy", "confidence", "consensus")
UNCERTAINTY = "anat/sub-0100307_space-fsLR_seg-broca3_den-32k_stat-uncertainty_boldmap"


class TestMesh(Mesh):
    """A mesh whose density is known."""

    __test__ = False
    density = "32k"


def vertices(mesh, left, right=()):
    hemisphere = np.repeat(np.array([0, 1], np.uint8), [len(left), len(right)])
    return Vertices(mesh, hemisphere, np.array([*left, *right], np.int32))


@pytest.fixture
def frame():
    """Every tenth left vertex and some right ones; a region in both, in no particular order."""
    mesh = TestMesh("fsLR", (32492, 32492))
    brain = vertices(mesh, range(1, 32492, 10), range(20000, 20050))
    return Frame(brain, vertices(mesh, [301, 11, 12341, 32491], [20049, 20003]))


def posterior_of(frame, K=3, seed=0):
    rng = np.random.default_rng(seed)
    V = len(frame.region)
    probability = rng.dirichlet(np.ones(K), V).astype(np.float32)
    mean = rng.normal(size=(K, len(TARGETS))).astype(np.float32)
    return SimpleNamespace(
        subject="0100307",
        sessions=("1", "2"),
        frames=(1200.0, 1100.0),
        probability=probability,
        entropy=-(probability * np.log2(probability)).sum(1),
        mutual_information=rng.uniform(0, 0.1, V).astype(np.float32),
        mask=np.arange(V) != 1,
        consensus=rng.uniform(size=V).astype(np.float32),
        betweensd=rng.uniform(size=(V, K)).astype(np.float32),
        within=rng.uniform(size=V).astype(np.float32),
        between=rng.uniform(size=V).astype(np.float32),
        profile_mean=mean,
        profile_low=mean - 0.5,
        profile_high=mean + 0.25,
        **dict(zip(("contrast_mean", "contrast_low", "contrast_high"), contrasts(mean), strict=True)),
    )


def contrasts(mean):
    """Mean, low and high of made-up contrasts, as many as there are of these networks."""
    value = mean[:1] - mean[1:] if len(mean) == 2 else mean - mean.mean(0)
    return value, value - 0.5, value + 0.25


@pytest.fixture
def export(frame, tmp_path):
    return Export(tmp_path, frame, named_networks(3, NAMES), TARGETS, "broca3", (Cifti,), {"Draws": 64})


def wb(*arguments):
    done = subprocess.run(["wb_command", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nibabel_reads_the_same_labels(export):
    posterior = posterior_of(export.frame)
    write_subject(export, posterior)
    image = nibabel.load(export.out / f"sub-0100307/{DSEG}.dlabel.nii")
    labels, brain = image.header.get_axis(0), image.header.get_axis(1)
    keys = np.asanyarray(image.dataobj)
    assert keys.dtype == np.int32
    region = export.frame.region
    for row, (hemisphere, number) in enumerate(zip(region.hemisphere, region.number, strict=True)):
        at = (brain.vertex == number) & (brain.name == Cifti_structure(hemisphere))
        assert keys[0, at] == posterior.probability[row].argmax() + 1
    assert np.count_nonzero(keys) == len(region)
    assert list(labels.label[0]) == [0, 1, 2, 3]
    assert [labels.label[0][key][0] for key in range(4)] == ["???", *NAMES]
    assert labels.label[0][0][1] == (0, 0, 0, 0)
    assert brain.nvertices == {Cifti_structure(0): 32492, Cifti_structure(1): 32492}


def Cifti_structure(hemisphere):
    return ("CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT")[hemisphere]


@workbench
def test_workbench_gives_back_labels_and_names(export, tmp_path):
    posterior = posterior_of(export.frame)
    write_subject(export, posterior)
    path = export.out / f"sub-0100307/{DSEG}.dlabel.nii"
    left, right = tmp_path / "left.label.gii", tmp_path / "right.label.gii"
    wb("-cifti-separate", path, "COLUMN", "-label", "CORTEX_LEFT", left, "-label", "CORTEX_RIGHT", right)
    keys, _ = shown_labels(posterior.probability)
    for side, file in enumerate((left, right)):
        gifti = nibabel.load(file)
        np.testing.assert_array_equal(gifti.agg_data(), export.frame.spread_mesh(keys, side))
    assert gifti.labeltable.get_labels_as_dict() == dict(enumerate(("???", *NAMES)))
    rgba = {label.key: label.rgba for label in gifti.labeltable.labels}
    assert rgba[0][3] == 0
    np.testing.assert_allclose(np.array(rgba[2][:3]) * 255, export.networks.colours[1], atol=1e-3)


@workbench
def test_workbench_gives_back_probabilities_exactly(export, tmp_path):
    posterior = posterior_of(export.frame)
    write_subject(export, posterior)
    path = export.out / f"sub-0100307/{PROBSEG}.dscalar.nii"
    wb("-cifti-separate", path, "COLUMN", "-metric", "CORTEX_LEFT", tmp_path / "left.func.gii")
    gifti = nibabel.load(tmp_path / "left.func.gii")
    assert [array.metadata["Name"] for array in gifti.darrays] == list(NAMES)
    expected = export.frame.spread_mesh(posterior.probability.T, 0)
    np.testing.assert_array_equal(np.stack([array.data for array in gifti.darrays]), expected)


@workbench
def test_workbench_reads_the_text_and_names_of_uncertainty(export, tmp_path):
    posterior = posterior_of(export.frame)
    write_subject(export, posterior)
    path = export.out / f"sub-0100307/{UNCERTAINTY}.dscalar.nii"
    wb("-cifti-convert", "-to-text", path, tmp_path / "values.txt")
    text = np.loadtxt(tmp_path / "values.txt")
    confidence = posterior.probability.max(1)
    expected = np.stack([posterior.entropy, confidence, posterior.mutual_information])
    # Workbench prints six significant digits.
    np.testing.assert_allclose(text, export.frame.spread(expected).T, rtol=1e-5)
    information = wb("-file-information", path)
    rows = [line.split(maxsplit=8) for line in information.splitlines()]
    assert [row[8].strip() for row in rows if len(row) == 9][-3:] == ["entropy", "confidence", "mutual information"]
    assert ["Maps", "to", "Surface:", "true"] in rows


def test_headers_are_made_once_a_kind(export, monkeypatch):
    made = []
    build = nibabel.cifti2.Cifti2Header.from_axes
    monkeypatch.setattr(nibabel.cifti2.Cifti2Header, "from_axes", lambda axes: made.append(1) or build(axes))
    for subject in ("a", "b", "c"):
        posterior = posterior_of(export.frame)
        posterior.subject = subject
        write_subject(export, posterior)
    assert len(made) == 3  # labels, probabilities, uncertainty


def test_the_right_hemisphere_may_come_first(frame, tmp_path):
    order = np.argsort(frame.brain.hemisphere == 0, kind="stable")
    brain = Vertices(frame.brain.mesh, frame.brain.hemisphere[order], frame.brain.number[order])
    export = Export(tmp_path, Frame(brain, frame.region), named_networks(3), TARGETS, "broca3")
    posterior = posterior_of(frame)
    write_subject(export, posterior)
    image = nibabel.load(tmp_path / f"sub-0100307/{DSEG}.dlabel.nii")
    axis = image.header.get_axis(1)
    assert axis.name[0] == Cifti_structure(1)
    np.testing.assert_array_equal(axis.vertex, brain.number)
    keys, _ = shown_labels(posterior.probability)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj)[0, export.frame.rows], keys)


def test_fsaverage_gifti_holds_every_mesh_vertex(tmp_path):
    mesh = TestMesh("fsaverage", (642, 642))
    frame = Frame(vertices(mesh, range(642)), vertices(mesh, [5, 600, 17]))
    export = Export(tmp_path, frame, named_networks(2), TARGETS, "broca2", (Gifti,))
    posterior = posterior_of(frame, K=2)
    write_subject(export, posterior)
    stem = tmp_path / "sub-0100307/anat/sub-0100307_hemi-L_space-fsaverage_seg-broca2_den-32k"
    keys, _ = shown_labels(posterior.probability)
    labels = surface.load_surf_data(f"{stem}_dseg.label.gii")
    assert labels.shape == (642,)
    assert np.issubdtype(labels.dtype, np.integer)
    np.testing.assert_array_equal(labels[[5, 600, 17]], keys)
    assert np.count_nonzero(labels) == 3
    table = nibabel.load(f"{stem}_dseg.label.gii").labeltable.get_labels_as_dict()
    assert table == {0: "???", 1: "network-01", 2: "network-02"}
    probability = surface.load_surf_data(f"{stem}_probseg.func.gii")
    np.testing.assert_array_equal(probability[[5, 600, 17]], posterior.probability)
    image = nibabel.load(f"{stem}_stat-uncertainty_boldmap.func.gii")
    assert [array.metadata["Name"] for array in image.darrays] == ["entropy", "confidence", "mutual information"]
    assert image.meta["AnatomicalStructurePrimary"] == "CortexLeft"


@workbench
def test_workbench_reads_gifti_labels(tmp_path):
    mesh = TestMesh("fsaverage", (642, 642))
    frame = Frame(vertices(mesh, range(642)), vertices(mesh, [5, 600, 17]))
    write_subject(Export(tmp_path, frame, named_networks(3, NAMES), TARGETS, "b", (Gifti,)), posterior_of(frame))
    path = tmp_path / "sub-0100307/anat/sub-0100307_hemi-L_space-fsaverage_seg-b_den-32k_dseg.label.gii"
    wb("-label-export-table", path, tmp_path / "table.txt")
    assert (tmp_path / "table.txt").read_text(encoding="utf-8").splitlines()[::2] == list(NAMES)


def test_population_files(export):
    population = posterior_of(export.frame)
    write_population(export, population)
    folder = export.out / "tpl-fsLR"
    stem = "tpl-fsLR_atlas-broca3_den-32k"
    files = {path.name for path in folder.iterdir()}
    stats = [f"{stem}_stat-{stat}_boldmap" for stat in (*STATS, "betweensd", "variability")]
    assert {f"{name}.dscalar.nii" for name in [f"{stem}_probseg", *stats]} < files
    assert {f"{name}.json" for name in [f"{stem}_dseg", f"{stem}_probseg", *stats]} < files
    assert {
        f"{stem}_dseg.dlabel.nii",
        f"{stem}_dseg.tsv",
        "tpl-fsLR_atlas-broca3_den-32k_stat-profile_network.tsv",
    } < files
    # The validator wants it at the root.
    assert json.loads((export.out / "atlas-broca3_description.json").read_text())["Density"] == "32k"
    split = nibabel.load(folder / f"{stem}_stat-variability_boldmap.dscalar.nii")
    assert split.header.get_axis(0).name.tolist() == ["between subjects", "within subjects"]
    expected = [population.between, population.within]
    np.testing.assert_array_equal(np.asanyarray(split.dataobj)[:, export.frame.rows], expected)
    between = nibabel.load(folder / f"{stem}_stat-betweensd_boldmap.dscalar.nii")
    assert between.header.get_axis(0).name.tolist() == list(NAMES)
    np.testing.assert_array_equal(np.asanyarray(between.dataobj)[:, export.frame.rows], population.betweensd.T)


def test_sidecars_say_density_and_what_has_no_data(export):
    write_subject(export, posterior_of(export.frame))
    sidecar = json.loads((export.out / f"sub-0100307/{DSEG}.json").read_text())
    assert sidecar["Density"] == "32k"
    assert sidecar["Draws"] == 64
    assert sidecar["VerticesWithoutData"] == {"L": [11], "R": []}
    assert json.loads((export.out / f"sub-0100307/{PROBSEG}.json").read_text())["LabelMap"] == list(NAMES)
    table = pandas.read_csv(export.out / f"sub-0100307/{DSEG}.tsv", sep="\t")
    assert table.name.tolist() == list(NAMES)
    assert table["index"].tolist() == [1, 2, 3]
    assert table.color.tolist() == ["#0072B2", "#D55E00", "#009E73"]


def test_profiles_are_one_row_a_network_and_target(export):
    posterior = posterior_of(export.frame)
    write_subject(export, posterior)
    path = export.out / "sub-0100307/func/sub-0100307_space-fsLR_seg-broca3_den-32k_stat-profile_network.tsv"
    table = pandas.read_csv(path, sep="\t").set_index(["network", "target"])
    assert len(table) == 9
    assert table.loc[(NAMES[2], "L_002"), "mean"] == pytest.approx(posterior.profile_mean[2, 1], rel=1e-5)
    assert table.loc[(NAMES[0], "R_001"), "high"] == pytest.approx(posterior.profile_high[0, 2], rel=1e-5)


def test_chosen_pairs_and_profiles_of_subjects_on_the_cortex(export):
    chosen = replace(export, pairs=((2, 0),), subject_profiles=True, target_of=np.arange(len(export.frame.brain)) % 3)
    posterior = posterior_of(export.frame)
    for part in ("mean", "low", "high"):
        rows = getattr(posterior, f"contrast_{part}")
        setattr(posterior, f"contrast_{part}", np.concatenate([rows, [[1, 2, 3]]]).astype(np.float32))
    write_subject(chosen, posterior)
    stem = export.out / "sub-0100307/func/sub-0100307_space-fsLR_seg-broca3_den-32k_stat"
    table = pandas.read_csv(f"{stem}-contrast_network.tsv", sep="\t").set_index(["network", "target"])
    name = f"{NAMES[2]} minus {NAMES[0]}"
    assert table.loc[name, "mean"].tolist() == [1, 2, 3]
    image = nibabel.load(f"{stem}-profile_boldmap.dscalar.nii")
    assert image.header.get_axis(0).name.tolist() == [*NAMES, *(f"{n} minus the others" for n in NAMES), name]
    np.testing.assert_array_equal(np.asanyarray(image.dataobj)[-1, :4], [1, 2, 3, 1])


def test_profiles_on_the_cortex_go_when_they_are_wanted_no_more(export):
    posterior, wanted = posterior_of(export.frame), replace(export, target_of=np.arange(len(export.frame.brain)) % 3)
    write_subject(wanted, posterior)
    before = sorted(export.out.rglob("*.*"))
    write_subject(replace(wanted, subject_profiles=True), posterior)
    assert len(sorted(export.out.rglob("*.*"))) > len(before)
    write_subject(wanted, posterior)
    assert sorted(export.out.rglob("*.*")) == before


def test_a_rerun_gives_the_same_bytes(export, tmp_path):
    posterior = posterior_of(export.frame)
    contents = []
    for style, folder in ((Cifti, "a"), (Cifti, "b"), (Gifti, "a"), (Gifti, "b")):
        again = replace(export, out=tmp_path / folder / style.__name__, styles=(style,))
        write_subject(again, posterior)
        write_population(again, posterior)
        contents.append({p.relative_to(again.out): p.read_bytes() for p in again.out.rglob("*") if p.is_file()})
    assert contents[0] == contents[1]
    assert contents[2] == contents[3]


def test_ties_go_to_the_lower_key():
    keys, confidence = shown_labels(np.array([[0.4, 0.4, 0.2], [0.1, 0.45, 0.45]]))
    assert keys.tolist() == [1, 2]
    np.testing.assert_allclose(confidence, [0.4, 0.45])


SUM = "probability: expected values >= 0 that add up to 1 at each vertex, got"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.5, np.nan, 0.5], "probability: expected finite values, got 1 others"),
        ([0.5, np.inf, 0.5], "probability: expected finite values, got 1 others"),
        ([1.0, -0.5, 0.5], SUM + " a sum of 1 and values down to -0.5"),
        ([0.9, 0.5, 0.1], SUM + " a sum of 1.5 and values down to"),
    ],
)
def test_wrong_probabilities_are_refused_and_nothing_is_written(export, row, words):
    posterior = posterior_of(export.frame)
    posterior.probability[2] = row
    with pytest.raises(BadData, match=f"subject 0100307: {words}"):
        write_subject(export, posterior)
    assert not list(export.out.rglob("*.nii"))


def test_a_posterior_of_another_region_is_refused(export):
    posterior = posterior_of(export.frame)
    posterior.probability = posterior.probability[:-1]
    with pytest.raises(BadData, match=r"expected shape \(6, 3\), got \(5, 3\)"):
        write_subject(export, posterior)


def test_subject_names_become_bids_labels():
    assert bids_label("0100307") == "0100307"
    assert bids_label("sub-NDAR_INV-1") == "NDARINV1"
    with pytest.raises(BadData, match="letter or digit"):
        bids_label("sub-_")


STUDIES = {
    2: ((Cifti,), REGION, ""),
    17: ((Cifti, Gifti), REGION, "L"),
    300: ((Cifti, Gifti), BRAIN, "LR"),
}


@pytest.mark.parametrize("K", STUDIES)
def test_three_studies_have_exactly_these_files_and_are_valid(K, tmp_path):
    """A small region as CIFTI, one in both formats with more networks, a whole cortex of 300 without surfaces."""
    styles, region, gifti = STUDIES[K]
    probability = np.random.default_rng(0).dirichlet(np.full(K, 0.1), len(region))
    surfaces = None if K == 300 else SURFACES
    make_result(tmp_path, {"01": probability, "s-02": probability[::-1]}, None, styles, surfaces, region)
    entities = "seg-broca{0}_den-642", "atlas-broca{0}_den-642"
    stem, atlas = (text.format(K) for text in entities)
    root = {".bidsignore", "CITATION.md", "dataset_description.json", f"atlas-broca{K}_description.json"}
    root |= {f"{name}.{end}" for name in ("participants", "sizes_network") for end in ("tsv", "json")}
    expected = expected_maps(
        "fsaverage", f"space-fsaverage_{stem}", atlas, ("01", "s02"), gifti, "" if surfaces is None else "642"
    )
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == root | expected
    validate_bids(tmp_path)


def test_the_validator_finds_what_is_wrong(tmp_path):
    make_result(tmp_path)
    (tmp_path / "sub-01/anat/sub-01_odd_name.nii").write_bytes(b"")
    with pytest.raises(AssertionError, match="odd_name"):
        validate_bids(tmp_path)
