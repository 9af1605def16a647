"""Finished runs in one file, to keep, and to go on from elsewhere.

    python -m pipelines.reproduce.archive pack build/reproduce/full docs/reproduced/full.json.gz
    python -m pipelines.reproduce.archive unpack docs/reproduced/full.json.gz build/reproduce/full

`make reproduce SIZE=full FROM=docs/reproduced/full.json.gz` takes what is there as done and runs the rest.
"""

import gzip
import json
import os
import sys
from pathlib import Path

from parcellation.files import whole_file

PARTS = ("search/*.json", "rates.yaml", "runs/*.json", "races/*.json")  # each is made from those before it


def pack(folder: Path, archive: Path) -> int:
    """Write all finished runs of a folder to an archive; returns how many files there are. Equal runs, equal bytes."""
    files = [path for part in PARTS for path in sorted(folder.glob(part))]
    content = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in files}
    with whole_file(archive) as temporary:
        temporary.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return len(files)


def unpack(archive: Path, folder: Path) -> int:
    """Write the files of an archive that a folder lacks, as old as their order wants it; returns how many."""
    content = json.loads(gzip.decompress(archive.read_bytes()))
    written = 0
    for age, part in enumerate(PARTS):
        for name in [name for name in content if Path(name).match(part)]:
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{archive}: expected files inside the folder, got {name}")
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content[name], encoding="utf-8")
            os.utime(path, (1e9 + age, 1e9 + age))  # the workflow goes by age
            written += 1
    return written


def main() -> None:
    """Pack or unpack from the command line."""
    verb, source, target = sys.argv[1:]
    count = {"pack": pack, "unpack": unpack}[verb](Path(source), Path(target))
    print(f"{verb}: {count} files")


if __name__ == "__main__":
    main()
