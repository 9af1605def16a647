"""Units on disk: exact, whole or not there, damage detected, and many processes at once."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from parcellation import __version__
from parcellation.config import Features
from parcellation.errors import BadData, FileFailure, InputMissing
from parcellation.meshes import Mesh
from parcellation.store import Store, Unit, input_key, numbered_vertices, targets_digest, write_unit
from parcellation.surfaces import Targets, Vertices

FLOAT32 = Features(precision="float32")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


def region() -> Vertices:
    return Vertices(Mesh("fsaverage", (10242, 10242)), np.array([0, 0, 1], np.uint8), np.array([7, 900, 3], np.int32))


def parcels() -> Targets:
    members = Vertices(
        Mesh("fsaverage", (10242, 10242)), np.array([1, 0, 1, 0], np.uint8), np.arange(4, dtype=np.int32)
    )
    return Targets(("a", "b"), members, np.array([0, 0, 1, 1]))


def unit(**changes) -> Unit:
    z = np.array([[0.5, -0.25], [1.0, 0.0], [np.nan, 3.0]], np.float32)
    fields = {
        "subject": "001",
        "session": "1e5",
        "fingerprint": z,
        "mask": np.array([True, True, False]),
        "vertices": region(),
        "targets": parcels(),
        "frames": 1195,
        "features": FLOAT32,
    }
    return Unit(**fields | changes)


def test_float32_is_exact_and_what_is_masked_is_zero(store):
    store.write(unit(repetition_time=0.72, cleaning={"band_pass": [0.01, 0.1]}, sources={"a.nii": "ff"}))
    got = store.read("001", "1e5")
    assert got.fingerprint.dtype == np.float32
    np.testing.assert_array_equal(got.fingerprint, [[0.5, -0.25], [1, 0], [0, 0]])
    np.testing.assert_array_equal(got.mask, [True, True, False])
    np.testing.assert_array_equal(got.target_mask, [True, True])
    assert (got.subject, got.session, got.frames, got.repetition_time) == ("001", "1e5", 1195, 0.72)
    assert (got.cleaning, got.sources) == ({"band_pass": [0.01, 0.1]}, {"a.nii": "ff"})
    assert got.software == f"parcellation {__version__}"


def test_float16_is_within_half_its_spacing(store, rng):
    z = np.arctanh(rng.uniform(-0.99, 0.99, (50, 40)))
    write_unit(store, "1", "1", z, frames=100)
    got = store.read("1", "1").fingerprint
    assert got.dtype == np.float16
    # A float16 has 11 significant bits; rounding errs by half of the last, near zero by half of 2^-24.
    np.testing.assert_allclose(got.astype(float), z, rtol=2.0**-11, atol=2.0**-25)


def test_identity_is_kept_once_and_restored_in_its_order(store):
    for session in "12":
        store.write(unit(session=session))
    assert len(list(store.folder.glob("identity-*.json"))) == 1
    got = Store(store.folder).read("001", "1")
    assert got.vertices.digest() == region().digest()
    assert got.vertices.mesh == region().mesh
    # The members of these targets alternate between hemispheres.
    np.testing.assert_array_equal(got.targets.members.hemisphere, parcels().members.hemisphere)
    np.testing.assert_array_equal(got.targets.members.number, parcels().members.number)
    np.testing.assert_array_equal(got.targets.target, parcels().target)
    assert got.targets.names == ("a", "b")
    header = store.header("001", "1")
    assert header["vertices"] == region().digest()
    assert header["targets"] == targets_digest(parcels())
    assert len(json.dumps(header)) < 1500


def test_units_of_other_vertices_or_targets_are_refused(store):
    store.write(unit())
    other = Vertices(region().mesh, region().hemisphere, region().number + 1)
    with pytest.raises(
        BadData, match=r"expected 3 vertices of fsaverage 10242\+10242 \(.{8}\), 2 targets .* got 3 vert"
    ):
        store.write(unit(vertices=other, session="2"))
    with pytest.raises(BadData, match="delete the store or choose another"):
        store.write(unit(targets=Targets(("a", "c"), parcels().members, parcels().target), session="2"))
    assert store.units() == [("001", "1e5")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": np.zeros((3, 3))}, r"expected arrays of \(3, 2\)"),
        ({"mask": np.ones(2, bool)}, r"expected arrays of"),
        ({"target_mask": np.ones(3, bool)}, r"expected arrays of"),
        ({"mask": np.ones(3, bool)}, "got nan at vertex 2, target 0"),
        ({"fingerprint": np.full((3, 2), np.inf)}, "got inf at vertex 0, target 0"),
        ({"fingerprint": np.full((3, 2), 7e4), "features": Features()}, "fit into float16, got 70000.0 at"),
        ({"subject": "../up"}, "letters and digits"),
        ({"subject": ""}, "letters and digits"),
        ({"session": "a_b"}, "letters and digits"),
        ({"session": "1\n"}, "letters and digits"),
    ],
)
def test_what_cannot_be_a_unit_is_refused_and_nothing_is_written(store, changes, words):
    with pytest.raises(BadData, match=words):
        store.write(unit(**changes))
    assert not store.folder.exists()


def test_targets_without_signal_may_hold_anything(store):
    store.write(unit(fingerprint=np.array([[0.5, np.nan]] * 3), target_mask=np.array([True, False])))
    got = store.read("001", "1e5")
    np.testing.assert_array_equal(got.fingerprint, [[0.5, 0], [0.5, 0], [0, 0]])
    np.testing.assert_array_equal(got.target_mask, [True, False])


def test_equal_units_give_equal_bytes(tmp_path):
    paths = [Store(tmp_path / name).write(unit(inputs={"b": 1, "a": 2})) for name in "xy"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == sorted(p.name for p in (tmp_path / "y").iterdir())


@pytest.mark.parametrize("rows", [[0], [4, 5, 6], [9, 0, 1, 1, 7], [], np.arange(10), np.array([3, 2])])
def test_some_rows_are_those_rows(store, rng, rows):
    z, mask = rng.normal(size=(10, 3)).astype(np.float32), rng.random(10) > 0.3
    write_unit(store, "1", "1", z, frames=5, mask=mask, features=FLOAT32)
    whole, some = store.read("1", "1"), store.read("1", "1", rows)
    index = np.asarray(rows, int)
    np.testing.assert_array_equal(some.fingerprint, whole.fingerprint[index])
    np.testing.assert_array_equal(some.mask, mask[index])
    np.testing.assert_array_equal(some.vertices.number, index)
    assert some.fingerprint.shape == (len(index), 3)


def test_rows_that_are_not_there_are_an_error(store):
    write_unit(store, "1", "1", np.zeros((4, 2)), frames=5)
    for rows in ([4], [-1, 0]):
        with pytest.raises(IndexError, match="rows from 0 to 3"):
            store.read("1", "1", rows)


def test_units_are_in_natural_order_and_other_files_are_none(store):
    for subject, session in [("10", "1"), ("9", "10"), ("9", "2"), ("a", "1")]:
        write_unit(store, subject, session, np.zeros((2, 2)), frames=5)
    (store.folder / "sub-1_ses-1_other.safetensors").touch()
    (store.folder / ".part-1-x-sub-1_ses-1_fingerprint.safetensors").touch()
    assert store.units() == [("9", "2"), ("9", "10"), ("10", "1"), ("a", "1")]
    assert Store(store.folder / "none").units() == []


def test_the_index_tells_what_is_there(store):
    mask = np.array([True, False, True])
    write_unit(store, "2", "1", np.zeros((3, 2)), frames=7, repetition_time=0.8)
    write_unit(store, "1", "1", np.zeros((3, 2)), frames=5, mask=mask, target_mask=np.array([True, False]))
    lines = [line.split("\t") for line in store.write_index().read_text().splitlines()]
    assert lines[0][:5] == ["subject", "session", "frames", "tr", "vertices"]
    assert [line[:-1] for line in lines[1:]] == [
        ["1", "1", "5", "n/a", "3", "1", "2", "1"],
        ["2", "1", "7", "0.8", "3", "0", "2", "0"],
    ]
    first = store.write_index().read_bytes()
    assert store.write_index().read_bytes() == first


# What is done is not done again


def test_a_unit_is_current_for_the_same_inputs_only(store, tmp_path):
    source = tmp_path / "bold.nii"
    source.write_bytes(b"data")
    key = input_key([source], {"band_pass": (0.01, 0.1), "fwhm": None})
    assert not store.is_current("001", "1e5", key)
    store.write(unit(inputs=key))
    assert store.is_current("001", "1e5", key)
    assert store.is_current("001", "1e5", input_key([source], {"fwhm": None, "band_pass": [0.01, 0.1]}))
    assert not store.is_current("001", "1e5", input_key([source], {"band_pass": [0.01, 0.1], "fwhm": 2.0}))
    assert not store.is_current("001", "1e5", input_key([], {"band_pass": [0.01, 0.1], "fwhm": None}))
    os.utime(source, ns=(0, 1))
    assert not store.is_current("001", "1e5", input_key([source], {"band_pass": [0.01, 0.1], "fwhm": None}))
    with pytest.raises(InputMissing, match=r"none\.nii"):
        input_key([tmp_path / "none.nii"], {})


def test_a_damaged_unit_is_not_current(store):
    path = store.write(unit())
    path.write_bytes(path.read_bytes()[:-1])
    assert not store.is_current("001", "1e5", {})


# Damage


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.sampled_from([0x01, 0x80, 0xFF]))
def test_any_damaged_byte_is_detected_and_the_file_named(tmp_path, place, flip):
    store = Store(tmp_path)
    path = store.write(unit())
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= flip
    path.write_bytes(content)
    with pytest.raises(BadData, match=str(path)):
        store.read("001", "1e5")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"not a fingerprint at all", b"\xff" * 64])
def test_files_that_are_none_are_named(store, content):
    path = store.write(unit())
    path.write_bytes(content)
    for read in (store.read, store.header, store.arrays):
        with pytest.raises(BadData, match=str(path)):
            read("001", "1e5")


def test_a_truncated_file_is_named(store):
    path = store.write(unit())
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(BadData, match=str(path)):
            store.read("001", "1e5")


def test_damage_after_a_first_reading_is_detected_when_the_file_changes(store):
    path = store.write(unit())
    store.read("001", "1e5")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadData, match="does not match its checksum"):
        store.read("001", "1e5")


def test_files_of_others_and_of_other_versions(store):
    path = store.write(unit())
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["unit"])
        tensors = file.get_tensors()
    save_file(tensors, path, metadata={"unit": json.dumps(header | {"format": 2})})
    with pytest.raises(BadData, match="expected format 1, got 2"):
        store.read("001", "1e5")
    save_file(tensors, path)
    with pytest.raises(BadData, match="another safetensors file"):
        store.read("001", "1e5")
    path.rename(store.path("002", "1"))
    store.write(unit()).rename(store.path("002", "1"))
    with pytest.raises(BadData, match=r"expected the unit .*002.* of its name, got .*001"):
        store.read("002", "1")


def test_what_is_not_there_is_missing(store):
    with pytest.raises(InputMissing, match="no such prepared unit"):
        store.read("001", "1")
    store.write(unit())
    identity = next(store.folder.glob("identity-*.json"))
    identity.write_text("{}")
    with pytest.raises(BadData, match=identity.name):
        Store(store.folder).read("001", "1e5")
    identity.unlink()
    with pytest.raises(InputMissing, match=identity.name):
        Store(store.folder).read("001", "1e5")


# Many processes


def test_an_interrupted_write_leaves_the_old_file_or_none(store, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    store.write(unit(session="1", frames=1))
    before = sorted(store.folder.iterdir())
    monkeypatch.setattr(Path, "write_bytes", full)
    for session in "12":
        with pytest.raises(FileFailure, match="No space left on device"):
            store.write(unit(session=session, frames=2))
    assert sorted(store.folder.iterdir()) == before
    assert store.read("001", "1").frames == 1


def test_a_killed_process_leaves_nothing_that_counts(store):
    script = f"""
        import os, signal
        import numpy as np
        from parcellation.store import Store, write_unit
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL) if "sub-" in str(_[1]) else os.rename(*_)
        write_unit(Store({str(store.folder)!r}), "1", "1", np.zeros((4, 2)), frames=5)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.units() == []
    assert len(list(store.folder.glob(".part-*"))) == 1
    with store.claim("1", "1") as mine:
        assert mine
        write_unit(store, "1", "1", np.zeros((4, 2)), frames=5)
    assert list(store.folder.glob(".part-*")) == []
    assert store.units() == [("1", "1")]


def _write_often(folder: Path, value: float, times: int) -> None:
    for _ in range(times):
        write_unit(Store(folder), "1", "1", np.full((300, 40), value), frames=int(value))


def test_two_processes_writing_one_unit_never_show_a_half(store):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(store.folder, value, 40)) for value in (1.0, 2.0)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        if store.units():
            got = Store(store.folder).read("1", "1")
            assert (got.fingerprint == got.frames).all()
            seen += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen > 0
    assert sorted(path.name for path in store.folder.iterdir() if path.suffix == ".safetensors") == [
        store.path("1", "1").name
    ]
    assert list(store.folder.glob(".part-*")) == []


def test_one_process_at_a_time_has_a_unit(store):
    with store.claim("1", "1") as first, Store(store.folder).claim("1", "1") as second:
        assert (first, second) == (True, False)
        with store.claim("1", "2") as other:
            assert other
    with store.claim("1", "1") as again:
        assert again
    assert {path.parent.name for path in store.folder.rglob("*.lock")} == {"locks"}


def test_numbered_vertices_lie_on_no_surface():
    vertices = numbered_vertices(5)
    assert vertices.mesh == Mesh("none", (5, 0))
    assert vertices.number.tolist() == [0, 1, 2, 3, 4]
    assert math.isnan(Unit("1", "1", np.zeros((5, 1)), np.ones(5), vertices, parcels(), 1).repetition_time)
