"""Series of parcels: which parcels are the region's, what is refused, and a whole study of them."""

import nibabel as nib
import numpy as np
import pandas
import pytest
import yaml

from parcellation import load_result
from parcellation.config import Study
from parcellation.errors import BadData, InputMissing
from parcellation.meshes import Mesh
from parcellation.parcels import (
    all_vertices,
    as_single_vertices,
    check_parcels,
    first_vertices,
    parcel_of,
    parcels_of,
    region_parcels,
)
from parcellation.surfaces import Targets, Vertices
from pipelines.fuzz.encodings import parcellated
from tests.run_files import refusal
from tests.studies import SUBJECTS, command, replace

MESH = Mesh("fsLR", (4842, 4842))


def of(names, *members, mesh=MESH):
    return parcels_of(mesh, names, [[(side, np.array(numbers))] for side, numbers in members])


ATLAS = of(["R_45_ROI", "L_44_ROI", "L_45_ROI", "L_V1_ROI"], (1, [5, 6]), (0, [10, 11]), (0, [20, 21, 22]), (0, [1]))


def settings(**region):
    data = {"layout": "manifest", "manifest": "m.tsv"}
    return Study.model_validate({"name": "s", "data": data, "region": region})


def test_identities():
    assert ATLAS.names == ("L_V1_ROI", "L_44_ROI", "L_45_ROI", "R_45_ROI")
    single = as_single_vertices(ATLAS)
    assert (single.names, single.members.number.tolist()) == (ATLAS.names, [1, 10, 20, 5])
    assert all_vertices(ATLAS).number.tolist() == [1, 10, 11, 20, 21, 22, 5, 6]
    brain = Vertices.of(MESH, [0, 1, 10, 11, 21], [5])
    region = first_vertices(ATLAS)[np.array([2, 1])]
    assert parcel_of(brain, ATLAS, region).tolist() == [-1, -1, 1, 1, 0, -1]


@pytest.mark.parametrize(("hemisphere", "numbers"), [("left", [10, 20]), ("right", [5]), ("both", [10, 20, 5])])
def test_a_region_by_names_in_any_manner(hemisphere, numbers):
    labels = ["45"] if hemisphere == "right" else ["44", "45"]
    atlas = of([*ATLAS.names, "R_44_ROI"], (0, [1]), (0, [10, 11]), (0, [20, 21, 22]), (1, [5, 6]), (1, [4000]))
    expected = [*numbers, 4000] if hemisphere == "both" else numbers
    region = region_parcels(settings(hemisphere=hemisphere, labels=labels), atlas)
    assert region.number.tolist() == expected


def test_broca_is_found_by_its_definition():
    assert region_parcels(settings(), ATLAS).number.tolist() == [10, 20]


def test_a_region_by_a_label_file_is_the_parcels_mostly_in_it(tmp_path):
    keys = np.zeros(4842, np.int32)
    keys[[11, 20, 21, 1]] = 3
    array = nib.gifti.GiftiDataArray(keys, intent="NIFTI_INTENT_LABEL", datatype="int32")
    table = nib.gifti.GiftiLabelTable()
    table.labels.append(nib.gifti.GiftiLabel(3))
    table.labels[0].label = "broca"
    path = tmp_path / "x.L.label.gii"
    nib.GiftiImage(darrays=[array], labeltable=table).to_filename(path)
    # Half of 44 is not more than half.
    study = settings(labels=["broca"], label_file=path)
    assert region_parcels(study, ATLAS).number.tolist() == [1, 20]
    with pytest.raises(BadData, match="none of the data's 1 parcels is in it"):
        region_parcels(study, of(["L_far"], (0, [99])))


def test_a_region_that_nothing_has_says_what_was_looked_for():
    with pytest.raises(InputMissing, match=r"the data's parcels: label 'wernicke' is not among.*no labels on the mesh"):
        region_parcels(settings(name="w", labels=["wernicke"]), ATLAS)


def test_runs_of_another_kind_or_atlas_are_refused():
    for expected, got, words in [
        (None, ATLAS, " series of vertices, as the cohort has, got series of 4 parcels"),
        (ATLAS, None, " series of 4 parcels, as the cohort has, got series of vertices"),
        (ATLAS, of(["L_44_ROI"], (0, [10, 11])), "names differ, such as L_45_ROI, L_V1_ROI, R_45_ROI"),
        (ATLAS, of(ATLAS.names, (0, [1]), (0, [10]), (0, [20, 21, 22]), (1, [5, 6])), "their vertices differ"),
    ]:
        with pytest.raises(BadData, match=f"run: expected.*{words}"):
            check_parcels("run", expected, got)
    check_parcels("run", ATLAS, ATLAS)
    check_parcels("run", None, None)


def test_files_whose_parcels_cannot_be_told_apart_are_refused(tmp_path):
    path, series = tmp_path / "a.ptseries.nii", np.ones((4, 30), np.float32)
    raw = parcellated(path, series, ATLAS).read_bytes()
    for old, new, words in [
        (b'Name="L_44_ROI"', b'Name="L_45_ROI"', "a name of its own"),
        (b">20 21 22<", b">10 21 22<", "some twice"),
        (b">20 21 22<", b">-1 21 22<", "expected vertices below 4842"),
        (b"CORTEX_LEFT", b"CORTEX_LFET", ""),
    ]:
        assert old in raw
        path.write_bytes(raw.replace(old, new))
        refusal((path,), words)


# --- a whole study ---


@pytest.fixture
def parcellated_study(fresh):
    """The simulated tree as series of 16 parcels in the region and 24 elsewhere, under a manifest."""
    rows = [["subject", "session", "run", "bold"]]
    for subject in SUBJECTS:
        for session in (1, 2):
            path = fresh.run_file(subject, session)
            if path.exists():
                out = fresh.path / f"P/{subject}_{session}.ptseries.nii"
                out.parent.mkdir(exist_ok=True)
                _parcellate(path, out)
                rows.append([subject, str(session), "1", str(out.relative_to(fresh.path))])
    replace(fresh.path / "m.tsv", "".join("\t".join(row) + "\n" for row in rows).encode())
    data = {"layout": "manifest", "manifest": "m.tsv", "root": None, "space": "fsaverage"}
    region = {"name": "front", "labels": [f"L_front_{k}" for k in range(16)]}
    fresh.write_study(data=data, region=region, targets=None)
    return fresh


def _parcellate(path, out):
    image = nib.load(path)
    models, series = image.header.get_axis(1), np.asarray(image.dataobj, np.float32).T
    left = models.name == "CIFTI_STRUCTURE_CORTEX_LEFT"
    mesh = Mesh("fsaverage", (10242, 10242))
    vertices = Vertices(mesh, (~left).astype(np.uint8), models.vertex.astype(np.int32))
    order = np.lexsort((vertices.number, vertices.hemisphere))
    vertices, series = vertices[order], series[order]
    blocks = np.array_split(np.arange(len(vertices)), 40)
    # Whole numbers of vertices a parcel, none of both hemispheres.
    blocks = [block[vertices.hemisphere[block] == vertices.hemisphere[block[0]]] for block in blocks]
    names = [f"L_front_{k}" if k < 16 else f"{'LR'[vertices.hemisphere[b[0]]]}_rest_{k}" for k, b in enumerate(blocks)]
    target = np.repeat(np.arange(40), [len(block) for block in blocks])
    atlas = Targets(tuple(names), vertices[np.concatenate(blocks)], target)
    parcellated(out, np.stack([series[block].mean(0) for block in blocks]), atlas)


def test_a_study_of_parcels_goes_the_whole_way(parcellated_study):
    folder = parcellated_study
    assert "fsaverage_den-10k in 40 parcels" in command("index", folder.study, "-v") + (
        folder.path / "work/runs.tsv"
    ).read_text(encoding="utf-8")
    assert "9 of 9 sessions prepared" in command("prepare", folder.study)
    command("train", folder.study)
    command("infer", folder.study)
    command("report", folder.study)
    page = (folder.results / "report.html").read_text(encoding="utf-8")
    assert "16 parcels on fsaverage_den-10k" in page
    assert "<dt>parcels, fsaverage 10k</dt><dd>16</dd>" in page
    assert "(16 parcels, fsaverage_den-10k)" in (folder.results / "CITATION.md").read_text(encoding="utf-8")
    (path,) = folder.results.glob("sub-sim01/func/*_stat-parcels_network.tsv")
    table = pandas.read_csv(path, sep="\t")
    assert table["parcel"].tolist() == [f"L_front_{k}" for k in range(16)]
    networks = list(table.columns[4:])
    np.testing.assert_allclose(table[networks].sum(axis=1), 1, atol=1e-4)
    assert (table["label"] == np.array(networks)[table[networks].to_numpy().argmax(1)]).all()
    # Every vertex of a parcel shows its parcel's label.
    maps = load_result(folder.results).subject("sim01")
    image = nib.load(folder.path / "P/sim01_1.ptseries.nii")
    parcels = image.header.get_axis(1)
    shown = maps.labels.groupby(level=0).get_group("L").droplevel(0)
    for name, label in zip(table["parcel"], table["label"], strict=True):
        own = parcels.vertices[parcels.name.tolist().index(name)]["CIFTI_STRUCTURE_CORTEX_LEFT"]
        assert set(shown[own]) == {label}


def test_dense_runs_among_parcels_and_needless_settings_are_named(parcellated_study):
    folder = parcellated_study
    text = (folder.path / "m.tsv").read_text(encoding="utf-8").replace(
        "P/sim05_1.ptseries.nii", str(folder.run_file("sim05").relative_to(folder.path))
    )  # fmt: skip
    replace(folder.path / "m.tsv", text.encode())
    assert "another mesh: 1" in command("index", folder.study)
    said = command("prepare", folder.study)
    assert "8 of 9 sessions prepared" in said
    assert "expected series of 40 parcels, as the cohort has, got series of vertices" in said
    folder.write_study("smooth.yaml", yaml.safe_load(folder.study.read_text(encoding="utf-8")),
                       model={"topography": {"modes": 5}})  # fmt: skip
    for verb in ("train", "networks"):
        assert "topography.graph: parcels lie on no mesh" in command(verb, folder.path / "smooth.yaml", code=64)
    base = yaml.safe_load(folder.study.read_text(encoding="utf-8"))
    folder.write_study(base=base, targets={"count": 100})
    assert "targets.count: in series of parcels all of them are targets" in command("prepare", folder.study, code=64)
    folder.write_study(base=base, data={"smoothing_fwhm": 4.0})
    assert "have no mesh to be smoothed along" in command("prepare", folder.study, code=65)
