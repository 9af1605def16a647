"""GIFTI files whose headers say of impossible lengths are refused at once."""

import gzip
import os

import nibabel as nib
import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.files import checksum
from parcellation.gifti import content_checksum, external_files, load_gifti
from pipelines.fuzz.encodings import GIFTI_ENCODINGS, gifti


@pytest.fixture
def path(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    nib.GiftiImage(darrays=[nib.gifti.GiftiDataArray(values)]).to_filename(tmp_path / "a.func.gii")
    return tmp_path / "a.func.gii"


def test_it_is_what_nibabel_reads(path):
    np.testing.assert_array_equal(load_gifti(path).darrays[0].data, nib.load(path).darrays[0].data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('Dimensionality="2"', 'Dimensionality="9223372036854775807"'),
        ('Dimensionality="2"', 'Dimensionality="-1"'),
        ('Dim0="2"', 'Dim0="-2"'),
        ('Dim0="2"', 'Dim0="99999999999999999999"'),
        ('Dim0="2"', 'Dim0="2147483648"'),  # more than so short a file can hold, whatever it is compressed by
        ('Dim0="2"', 'Dim0="two"'),
    ],
)
def test_lengths_that_cannot_be_are_refused(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(BadData, match=r"a\.func\.gii: cannot be read as a GIFTI file"):
        load_gifti(path)


@pytest.mark.parametrize("encoding", GIFTI_ENCODINGS)
def test_more_values_than_the_file_has_room_for_are_refused_and_as_many_are_not(tmp_path, encoding):
    """Also where they are elsewhere: numpy would ask for the memory before it reads."""
    path = tmp_path / "a.func.gii"
    gifti(path, np.zeros((1, 40_000)), 0, encoding, "C", "<f4", False)
    assert load_gifti(path).darrays[0].data.shape == (40_000,)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('Dim0="40000"', 'Dim0="2147483648"'), encoding="utf-8")
    with pytest.raises(BadData, match=r"a data array of 1 axes of lengths \[2147483648\]"):
        load_gifti(path)


def test_what_is_cut_off_or_none_is_refused(path):
    raw = path.read_bytes()
    for content in (b"", b"hello", raw[:-20], raw.replace(b"GZipBase64Binary", b"Base64Binary")):
        path.write_bytes(content)
        with pytest.raises(BadData, match="copy or convert it again"):
            load_gifti(path)


@pytest.mark.parametrize("encoding", GIFTI_ENCODINGS)
@pytest.mark.parametrize("end", ["func.gii", "func.gii.gz"])
def test_the_files_that_hold_its_numbers_are_named(tmp_path, encoding, end):
    path = gifti(tmp_path / "b.func.gii", np.ones((3, 5), np.float32), 0, encoding, "C", "<f4", False)
    outside = (tmp_path / "b.func.gii.dat",) if encoding == "ExternalFileBinary" else ()
    if end.endswith("gz"):
        (tmp_path / f"b.{end}").write_bytes(gzip.compress(path.read_bytes()))
    assert external_files(tmp_path / f"b.{end}") == outside
    before = content_checksum(path)
    assert before == content_checksum(path)
    assert (before == checksum(path)) == (not outside)
    if outside:
        outside[0].write_bytes(outside[0].read_bytes()[::-1])
        assert content_checksum(path) != before


def test_other_files_name_none_and_what_is_damaged_is_for_its_reader_to_say(path, tmp_path):
    assert external_files(path) == ()
    text = path.read_text(encoding="utf-8")
    first = text[: text.index("<Data>")].replace("GZipBase64Binary", "ExternalFileBinary")
    first = first.replace('ExternalFileName=""', 'ExternalFileName="x.dat"')
    assert 'ExternalFileName="x.dat"' in first
    cut = first[: first.index("ExternalFileName")]
    for content, expected in ((b"", ()), (b"hello", ()), (first.encode(), ("x.dat",)), (cut.encode(), ())):
        path.write_bytes(content)
        assert tuple(one.name for one in external_files(path)) == expected
    assert external_files(tmp_path / "none.gii") == ()
    assert external_files(tmp_path / "a.mgh") == ()
    assert external_files(tmp_path) == ()


def test_what_is_no_file_is_never_read(path, tmp_path):
    """A pipe nobody writes to and a device without end would be read for ever."""
    os.mkfifo(tmp_path / "pipe.func.gii")
    assert external_files(tmp_path / "pipe.func.gii") == ()
    text = path.read_text(encoding="utf-8").replace("GZipBase64Binary", "ExternalFileBinary")
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/zero", "gone.dat", ".", "pipe"):
        path.write_text(text.replace('ExternalFileName=""', f'ExternalFileName="{name}"'), encoding="utf-8")
        assert external_files(path) == (path.parent / name,)
        assert content_checksum(path) == checksum(path)
        words = "expected its numbers in a file, got .*, which is none; copy or convert it again"
        with pytest.raises(BadData, match="cannot be read" if name == "gone.dat" else words):
            load_gifti(path)


@pytest.mark.parametrize("name", ["x" * 300 + ".dat", "x&#0;.dat", "x/" * 3000])
def test_a_name_that_no_file_can_have_is_an_error_of_ours(path, name):
    text = path.read_text(encoding="utf-8").replace("GZipBase64Binary", "ExternalFileBinary")
    path.write_text(text.replace('ExternalFileName=""', f'ExternalFileName="{name}"'), encoding="utf-8")
    assert external_files(path) == ()
    content_checksum(path)
    with pytest.raises(BadData, match="cannot be read as a GIFTI file"):
        load_gifti(path)


def test_an_encoding_that_nobody_knows_is_an_error_of_ours(path):
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('encoding="UTF-8"', 'encoding="UTF-1"'), encoding="utf-8")
    assert "UTF-1" in path.read_text(encoding="utf-8")
    assert external_files(path) == ()
    with pytest.raises(BadData, match="cannot be read as a GIFTI file"):
        load_gifti(path)
