"""Arrays that a study keeps for itself as a safetensors file: whole, with a checksum of all that is in it.

What was kept is used again only if not a bit of it has changed. Files of before there were checksums are read as they
are.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from parcellation.errors import BadData, FileFailure, InputMissing
from parcellation.files import whole_file

CHECKSUM = "checksum"  # the name of the array that holds it
CHECKED = ", checked"  # after the text's name, so that a checksum cannot go missing


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays by name, without a checksum; raises FileFailure when the system refuses, such as on a full disk."""
    content = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with whole_file(path) as temporary:
        try:
            save_file(content, temporary, metadata=None if metadata is None else dict(metadata))
        except SafetensorError as error:  # which hides the system's own
            raise FileFailure(f"{path}: could not be written: {error}") from error


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray], name: str, text: str) -> None:
    """Write arrays, a text under a name, and a checksum of both.

    One text only: safetensors writes several in any order, and equal content is to be equal files.
    """
    content = {one: np.asarray(array, order="C") for one, array in arrays.items()}
    write_arrays(path, content | {CHECKSUM: _checksum(content, name, text)}, {name + CHECKED: text})


def kept_arrays(path: Path, name: str, text: str | None = None) -> tuple[dict[str, np.ndarray], str] | None:
    """The arrays and the text that are kept under this name; None where the text is another than the given one.

    Raises InputMissing when there is no file, and BadData when it is damaged.
    """
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            checked = name + CHECKED in metadata
            found = metadata.get(name + CHECKED if checked else name)
            if found is None or text not in (None, found):
                return None
            arrays = {one: file.get_tensor(one) for one in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path}: not a whole file of arrays ({error}); remove it to make it again") from error
    if checked and not np.array_equal(arrays.pop(CHECKSUM, None), _checksum(arrays, name, found)):
        raise BadData(f"{path}: damaged, its content does not match its checksum; remove it to make it again")
    return arrays, found


def _checksum(arrays: Mapping[str, np.ndarray], name: str, text: str) -> np.ndarray:
    """SHA-256 of arrays, their names, types and shapes, and a text; uint8, shape (32,)."""
    digest = hashlib.sha256(f"{name} {text}".encode())
    for one in sorted(arrays):
        digest.update(f"{one} {arrays[one].dtype} {arrays[one].shape}".encode())
        digest.update(np.asarray(arrays[one], order="C"))
    return np.frombuffer(digest.digest(), np.uint8)
