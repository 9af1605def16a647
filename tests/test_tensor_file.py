"""Arrays that are kept come back as they were, and not at all when a bit of them has changed."""

import contextlib
import io
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from parcellation.errors import BadData, FileFailure, InputMissing
from parcellation.files import remove_left
from parcellation.tensor_file import NAMES, keep_arrays, kept_arrays, write_arrays

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "none": np.zeros((0, 2)),
    "one": np.array(3.0),
    "mask": np.array([True, False]),
}


def test_what_is_kept_comes_back(tmp_path):
    keep_arrays(tmp_path / "file", ARRAYS, "key", "k")
    arrays, text = kept_arrays(tmp_path / "file", "key")
    assert text == "k"
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
    assert kept_arrays(tmp_path / "file", "key", "other") is None
    assert kept_arrays(tmp_path / "file", "digest") is None


def test_equal_content_is_equal_bytes(tmp_path):
    keep_arrays(tmp_path / "one", ARRAYS, "key", "k")
    keep_arrays(tmp_path / "two", dict(reversed(ARRAYS.items())), "key", "k")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.sampled_from([0x01, 0x80, 0xFF]))
def test_any_damaged_byte_is_found(tmp_path, place, flip):
    """Or, where the text itself is what was asked for by its value, it is the text of something else."""
    path = tmp_path / "file"
    keep_arrays(path, ARRAYS, "key", "text that is asked for")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= flip
    path.write_bytes(content)
    with contextlib.suppress(BadData):
        assert kept_arrays(path, "key", "text that is asked for") is None


def test_a_file_cut_off_is_damaged_and_one_that_is_not_there_is_missing(tmp_path):
    path = tmp_path / "file"
    keep_arrays(path, ARRAYS, "key", "k")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadData, match="file: not a whole file of arrays"):
        kept_arrays(path, "key")
    keep_arrays(path, ARRAYS, "key", "k")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match="file: damaged, its content does not match its checksum"):
        kept_arrays(path, "key")
    with pytest.raises(InputMissing, match="no such file"):
        kept_arrays(tmp_path / "none", "key")


def test_a_file_of_before_there_were_checksums_is_read(tmp_path):
    save_file({"a": np.arange(3)}, tmp_path / "file", metadata={"key": "k"})
    arrays, _ = kept_arrays(tmp_path / "file", "key", "k")
    np.testing.assert_array_equal(arrays["a"], np.arange(3))


def test_a_full_disk_is_a_failure_that_names_the_file(tmp_path, monkeypatch):
    """After the header was written."""

    class Full(io.BytesIO):
        def write(self, content) -> int:
            if self.tell():
                raise OSError(28, "No space left on device")
            return super().write(content)

    monkeypatch.setattr("builtins.open", lambda *_: Full())
    with pytest.raises(FileFailure, match=r"file: could not be written: No space left"):
        write_arrays(tmp_path / "file", ARRAYS)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("metadata", [None, {"unit": 'größer, "mehr"\n\x00'}])
def test_it_is_the_file_that_safetensors_writes(tmp_path, metadata):
    arrays = {f"{name}.{n}": np.ones((n, 3), name) for name in NAMES for n in (2, 0, 1)} | ARRAYS
    write_arrays(tmp_path / "file", arrays, metadata)
    content = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    assert (tmp_path / "file").read_bytes() == save(content, metadata)
    big = {"a": np.arange(5, dtype=">i4")}
    write_arrays(tmp_path / "big", big)
    np.testing.assert_array_equal(load_file(tmp_path / "big")["a"], big["a"])
    keep_arrays(tmp_path / "kept", big, "key", "k")
    np.testing.assert_array_equal(kept_arrays(tmp_path / "kept", "key")[0]["a"], big["a"])


def test_the_file_that_is_written_is_the_locked_one(tmp_path, monkeypatch):
    """A writer that put another file in its place would have it taken for what a killed process has left."""
    replaced, left = os.replace, []
    monkeypatch.setattr("os.replace", lambda *paths: (left.append(remove_left(tmp_path)), replaced(*paths)))
    write_arrays(tmp_path / "file", ARRAYS)
    assert left == [0]
    assert load_file(tmp_path / "file").keys() == ARRAYS.keys()
