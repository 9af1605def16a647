"""Arrays that a study keeps for itself as a safetensors file: whole, with a checksum of all that is in it.

What was kept is used again only if not a bit of it has changed. Files of before there were checksums are read as they
are.

They are written here and not by safetensors, which writes into another file beside the given one: nobody would remove
that after a kill. The format: the length of a header, the header (JSON, padded to eight bytes), all values.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from parcellation.errors import BadData, InputMissing
from parcellation.files import whole_file

# What safetensors calls types of numbers, in its order of alignment.
NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16", "int32": "I32",
         "uint32": "U32", "float32": "F32", "float64": "F64", "int64": "I64", "uint64": "U64"}  # fmt: skip
ORDER = list(NAMES)
CHECKSUM = "checksum"  # the name of the array that holds it
CHECKED = ", checked"  # after the text's name, so that a checksum cannot go missing


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays by name, without a checksum; raises FileFailure when the system refuses, such as on a full disk."""
    content = {name: _as_written(array) for name, array in arrays.items()}
    # The widest numbers first, so that all are aligned.
    order = sorted(content, key=lambda name: (-ORDER.index(content[name].dtype.name), name))
    header, end = {} if metadata is None else {"__metadata__": dict(metadata)}, 0
    for name in order:
        start, end = end, end + content[name].nbytes
        shape = list(content[name].shape)
        header[name] = {"dtype": NAMES[content[name].dtype.name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(content[name].reshape(-1).view(np.uint8).data)


def _as_written(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, array.dtype.newbyteorder("<"), "C")


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray], name: str, text: str) -> None:
    """Write arrays, a text under a name, and a checksum of both.

    One text only: safetensors writes several in any order, and equal content is to be equal files.
    """
    content = {one: _as_written(array) for one, array in arrays.items()}
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
