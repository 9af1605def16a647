"""Prepared fingerprints on disk: one file a unit, whole or not there, with its identity and checksum in its header.

    store = Store(folder)
    store.write(Unit("001", "1", fingerprint, mask, vertices, targets, frames=1200))
    store.read("001", "1").fingerprint                             # (vertex, target)

A unit is one session of one subject. Nothing that is stored depends on a model.
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parcellation import __version__
from parcellation.config import Features
from parcellation.errors import BadData, InputMissing
from parcellation.files import unit_lock, whole_file, write_text
from parcellation.identity import targets_from_json, targets_json, vertices_from_json, vertices_json
from parcellation.manifest import natural
from parcellation.meshes import Mesh
from parcellation.surfaces import Targets, Vertices

FORMAT = 1
HEADER = {"format", "subject", "session", "identity", "vertices", "targets", "features", "cleaning", "inputs"}
HEADER |= {"sources", "frames", "tr", "software", "checksum"}
STORED = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
ARRAYS = ("fingerprint", "mask", "target_mask")
FILE = re.compile(r"sub-([A-Za-z0-9]{1,64})_ses-([A-Za-z0-9]{1,64})_fingerprint[.]safetensors")
INDEX = ("subject", "session", "frames", "tr", "vertices", "masked_vertices", "targets", "masked_targets", "checksum")


@dataclass(frozen=True, eq=False)
class Unit:
    """The fingerprints of one session of one subject.

    fingerprint: Fisher z, or 0 and 1 if binarized, shape (vertex, target). mask: where there is signal, bool,
    (vertex,). target_mask: targets with signal, bool, (target,), all when None. Values outside the masks mean nothing
    and are stored as 0. frames: those kept, of all runs together. repetition_time: seconds, nan when unknown.
    inputs: what the unit was made from (see `input_key`). sources: checksums of the source files by name.
    Of `features`, only `connectivity` and `precision` concern what is stored.
    """

    subject: str
    session: str
    fingerprint: np.ndarray
    mask: np.ndarray
    vertices: Vertices
    targets: Targets
    frames: int
    features: Features = field(default_factory=Features)
    target_mask: np.ndarray | None = None
    repetition_time: float = math.nan
    cleaning: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    sources: dict = field(default_factory=dict)
    software: str = f"parcellation {__version__}"


def input_key(paths: Iterable[Path], settings: dict) -> dict:
    """What a unit was made from: name, size and time of every source file, and a digest of the settings.

    Equal keys mean that a finished unit need not be made again. Raises InputMissing for a file that is not there.
    """
    try:
        stats = [(Path(path).name, Path(path).stat()) for path in paths]
    except OSError as error:
        raise InputMissing(f"{error.filename}: {error.strerror}") from None
    sources = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return {"files": sources, "settings": _sha256(_canonical(settings))}


class Store:
    """A folder of units, one safetensors file each, with what they are measured on and with in `identity-*.json`.

    Files appear whole or not at all. Processes that share a store hold a unit's `claim` while they make it. `only`
    narrows `units` to some subjects' sessions, as if no others were there.
    """

    def __init__(self, folder: Path, only: Collection[tuple[str, str]] | None = None):
        self.folder, self.only = Path(folder), only
        self._identities: dict[str, tuple[Vertices, Targets]] = {}
        self._verified: dict[Path, tuple] = {}

    def path(self, subject: str, session: str) -> Path:
        """The file of a unit; raises BadData for names that are not letters and digits."""
        path = self.folder / f"sub-{subject}_ses-{session}_fingerprint.safetensors"
        if not FILE.fullmatch(f"sub-{subject}_ses-{session}_fingerprint.safetensors"):
            raise BadData(f"{path}: expected subject and session of letters and digits, got {subject!r}, {session!r}")
        return path

    def units(self) -> list[tuple[str, str]]:
        """Subject and session of every unit that is there, in natural order."""
        names = (FILE.fullmatch(path.name) for path in self.folder.glob("sub-*.safetensors"))
        units = [name.groups() for name in names if name and (self.only is None or name.groups() in self.only)]
        return sorted(units, key=lambda unit: [natural(part) for part in unit])

    @contextlib.contextmanager
    def claim(self, subject: str, session: str) -> Iterator[bool]:
        """Hold the right to make a unit; yields False when another live process has it."""
        path = self.path(subject, session)
        with unit_lock(self.folder / "locks" / f"{path.stem}.lock") as mine:
            # What a killed process left unfinished belongs to nobody once its lock is free.
            for part in self.folder.glob(f".part-*-{path.name}") if mine else ():
                part.unlink(missing_ok=True)
            yield mine

    def write(self, unit: Unit) -> Path:
        """Write one unit whole.

        Raises BadData when its arrays do not fit its vertices and targets, hold values that are not finite, or when the
        store holds units of other vertices or targets; FileFailure when it cannot be written.
        """
        path = self.path(unit.subject, unit.session)
        tensors = _tensors(unit, path)
        header = {
            "format": FORMAT,
            "subject": unit.subject,
            "session": unit.session,
            "identity": self._keep_identity(unit.vertices, unit.targets),
            "vertices": unit.vertices.digest(),
            "targets": targets_digest(unit.targets),
            "features": {"connectivity": unit.features.connectivity, "precision": unit.features.precision},
            "cleaning": unit.cleaning,
            "inputs": unit.inputs,
            "sources": unit.sources,
            "frames": int(unit.frames),
            "tr": None if math.isnan(unit.repetition_time) else float(unit.repetition_time),
            "software": unit.software,
        }
        header["checksum"] = _content_checksum(header, tensors)
        content = save(tensors, metadata={"unit": _canonical(header)})
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
        return path

    def header(self, subject: str, session: str) -> dict:
        """What a unit's file says about itself, without its arrays; raises InputMissing or BadData."""
        path = self.path(subject, session)
        return _header(_open(path), path)

    def is_current(self, subject: str, session: str, key: dict) -> bool:
        """Whether a readable unit is there that was made from exactly these inputs."""
        try:
            return _canonical(self.header(subject, session)["inputs"]) == _canonical(key)
        except (InputMissing, BadData):
            return False

    def read(self, subject: str, session: str, rows: Sequence[int] | None = None) -> Unit:
        """One unit, or only the given vertices of it, in the stored precision.

        Reading all rows compares the content with its checksum, once a file and process: raises BadData naming the file
        when a byte changed. Some rows are compared with nothing, since the checksum is of all: whoever needs to be sure
        reads all of them first. Raises InputMissing when the unit is not there.
        """
        header, tensors = self.arrays(subject, session, rows)
        vertices, targets = self.identity(header["identity"])
        if rows is not None:
            vertices = vertices[np.asarray(rows, int)]
        return Unit(
            header["subject"],
            header["session"],
            vertices=vertices,
            targets=targets,
            features=Features(**header["features"]),
            repetition_time=math.nan if header["tr"] is None else header["tr"],
            **tensors,
            **{name: header[name] for name in ("frames", "cleaning", "inputs", "sources", "software")},
        )

    def arrays(self, subject: str, session: str, rows: Sequence[int] | None = None) -> tuple[dict, dict]:
        """Header and arrays of a unit by name, for reading in bulk; as `read`, without the identity."""
        path = self.path(subject, session)
        file = _open(path)
        header = _header(file, path)
        if rows is not None:
            return header, _some_rows(file, np.asarray(rows, int), path)
        tensors = _arrays(file, ARRAYS, path)
        stat = path.stat()
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._verified.get(path) != state:
            if _content_checksum(header, tensors) != header["checksum"]:
                raise BadData(f"{path}: damaged, its content does not match its checksum; delete it and prepare again")
            self._verified[path] = state
        return header, tensors

    def identity(self, digest: str) -> tuple[Vertices, Targets]:
        """The vertices and targets that a unit's header names; raises InputMissing or BadData with its file's name."""
        if digest not in self._identities:
            path = self.folder / f"identity-{digest}.json"
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                raise InputMissing(f"{path}: not there, though units of this store name it") from None
            except (OSError, UnicodeDecodeError) as error:
                raise BadData(f"{path}: cannot be read: {error}") from None
            if _sha256(text) != digest:
                raise BadData(
                    f"{path}: content does not match the digest in its name; delete the store and prepare again"
                )
            try:
                content = json.loads(text)
                vertices = vertices_from_json(content["vertices"])
                self._identities[digest] = (vertices, targets_from_json(content["targets"]))
            except (ValueError, LookupError, TypeError) as error:
                said = f"{error}; delete the store and prepare again"
                raise BadData(f"{path}: expected vertices and targets of this program: {said}") from error
        return self._identities[digest]

    def _keep_identity(self, vertices: Vertices, targets: Targets) -> str:
        text = _canonical({"vertices": vertices_json(vertices), "targets": targets_json(targets)})
        digest = _sha256(text)
        path = self.folder / f"identity-{digest}.json"
        others = sorted(one.name for one in self.folder.glob("identity-*.json") if one != path)
        if others:
            known = self.identity(others[0].removeprefix("identity-").removesuffix(".json"))
            raise BadData(
                f"{self.folder}: expected {describe(*known)} as in {others[0]}, got {describe(vertices, targets)};"
                " delete the store or choose another `outputs.work`"
            )
        if not path.exists():
            write_text(path, text)
        self._identities[digest] = (vertices, targets)
        return digest

    def write_index(self) -> Path:
        """Write `index.tsv`, one row a unit, from the files that are there. People read it; the program does not."""
        path = self.folder / "index.tsv"
        while True:
            units = self.units()
            lines = ["\t".join(INDEX), *("\t".join(self._index_row(*unit)) for unit in units)]
            write_text(path, "\n".join(lines) + "\n")
            # Another process may have finished a unit, and its index, since the files were listed.
            if self.units() == units:
                return path

    def _index_row(self, subject: str, session: str) -> list[str]:
        file = _open(self.path(subject, session))
        header = _header(file, self.path(subject, session))
        masks = _arrays(file, ARRAYS[1:], self.path(subject, session)).values()
        counts = [str(number) for mask in masks for number in (len(mask), np.count_nonzero(~mask))]
        tr = "n/a" if header["tr"] is None else str(header["tr"])
        return [subject, session, str(header["frames"]), tr, *counts, header["checksum"]]


def write_unit(store: Store, subject: str, session: str, fingerprint: np.ndarray, *, frames: int, **known) -> Path:
    """Write fingerprints that come from no file, such as simulated ones, and return their file.

    `known` are further fields of `Unit`. Without a mask every vertex has signal; vertices and targets that are not
    given are numbered, on a mesh of no space.
    """
    vertices, targets = fingerprint.shape
    defaults = {
        "mask": np.ones(vertices, bool),
        "vertices": numbered_vertices(vertices),
        "targets": Targets(
            tuple(f"target-{i:04d}" for i in range(targets)), numbered_vertices(targets), np.arange(targets)
        ),
    }
    return store.write(Unit(subject, session, fingerprint, frames=frames, **defaults | known))


def numbered_vertices(count: int) -> Vertices:
    """Vertices that lie on no surface: number 0 to count - 1 of a mesh in the space `none`."""
    return Vertices(Mesh("none", (count, 0)), np.zeros(count, np.uint8), np.arange(count, dtype=np.int32))


def targets_digest(targets: Targets) -> str:
    """SHA-256 of the identity of targets: names, member vertices and which target each belongs to."""
    return _sha256(_canonical(targets_json(targets)))


def describe(vertices: Vertices, targets: Targets) -> str:
    """An identity in words; with digests, so that two that differ also read differently."""
    mesh = f"{vertices.mesh.space} {'+'.join(map(str, vertices.mesh.counts))}"
    targets_are = f"{len(targets.names)} targets ({targets_digest(targets)[:8]})"
    return f"{len(vertices)} vertices of {mesh} ({vertices.digest()[:8]}), {targets_are}"


def _tensors(unit: Unit, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a unit as they are stored, after checking that they are what the unit says."""
    shape = (len(unit.vertices), len(unit.targets.names))
    mask = np.asarray(unit.mask, bool)
    target_mask = np.ones(shape[1], bool) if unit.target_mask is None else np.asarray(unit.target_mask, bool)
    got = (np.shape(unit.fingerprint), mask.shape, target_mask.shape)
    if got != (shape, shape[:1], shape[1:]):
        raise BadData(f"{path}: expected arrays of {shape}, {shape[:1]}, {shape[1:]}, got {got}")
    with np.errstate(over="ignore"):
        stored = np.where(mask[:, None] & target_mask, unit.fingerprint, 0).astype(unit.features.precision)
    if not np.isfinite(stored).all():
        vertex, target = np.argwhere(~np.isfinite(stored))[0]
        value = np.asarray(unit.fingerprint)[vertex, target]
        where = f"{value} at vertex {vertex}, target {target}"
        raise BadData(f"{path}: expected finite values that fit into {unit.features.precision}, got {where}")
    return {"fingerprint": stored, "mask": mask, "target_mask": target_mask}


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such prepared unit; run `parcellation prepare` first") from None
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path}: not a whole fingerprint file ({error}); delete it and prepare again") from None


def _header(file: safe_open, path: Path) -> dict:
    try:
        header = json.loads(file.metadata()["unit"])
        version = header["format"]
        complete = version != FORMAT or set(header) == HEADER
    except (TypeError, KeyError, ValueError):
        complete = False
    if not complete:
        raise BadData(f"{path}: expected a fingerprint file of this program, got another safetensors file") from None
    if version != FORMAT:
        raise BadData(
            f"{path}: expected format {FORMAT}, got {version}, of another version of this program; prepare again"
        )
    named = FILE.fullmatch(path.name).groups()
    if named != (header["subject"], header["session"]):
        raise BadData(f"{path}: expected the unit {named} of its name, got {header['subject'], header['session']}")
    return header


def _arrays(file: safe_open, names: Iterable[str], path: Path) -> dict[str, np.ndarray]:
    try:
        return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise BadData(f"{path}: damaged ({error}); delete it and prepare again") from None


def _some_rows(file: safe_open, rows: np.ndarray, path: Path) -> dict[str, np.ndarray]:
    """The arrays of some vertices, in the order asked for; of fingerprints, only they are read."""
    masks = _arrays(file, ARRAYS[1:], path)
    count = len(masks["mask"])
    if rows.size and not 0 <= rows.min() <= rows.max() < count:
        raise IndexError(f"{path}: expected rows from 0 to {count - 1}, got {rows.min()} to {rows.max()}")
    return {"fingerprint": np.array(_stored_array(path, "fingerprint")[rows]), **masks, "mask": masks["mask"][rows]}


def _stored_array(path: Path, name: str) -> np.memmap:
    """An array of a file without reading it: random rows are ten times slower through the library's slices."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
    offset = 8 + length + entry["data_offsets"][0]
    return np.memmap(path, STORED[entry["dtype"]], "r", offset, tuple(entry["shape"]))


def _content_checksum(header: dict, tensors: dict[str, np.ndarray]) -> str:
    """SHA-256 of everything a unit's file says, its own checksum left out."""
    digest = hashlib.sha256(_canonical({k: v for k, v in header.items() if k != "checksum"}).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]))
    return digest.hexdigest()


def _canonical(content: dict) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
