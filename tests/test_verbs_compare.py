"""`compare`: overlaps of results and atlases from their files, subjects matched by id, networks by name or overlap."""

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from parcellation.comparison import COLUMNS
from parcellation.surfaces import Vertices
from tests.made import CAP, MESH, frontal, make_result
from tests.studies import command

NAMES = ("Broca-anterior", "Broca-posterior")


def shifted(share, by):
    """A map whose border lies further front."""
    moved = share ** np.array([1.0, by])
    return moved / moved.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    share = frontal(sharp=6)
    first = make_result(folder / "a", {"01": share, "02": shifted(share, 0.3), "03": shifted(share, 3)}, NAMES)
    again = make_result(folder / "b", {"03": shifted(share, 3), "01": shifted(share, 0.5), "04": share}, NAMES)
    return first.path, again.path


def table_of(*arguments, out):
    said = command("compare", *arguments, "--out", out)
    return said, pd.read_csv(out, sep="\t").set_index(["participant_id", "network"])


def test_subjects_are_matched_by_id_and_networks_by_name(results, tmp_path):
    said, table = table_of(*results, out=tmp_path / "overlap.tsv")
    assert "2 subjects on 128 vertices; networks matched by name" in said
    assert "2 subjects are in one result only: sub-02, sub-04" in said
    assert list(table.reset_index().columns) == list(COLUMNS)
    assert set(table.index.get_level_values(0)) == {"population", "sub-01", "sub-03"}
    assert table.dice[("sub-03", "mean")] == 1
    assert 0.9 < table.dice[("sub-01", "Broca-anterior")] < 1
    # Their own other map, rather than the other subject's.
    assert (table.dice - table.others_dice).drop("population").groupby("network").mean().min() > 0
    assert table.p[("sub-03", "mean")] == pytest.approx(1 / 200)


def test_dice_is_that_of_the_label_maps(results, tmp_path):
    _, table = table_of(*results, out=tmp_path / "overlap.tsv")
    paths = (root / "sub-01/anat/sub-01_space-fsaverage_seg-broca2_den-642_dseg.dlabel.nii" for root in results)
    keys = [np.asarray(nib.load(path).dataobj)[0] for path in paths]
    for key, name in enumerate(NAMES, 1):
        a, b = (one == key for one in keys)
        assert table.dice[("sub-01", name)] == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()), rel=1e-5)


def test_numbered_networks_are_matched_by_overlap(results, tmp_path):
    share = frontal(sharp=6)
    turned = make_result(tmp_path / "c", {"01": share[:, ::-1]}).path
    said, table = table_of(results[0], turned, out=tmp_path / "overlap.tsv")
    assert "best assignment" in said
    assert "Broca-anterior = network-02" in said
    assert table.dice[("sub-01", "Broca-anterior")] == 1
    assert table.others_dice.isna().all()


def test_an_atlas_is_compared_with_its_chance_level(results, tmp_path):
    keys = np.zeros(642, np.int32)
    keys[CAP] = 1 + (frontal()[:, 0] > 0.5)
    atlas = write_labels(tmp_path / "atlas.L.label.gii", keys, {1: "area 44", 2: "area 45", 3: "elsewhere"})
    said, table = table_of(results[0], atlas, out=tmp_path / "overlap.tsv")
    assert "Broca-anterior = area 45" in said
    rows = table.loc["population"]
    assert rows.dice["mean"] > rows.chance_95["mean"] > rows.chance["mean"] > 0.5
    assert len(table) == 4 * 3


def write_labels(path, keys, names):
    table = nib.gifti.GiftiLabelTable()
    for key, name in ({0: "???"} | names).items():
        table.labels.append(nib.gifti.GiftiLabel(key, 0.5, 0.5, 0.5, 1.0))
        table.labels[-1].label = name
    array = nib.gifti.GiftiDataArray(keys, "NIFTI_INTENT_LABEL")
    meta = nib.gifti.GiftiMetaData({"AnatomicalStructurePrimary": "CortexLeft"})
    nib.GiftiImage(meta=meta, labeltable=table, darrays=[array]).to_filename(path)
    return path


def test_one_subject_and_a_dry_run(results, tmp_path):
    said, table = table_of(*results, "--participant-label", "01", out=tmp_path / "overlap.tsv")
    assert "1 subjects" in said
    assert set(table.index.get_level_values(0)) == {"population", "sub-01"}
    assert "would compare 2 subjects" in command("compare", *results, "--out", tmp_path / "not.tsv", "--dry-run")
    assert not (tmp_path / "not.tsv").exists()


def test_what_cannot_be_compared_is_said(results, tmp_path):
    assert "02" in command("compare", *results, "--participant-label", "02", code=18)
    assert "nowhere" in command("compare", results[0], tmp_path / "nowhere", code=66)
    empty = write_labels(tmp_path / "empty.L.label.gii", np.zeros(642, np.int32), {1: "a"})
    assert "none of its areas" in command("compare", results[0], empty, code=65)
    back = Vertices.of(MESH, [], CAP)
    right = make_result(tmp_path / "right", {"01": frontal()}, NAMES, region=back).path
    said = command("compare", results[0], right, code=65)
    assert "expected regions that overlap, got 128 and 128 vertices without a shared one; compare results of" in said


def test_without_a_surface_there_is_no_chance_level(results, tmp_path):
    bare = make_result(tmp_path / "bare", {"01": frontal()}, NAMES, surfaces=None).path
    said, table = table_of(bare, bare, out=tmp_path / "overlap.tsv")
    assert "no chance level" in said
    assert table[["chance", "chance_95", "p"]].isna().all(axis=None)
