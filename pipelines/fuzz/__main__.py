"""Damage files and read them: `python -m pipelines.fuzz --minutes 10 [FILES or FOLDERS...]`.

Small samples of every kind are written and damaged; files and folders that are named are damaged besides. Every input
is a number: the same seed and files give the same bytes. Prints its count of inputs, for each reader how many were
taken and refused, and every finding: an error that is none of the program's own, no end, a death, or memory without
bounds. The first input of each finding is kept in `build/fuzz`. Ends with 1 if there is any.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from pipelines.fuzz.campaign import run
from pipelines.fuzz.readers import readers_of
from pipelines.fuzz.samples import write_samples
from pipelines.fuzz.worker import Task

LARGEST = 4 << 20  # bytes; larger files are damaged so seldom that they are not worth their time


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files, or folders of files, damaged besides the samples")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inputs", type=int, help="stop after so many, whatever the time")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default="pipelines.fuzz.readers", help="module, or its file, with `readers_of`")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where inputs of findings go")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        files = write_samples(Path(folder) / "samples") + _all_of(given.files)
        print(f"{len(files)} files to damage, {len(files) - len(_all_of(given.files))} of them samples", flush=True)
        task = Task(tuple(map(str, files)), given.readers, f"{folder}/damaged", given.seed, 0, 1, given.inputs,
                    60 * given.minutes)  # fmt: skip
        campaign = run(task, given.jobs, given.keep, lambda text: print(text, flush=True))
    print("\n".join(campaign.lines()))
    return 1 if campaign.findings else 0


def _all_of(paths: list[Path]) -> list[Path]:
    """Files that have a reader and are not large, of those given and of all in folders given."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [file.resolve() for file in files if file.is_file() and readers_of(file) and file.stat().st_size <= LARGEST]


if __name__ == "__main__":
    sys.exit(main())
