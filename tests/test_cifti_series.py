import functools
import logging
import math
import operator
import struct

import nibabel as nib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nibabel.cifti2 import BrainModelAxis, LabelAxis, ScalarAxis, SeriesAxis

from parcellation.errors import BadData
from parcellation.timeseries import open_bold
from tests.run_files import (
    COUNT,
    RNG,
    change_header,
    cortex,
    everything,
    plain_run,
    refusal,
    volume,
    write_cifti,
)


@pytest.fixture
def plain(tmp_path):
    return plain_run(tmp_path / "run.dtseries.nii")


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
    path.write_bytes(raw[: -values.nbytes])  # as another program does that writes it anew
    with pytest.raises(BadData, match=r"run\.dtseries\.nii: ends before row 42; a truncated file, copy it again"):
        everything(bold)


def test_a_file_of_the_first_version_is_refused_with_the_command_that_converts_it(plain):
    path, _ = plain
    raw = path.read_bytes()
    assert raw.count(b'<CIFTI Version="2.0"') == 1
    path.write_bytes(raw.replace(b'<CIFTI Version="2.0"', b'<CIFTI Version="1.0"'))
    command = (
        "a CIFTI-1 file, expected CIFTI-2; convert it with `wb_command -file-convert -cifti-version-convert IN 2 OUT`"
    )
    refusal((path,), command)


# --- any brain models in any order ---

STRUCTURES = ("LEFT", "RIGHT", "cerebellum", "thalamus", "stem")


@st.composite
def axes(draw):
    """Brain models of some structures in any order, each of some of its vertices in any order."""
    names = draw(st.permutations(STRUCTURES))
    names = names[: draw(st.integers(1, len(names)))]
    if not {"LEFT", "RIGHT"} & set(names):
        names = [*names, "RIGHT"]
    parts = {}
    for name in names:
        numbers = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True))
        if name in ("LEFT", "RIGHT"):
            parts[name] = cortex(numbers, name)
        elif name == "cerebellum":
            parts[name] = BrainModelAxis.from_surface(np.array(numbers), 80, "CIFTI_STRUCTURE_CEREBELLUM")
        else:
            voxels = np.array([[number, ["thalamus", "stem"].index(name), 0] for number in numbers])
            structure = {"thalamus": "thalamus_left", "stem": "brain_stem"}[name]
            parts[name] = BrainModelAxis([structure] * len(voxels), voxel=voxels, affine=np.eye(4),
                                         volume_shape=(80, 2, 1))  # fmt: skip
    return parts


@given(parts=axes(), frames=st.integers(1, 4), block=st.integers(1, 50))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_brain_models_in_any_order_are_read_by_their_names(tmp_path, parts, frames, block):
    models = functools.reduce(operator.add, parts.values())
    values = np.arange(len(models) * frames, dtype=np.float32).reshape(len(models), frames)
    path = write_cifti(tmp_path / "run.dtseries.nii", values, models)
    bold = open_bold((path,))
    expected, row = {}, 0
    for name, part in parts.items():
        if name in ("LEFT", "RIGHT"):
            sides = [name == "RIGHT"] * len(part)
            expected |= dict(zip(zip(sides, part.vertex.tolist(), strict=True), values[row:], strict=False))
        row += len(part)
    found = dict(zip(zip(bold.vertices.hemisphere.tolist(), bold.vertices.number.tolist(), strict=True),
                     everything(bold, block), strict=True))  # fmt: skip
    assert found.keys() == expected.keys()
    for vertex, series in expected.items():
        np.testing.assert_array_equal(found[vertex], series)


# --- headers that contradict themselves ---


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'IndexOffset="27"', b'IndexOffset="19"', "share rows"),
        (b'IndexOffset="27"', b'IndexOffset="99"', "does not describe"),
        (b'IndexOffset="0"', b'IndexOffset="-9"', "share rows"),
        (b'IndexCount="20"', b'IndexCount="19"', "lists other vertices"),
        (b"<VertexIndices>0 2 4", b"<VertexIndices>2 2 4", "some twice"),
        (b"<VertexIndices>0 2 4", b"<VertexIndices>-1 2 4", "expected vertices below 4842"),
        (b"<VertexIndices>0 2 4", b"<VertexIndices>4842 2 4", "expected vertices below 4842"),
        (b"<VertexIndices>0 2 4", b"<VertexIndices>9999999999999999999 2 4", "cannot be read"),
        (b'SurfaceNumberOfVertices="4842"', b'SurfaceNumberOfVertices="4843"', "as many vertices in both"),
    ],
)
def test_vertices_that_cannot_be_are_refused(plain, old, new, words):
    path, _ = plain
    raw = path.read_bytes()
    assert old in raw
    start = raw.index(b"<?xml") if b"<?xml" in raw else raw.index(b"<CIFTI")
    stop = raw.index(b"</CIFTI>") + 8
    text = raw[start:stop].replace(old, new, 1)
    # What is longer takes the place of blanks, so that the values stay where they are.
    room = len(raw) - start - len(raw[stop:]) + len(raw[stop:]) - len(raw[stop:].lstrip(b" \0"))
    path.write_bytes(raw[:start] + text.ljust(room)[: max(room, len(text))] + raw[stop:].lstrip(b" \0"))
    refusal((path,), words)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dim": [6, 1, 1, 1, 1, 0, 42, 1]}, "expected vertices and frames"),
        ({"dim": [6, 1, 1, 1, 1, -9, -42, 1]}, "expected vertices and frames"),
        ({"dim": [6, 1, 1, 1, 1, 9, 2**60, 1]}, "truncated"),
        ({"datatype": 128}, "expected integers or real numbers"),
        ({"datatype": 1792}, "expected integers or real numbers"),
        ({"datatype": 7}, "cannot be read"),
        ({"vox_offset": -100}, "at a place in the file"),
        ({"vox_offset": 100}, "its header is damaged"),
        ({"vox_offset": 2**62}, "truncated"),
    ],
)
def test_lengths_and_types_that_cannot_be_are_refused(plain, fields, words):
    path, _ = plain
    change_header(path, **fields)
    refusal((path,), words)


@pytest.mark.parametrize("exponent", [b"-30", b"400", b"-7", b"7"])
def test_a_step_that_is_no_time_is_unknown(plain, exponent):
    path, _ = plain
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'SeriesExponent="0"', b'SeriesExponent="' + exponent + b'"', 1))
    assert math.isnan(open_bold((path,)).repetition_time)
