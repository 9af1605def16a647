"""What every reader of a file from outside does first, so that whatever its bytes are, an own error comes of it."""

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parcellation.errors import BadData, InputMissing, ParcellationError

MOST_AXES = 7  # of a NIfTI file
MOST_XML = 1 << 28  # bytes of a header that are looked at


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file that is there and holds data; raises for files that stand in for others."""
    try:
        with open(path, "rb") as file:
            first = file.read(count)
    except FileNotFoundError:
        link = ": a link to content that was not fetched (`datalad get`?)" if path.is_symlink() else ": no such file"
        raise InputMissing(f"{path}{link}") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {error.strerror}") from error
    if first.startswith(b"version https://git-lfs"):
        raise BadData(f"{path}: a Git LFS pointer, not the data; fetch them with `git lfs pull`")
    if not first:
        raise BadData(f"{path}: an empty file; copy it again")
    return first


def parsed(path: Path, read: Callable[[Path], Any]) -> Any:
    """What a parser makes of a file; it meets arbitrary bytes here and raises whatever they lead it to."""
    try:
        return read(path)
    except ParcellationError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise BadData(f"{path}: its header or content cannot be read ({said}); copy or convert it again") from error


def check_size(path: Path, expected: int) -> None:
    """Raise BadData for a file that is shorter than its header says; expected: bytes."""
    size = path.stat().st_size
    if size < expected:
        raise BadData(f"{path}: truncated: expected {expected} bytes, as its header says, got {size}; copy it again")


def check_nifti_2(path: Path) -> None:
    """Raise BadData for a NIfTI-2 file that is shorter than its header, its extensions or its values say.

    Without it a reader asks for the memory that a damaged number wants. Other kinds of files are passed over.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(540)
        order = {b"\x1c\x02\0\0": "<", b"\0\0\x02\x1c": ">"}.get(head[:4])
        if order is None:
            return
        if len(head) < 540:
            raise BadData(f"{path}: cut off within its header; copy it again")
        (bits,), dims = struct.unpack(f"{order}h", head[14:16]), struct.unpack(f"{order}8q", head[16:80])
        (offset,) = struct.unpack(f"{order}q", head[168:176])
        lengths = dims[1 : 1 + dims[0]] if 0 < dims[0] < 8 else (-1,)
        if min(lengths) < 0 or offset < 544:
            raise BadData(f"{path}: its header is damaged (lengths {list(dims)}, values at {offset}); copy it again")
        check_size(path, offset + math.prod(lengths) * bits // 8)
        place = 544  # after the header and four bytes that say whether extensions follow
        while place + 16 <= offset:  # as nibabel: what is shorter than any extension is padding
            file.seek(place)
            (length,) = struct.unpack(f"{order}i", file.read(4))
            # Past the values' place nibabel would go on to the end of the file, and take values for lengths.
            if not 8 <= length <= min(offset, size) - place:
                raise BadData(f"{path}: its header says of an extension of {length} bytes; damaged, copy it again")
            _check_axes(path, file.read(min(length, MOST_XML) - 4))
            place += length


def _check_axes(path: Path, extension: bytes) -> None:
    """Raise BadData for a CIFTI header with more axes than a file has: nibabel makes a list of so many."""
    for said in re.findall(rb"""AppliesToMatrixDimension\s*=\s*["']([^"']*)""", extension):
        axes = said.split(b",")
        if len(axes) > MOST_AXES or not all(one.strip().isdigit() and int(one) < MOST_AXES for one in axes):
            got = said.decode("utf-8", "replace")[:40]
            most = MOST_AXES - 1
            raise BadData(f"{path}: its CIFTI header speaks of axis {got!r}, expected 0 to {most}; copy it again")
