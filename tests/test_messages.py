"""Errors that a user can cause: each kind ends with its code, each message has a test of its words or is on a list."""

import re

import pytest

from parcellation import cli, errors
from parcellation.errors import InputMissing, ParcellationError
from tests.messages import all_raises, awaited, reached

# --- the codes ---

CODES = {
    "ParcellationError": 1,
    "NotADataset": 16,
    "NothingSelected": 18,
    "UsageError": 64,
    "BadData": 65,
    "InputMissing": 66,
    "CannotWrite": 73,
    "FileFailure": 74,
    "Stopped": 75,
}
KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}


def test_every_kind_has_its_code():
    assert {name: kind.exit_code for name, kind in KINDS.items()} == CODES


@pytest.mark.parametrize("name", CODES)
def test_the_command_ends_with_the_code_and_says_only_the_message(name, monkeypatch, capfd, tmp_path):
    def fail(*_) -> str:
        raise KINDS[name]("what.nii: expected this, got that")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["index", str(tmp_path / "study.yaml")]) == CODES[name]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "parcellation: what.nii: expected this, got that\n")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 1, "out of memory; see docs/cluster.md"),
        (OSError(28, "No space left on device", "a.nii"), 74, "a.nii: No space left on device"),
        (OSError("odd"), 74, "input/output: odd"),
        (KeyboardInterrupt(), 75, "what was finished is kept, the same command continues"),
    ],
    ids=repr,
)
def test_what_the_system_says_is_one_line_too(error, code, words, monkeypatch, capfd):
    def fail(*_) -> str:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["index", "study.yaml"]) == code
    assert capfd.readouterr().err == f"parcellation: {words if code != 75 else 'interrupted; ' + words}" + (
        " for what a step needs\n" if code == 1 else "\n"
    )


# --- every message ---


def test_every_message_has_a_test_of_its_words_or_is_on_the_list():
    """A new error needs a test that holds its words; who writes one for an old error takes that from the list."""
    silent = {one.key.replace("\n", " ") for one in all_raises() if one.parts and not reached(one)}
    listed = set(awaited())
    assert sorted(silent - listed) == []
    assert sorted(listed - silent) == []


def test_messages_say_where_or_what():
    """None is a bare word; and none ends a sentence that the next word of the terminal would go on with."""
    bad = [
        one for one in all_raises() if one.parts and (len(one.message) < 15 or re.search(r"[^.][.]$| $", one.message))
    ]
    assert bad == []


def test_a_message_is_found_by_its_words_and_not_by_others(tmp_path):
    from tests.messages import Raise, across

    one = Raise("a.py", 1, "BadData", "{}: no such study file")
    assert one.parts == ["no such study file"]
    assert reached(one)
    assert not reached(Raise("a.py", 1, "BadData", "{}: " + "tset a yb dias reven erew taht sdrow"[::-1]))
    assert across("of group 'C'; groups: 1", "no run is of group ", "; groups: ") is False
    assert across("is of group 'C'; groups:", "no run is of group ", "; groups: ")


def test_errors_are_ours():
    """So that a caller can catch them all by one name."""
    assert all(issubclass(kind, ParcellationError) for kind in KINDS.values())
    assert issubclass(InputMissing, ParcellationError)
