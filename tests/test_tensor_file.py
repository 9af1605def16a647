"""Arrays that are kept come back as they were, and not at all when a bit of them has changed."""

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import save_file

from parcellation.errors import BadData, FileFailure, InputMissing
from parcellation.files import PART
from parcellation.tensor_file import keep_arrays, kept_arrays, write_arrays

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
    """safetensors hides the system's error in one of its own."""

    def full(*_, **__) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("parcellation.tensor_file.save_file", full)
    with pytest.raises(FileFailure, match=r"file: could not be written: .*No space left"):
        write_arrays(tmp_path / "file", ARRAYS)
    assert list(tmp_path.glob(f"{PART}*")) == []
    assert not (tmp_path / "file").exists()
