"""What a command warned of, repeated when it ends; and what was run on a results folder, when, and what it said.

The log is the one file of a results folder that holds the time of day.
"""

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NAME = Path("logs") / "log.txt"
TOLD = 20  # warnings that are repeated at the end; the log has all of them


class RunLog(logging.Handler):
    """Collects what is logged while a command runs, for `write`."""

    def __init__(self, arguments: Sequence[str]):
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.command = shlex.join(["parcellation", *arguments])
        self.started, self.lines = datetime.now(UTC), []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.lines.append(self.format(record))

    def write(self, results: Path, said: str) -> None:
        """Append the command, its warnings and what it said to the log of a results folder, if there is one."""
        if not results.is_dir():
            return
        path = results / NAME
        path.parent.mkdir(exist_ok=True)
        took = (datetime.now(UTC) - self.started).total_seconds()
        text = "".join(f"  {line}\n" for line in [*self.lines, *said.splitlines()] for line in line.splitlines())
        with open(path, "a", encoding="utf-8") as file:  # one write, so that processes do not mix their lines
            file.write(f"{self.started:%Y-%m-%dT%H:%M:%SZ} {self.command} ({took:.0f} s)\n{text}")


class _Warnings(logging.Handler):
    """Collects something of each warning."""

    def __init__(self, of: Callable[[logging.LogRecord], Any]):
        super().__init__(logging.WARNING)
        self.of, self.found = of, []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is wanted of one record."""
        self.found.append(self.of(record))


@contextlib.contextmanager
def collected(of: Callable[[logging.LogRecord], Any]) -> Iterator[list]:
    """Collect what a function makes of each warning within this context."""
    handler = _Warnings(of)
    logging.getLogger().addHandler(handler)
    try:
        yield handler.found
    finally:
        logging.getLogger().removeHandler(handler)


def counted_warnings() -> contextlib.AbstractContextManager[list[str]]:
    """Collect the texts of warnings within this context."""
    return collected(logging.LogRecord.getMessage)


def repeated(warnings: Sequence[str], said: str) -> list[str]:
    """What to print of warnings at the end: how many there were, and each once that was not `said` anyway."""
    if not warnings:
        return []
    new = [text for text in dict.fromkeys(warnings) if text.removeprefix("left out: ") not in said]
    lines = [f"  {text}" for text in new[:TOLD]] + ([f"  and {len(new) - TOLD} more"] if len(new) > TOLD else [])
    count = f"{len(warnings)} warning{'s' * (len(warnings) > 1)}"
    return [f"{count}:" if lines else f"{count}, as told above", *lines]


@contextlib.contextmanager
def run_log(arguments: Sequence[str]) -> Iterator[RunLog]:
    """Collect what is logged within this context."""
    handler = RunLog(arguments)
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
