"""Files appear whole or not at all: write beside the target, then move into place; one lock a unit of work.

All locks are the kernel's (`flock`), so they end with their process, on whatever node that shares the folder it runs.
"""

import contextlib
import fcntl
import filecmp
import hashlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parcellation.errors import CannotWrite, FileFailure

PART = ".part-"  # how the names of files begin that are not whole yet
PART_NAME = re.compile(re.escape(PART) + r"([0-9a-f]{8})-[0-9]+-[a-z0-9_]{8}-.+")
UNLOCKED = "0" * 8  # stands for the kernel in the names of files whose writer holds no lock
ADVISORY: dict[int, bool] = {}  # of each device, once it was looked at: see `_advisory`
LONG_AGO = 24 * 3600  # seconds; no write takes as long


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffixes; move it to `path` on success, remove it on failure.

    A file that holds the same already is left as it is, with its time: what is made from it need not be made again.
    The temporary file is locked while its writer lives, see `remove_left`.
    Raises FileFailure when the operating system refuses (disk full, folder gone).
    """
    path = Path(path)
    temporary = handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _locked_part(path)
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
            os.close(handle)  # first: NFS keeps what is removed while it is open
            temporary.unlink(missing_ok=True)


def _locked_part(path: Path) -> tuple[int, Path]:
    """A new file beside a path, open, and locked where that leaves it writable."""
    device = os.stat(path.parent).st_dev
    if device not in ADVISORY:
        ADVISORY[device] = _advisory(path.parent)
    whose = _kernel() if ADVISORY[device] else UNLOCKED
    while True:
        handle, name = _begun(path, whose)
        if whose != UNLOCKED:
            with contextlib.suppress(OSError):  # where there are no locks nobody removes what is left either
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):
            return handle, Path(name)
        os.close(handle)  # taken for left before it was locked


def _begun(path: Path, whose: str) -> tuple[int, str]:
    # The name keeps its suffixes: nibabel and others choose a format by them.
    return tempfile.mkstemp(prefix=f"{PART}{whose}-{os.getpid()}-", suffix="-" + path.name, dir=path.parent)


def _advisory(folder: Path) -> bool:
    """Whether a file that is locked can still be written by its name.

    Over SMB it cannot (`man 2 flock`): there a lock keeps all other descriptors out, those of its own process too.
    """
    handle, name = _begun(folder / "lock", _kernel())
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with open(name, "r+b") as other:
            other.write(b"\0")
    except PermissionError:
        return False
    except OSError:  # no locks at all, a full disk, or taken for left: what comes then is the writer's to meet
        return True
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)
    return True


@cache
def _kernel() -> str:
    """Letters for the running kernel, which sees the locks of all its processes."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def remove_left(folder: Path) -> int:
    """Remove what killed processes have left half written in a folder and below; returns how many files it was.

    What is locked has a writer that lives, and stays. Some file systems do not show nodes each other's locks: what was
    begun under another kernel stays for a day besides, and so does what could not be locked.
    """
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        count += sum(_removed(Path(place) / name) for name in names if PART_NAME.fullmatch(name))
    return count


def _removed(part: Path) -> bool:
    try:
        # Before it is locked, which over SMB would keep its writer out.
        if PART_NAME.fullmatch(part.name)[1] != _kernel() and time.time() - part.stat().st_mtime < LONG_AGO:
            return False
        with open(part, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
            return True
    except OSError:  # its writer lives, or has finished meanwhile; or it is somebody else's
        return False


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
    """Hold the lock of one unit of work; yields False when another live process holds it, unless we `wait` for it."""
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
