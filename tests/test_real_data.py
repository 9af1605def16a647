"""Real files the whole way: one person's run on a 5k mesh, and parcels of twenty people as vertices.

Neither shows more than that the way is open: windows of one run are not sessions, and parcels are not vertices.
"""

import shutil

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import yaml

from parcellation.bold_files import write_cifti
from parcellation.surfaces import Mesh, Vertices
from tests.shared_data import ATLASES, LEMON, SHARED, needs_atlases, needs_lemon
from tests.studies import RUN, VERBS, command, replace

HCP30 = SHARED / "data/hcp30/hcp_rest1run_glasser360_dev20_int16z.npz"
needs_hcp30 = pytest.mark.skipif(not HCP30.is_file(), reason=f"{HCP30}: parcels' series of real people are not here")


def the_whole_way(folder, content):
    """Run every verb; returns what each said."""
    replace(folder / "study.yaml", yaml.safe_dump(content).encode())
    return {verb: command(verb, folder / "study.yaml") for verb in VERBS}


def write_label_file(path, keys, names, side):
    """A label.gii with a key a vertex; names by key, from 1."""
    table = nib.gifti.GiftiLabelTable()
    for key, name in enumerate(["???", *names]):
        table.labels.append(nib.gifti.GiftiLabel(key, 0.5, 0.5, 0.5, float(key > 0)))
        table.labels[-1].label = name
    array = nib.gifti.GiftiDataArray(keys.astype(np.int32), "NIFTI_INTENT_LABEL")
    meta = nib.gifti.GiftiMetaData({"AnatomicalStructurePrimary": ("CortexLeft", "CortexRight")[side]})
    nib.GiftiImage(meta=meta, labeltable=table, darrays=[array]).to_filename(path)


def labels_of(results, subject):
    """Keys of a subject's region."""
    (path,) = results.glob(f"sub-{subject}/anat/*_dseg.dlabel.nii")
    keys = np.asarray(nib.load(path).dataobj)[0]
    return keys[keys > 0]


# --- one person on a 5k mesh ---

LEMON_WINDOWS = {"all": (1, 2, 3, 4), "first": (1, 2), "second": (3, 4)}
# Centres of areas 44 and 45 of the left hemisphere, in mm.
CENTRES = {"posterior": (-50, 17, 11), "anterior": (-48, 28, 4)}


@pytest.fixture(scope="module")
def lemon(tmp_path_factory):
    """The folder of a finished study of four windows, as one subject and as two of two windows each."""
    folder = tmp_path_factory.mktemp("lemon")
    for subject, windows in LEMON_WINDOWS.items():
        for session, window in enumerate(windows, 1):
            path = folder / "HCP" / RUN.format(subject, session)
            path.parent.mkdir(parents=True)
            # A copy: one file under two names would be refused as the same data counted twice.
            shutil.copy(LEMON / f"sub-010188_ses-pseudo{window}_task-rest_space-fsLR_den-5k_bold.dtseries.nii", path)
    surfaces = folder / "HCP/all/MNINonLinear/fsaverage_LR5k"
    surfaces.mkdir()
    for side in "LR":
        for kind, name in (("midthickness", "surf"), ("inflated", "inflated.surf"), ("sphere", "sphere.reg.surf")):
            target = ATLASES / f"fsLR_5k/fsLR-5k.{side}.{name}.gii"
            (surfaces / f"all.{side}.{kind}.5k_fs_LR.surf.gii").symlink_to(target)
    left = nib.load(surfaces / "all.L.midthickness.5k_fs_LR.surf.gii").darrays[0].data
    distance = np.stack([np.linalg.norm(left - centre, axis=1) for centre in CENTRES.values()])
    keys = np.where(distance.min(0) < 18, distance.argmin(0) + 1, 0)
    write_label_file(folder / "broca.L.label.gii", keys, CENTRES, 0)
    content = {
        "name": "lemon",
        "data": {"layout": "hcp", "root": "HCP"},
        "region": {"label_file": "broca.L.label.gii", "labels": list(CENTRES)},
        "targets": {"count": 300},
        "training": {"subjects": ["first", "second"], "steps": 40},
    }
    yield folder, int((keys > 0).sum()), the_whole_way(folder, content)
    shutil.rmtree(folder)


@needs_lemon
@needs_atlases
def test_a_real_run_goes_the_whole_way(lemon):
    folder, count, said = lemon
    assert "3 subjects, 8 sessions, 8 runs" in said["index"]
    assert "8 of 8 sessions prepared" in said["prepare"]
    assert "left out" not in said["prepare"]
    assert "3 subjects inferred" in said["infer"]
    assert 100 < count < 400
    for subject in LEMON_WINDOWS:
        (path,) = folder.glob(f"results/sub-{subject}/anat/*_space-fsLR_seg-broca2_den-5k_dseg.dlabel.nii")
        assert nib.load(path).shape == (1, 8856)
        assert len(labels_of(folder / "results", subject)) == count
    assert 50_000 < (folder / "results/report.html").stat().st_size < 30_000_000


@needs_lemon
@needs_atlases
def test_halves_of_a_real_run_agree_more_than_by_chance(lemon):
    folder, _, _ = lemon
    first, second = (labels_of(folder / "results", subject) for subject in ("first", "second"))
    shuffled = np.random.default_rng(0)
    chance = [(shuffled.permutation(first) == second).mean() for _ in range(200)]
    assert (first == second).mean() > np.quantile(chance, 0.99)


# --- parcels as vertices ---

NETWORKS = 7


def parcels_as_vertices(folder, subjects):
    """Windows of some people's parcel series as dtseries: parcel n of a hemisphere is its vertex 150 n."""
    with np.load(HCP30) as content:
        series, names = content["ts"][:subjects] * content["scale"], [str(name) for name in content["parcels"]]
        people, time = [str(name) for name in content["subjects"][:subjects]], float(content["tr"])
    number = 150 * np.arange(180)
    vertices = Vertices.of(Mesh("fsLR", (32492, 32492)), number, number)
    for side, letter in enumerate("LR"):
        own = names[180 * side : 180 * (side + 1)]
        keys = np.zeros(32492)
        keys[number] = np.arange(1, 181)
        write_label_file(folder / f"parcels.{letter}.label.gii", keys, own, side)
    rows = ["subject\tsession\trun\tbold"]
    for person, whole in zip(people, series, strict=True):
        for session, window in enumerate(np.array_split(whole, 4, axis=1), 1):
            path = folder / f"bold/{person}_{session}.dtseries.nii"
            write_cifti(path, window.T.astype(np.float32), vertices, time)
            rows.append(f"{person}\t{session}\t1\t{path.relative_to(folder)}")
    replace(folder / "manifest.tsv", "".join(row + "\n" for row in rows).encode())
    return people, names


def parcels_the_whole_way(folder, subjects, training, steps):
    people, names = parcels_as_vertices(folder, subjects)
    content = {
        "name": "parcels",
        "data": {"layout": "manifest", "manifest": "manifest.tsv"},
        "region": {"name": "cortex", "label_file": "parcels.L.label.gii", "labels": names[:180]},
        "targets": {"kind": "parcels", "label_file": "parcels.L.label.gii"},
        "model": {"networks": NETWORKS},
        "training": {"subjects": people[:training], "steps": steps},
    }
    said = the_whole_way(folder, content)
    assert f"{4 * subjects} of {4 * subjects} sessions prepared" in said["prepare"]
    assert "left out" not in said["prepare"]
    table = pd.read_csv(folder / "results/participants.tsv", sep="\t", dtype=str)
    assert sorted(table.participant_id) == sorted(f"sub-{name}" for name in people)
    assert set(table.sessions) == {"4"}
    return people, np.stack([labels_of(folder / "results", person) for person in people])


@needs_hcp30
def test_parcels_of_six_real_people(tmp_path):
    _, labels = parcels_the_whole_way(tmp_path, 6, training=4, steps=20)
    assert labels.shape == (6, 180)
    assert (tmp_path / "results/report.html").exists()
    profile = pd.read_csv(next(tmp_path.glob("results/sub-*/func/*_network.tsv")), sep="\t")
    assert profile.target.nunique() == 360
    assert profile.network.nunique() == NETWORKS
    # Networks of a whole hemisphere are alike in different people.
    agreement = [(labels[i] == labels[j]).mean() for i in range(6) for j in range(i)]
    assert np.mean(agreement) > 2 / NETWORKS
    shutil.rmtree(tmp_path / "bold")


@pytest.mark.slow
@needs_hcp30
def test_parcels_of_twenty_real_people(tmp_path):
    _, labels = parcels_the_whole_way(tmp_path, 20, training=14, steps=200)
    population = np.asarray(nib.load(next(tmp_path.glob("results/tpl-*/*_dseg.dlabel.nii"))).dataobj)[0]
    population = population[population > 0]
    assert len(np.unique(population)) == NETWORKS
    seen, unseen = ((labels[part] == population).mean() for part in (slice(14), slice(14, None)))
    assert unseen > 0.5
    assert abs(seen - unseen) < 0.15
    shutil.rmtree(tmp_path / "bold")
