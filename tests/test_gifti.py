"""GIFTI files whose headers say of impossible lengths are refused at once."""

import nibabel as nib
import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.gifti import load_gifti


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
        ('Dim0="2"', 'Dim0="two"'),
    ],
)
def test_lengths_that_cannot_be_are_refused(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(BadData, match=r"a\.func\.gii: cannot be read as a GIFTI file"):
        load_gifti(path)


def test_what_is_cut_off_or_none_is_refused(path):
    raw = path.read_bytes()
    for content in (b"", b"hello", raw[:-20], raw.replace(b"GZipBase64Binary", b"Base64Binary")):
        path.write_bytes(content)
        with pytest.raises(BadData, match="copy or convert it again"):
            load_gifti(path)
