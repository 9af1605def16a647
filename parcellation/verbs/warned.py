"""What steps warned of, kept beside what they made, for the report: each kind once, with how often it was said.

A file a unit of work, as with what is left out, so that jobs never write one together. It is written before what it is
about is whole: a step that was killed in between is done again, and warns again. What is done already is not done
again and keeps its file; what is made anew without a warning has none.

Not kept: runs and subjects that are left out, which have files of their own, and what concerns how a command ran and
not what it made, such as that another process is at a session: that may differ when a step is taken up again.
"""

import contextlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from parcellation.files import write_json
from parcellation.manifest import natural
from parcellation.run_log import collected
from parcellation.verbs.workspace import Workspace

LONGEST = 500  # letters of a text, which may quote a damaged file
COUNTED = 10**9  # more often nothing is said; a file from elsewhere may count thousands of digits
MOST = 50  # kinds; the program has fewer, a file from elsewhere may say anything
TRAINED = "warnings.json"  # beside the model, with which it travels


@dataclass(frozen=True)
class Warned:
    """Warnings of one kind: the first text, and how many there were; step: the verb that said them."""

    kind: str
    text: str
    count: int = 1
    step: str = ""


@contextlib.contextmanager
def into(found: list[Warned]) -> Iterator[None]:
    """Add to a list what is warned of within this context."""
    with collected(_of) as new:
        try:
            yield
        finally:
            found += new


@contextlib.contextmanager
def keeping(path: Path) -> Iterator[None]:
    """Keep in a file what is warned of within this context, if nothing else goes wrong."""
    found: list[Warned] = []
    with into(found):
        yield
    keep(path, found)


def _of(record: logging.LogRecord) -> Warned:
    """Warnings are of one kind that one line of code makes of other values."""
    return Warned(plain(str(record.msg)), plain(record.getMessage()))


def plain(text: str) -> str:
    """A text as a page can show it: one line of printable letters, not endless."""
    words = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} ..."


def alike(found: Iterable[Warned]) -> list[Warned]:
    """One for each step and kind, in the order of their first."""
    kinds: dict[tuple[str, str], Warned] = {}
    for one in found:
        known = kinds.get((one.step, one.kind))
        kinds[one.step, one.kind] = one if known is None else replace(known, count=known.count + one.count)
    return list(kinds.values())


def keep(path: Path, found: Iterable[Warned]) -> None:
    """Keep what was warned of; without a warning there is no file."""
    kinds = [asdict(one) for one in alike(found)]
    if kinds:
        write_json(path, {"warnings": kinds})
    else:
        path.unlink(missing_ok=True)


def kept(path: Path, step: str) -> list[Warned]:
    """What is kept in a file; a file that cannot be read is a warning itself."""
    try:
        found = [Warned(**one) for one in json.loads(path.read_text(encoding="utf-8"))["warnings"]]
        return [Warned(plain(one.kind), plain(one.text), min(int(one.count), COUNTED), step) for one in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        return [Warned("damaged", plain(f"{path.name}: what was warned of cannot be read: {error}"), 1, step)]


def unit_file(workspace: Workspace, subject: str, session: str) -> Path:
    """Where it is kept what was warned of while a session was prepared."""
    return workspace.warned / f"sub-{subject}_ses-{session}.json"


def of_result(
    workspace: Workspace, units: Collection[tuple[str, str]] | None, reinferred: bool, now: Iterable[Warned] = ()
) -> list[Warned]:
    """All that a result's steps have warned of, in their order, each kind once.

    units: subjects and sessions of the cohort, None for all that are prepared: those of others are passed over.
    reinferred: whether the population is the cohort's own; now: what the report itself warns of.
    """
    of_units = sorted(workspace.warned.glob("sub-*_ses-*.json"), key=lambda path: natural(path.stem))
    wanted = None if units is None else {unit_file(workspace, *unit) for unit in units}
    found = kept(workspace.warned / "index.json", "index")
    for path in of_units:
        found += kept(path, "prepare") if wanted is None or path in wanted else []
    found += kept(workspace.model / TRAINED, "train")
    found += kept(workspace.warned / "population.json", "infer") if reinferred else []
    found += kept(workspace.warned / "infer.json", "infer")
    kinds = alike([*found, *(replace(one, step="report") for one in now)])
    more = [Warned("more", "warnings of more kinds", len(kinds) - MOST)] if len(kinds) > MOST else []
    return kinds[:MOST] + more
