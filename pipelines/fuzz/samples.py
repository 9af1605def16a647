"""Small files of every kind that is read, to be damaged; each in a folder with what it needs beside it."""

from pathlib import Path

import nibabel as nib
import numpy as np
import yaml
from nibabel.cifti2 import LabelAxis

from parcellation.map_files import write_surface
from parcellation.meshes import Mesh, Surface
from parcellation.parcels import parcels_of
from parcellation.store import Store, Unit
from parcellation.surfaces import Targets, Vertices
from pipelines.fuzz.encodings import ENCODINGS, parcellated, surface_models

SPACE, COUNT, FRAMES = "fsaverage", 642, 12
MESH = Mesh(SPACE, (COUNT, COUNT))
VERTICES = Vertices.of(MESH, np.arange(40), np.arange(20, 50))
# Of the many encodings those that differ in what a reader does with them.
CHOSEN = (
    "dtseries <f4", "dtseries >f8", "dtseries scaled <i2", "dtseries with other structures",
    "func.gii ASCII C <f4", "func.gii Base64Binary F <f8", "func.gii GZipBase64Binary C >f4",
    "func.gii ExternalFileBinary C <f4", "func.gii in one array GZipBase64Binary F <f4", "mgh f4", "mgz i2",
)  # fmt: skip


def write_samples(folder: Path) -> list[Path]:
    """Write all samples below a folder and return the files to be damaged."""
    generator = np.random.default_rng(0)
    series = generator.normal(1000, 100, (len(VERTICES), FRAMES)).round().astype(np.float32)
    files = []
    for name in CHOSEN:
        own = folder / name.replace(" ", "_").replace("<", "le_").replace(">", "be_")
        own.mkdir(parents=True)
        files.append(ENCODINGS[name](own, series, VERTICES)[0])
    writers = (_ptseries, _dlabel, _label_gifti, _annot, _surfaces, _tables, _study, _fingerprint)
    return files + [path for write in writers for path in write(folder, generator)]


def _own(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _ptseries(folder: Path, generator: np.random.Generator) -> list[Path]:
    members = [[(0, np.arange(5))], [(0, np.arange(9, 12)), (1, np.arange(3))], [(1, np.arange(7, 9))]]
    parcels = parcels_of(MESH, ["L_a", "b", "R_c"], members)
    series = generator.normal(size=(3, FRAMES)).astype(np.float32)
    return [parcellated(_own(folder, "parcels/run.ptseries.nii"), series, parcels, extra=True)]


def _dlabel(folder: Path, generator: np.random.Generator) -> list[Path]:
    path = _own(folder, "dlabel/atlas.dlabel.nii")
    keys = generator.integers(0, 3, len(VERTICES)).astype(np.float32)
    table = {0: ("???", (0, 0, 0, 0)), 1: ("L_one", (1, 0, 0, 1)), 2: ("two", (0, 0, 1, 1))}
    image = nib.Cifti2Image(keys[None], (LabelAxis(["a"], [table]), surface_models(VERTICES)))
    image.nifti_header.set_intent("ConnDenseLabel")
    image.to_filename(path)
    return [path]


def _label_gifti(folder: Path, generator: np.random.Generator) -> list[Path]:
    path, table = _own(folder, "label/atlas.L.label.gii"), nib.gifti.GiftiLabelTable()
    for key, name in ((0, "???"), (3, "three"), (7, "")):
        table.labels.append(nib.gifti.GiftiLabel(key, 1, 0, 0, 1))
        table.labels[-1].label = name
    keys = generator.choice([0, 3, 7], COUNT).astype(np.int32)
    array = nib.gifti.GiftiDataArray(keys, intent="NIFTI_INTENT_LABEL", datatype="NIFTI_TYPE_INT32")
    meta = nib.gifti.GiftiMetaData({"AnatomicalStructurePrimary": "CortexLeft"})
    nib.GiftiImage(darrays=[array], labeltable=table, meta=meta).to_filename(path)
    return [path]


def _annot(folder: Path, generator: np.random.Generator) -> list[Path]:
    path, colours = _own(folder, "annot/lh.atlas.annot"), np.array([[10, 20, 30, 0, 0], [40, 50, 60, 0, 0]])
    nib.freesurfer.write_annot(path, generator.integers(0, 2, COUNT), colours, ["unknown", "one"], fill_ctab=True)
    return [path]


def _surfaces(folder: Path, generator: np.random.Generator) -> list[Path]:
    points = generator.normal(size=(COUNT, 3))
    surface = Surface(points, generator.integers(0, COUNT, (1280, 3)))
    gifti, other = _own(folder, "gifti/l.midthickness.surf.gii"), _own(folder, "freesurfer/lh.white")
    write_surface(gifti, surface, 0, "midthickness")
    nib.freesurfer.write_geometry(other, surface.coordinates, surface.triangles)
    return [gifti, other]


def _tables(folder: Path, generator: np.random.Generator) -> list[Path]:
    files = {
        "manifest/manifest.tsv": "subject\tsession\trun\tbold\ttr\tgroup\n001\t1\tLR\ta.dtseries.nii\t0.72\tx\n"
        "002\t2\tRL\tb.dtseries.nii\t\ty\n",
        "confounds/confounds.tsv": _text(generator, "trans_x\ttrans_y\trot_z\tcsf\tframewise_displacement", 5),
        "censor/censor.txt": "keep\n" + "1\n0\n" * (FRAMES // 2),
        "outliers/outliers.tsv": "framewise_displacement\n" + "0\n" * FRAMES,
        "motion/Movement_RelativeRMS.txt": "".join(f"{value:.4f}\n" for value in generator.random(FRAMES)),
    }
    paths = []
    for name, text in files.items():
        paths.append(_own(folder, name))
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def _text(generator: np.random.Generator, header: str, columns: int) -> str:
    rows = generator.normal(size=(FRAMES, columns)).round(4).tolist()
    rows[0][-1] = "n/a"
    return header + "\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _study(folder: Path, generator: np.random.Generator) -> list[Path]:
    path = _own(folder, "study/study.yaml")
    content = {
        "name": "broca",
        "data": {"layout": "fmriprep", "root": "D", "band_pass": [0.01, 0.1], "confounds": {"strategy": ["motion"]}},
        "region": {"hemisphere": "both", "labels": ["44", "45"], "label_file": "a.dlabel.nii"},
        "targets": {"kind": "parcels", "label_file": "b.dlabel.nii"},
        "model": {"networks": 3, "topography": {"modes": 5}, "flows": {"mu": "spline"}},
        "training": {"subjects": ["01", "1e5"], "steps": 10},
        "outputs": {"draws": 8, "gifti": True},
        "cluster": {"train": {"memory": 1000, "gpus": 1}},
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return [path]


def _fingerprint(folder: Path, generator: np.random.Generator) -> list[Path]:
    store, (vertices, targets) = Store(folder / "store"), (VERTICES[:5], VERTICES[5:8])
    values = generator.normal(size=(5, 3)).astype(np.float32)
    unit = Unit("01", "1", values, np.ones(5, bool), vertices, Targets(("a", "b", "c"), targets, np.arange(3)), 100)
    return [store.write(unit)]
