"""Errors a user can cause, each with the exit code that the command ends with."""


class ParcellationError(Exception):
    """A failure explained in one line: what, expected, got, where."""

    exit_code = 1


class NotADataset(ParcellationError):
    """The folder given is not a data set of the named layout."""

    exit_code = 16


class NothingSelected(ParcellationError):
    """The participant or session filter selects nothing."""

    exit_code = 18


class UsageError(ParcellationError):
    """The command line or the study file is wrong."""

    exit_code = 64


class BadData(ParcellationError):
    """A file holds something else than it should."""

    exit_code = 65


class InputMissing(ParcellationError):
    """A file or folder that is needed is not there."""

    exit_code = 66


class CannotWrite(ParcellationError):
    """The output cannot be written; found before any work."""

    exit_code = 73


class FileFailure(ParcellationError):
    """Reading or writing failed on the way, such as on a full disk."""

    exit_code = 74


class Stopped(ParcellationError):
    """Interrupted with everything finished saved; the same command continues."""

    exit_code = 75
