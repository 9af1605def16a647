"""What was run on a results folder, when, and what it said: the one file there that holds the time of day."""

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

NAME = Path("logs") / "log.txt"


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


@contextlib.contextmanager
def run_log(arguments: Sequence[str]) -> Iterator[RunLog]:
    """Collect what is logged within this context."""
    handler = RunLog(arguments)
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
