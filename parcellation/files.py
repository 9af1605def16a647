"""Files appear whole or not at all: write beside the target, then move into place; one lock a unit of work."""

import contextlib
import fcntl
import filecmp
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from parcellation.errors import CannotWrite, FileFailure

PART = ".part-"  # how the names of files begin that are not whole yet


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffixes; move it to `path` on success, remove it on failure.

    A file that holds the same already is left as it is, with its time: what is made from it need not be made again.
    Raises FileFailure when the operating system refuses (disk full, folder gone).
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name keeps its suffixes: nibabel and others choose a format by them.
        handle, name = tempfile.mkstemp(prefix=f"{PART}{os.getpid()}-", suffix="-" + path.name, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        if path.is_file() and filecmp.cmp(temporary, path, shallow=False):
            return
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise FileFailure(f"{path}: could not be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader sees the old file or the new one, never half of it."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file with sorted keys, so that equal content gives equal bytes."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def writable_folder(path: Path) -> Path:
    """Create a folder and prove that a file can be written in it; raises CannotWrite before any work is done."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise CannotWrite(f"{path}: cannot be written to: {error.strerror or error}") from error


@contextlib.contextmanager
def unit_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of one unit of work; yields False when another live process holds it, unless we `wait` for it.

    The lock is the kernel's (`flock`), so it ends with its process and can never be stale.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def checksum(path: Path, block: int = 1 << 22) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(block):
            digest.update(chunk)
    return digest.hexdigest()
