"""What readers check first: files that stand in for others, and headers that want more than there is."""

import os
import struct

import nibabel as nib
import numpy as np
import pytest

from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.reading import check_nifti_2, check_size, first_bytes, parsed


def raises(error):
    raise error


def test_first_bytes_of_what_is_there(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abcdef")
    assert first_bytes(path, 3) == b"abc"
    for content, words in [(b"", "an empty file"), (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")]:
        path.write_bytes(content)
        with pytest.raises(BadData, match=words):
            first_bytes(path, 50)
    with pytest.raises(InputMissing, match="no such file"):
        first_bytes(tmp_path / "b", 3)
    os.symlink(tmp_path / "b", tmp_path / "c")
    with pytest.raises(InputMissing, match="datalad get"):
        first_bytes(tmp_path / "c", 3)
    with pytest.raises(BadData, match="cannot be read"):
        first_bytes(tmp_path, 3)


def test_a_parsers_error_is_one_line_with_the_file_and_an_own_one_stays(tmp_path):
    with pytest.raises(BadData, match=r"^x: its header or content cannot be read \(a b\); copy or convert it again$"):
        parsed("x", lambda path: raises(IndexError("a\n  b")))
    with pytest.raises(UsageError, match=r"^as it is$"):
        parsed("x", lambda path: raises(UsageError("as it is")))
    assert parsed("x", str.upper) == "X"


def test_a_file_may_be_longer_but_not_shorter(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(10))
    check_size(path, 10)
    with pytest.raises(BadData, match="expected 11 bytes, as its header says, got 10"):
        check_size(path, 11)


@pytest.mark.parametrize("order", ["<", ">"])
def test_nifti_2_that_wants_more_than_there_is(tmp_path, order):
    path, header = tmp_path / "a.nii", nib.Nifti2Header()
    header.set_data_shape((1, 1, 1, 1, 3, 5))
    header.set_data_dtype(np.float32)
    header["vox_offset"] = 576
    extension = struct.pack(f"{order}ii", 32, 32) + bytes(24)

    def write(extension=extension, **fields):
        for name, value in fields.items():
            header[name] = value
        block = header.binaryblock if order == "<" else header.as_byteswapped(">").binaryblock
        path.write_bytes(block + b"\1\0\0\0" + extension + bytes(60))

    write()
    check_nifti_2(path)
    write(extension + bytes(8), vox_offset=584)  # padding too short for an extension
    check_nifti_2(path)
    header["vox_offset"] = 576
    for length in (2**31 - 1, 0, -16, 7, 1000, 48):  # the last reaches into the values
        write(struct.pack(f"{order}ii", length, 32) + bytes(24))
        with pytest.raises(BadData, match=f"an extension of {length} bytes"):
            check_nifti_2(path)
    for dim in ([6, 1, 1, 1, 1, 3, -5, 1], [9, 1, 1, 1, 1, 3, 5, 1]):
        write(dim=dim)
        with pytest.raises(BadData, match="its header is damaged"):
            check_nifti_2(path)
    write(dim=[6, 1, 1, 1, 1, 3, 5, 1], vox_offset=0)
    with pytest.raises(BadData, match="its header is damaged"):
        check_nifti_2(path)
    write(dim=[6, 1, 1, 1, 1, 3, 6, 1], vox_offset=576)
    with pytest.raises(BadData, match="truncated: expected 648 bytes"):
        check_nifti_2(path)


@pytest.mark.parametrize("axes", ["4294967296", "0,1,7", "-1", "one", ",".join("0" * 8), ""])
def test_axes_of_a_cifti_header_that_no_file_has(tmp_path, axes):
    path, header = tmp_path / "a.nii", nib.Nifti2Header()
    header.set_data_shape((1, 1, 1, 1, 3, 5))
    header.set_data_dtype(np.float32)

    def write(axes):
        xml = f"<CIFTI><MatrixIndicesMap AppliesToMatrixDimension='{axes}'/></CIFTI>".encode()
        xml += bytes(-(len(xml) + 8) % 16)
        header["vox_offset"] = 544 + 8 + len(xml)
        extension = struct.pack("<ii", len(xml) + 8, 32) + xml
        path.write_bytes(header.binaryblock + b"\1\0\0\0" + extension + bytes(60))

    write("0,1")
    check_nifti_2(path)
    write(axes)
    with pytest.raises(BadData, match=r"its CIFTI header speaks of axis .*, expected 0 to 6; copy it again"):
        check_nifti_2(path)


def test_other_kinds_are_passed_over(tmp_path):
    path = tmp_path / "a"
    for content in (b"", b"abc", b"\x5c\x01\0\0" + bytes(100)):
        path.write_bytes(content)
        check_nifti_2(path)
    path.write_bytes(b"\x1c\x02\0\0" + bytes(100))
    with pytest.raises(BadData, match="cut off within its header"):
        check_nifti_2(path)
