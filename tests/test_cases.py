"""The table of public trouble in docs/cases.md: every row names tests that are there; and tests of some rows."""

import multiprocessing
import re
import shutil
import socket

import nibabel as nib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcellation.cohort import FeatureMap, open_cohort
from parcellation.config import Features
from parcellation.labels import read_labels
from parcellation.meshes import Mesh
from parcellation.store import Store, write_unit
from parcellation.surfaces import Vertices
from pipelines.fuzz.encodings import matrix, surface_models
from tests.readme import ROOT
from tests.shared_data import CASES, needs_cases
from tests.studies import command, process
from tests.test_annot import written as write_annot

TABLE = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
ROWS = [line for line in TABLE.splitlines() if re.match(r"\| \S+#\d+", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_the_tests_of_a_row_are_there(row):
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", row.split("|")[4])
    assert named
    for file, name in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*def {name}\(", text, re.MULTILINE), f"{file}::{name}"


@needs_cases
def test_no_row_is_missing():
    """Every issue of the collection is in the table; its names of repositories are short where another row has them."""
    text = (CASES / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| \S+#\d+", line)]
    issues = [re.findall(r"[\w./-]+#\d+|#\d+", row) for row in rows]
    flat = [issue for row in issues for issue in row]
    assert len(issues) == len(ROWS) == 24
    assert [issue for issue in flat if f"{issue.split('/')[-1]} " not in TABLE.replace(",", " ")] == []


# --- tables of labels, in every format ---

COUNT = 642
MESH = Mesh("fsaverage", (COUNT, COUNT))
names = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=12).map(str.strip)
tables = st.dictionaries(st.integers(0, 30000), names, min_size=1, max_size=8)


def write_dlabel(path, keys, table):
    vertices = Vertices.of(MESH, np.arange(COUNT), [])
    axis = nib.cifti2.LabelAxis(["a"], [{key: (name, (1.0, 0.5, 0.0, 1.0)) for key, name in table.items()}])
    image = nib.Cifti2Image(keys[None].astype(np.int32), (axis, surface_models(vertices)))
    image.nifti_header.set_intent("ConnDenseLabel")
    image.nifti_header.set_data_dtype(np.int32)
    image.to_filename(path)


def write_label_gifti(path, keys, table):
    array = nib.gifti.GiftiDataArray(keys.astype(np.int32), "NIFTI_INTENT_LABEL", "NIFTI_TYPE_INT32")
    labels = nib.gifti.GiftiLabelTable()
    for key, name in table.items():
        labels.labels.append(nib.gifti.GiftiLabel(key, 1, 0, 0, 1))
        labels.labels[-1].label = name
    nib.GiftiImage(darrays=[array], labeltable=labels).to_filename(path)


WRITERS = {
    "a.dlabel.nii": write_dlabel,
    "lh.a.label.gii": write_label_gifti,
    "lh.a.annot": lambda path, keys, table: write_annot(path, keys.tolist(), table),
}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables, seed=st.integers(0, 99))
def test_any_label_table_comes_back_from_every_format(name, table, seed, tmp_path):
    """Keys with gaps, labels without vertices, equal names and empty ones: names follow keys, and each stays."""
    keys = np.random.default_rng(seed).choice(sorted(table)[: max(1, len(table) - 1)], COUNT)
    if name.endswith(".nii"):
        table = {key: text or "?" for key, text in table.items()}  # nibabel writes no empty name in CIFTI
    WRITERS[name](tmp_path / name, keys, table)
    found = read_labels(tmp_path / name, MESH, (0,))
    np.testing.assert_array_equal(found.keys[0], keys)
    assert {key: found.names[0][key] for key in table} == table
    assert set(found.names[0]) - set(table) <= {0}


# --- memory, processes, pickles, network ---

READ = """
import resource
from pathlib import Path
import numpy as np
from parcellation.cleaning import Cleaning
from parcellation.connectivity import fingerprints
from parcellation.surfaces import Targets
from parcellation.timeseries import open_bold

bold = open_bold((Path({path!r}),))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
members = bold.vertices[400:]
targets = Targets(tuple(map(str, range(50))), members, np.arange(len(members)) % 50)
found = fingerprints(bold, bold.vertices[:300], targets, Cleaning())
assert found.mask.all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "scaled"), [("<f4", False), ("<i2", True)])
def test_a_run_is_read_in_less_memory_than_it_has_bytes(tmp_path, dtype, scaled):
    """Long series of a part of the vertices; `make bench-prepare` does it at full size."""
    vertices = Vertices.of(Mesh("fsLR", (32492, 32492)), np.arange(8000), np.arange(4000))
    rows = np.random.default_rng(0).random((len(vertices), 4000), np.float32)
    path = matrix(tmp_path / "run.dtseries.nii", rows, surface_models(vertices), dtype, scaled)
    reader = process(code=READ.format(path=str(path)))
    said, _ = reader.communicate(timeout=120)
    assert reader.returncode == 0, said
    # As float32 the run has 192 MB; one block has 34, and twice that where integers are scaled through float64.
    assert int(said.split()[-1]) < rows.nbytes


def _checksum(store, index, results):
    results.put((index, float(store.read(index).x.sum(dtype=np.float64))))


def test_forked_processes_read_the_same_batches(tmp_path):
    rng, store = np.random.default_rng(0), Store(tmp_path)
    for subject in range(6):
        write_unit(store, f"{subject:02d}", "1", rng.normal(size=(40, 30)).astype(np.float32), frames=100)
    units = [store.arrays(f"{subject:02d}", "1")[1] for subject in range(6)]
    feature_map = FeatureMap.fit([(unit["fingerprint"], unit["mask"]) for unit in units], Features(components="none"))
    cohort = open_cohort(store, feature_map)
    batches = [(0, 1), (2, 3), (4, 5), (1, 4)]
    alone = {index: float(cohort.read(index).x.sum(dtype=np.float64)) for index in batches}
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_checksum, args=(cohort, index, results)) for index in batches]
    for worker in workers:
        worker.start()
    assert dict(results.get(timeout=60) for _ in batches) == alone
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


def test_nothing_that_is_kept_is_a_pickle(finished):
    """Whatever a study keeps is text, numbers behind a header of JSON, or a format of images."""
    files = [path for name in ("work", "results") for path in (finished.path / name).rglob("*") if path.is_file()]
    texts = (".json", ".tsv", ".txt", ".md", ".html", ".scene", ".spec", ".yaml", ".lock", ".bidsignore")
    allowed = (*texts, ".safetensors", ".nii", ".gii", ".png")
    assert {path.name for path in files if not path.name.endswith(allowed)} == set()
    assert finished.model.suffix == ".safetensors"
    # A pickle of any protocol since the second begins with this byte, an archive of them with PK.
    assert [path for path in files if path.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")] == []


@pytest.mark.slow
def test_the_way_from_files_to_maps_needs_no_network(study, monkeypatch):
    def refuse(*arguments, **_):
        raise AssertionError(f"a connection was asked for: {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    shutil.rmtree(study.path / "work/fingerprints")
    shutil.rmtree(study.path / "work/posterior")
    shutil.rmtree(study.results)
    for verb in ("index", "prepare", "train", "infer", "report"):
        command(verb, study.study)
    assert list(study.results.glob("sub-*/anat/*_dseg.dlabel.nii"))
