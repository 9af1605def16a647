"""The same run in every format and encoding gives the same fingerprints, and other programs read the same numbers."""

import nibabel as nib
import numpy as np
import pytest

from parcellation.cleaning import Cleaning
from parcellation.connectivity import fingerprints
from parcellation.errors import BadData
from parcellation.headers import read_header
from parcellation.meshes import Mesh
from parcellation.parcels import first_vertices, parcels_of
from parcellation.surfaces import Targets, Vertices
from parcellation.timeseries import open_bold
from pipelines.fuzz.encodings import ENCODINGS, GIFTI_ENCODINGS, gifti_pair, matrix, parcellated, surface_models
from tests.shared_data import CASES, LEMON, needs_cases, needs_lemon
from tests.workbench import needs_workbench, workbench

MESH, FRAMES = Mesh("fsaverage", (642, 642)), 40
RNG = np.random.default_rng(0)
# A medial wall is left out of each hemisphere; the region and the targets lie outside it.
VERTICES = Vertices.of(MESH, np.arange(30, 642), np.r_[0:500, 540:642])
REGION = Vertices.of(MESH, np.arange(100, 130), [5, 6, 600])
MEMBERS = Vertices.of(MESH, np.r_[200:260], np.r_[0:40])
TARGETS = Targets(tuple(f"t{k}" for k in range(10)), MEMBERS, np.repeat(np.arange(10), 10))


def integers(shape):
    """Series of whole numbers that every encoding holds exactly, with structure to correlate."""
    shared = RNG.normal(size=(shape[0], 3)) @ RNG.normal(size=(3, shape[1]))
    return np.rint(1000 + 100 * (shared + RNG.normal(size=shape))).astype(np.float32)


SERIES = integers((len(VERTICES), FRAMES))


def made(paths):
    bold = open_bold(paths, "fsaverage")
    return fingerprints(bold, REGION, TARGETS, Cleaning(detrend=True), np.arange(FRAMES) % 9 > 0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return made(ENCODINGS["dtseries <f4"](tmp_path_factory.mktemp("plain"), SERIES, VERTICES))


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_gives_the_same_fingerprints(name, expected, tmp_path):
    """BayesfMRI#37: with or without the medial wall, in any order of the hemispheres, in every way to store them."""
    paths = ENCODINGS[name](tmp_path, SERIES, VERTICES)
    found = made(paths)
    # The range of the series is stored in 60,000 steps.
    tolerance = 5e-3 if "scaled" in name else 0
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(found.mask, expected.mask)
    header = read_header(paths, "fsaverage")
    assert (header.mesh, header.frames) == (MESH, FRAMES)
    seconds = np.nan if "gii" in name else 0.72
    np.testing.assert_allclose(header.repetition_time, seconds, rtol=1e-6)


@pytest.mark.parametrize("name", ENCODINGS)
def test_nibabel_reads_the_same_numbers(name, tmp_path):
    """So that the files are what they say, and not only what our readers take them for."""
    paths = ENCODINGS[name](tmp_path, SERIES, VERTICES)
    if len(paths) == 1:
        image = nib.load(paths[0])
        models = image.header.get_axis(1)
        cortex = np.isin(models.name, ["CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT"])
        side = (models.name[cortex] == "CIFTI_STRUCTURE_CORTEX_RIGHT").astype(np.uint8)
        there = Vertices(MESH, side, models.vertex[cortex])
        found = image.get_fdata().T[cortex][VERTICES.within(there)]
    else:
        halves = []
        for path in paths:
            # nibabel leaves a loaded .mgh open, which only bytes avoid.
            image = nib.MGHImage.from_bytes(path.read_bytes()) if path.suffix == ".mgh" else nib.load(path)
            is_gifti = isinstance(image, nib.GiftiImage)
            halves.append(image.agg_data() if is_gifti else np.asarray(image.dataobj).reshape(642, -1))
            halves[-1] = np.transpose(halves[-1]) if isinstance(halves[-1], tuple) else halves[-1]
        found = np.concatenate([half[VERTICES.number[VERTICES.hemisphere == one]] for one, half in enumerate(halves)])
    np.testing.assert_allclose(found, SERIES, rtol=0, atol=np.ptp(SERIES) / 6e4 if "scaled" in name else 0)


# --- other programs' files ---

WRITTEN = {
    "ASCII": (1e-4, ("-gifti-convert", "ASCII")),
    "BASE64_BINARY": (0, ("-gifti-convert", "BASE64_BINARY")),
    "GZIP_BASE64_BINARY": (0, ("-gifti-convert", "GZIP_BASE64_BINARY")),
    "EXTERNAL_FILE_BINARY": (0, ("-gifti-convert", "EXTERNAL_FILE_BINARY")),
}


@needs_workbench
@pytest.mark.parametrize("encoding", WRITTEN)
def test_gifti_that_workbench_writes(encoding, expected, tmp_path):
    tolerance, arguments = WRITTEN[encoding]
    paths = gifti_pair(tmp_path, SERIES, VERTICES)
    out = tuple(tmp_path / f"out_hemi-{side}.func.gii" for side in "LR")
    for path, new in zip(paths, out, strict=True):
        workbench(*arguments, path, new)
    np.testing.assert_allclose(made(out).values, expected.values, rtol=0, atol=tolerance)


@needs_workbench
@pytest.mark.parametrize("kind", ["FLOAT32", "FLOAT64", "INT32", "INT16", "INT16 scaled", "UINT16 scaled"])
def test_cifti_that_workbench_writes(kind, expected, tmp_path):
    (path,), out = (
        ENCODINGS["dtseries with other structures"](tmp_path, SERIES, VERTICES),
        tmp_path / "out.dtseries.nii",
    )
    options = ["-cifti-output-datatype", kind.split()[0]]
    if "scaled" in kind:
        options += ["-cifti-output-range", SERIES.min(), SERIES.max()]
    workbench("-cifti-math", "x", out, "-var", "x", path, *options)
    tolerance = 5e-3 if "scaled" in kind else 0
    np.testing.assert_allclose(made((out,)).values, expected.values, rtol=0, atol=tolerance)
    assert read_header((out,), "fsaverage").repetition_time == pytest.approx(0.72, rel=1e-6)


@needs_workbench
def test_a_run_taken_apart_and_put_together_by_workbench(expected, tmp_path):
    (path,) = ENCODINGS["dtseries <f4"](tmp_path, SERIES, VERTICES)
    halves = tuple(tmp_path / f"{side}.func.gii" for side in "LR")
    sides = [("CORTEX_LEFT", halves[0]), ("CORTEX_RIGHT", halves[1])]
    workbench("-cifti-separate", path, "COLUMN", *(word for side, out in sides for word in ("-metric", side, out)))
    np.testing.assert_array_equal(made(halves).values, expected.values)
    out = tmp_path / "whole.dtseries.nii"
    metrics = ("-left-metric", halves[0], "-right-metric", halves[1])
    workbench("-cifti-create-dense-timeseries", out, *metrics, "-timestep", 0.72)
    np.testing.assert_array_equal(made((out,)).values, expected.values)


@needs_cases
@needs_lemon
def test_real_windows_in_the_encodings_of_workbench():
    """Ten frames of one real window, as integers, and five of its left half, as text and as compressed numbers."""
    whole = open_bold((next(iter(sorted(LEMON.glob("*pseudo1*.dtseries.nii")))),))
    packed = open_bold((CASES / "cifti/wb_int16scaled_10tp_5k.dtseries.nii",))
    assert whole.vertices.digest() == packed.vertices.digest()
    index = np.arange(len(whole.vertices))
    series, integers = (np.concatenate([part for _, part in bold.rows(index)]) for bold in (whole, packed))
    step = np.ptp(series[:, :10]) / 60000
    np.testing.assert_allclose(integers, series[:, :10], rtol=0, atol=step)


# --- parcels ---

PARCELS = parcels_of(
    MESH,
    ["R_far", "L_near", "both", "L_next"],
    [[(1, np.array([9, 7]))], [(0, np.array([40, 41, 42]))], [(0, np.array([300])), (1, np.array([200]))],
     [(0, np.array([50, 60]))]],
)  # fmt: skip


def test_parcels_are_in_the_order_of_their_first_vertices():
    assert PARCELS.names == ("L_near", "L_next", "both", "R_far")
    assert first_vertices(PARCELS).number.tolist() == [40, 50, 300, 7]
    assert first_vertices(PARCELS).hemisphere.tolist() == [0, 0, 0, 1]
    assert PARCELS.target.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i2"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
@pytest.mark.parametrize("extra", [False, True])
def test_a_series_of_parcels_is_the_same_in_any_order_and_type(dtype, order, extra, tmp_path):
    series = integers((4, FRAMES))
    shuffled = _reordered(PARCELS, order)
    path = parcellated(tmp_path / "run.ptseries.nii", series[order], shuffled, dtype, extra=extra)
    bold = open_bold((path,), "fsaverage")
    assert bold.parcels.names == PARCELS.names
    assert read_header((path,), "fsaverage").parcels == 4
    region = first_vertices(PARCELS)[:2]
    found = fingerprints(bold, region, bold.parcels, Cleaning(), minimum_frames=2)
    z = np.arctanh(np.clip(np.corrcoef(series), -1, 1 - 1e-7))
    np.testing.assert_allclose(found.values[0, 1:], z[0, 1:], atol=1e-5)
    np.testing.assert_allclose(found.values[1, [0, 2, 3]], z[1, [0, 2, 3]], atol=1e-5)
    # A parcel with itself: what the region's others have, which removal of the region's mean makes 0.
    np.testing.assert_allclose([found.values[0, 0], found.values[1, 1]], [z[1, 0], z[0, 1]], atol=1e-5)


def _reordered(parcels, order):
    members = parcels.members
    chosen = np.concatenate([np.flatnonzero(parcels.target == k) for k in order])
    sizes = [np.sum(parcels.target == k) for k in order]
    return Targets(tuple(parcels.names[k] for k in order), members[chosen], np.repeat(np.arange(4), sizes))


@needs_workbench
def test_parcels_that_workbench_makes(tmp_path):
    (path,), labels = ENCODINGS["dtseries <f4"](tmp_path, SERIES, VERTICES), tmp_path / "atlas.dlabel.nii"
    keys = np.zeros(len(VERTICES), int)
    for key, name in enumerate(PARCELS.names, 1):
        place = PARCELS.members[PARCELS.target == key - 1].within(VERTICES)
        keys[place[place >= 0]] = key
        assert name
    table = {0: ("???", (0, 0, 0, 0))} | {k: (name, (1, 0, 0, 1)) for k, name in enumerate(PARCELS.names, 1)}
    axes = nib.cifti2.LabelAxis(["atlas"], [table]), surface_models(VERTICES)
    image = nib.Cifti2Image(keys[None].astype(np.float32), axes)
    image.nifti_header.set_intent("ConnDenseLabel")
    image.to_filename(labels)
    out = tmp_path / "run.ptseries.nii"
    workbench("-cifti-parcellate", path, labels, "COLUMN", out)
    bold = open_bold((out,), "fsaverage")
    assert set(bold.parcels.names) == set(PARCELS.names)
    (series,) = [part for _, part in bold.rows(np.arange(4))]
    for first, own in zip(bold.vertices.number, series, strict=True):
        name = bold.parcels.names[first_vertices(bold.parcels).number.tolist().index(first)]
        place = PARCELS.members[PARCELS.target == PARCELS.names.index(name)].within(VERTICES)
        np.testing.assert_allclose(own, SERIES[place[place >= 0]].mean(0), rtol=1e-6)


# --- meshes and widths of real cohorts ---


@pytest.mark.parametrize(
    ("space", "count", "name"),
    [("fsLR", 32492, "fsLR_den-32k"), ("fsLR", 59292, "fsLR_den-59k"), ("fsLR", 163842, "fsLR_den-164k"),
     ("fsLR", 4842, "fsLR_den-5k"), ("fsLR", 5762, "fsLR_den-6k"), ("fsaverage", 10242, "fsaverage_den-10k")],
)  # fmt: skip
def test_meshes_of_all_densities(space, count, name, tmp_path):
    vertices = Vertices.of(Mesh(space, (count, count)), np.arange(10), np.arange(10))
    path = matrix(tmp_path / "run.dtseries.nii", integers((20, 30)), surface_models(vertices))
    assert open_bold((path,), space).vertices.mesh.name == name


def test_external_numbers_that_are_not_there_are_named(tmp_path):
    paths = gifti_pair(tmp_path, SERIES, VERTICES, encoding=GIFTI_ENCODINGS[-1])
    paths[0].with_name(paths[0].name + ".dat").unlink()
    with pytest.raises(BadData, match=r"run_hemi-L_bold\.func\.gii.*Cannot locate external file"):
        made(paths)
