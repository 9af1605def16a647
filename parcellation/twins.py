"""Runs of the same content: one person under two names, or a file copied twice, counts twice in a population."""

from collections import defaultdict

from parcellation.errors import BadData, InputMissing
from parcellation.interruption import told_to_end
from parcellation.store import Store


def twins(store: Store) -> list[str]:
    """A warning for each group of units, or of runs of a unit, of which a source file has the same content.

    By checksums, so that links, copies and other file names are found alike. Reads the header of every unit; a damaged
    one is for others to report.
    """
    places: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for subject, session in store.units():
        try:
            sources = store.header(subject, session)["sources"]
        except (BadData, InputMissing):
            if told_to_end():
                raise
            continue
        for name, checksum in sources.items():
            places[checksum].append((subject, session, name))
    groups: dict[tuple, list[str]] = defaultdict(list)
    for found in places.values():
        if len(found) > 1:
            units = tuple(dict.fromkeys((subject, session) for subject, session, _ in found))
            groups[units] += [name for *_, name in found]
    return [_warning(units, sorted(set(names))) for units, names in groups.items()]


def _warning(units: tuple[tuple[str, str], ...], names: list[str]) -> str:
    whose = " and ".join(f"subject {subject}, session {session}" for subject, session in units)
    several = "one person under two names, or a copy" if len({subject for subject, _ in units}) > 1 else "a copy"
    return f"the same data more than once: {whose} ({', '.join(names)}); {several}?"
