"""A campaign of workers: who hangs or dies is ended and its input kept; findings are counted by where they are."""

import multiprocessing
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from pipelines.fuzz.worker import Read, Task, digest, work

PATIENCE = 20  # seconds beyond ten times the limit: a worker that is silent for longer cannot be interrupted


@dataclass
class Campaign:
    """What came of all inputs. peak: of a worker's memory, kB."""

    inputs: int = 0
    reads: Counter = field(default_factory=Counter)
    accepted: Counter = field(default_factory=Counter)
    findings: dict[str, list[Read]] = field(default_factory=dict)
    peak: int = 0
    seconds: float = 0.0

    def add(self, read: Read, kept: Path, path: Path) -> None:
        """Count a read; of a finding, the first input is kept."""
        self.reads[read.reader] += 1
        self.accepted[read.reader] += read.accepted
        if read.finding:
            alike = self.findings.setdefault(digest(read), [])
            if not alike:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept / f"{digest(read)}-{path.name}")
            alike.append(read)

    def lines(self) -> list[str]:
        """What to print."""
        rate = self.inputs / self.seconds if self.seconds else 0
        lines = [f"{self.inputs} inputs in {self.seconds:.0f} s ({rate:.0f} a second), at most {self.peak >> 10} MB"]
        for name in sorted(self.reads):
            refused = self.reads[name] - self.accepted[name]
            lines.append(f"  {name:12} {self.reads[name]:8} read, {self.accepted[name]} taken, {refused} refused")
        for key, alike in sorted(self.findings.items()):
            one = alike[0]
            where = f"at {one.place}, input {one.index} from {Path(one.file).name}"
            lines.append(f"FINDING {key} ({len(alike)} times) {one.reader}: {one.finding} {where}")
        return [*lines, f"{len(self.findings)} findings"]


@dataclass
class _Running:
    task: Task
    process: multiprocessing.Process
    connection: Connection
    heard: float
    index: int
    path: Path


def run(task: Task, jobs: int, kept: Path, say=lambda text: None) -> Campaign:
    """Let `jobs` workers do a task together; kept: where inputs of findings go. An interruption ends it early."""
    campaign, start = Campaign(), time.monotonic()
    running = [_start(replace(task, first=task.first + job, step=jobs)) for job in range(jobs)]
    told = start
    try:
        while running:
            wait([one.connection for one in running], timeout=1)
            running = [after for one in running if (after := _look(one, campaign, kept, start))]
            if time.monotonic() - told > 30:
                told = time.monotonic()
                say(f"{campaign.inputs} inputs, {len(campaign.findings)} findings")
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        for one in running:
            one.process.kill()
            one.process.join()
    campaign.seconds = time.monotonic() - start
    return campaign


def _start(task: Task) -> _Running:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(task, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Running(task, process, ours, time.monotonic(), -1, Path())


def _look(one: _Running, campaign: Campaign, kept: Path, start: float) -> _Running | None:
    """Take what a worker has sent; returns it, or the one that goes on in its place, or None at the end."""
    try:
        while one.connection.poll():
            one.heard, (kind, *content) = time.monotonic(), one.connection.recv()
            if kind == "end":
                campaign.peak = max(campaign.peak, content[0])
                one.process.join()
                return None
            if kind == "input":
                one.index, one.path = content[0], Path(content[1])
                campaign.inputs += 1
            else:
                campaign.add(Read(**content[0]), kept, one.path)
        # Starting, with the libraries to be loaded, may take longer than any input.
        patience = PATIENCE + 10 * one.task.limit if one.index >= 0 else 300
        if time.monotonic() - one.heard < patience:
            return one
        why = f"no end within {patience:g} s, and no way to interrupt it"
    except EOFError:
        one.process.join()
        why = f"the process died ({one.process.exitcode})"
    one.process.kill()
    one.process.join()
    if one.index < 0:
        raise RuntimeError(f"a worker ended before its first input: {why}")
    campaign.add(Read(one.index, "process", str(one.path), False, why), kept, one.path)
    task = replace(one.task, first=one.index + one.task.step)
    if task.seconds is not None:
        task = replace(task, seconds=max(0.0, task.seconds - (time.monotonic() - start)))
    return _start(task)
