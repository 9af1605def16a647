"""One process that damages files and reads them, with bounds on its memory and on the time of each input."""

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from parcellation.errors import ParcellationError
from pipelines.fuzz.mutations import mutated

SECONDS = 10.0  # of a processor that one input may take; the slowest sound file takes a fiftieth
MEMORY = 1 << 30  # bytes beyond those of the libraries that one input may take; the largest sound file takes 50 MB


class Hang(BaseException):
    """An input takes too long. No `Exception`, so that no reader mistakes it for a fault of the file."""


@dataclass(frozen=True)
class Task:
    """What a worker does: inputs first, first + step, ... of this seed, until `count` of all or `seconds` are over.

    limit: seconds of a processor that one input may take.
    """

    files: tuple[str, ...]
    readers: str
    folder: str
    seed: int
    first: int
    step: int
    count: int | None = None
    seconds: float | None = None
    limit: float = SECONDS


@dataclass(frozen=True)
class Read:
    """What a reader made of one input; finding: why it may not do so, or empty. place: where in the code."""

    index: int
    reader: str
    file: str
    accepted: bool
    finding: str = ""
    place: str = ""


def load_readers(name: str):
    """The function `readers_of` of a module, by its name or by its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name).readers_of
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.readers_of


def work(task: Task, connection) -> None:
    """Do a task in this process and send what comes of it: ("input", index) before each, Reads, then ("end", peak)."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _too_long)
    readers_of = load_readers(task.readers)
    _bound_memory()
    for index, path, original in inputs(task):
        connection.send(("input", index, str(path)))
        for name, read in readers_of(path).items():
            connection.send(("read", asdict(_read(task, index, name, read, path, original))))
    connection.send(("end", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def inputs(task: Task) -> Iterator[tuple[int, Path, str]]:
    """Yield (number, damaged file, the sound one); a number always stands for the same bytes."""
    contents = [Path(path).read_bytes() for path in task.files]
    start, index = time.monotonic(), task.first
    while (task.count is None or index < task.count) and (
        task.seconds is None or time.monotonic() - start < task.seconds
    ):
        which = index % len(task.files)
        content = mutated(contents[which], contents, np.random.default_rng([task.seed, index]))
        path = _beside(task, which)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        yield index, path, task.files[which]
        index += task.step


def _beside(task: Task, which: int) -> Path:
    """Where the damaged file goes: a folder with links to what lies beside the sound one."""
    source = Path(task.files[which])
    folder = Path(task.folder) / f"{task.first}-{which}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for other in source.parent.iterdir():
            if other.is_file() and other != source:
                os.symlink(other.resolve(), folder / other.name)
    return folder / source.name


def _read(task: Task, index: int, name: str, read, path: Path, original: str) -> Read:
    signal.setitimer(signal.ITIMER_PROF, task.limit)
    try:
        read(path)
    except ParcellationError as error:
        why, place = _hidden(error)
        return Read(index, name, original, False, why, place)
    except Hang:
        return Read(index, name, original, False, f"no end within {task.limit:g} s", _place(sys.exc_info()[2]))
    except BaseException as error:
        said = " ".join(str(error).split())[:200]
        return Read(index, name, original, False, f"{type(error).__name__}: {said}", _place(error.__traceback__))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Read(index, name, original, True)


def _hidden(error: BaseException) -> tuple[str, str]:
    """An own error is a finding when what is behind it is that memory was asked for without bounds."""
    while error is not None:
        if isinstance(error, MemoryError):
            return f"MemoryError: more than {MEMORY >> 20} MB", _place(error.__traceback__)
        error = error.__cause__ or error.__context__
    return "", ""


def _place(trace) -> str:
    """The innermost lines of the code: of this program and of the library that it called."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "fuzz" not in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in [*own[-1:], *frames[-1:]]]
    return " > ".join(dict.fromkeys(places))


def _too_long(*_) -> None:
    raise Hang


def _bound_memory() -> None:
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def digest(finding: Read) -> str:
    """Findings of one reader at one place are one."""
    return hashlib.sha256(
        json.dumps([finding.reader, finding.finding.split(":")[0], finding.place]).encode()
    ).hexdigest()[:8]
