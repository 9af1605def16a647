"""Preparing a run of real size: `make bench-prepare`.

    python -m pipelines.benchmarks.prepare [--pairs 5] [--folder build/bench/prepare]

One run of 91,282 grayordinates (cortex of fs_LR 32k and subcortical voxels) and 1200 frames is written as float32,
float64 and scaled int16. `parcellation prepare` of Broca's area with the default targets, in a process of its own, is
held against reading the whole float32 file through nibabel's `dataobj` in blocks of vertices, in another: CPU seconds
after imports, in pairs one after the other, so that both meet the same machine. What is found once a cohort (region,
targets, and for smoothing the weights along the mesh) is not counted; checksums of the files are. The second figure
is with cleaning (detrended, band-pass, six confounds, censoring) and 4 mm of smoothing. Peak memory is that of the
preparing process, imports and all. Also at half the frames, where memory may fall by no more than the region's and
targets' own series. Writes build/bench/prepare.json.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import yaml
from nibabel.cifti2 import BrainModelAxis, SeriesAxis

from parcellation.config import load_study
from parcellation.files import write_json, write_text
from pipelines.benchmarks.process import peak_mib

FRAMES, BLOCK = 1200, 4096  # vertices
CORTEX = (29696, 29716)  # vertices of 32,492 with data, left and right
VOXELS = 31870
KINDS = {"float32": np.float32, "int16": np.int16, "float64": np.float64}
SLOPE = 1 / 16  # of the scaled integers
CLEANING = {"detrend": True, "band_pass": [0.01, 0.1], "confounds": "all", "smoothing_fwhm": 4.0}


def main() -> None:
    """Measure every encoding in pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/prepare"))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, path = options.one
        print(json.dumps({"read": _read, "prepare": _prepare}[what](Path(path))))
        return
    figures: dict[str, float] = {}
    try:
        plain = write_run(options.folder / "float32.dtseries.nii", np.float32, FRAMES)
        for name, kind in KINDS.items():
            path = plain if name == "float32" else write_run(options.folder / f"{name}.dtseries.nii", kind, FRAMES)
            study = write_study(options.folder / name, path, {})
            figures |= _pairs(name, study, plain, options.pairs)
        figures |= _pairs("clean", write_study(options.folder / "clean", plain, CLEANING), plain, options.pairs)
        half = write_run(options.folder / "half.dtseries.nii", np.float32, FRAMES // 2)
        figures |= _pairs("half_the_frames", write_study(options.folder / "half", half, {}), plain, 1)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    write_json(options.out / "prepare.json", figures)
    print(f"written: {options.out / 'prepare.json'}")


def _pairs(name: str, study: Path, plain: Path, pairs: int) -> dict[str, float]:
    """Ratio of CPU seconds (median of pairs) and peak memory (the largest); the first of the runs finds the ground."""
    _child("prepare", study)
    times, peaks, sizes = [], [], []
    for _ in range(pairs):
        read, ours = _child("read", plain), _child("prepare", study)
        times.append((ours["seconds"], read["seconds"]))
        peaks.append(ours["peak_mib"])
        sizes.append(ours["unit_mib"])
    ratio = statistics.median(a / b for a, b in times)
    ours, read = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"{name}: {ours:.2f} s to prepare, {read:.2f} s to read, ratio {ratio:.2f}, peak {max(peaks):.0f} MiB",
        flush=True,
    )
    found = {"time_ratio": ratio, "peak_mib": max(peaks), "seconds": ours, "unit_mib": max(sizes)}
    return {f"{name}.{key}": value for key, value in found.items()}


def _child(what: str, path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "pipelines.benchmarks.prepare", "--one", what, str(path)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def _read(path: Path) -> dict[str, float]:
    """Read a whole run through `dataobj`, so many vertices at a time."""
    start = time.process_time()
    data = nib.load(path).dataobj
    for first in range(0, data.shape[1], BLOCK):
        np.asarray(data[:, first : first + BLOCK])
    return {"seconds": time.process_time() - start}


def _prepare(path: Path) -> dict[str, float]:
    """Prepare a study's only session anew, on the ground that is known if it is."""
    from parcellation.verbs.prepare import prepare
    from parcellation.verbs.workspace import Selection, Workspace

    study = load_study(path)
    units = "**/sub-*_ses-*.safetensors"
    for unit in Workspace(study).work.glob(units):
        unit.unlink()
    start = time.process_time()
    prepare(study, Selection())
    peak = peak_mib()
    seconds = time.process_time() - start
    (unit,) = Workspace(study).work.glob(units)
    return {"seconds": seconds, "peak_mib": peak, "unit_mib": unit.stat().st_size / 2**20}


def write_run(path: Path, kind: type, frames: int) -> Path:
    """A run of noise with a slow component that neighbouring vertices share; never whole in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = SeriesAxis(0, 0.72, frames, unit="SECOND"), grayordinates()
    small = nib.Cifti2Image(np.broadcast_to(np.zeros((), kind), (frames, len(axes[1]))), header=axes)
    small.update_headers()
    small.nifti_header.set_intent("ConnDenseSeries")
    small.nifti_header.set_data_dtype(kind)
    if kind is np.int16:
        small.nifti_header.set_slope_inter(SLOPE, 0)
    with open(path, "wb") as file:
        _write_header(small, file)
        generator = np.random.default_rng(0)
        slow = generator.standard_normal((64, frames), np.float32).cumsum(1) / 10
        for first in range(0, len(axes[1]), BLOCK):
            count = min(BLOCK, len(axes[1]) - first)
            series = generator.standard_normal((count, frames), np.float32) * 10 + 100
            series += slow[(first + np.arange(count)) // 512 % 64] * 20
            (np.rint(series / SLOPE) if kind is np.int16 else series).astype(kind).tofile(file)
    return path


def grayordinates() -> BrainModelAxis:
    """Both cortices as the HCP has them, and as many voxels as make 91,282."""
    sides = [np.sort(np.random.default_rng(side).permutation(32492)[:count]) for side, count in enumerate(CORTEX)]
    left, right = (
        BrainModelAxis.from_surface(numbers, 32492, name=name)
        for numbers, name in zip(sides, ("CortexLeft", "CortexRight"), strict=True)
    )
    shape = (91, 109, 91)
    voxels = np.column_stack(np.unravel_index(np.arange(VOXELS) + 100_000, shape))
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    return left + right + BrainModelAxis("Thalamus_left", voxel=voxels, affine=affine, volume_shape=shape)


def _write_header(image: nib.Cifti2Image, file) -> None:
    """NIfTI-2 header with the CIFTI extension, up to where the data begin."""
    header = image.nifti_header.copy()
    extension = nib.cifti2.parse_cifti2.Cifti2Extension.from_bytes(image.header.to_xml())
    header.extensions[:] = [extension]
    header.set_data_shape((1, 1, 1, 1, *image.shape))
    header["vox_offset"] = -(-(544 + header.extensions.get_sizeondisk()) // 16) * 16
    header.write_to(file)
    file.write(b"\0" * (int(header["vox_offset"]) - file.tell()))


def write_study(folder: Path, run: Path, data: dict) -> Path:
    """A study of this run alone; with `data` that cleans, of six confounds and some censored frames."""
    folder.mkdir(parents=True, exist_ok=True)
    row = {"subject": "1", "session": "1", "run": "1", "bold": str(run.resolve())}
    if data:
        generator = np.random.default_rng(1)
        names = "\t".join(f"trans_{k}" for k in range(6))
        table = "\n".join("\t".join(f"{v:.5f}" for v in line) for line in generator.standard_normal((FRAMES, 6)))
        write_text(folder / "confounds.tsv", f"{names}\n{table}\n")
        write_text(folder / "censor.txt", "\n".join("01"[i % 97 > 2] for i in range(FRAMES)) + "\n")
        row |= {name: str((folder / file).resolve()) for name, file in CENSORED.items()}
    write_text(folder / "manifest.tsv", "\t".join(row) + "\n" + "\t".join(row.values()) + "\n")
    content = {"name": "prepare", "data": {"layout": "manifest", "manifest": "manifest.tsv"} | data}
    path = folder / "study.yaml"
    write_text(path, yaml.safe_dump(content))
    return path


CENSORED = {"confounds": "confounds.tsv", "censor": "censor.txt"}


if __name__ == "__main__":
    main()
