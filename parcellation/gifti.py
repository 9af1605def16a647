"""GIFTI files by nibabel, bounded: a data array that says of impossible lengths is refused before it is looped over.

A GIFTI file may keep its numbers in another one beside it: what a series is made from is then both.
"""

import errno
import gzip
import hashlib
import logging
import os
import xml.parsers.expat as expat
from pathlib import Path

import nibabel as nib
from nibabel.gifti.parse_gifti_fast import GiftiImageParser

from parcellation.errors import BadData
from parcellation.files import checksum

log = logging.getLogger(__name__)

ENDINGS = (".gii", ".gii.gz")
CHUNK, MOST_BEFORE = 1 << 16, 1 << 22  # bytes read at a time, and at most before the first data array
MOST_AXES = 6  # of a data array, as the format has it
DEFLATED = 1032  # bytes that one of them can have been
MOST_VALUES = 1 << 36  # of a data array: more than any file that fits into memory


class _BoundedParser(GiftiImageParser):
    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        if name == "DataArray":
            axes = int(attributes.get("Dimensionality", 1))
            lengths = [int(attributes.get(f"Dim{axis}", 1)) for axis in range(min(axes, MOST_AXES))]
            values = 1
            for length in lengths:
                values *= length
            if not 0 < axes <= MOST_AXES or min(lengths) < 0 or values > self._most(attributes):
                raise ValueError(f"a data array of {axes} axes of lengths {lengths}")
        super().StartElementHandler(name, attributes)

    def _most(self, attributes: dict[str, str]) -> int:
        """How many values there can be: of a byte or more each, in the file or the one that it names."""
        if self.fname is None:
            return MOST_VALUES
        path = Path(self.fname)
        if "EXT" not in attributes.get("Encoding", "").upper():
            return path.stat().st_size * DEFLATED ** (2 if path.suffix == ".gz" else 1)
        outside = path.parent / attributes.get("ExternalFileName", "")
        return outside.stat().st_size if os.path.isfile(outside) else MOST_VALUES  # its absence is said by nibabel


class _BoundedImage(nib.GiftiImage):
    parser = _BoundedParser


def load_gifti(path: Path) -> nib.GiftiImage:
    """Read a GIFTI file whole, in any encoding; numbers beside it are read into memory and not mapped.

    Raises BadData for anything that is none.
    """
    if odd := [one for one in external_files(path) if one.exists() and not one.is_file()]:
        raise BadData(f"{path}: expected its numbers in a file, got {odd[0]}, which is none; copy or convert it again")
    try:
        return _BoundedImage.from_filename(path, mmap=False)
    except Exception as error:  # nibabel raises errors of many kinds, from its XML parser's to zlib's
        said = " ".join(str(error).split())
        raise BadData(f"{path}: cannot be read as a GIFTI file ({said}); copy or convert it again") from error


def external_files(path: Path) -> tuple[Path, ...]:
    """The files that hold the numbers of a GIFTI file (ExternalFileBinary), there or not; none of any other file.

    The first data array says where numbers are: only when they are elsewhere is the file read on, which is small then.
    What is wrong with the file is for its reader to say.
    """
    if not (path.name.endswith(ENDINGS) and path.is_file()):  # a pipe, say, would be waited for
        return ()
    names: dict[str, None] = {}
    inside = False

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal inside
        if name == "DataArray":
            if "EXT" in attributes.get("Encoding", "").upper():
                names[attributes.get("ExternalFileName", "")] = None
            inside = inside or not names

    parser, before = expat.ParserCreate(), 0
    parser.StartElementHandler = start
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            while not inside and (names or before < MOST_BEFORE) and (chunk := file.read(CHUNK)):
                parser.Parse(chunk)
                before += len(chunk)
    except Exception as error:  # of as many kinds as there are damages: expat's, zlib's, an encoding that nobody knows
        log.debug("%s: where its numbers are cannot be told: %s", path, error)
    return tuple(path.parent / name for name in names if name and _can_be(path.parent / name))


def _can_be(path: Path) -> bool:
    """Whether there may be such a file at all: a damaged name may be longer than any, or hold a zero byte."""
    try:
        path.lstat()
    except ValueError:
        return False
    except OSError as error:
        return error.errno not in (errno.ENAMETOOLONG, errno.EINVAL)
    return True


def content_checksum(path: Path) -> str:
    """SHA-256 of a file's content, and of the files that hold its numbers if there are any.

    What it names and is no file, such as a device without end, is for its reader to refuse.
    """
    outside = [one for one in external_files(path) if one.is_file()]
    if not outside:
        return checksum(path)
    return hashlib.sha256("".join(checksum(one) for one in (path, *outside)).encode()).hexdigest()
