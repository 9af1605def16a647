import logging
import math
import os
import struct

import nibabel as nib
import numpy as np
import pytest
from nibabel.cifti2 import BrainModelAxis, LabelAxis, ScalarAxis, SeriesAxis

from parcellation.errors import BadData, InputMissing
from parcellation.timeseries import open_bold
from tests.shared_data import BRAINSPACE, CASES, LEMON, needs_brainspace, needs_cases, needs_lemon

COUNT = 4842  # vertices of a hemisphere of fs_LR 5k
RNG = np.random.default_rng(0)


def cortex(number, side):
    return BrainModelAxis.from_surface(np.asarray(number), COUNT, f"CIFTI_STRUCTURE_CORTEX_{side}")


def volume(voxels):
    return BrainModelAxis.from_mask(np.ones((voxels, 1, 1)), affine=np.eye(4), name="thalamus_left")


def write_cifti(path, values, models, axis=None, intent="ConnDenseSeries"):
    """Write values (row, time)."""
    axis = axis or SeriesAxis(0, 0.72, values.shape[1], "SECOND")
    image = nib.Cifti2Image(values.T, (axis, models))
    image.nifti_header.set_intent(intent)
    image.nifti_header.set_data_dtype(values.dtype)
    image.to_filename(path)
    return path


def change_header(path, **fields):
    """Overwrite fields of a NIfTI-2 header on disk."""
    raw = path.read_bytes()
    header = nib.Nifti2Header(raw[:540], check=False)
    for name, value in fields.items():
        header[name] = value
    path.write_bytes(header.binaryblock + raw[540:])
    return path


def everything(bold, block=None, index=None):
    """All series (vertex, time) of a run, read in blocks."""
    index = np.arange(len(bold.vertices)) if index is None else index
    values = np.full((len(index), bold.frames), np.nan, np.float32)
    for part, series in bold.rows(index, block):
        assert series.dtype == np.float32
        values[part] = series
    return values


@pytest.fixture
def plain(tmp_path):
    """Left 0 2 4 .. 38 and right 100 .. 114 around a thalamus of 7 voxels: (path, values of all 42 rows)."""
    models = cortex(range(0, 40, 2), "LEFT") + volume(7) + cortex(range(100, 115), "RIGHT")
    values = RNG.normal(size=(42, 9)).astype(np.float32)
    return write_cifti(tmp_path / "run.dtseries.nii", values, models), values


def test_rows_are_identified_by_the_brain_models(plain):
    path, values = plain
    bold = open_bold((path,))
    assert bold.frames == 9
    assert bold.repetition_time == 0.72
    assert bold.vertices.mesh.counts == (COUNT, COUNT)
    np.testing.assert_array_equal(bold.vertices.number, [*range(0, 40, 2), *range(100, 115)])
    np.testing.assert_array_equal(bold.vertices.hemisphere, [0] * 20 + [1] * 15)
    np.testing.assert_array_equal(everything(bold), np.delete(values, range(20, 27), axis=0))


def test_time_is_fastest_on_disk(plain):
    path, values = plain
    stored = np.frombuffer(path.read_bytes()[-values.nbytes :], "<f4").reshape(42, 9)
    np.testing.assert_array_equal(stored, values)


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@pytest.mark.parametrize("index", [[], [0], [3, 4, 5, 19, 20, 34], [34], range(35)])
def test_blocks_hold_what_was_asked_for(plain, block, index):
    path, values = plain
    bold, index = open_bold((path,)), np.array(index, int)
    wanted = np.delete(values, range(20, 27), axis=0)[index]
    np.testing.assert_array_equal(everything(bold, block, index), wanted)
    assert max((len(series) for _, series in bold.rows(index, block)), default=0) <= block


def test_a_block_spans_few_rows_and_wide_gaps_are_not_read(tmp_path):
    values = RNG.normal(size=(200, 3000)).astype(np.float32)
    path = write_cifti(tmp_path / "run.dtseries.nii", values, cortex(range(200), "LEFT"))
    parts = [(part.start, part.stop) for part, _ in open_bold((path,)).rows(np.array([0, 3, 100, 101, 130]), 20)]
    assert parts == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("index", [[2, 1], [1, 1], [-1, 2], [34, 35]])
def test_positions_out_of_order_or_range_are_refused(plain, index):
    with pytest.raises(ValueError, match="strictly increasing positions below 35"):
        list(open_bold((plain[0],)).rows(np.array(index)))


def test_right_before_left_and_one_hemisphere_only(tmp_path):
    values = RNG.normal(size=(5, 4)).astype(np.float32)
    path = write_cifti(tmp_path / "a.dtseries.nii", values, cortex([7, 8], "RIGHT") + cortex([1, 2, 3], "LEFT"))
    bold = open_bold((path,))
    assert bold.vertices.hemisphere.tolist() == [1, 1, 0, 0, 0]
    assert bold.vertices.number.tolist() == [7, 8, 1, 2, 3]
    np.testing.assert_array_equal(everything(bold), values)
    path = write_cifti(tmp_path / "b.dtseries.nii", values, cortex([5, 6, 7, 8, 9], "RIGHT"))
    assert open_bold((path,)).vertices.hemisphere.tolist() == [1] * 5


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "i4", "u1"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_stored_types_and_byte_orders(tmp_path, dtype, order):
    values = RNG.integers(0, 100, (6, 5)).astype("<" + dtype)
    path = write_cifti(tmp_path / "a.dtseries.nii", values, cortex(range(6), "LEFT"))
    if order == ">":
        raw = path.read_bytes()
        offset = len(raw) - values.nbytes
        header = nib.Nifti2Header(raw[:540]).as_byteswapped(">").binaryblock
        extension = struct.pack(">ii", *struct.unpack("<ii", raw[544:552]))
        path.write_bytes(header + raw[540:544] + extension + raw[552:offset] + values.astype(">" + dtype).tobytes())
    np.testing.assert_array_equal(everything(open_bold((path,)), 4), values.astype(np.float32))


def test_scaling_is_applied_and_zero_slope_means_none(tmp_path):
    values = RNG.integers(-1000, 1000, (6, 5)).astype(np.int16)
    path = write_cifti(tmp_path / "a.dtseries.nii", values, cortex(range(6), "LEFT"))
    change_header(path, scl_slope=0.25, scl_inter=10)
    np.testing.assert_array_equal(everything(open_bold((path,))), values * 0.25 + 10)
    change_header(path, scl_slope=0, scl_inter=10)
    np.testing.assert_array_equal(everything(open_bold((path,))), values)


@pytest.mark.parametrize(
    ("unit", "step", "expected"), [("SECOND", 2.5, 2.5), ("HERTZ", 2.5, math.nan), ("SECOND", 0, math.nan)]
)
def test_repetition_time_is_in_seconds_or_unknown(tmp_path, caplog, unit, step, expected):
    path = tmp_path / "a.dtseries.nii"
    write_cifti(path, np.zeros((3, 4), np.float32), cortex(range(3), "LEFT"), SeriesAxis(0, step, 4, unit))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_equal(open_bold((path,)).repetition_time, expected)
    assert ("repetition time" in caplog.text) == math.isnan(expected)
    assert open_bold((path,), repetition_time=1.4).repetition_time == 1.4


def test_series_exponent_counts(tmp_path):
    path = write_cifti(tmp_path / "a.dtseries.nii", np.zeros((3, 4), np.float32), cortex(range(3), "LEFT"))
    raw = path.read_bytes().replace(b'SeriesExponent="0"', b'SeriesExponent="2"')
    path.write_bytes(raw)
    assert open_bold((path,)).repetition_time == pytest.approx(72, rel=1e-12)


def refusal(paths, *words):
    with pytest.raises(BadData) as caught:
        everything(open_bold(paths))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in (str(paths[-1]), *words)), message


def test_missing_files_and_links(tmp_path):
    with pytest.raises(InputMissing, match="no such file"):
        open_bold((tmp_path / "a.dtseries.nii",))
    os.symlink(tmp_path / "content", tmp_path / "b.mgz")
    with pytest.raises(InputMissing, match="datalad get"):
        open_bold((tmp_path / "b.mgz", tmp_path / "b.mgz"))


def test_things_that_are_no_series(tmp_path):
    path = tmp_path / "a.dtseries.nii"
    for content, word in [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"", "empty"),
        (b"\x1f\x8b" + bytes(90), "gunzip"),
        (b"hello" * 200, "not a NIfTI-2 file"),
        (struct.pack("<i", 540) + bytes(90), "cut off"),
    ]:
        path.write_bytes(content)
        refusal((path,), word)
    refusal((tmp_path,), "cannot be read")
    refusal((path, path), "not a file of one hemisphere")
    with pytest.raises(BadData, match="got 0 files"):
        open_bold(())


def test_volumes_and_other_cifti_are_named(tmp_path):
    path, models, values = tmp_path / "a.dtseries.nii", cortex(range(3), "LEFT"), np.zeros((3, 2), np.float32)
    for kind, word in [(nib.Nifti1Image, "NIfTI-1 volume"), (nib.Nifti2Image, "NIfTI-2 volume")]:
        kind(np.zeros((2, 2, 2, 5), np.float32), np.eye(4)).to_filename(tmp_path / "v.nii")
        refusal((tmp_path / "v.nii",), word)
    write_cifti(path, values, models, ScalarAxis(["a", "b"]), "ConnDenseScalar")
    refusal((path,), "dscalar")
    write_cifti(path, values, models, LabelAxis(["a", "b"], [{0: ("?", (0, 0, 0, 0))}] * 2), "ConnDenseLabel")
    refusal((path,), "dlabel")
    change_header(path, intent_code=3004)
    refusal((path,), "no parcels with vertices of the cortex")
    change_header(path, intent_code=3099)
    refusal((path,), "intent 3099")
    write_cifti(path, values, volume(3))
    refusal((path,), "no cortical surface")


def test_truncated_and_damaged_cifti(plain, tmp_path):
    path, values = plain
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    refusal((path,), "truncated", f"expected {len(raw)} bytes", f"got {len(raw) - 1}")
    path.write_bytes(raw.replace(b"<MatrixIndicesMap", b"<MatrixIndicesMpa", 1))
    refusal((path,), "cannot be read")
    path.write_bytes(raw.replace(b'NumberOfSeriesPoints="9"', b'NumberOfSeriesPoints="8"'))
    refusal((path,), "does not describe the 42 x 9 values")
    path.write_bytes(raw)
    bold = open_bold((path,))
    path.write_bytes(raw[: -values.nbytes])
    with pytest.raises(BadData, match="truncated"):
        everything(bold)


# --- pairs ---


def write_mgh(path, values, milliseconds=1400.0):
    """Write values (vertex, time)."""
    image = nib.MGHImage(values.reshape(len(values), 1, 1, -1), np.eye(4))
    image.header["tr"] = milliseconds
    image.to_filename(path)
    return path


def write_gifti(path, values, structure=None, intent="NIFTI_INTENT_TIME_SERIES"):
    """Write values (vertex, time), one data array a frame."""
    arrays = [nib.gifti.GiftiDataArray(frame, intent=intent, datatype=frame.dtype) for frame in values.T]
    meta = nib.gifti.GiftiMetaData({"AnatomicalStructurePrimary": structure} if structure else {})
    nib.GiftiImage(darrays=arrays, meta=meta).to_filename(path)
    return path


@pytest.mark.parametrize(("write", "suffix"), [(write_mgh, ".mgh"), (write_mgh, ".mgz"), (write_gifti, ".func.gii")])
@pytest.mark.parametrize("block", [1, 100, 10_000])
def test_pairs_are_left_then_right(tmp_path, write, suffix, block):
    left, right = RNG.normal(size=(2, 642, 6)).astype(np.float32)
    paths = write(tmp_path / f"lh{suffix}", left), write(tmp_path / f"rh{suffix}", right)
    bold = open_bold(paths, "fsaverage")
    np.testing.assert_equal(bold.repetition_time, math.nan if suffix == ".func.gii" else 1.4)
    np.testing.assert_array_equal(bold.vertices.number, [*range(642)] * 2)
    index = np.array([0, 5, 641, 642, 700, 1283])
    np.testing.assert_array_equal(everything(bold, block, index), np.vstack([left, right])[index])
    only = open_bold((None, paths[1]), "fsaverage")
    assert set(only.vertices.hemisphere) == {1}
    np.testing.assert_array_equal(everything(only, block), right)


def test_gifti_with_one_array_of_all_frames(tmp_path):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    image = nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(values, intent="NIFTI_INTENT_NONE", datatype="float32")])
    image.to_filename(tmp_path / "a.func.gii")
    bold = open_bold((tmp_path / "a.func.gii", None), "fsaverage")
    assert bold.frames == 6
    np.testing.assert_array_equal(everything(bold), values)


def test_pairs_that_do_not_belong_together(tmp_path):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    left = write_mgh(tmp_path / "lh.mgz", values)
    refusal((left, write_mgh(tmp_path / "a.mgz", values[:, :5])), "6 and 5 frames")
    refusal((left, write_mgh(tmp_path / "b.mgz", values, 720.0)), "different repetition times")
    refusal((left,), "one hemisphere")
    right = write_gifti(tmp_path / "a.func.gii", values, "CortexLeft")
    refusal((None, right), "expected the right hemisphere, got cortexleft")


def test_pairs_of_other_kinds(tmp_path):
    path = tmp_path / "a.func.gii"
    write_gifti(path, np.zeros((642, 1), np.int32), intent="NIFTI_INTENT_LABEL")
    refusal((None, path), "GIFTI with label data")
    write_gifti(path, np.zeros((642, 1), np.float32))
    path.write_bytes(path.read_bytes()[:-30])
    refusal((None, path), "cannot be read")
    path = tmp_path / "a.mgh"
    nib.MGHImage(np.zeros((4, 5, 6, 7), np.float32), np.eye(4)).to_filename(path)
    refusal((None, path), "volume of 4 x 5 x 6")


@pytest.mark.parametrize("suffix", [".mgh", ".mgz"])
def test_truncated_mgh(tmp_path, suffix):
    values = RNG.normal(size=(642, 6)).astype(np.float32)
    path = write_mgh(tmp_path / f"lh{suffix}", values)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    refusal((None, path))
    path.write_bytes(raw)
    bold = open_bold((None, path))
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BadData, match="truncated"):
        everything(bold)


# --- real files ---


@needs_cases
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cifti/MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii", "cifti-version-convert"),
        ("cifti/Conte69.parcellations_VGD11b.32k_fs_LR.dlabel.nii", "dlabel"),
        ("cifti/ciftiTools_Conte69.MyelinAndCorrThickness.6k_fs_LR.dscalar.nii", "dscalar"),
        ("cifti/truncated_4S156_den-91k.dlabel.nii", "dlabel"),
        ("freesurfer/test.mgz", "one hemisphere"),
        ("gifti/task.func.gii", "one hemisphere"),
    ],
)
def test_real_files_of_other_kinds(name, word):
    refusal((CASES / name,), word)


@needs_cases
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("freesurfer/test.mgz", "volume of 3 x 4 x 5"),
        ("gifti/ColumnMajorOrder.gii", "pointset"),
        ("gifti/Lobules.label.gii", "label"),
        ("gifti/external.gii", "pointset"),
        ("gifti/lh.Yeo2011.gii", "label"),
        ("freesurfer/lh.aparc_fsaverage5_nilearntest.annot", "not a file of one hemisphere"),
    ],
)
def test_real_hemispheres_of_other_kinds(name, word):
    with pytest.raises(BadData, match=word):
        open_bold((CASES / name, None))


@needs_cases
@pytest.mark.parametrize("name", ["wb_float64_single_timepoint_5k", "wb_int16scaled_10tp_5k"])
def test_other_encodings_by_workbench(name):
    path = CASES / "cifti" / f"{name}.dtseries.nii"
    bold = open_bold((path,))
    assert bold.repetition_time == 1.4
    np.testing.assert_allclose(everything(bold, 1000), nib.load(path).get_fdata().T, rtol=1e-6, atol=1e-7)


@needs_cases
@needs_lemon
def test_old_medial_wall_and_real_windows():
    bold = open_bold((CASES / "cifti/Conte69.MyelinAndCorrThickness.32k_fs_LR.dtseries.nii",))
    assert (bold.frames, len(bold.vertices)) == (2, 60951)
    assert np.sum(bold.vertices.hemisphere == 0) == 30424
    path, *_ = sorted(LEMON.glob("*pseudo1*.dtseries.nii"))
    bold = open_bold((path,))
    assert (bold.frames, bold.repetition_time, len(bold.vertices)) == (163, 1.4, 8856)
    np.testing.assert_array_equal(everything(bold), nib.load(path).get_fdata(dtype=np.float32).T)


@needs_cases
def test_ascii_and_compressed_gifti_agree():
    folder = CASES / "gifti"
    texts, packed = (
        everything(open_bold((folder / f"wb_{name}.L.5k.func.gii", None))) for name in ("ASCII", "GZIP_BASE64_BINARY")
    )
    assert texts.shape == (4842, 5)
    np.testing.assert_allclose(texts, packed, rtol=1e-5, atol=1e-6)


@needs_brainspace
def test_real_mgz_pair():
    paths = tuple(sorted(BRAINSPACE.glob("*.mgz")))
    bold = open_bold(paths, "fsaverage")
    assert (bold.frames, bold.repetition_time, len(bold.vertices)) == (652, 1.0, 20484)
    values = everything(bold)
    constant = np.ptp(values, axis=1) == 0
    assert (constant[:10242].sum(), constant[10242:].sum()) == (888, 881)
    right = np.asarray(nib.load(paths[1]).dataobj, np.float32).reshape(10242, 652)
    np.testing.assert_array_equal(values[10242:], right)
