"""Files of maps in the formats that other programs open, CIFTI-2 and GIFTI, from values of a region's vertices.

Outside the region every label is key 0 `???`, transparent, and every value 0; no file ever holds a NaN.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nibabel
import numpy as np
from nibabel.cifti2 import BrainModelAxis, Cifti2Header, LabelAxis, ScalarAxis
from nibabel.gifti import GiftiDataArray, GiftiImage, GiftiLabel, GiftiLabelTable, GiftiMetaData
from nibabel.nifti1 import Nifti1Extension

from parcellation.errors import BadData
from parcellation.files import whole_file
from parcellation.label_table import Networks
from parcellation.meshes import Mesh, Surface
from parcellation.surfaces import Vertices

CIFTI_EXTENSION = 32
CORTEX = ("CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT")


@dataclass(frozen=True, eq=False)
class Parcels:
    """Of a region of parcels, which vertices show them: `of` is the position in the region of each vertex of the brain,
    shape (brain vertex,), -1 for none; names: of the parcels, in the region's order."""

    names: tuple[str, ...]
    of: np.ndarray


@dataclass(frozen=True, eq=False)
class Frame:
    """Which vertices a map carries and which of them were parcelled.

    brain: cortical vertices of an exported CIFTI, one block a hemisphere; region: the parcelled ones, all of them in
    brain, in the order of every array that is exported; volume: models of voxels that follow the cortex in a CIFTI,
    where every value is 0; parcels: where the region is of parcels, each by its first vertex. Raises BadData otherwise.
    """

    brain: Vertices
    region: Vertices
    volume: BrainModelAxis | None = None
    parcels: Parcels | None = None

    def __post_init__(self):
        if self.brain.mesh != self.region.mesh:
            raise BadData(f"region: expected vertices of {self.brain.mesh}, got {self.region.mesh}")
        for what, vertices in (("brain", self.brain), ("region", self.region)):
            _check_vertices(what, vertices)
        if np.count_nonzero(np.diff(self.brain.hemisphere.astype(int))) > 1:
            raise BadData("brain: expected one block of vertices a hemisphere, got them interleaved")
        outside = np.count_nonzero(~np.isin(_identity(self.region), _identity(self.brain)))
        if outside:
            raise BadData(f"region: expected all {len(self.region)} vertices to be in the file, {outside} are not")

    @property
    def density(self) -> str:
        """The density of a CIFTI as file names say it: the mesh's, or of all grayordinates such as `91k`."""
        if self.volume is None:
            return self.brain.mesh.density
        return f"{(len(self.brain) + len(self.volume)) // 1000}k"

    @cached_property
    def rows(self) -> np.ndarray:
        """Row of every region vertex in the brain, shape (region vertex,)."""
        brain = _identity(self.brain)
        order = np.argsort(brain)
        return order[np.searchsorted(brain, _identity(self.region), sorter=order)]

    @cached_property
    def shown(self) -> Vertices:
        """The vertices that show a value: the region, or all vertices of its parcels."""
        return self.region if self.parcels is None else self.brain[self.parcels.of >= 0]

    def on_shown(self, values: np.ndarray) -> np.ndarray:
        """Values of the region, shape (..., region vertex), as (..., shown vertex)."""
        return values if self.parcels is None else values[..., self.parcels.of[self.parcels.of >= 0]]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values of the region, shape (..., region vertex), as (..., brain vertex) with 0 elsewhere."""
        spread = np.zeros((*values.shape[:-1], len(self.brain)), values.dtype)
        spread[..., self.rows if self.parcels is None else self.parcels.of >= 0] = self.on_shown(values)
        return spread

    def spread_mesh(self, values: np.ndarray, hemisphere: int) -> np.ndarray:
        """Values of the region on every mesh vertex of one hemisphere, 0 elsewhere."""
        return spread_mesh(self.shown, self.on_shown(values), hemisphere)


def spread_mesh(vertices: Vertices, values: np.ndarray, hemisphere: int) -> np.ndarray:
    """Values (..., vertex) of some vertices on every mesh vertex of one hemisphere, 0 elsewhere."""
    here = vertices.hemisphere == hemisphere
    spread = np.zeros((*values.shape[:-1], vertices.mesh.counts[hemisphere]), values.dtype)
    spread[..., vertices.number[here]] = values[..., here]
    return spread


def _identity(vertices: Vertices) -> np.ndarray:
    return vertices.hemisphere.astype(np.int64) * max(vertices.mesh.counts) + vertices.number


def _check_vertices(what: str, vertices: Vertices) -> None:
    if not len(vertices):
        raise BadData(f"{what}: expected vertices, got none")
    counts = np.asarray(vertices.mesh.counts)[vertices.hemisphere]
    if np.any((vertices.number < 0) | (vertices.number >= counts)):
        raise BadData(f"{what}: expected vertex numbers below {vertices.mesh.counts}, got {vertices.number.max()}")
    if len(np.unique(_identity(vertices))) < len(vertices):
        raise BadData(f"{what}: expected every vertex once, got doubled ones")


class Cifti:
    """Writes CIFTI-2 dlabel and dscalar files; the XML of each kind of header is made once (nibabel needs .3-.9 s)."""

    def __init__(self, frame: Frame, networks: Networks, seg: str):
        self.frame, self.networks, self.seg = frame, networks, seg
        self._headers: dict[tuple[str, ...], bytes] = {}

    def write_labels(self, path: Callable[[str, str], Path], keys: np.ndarray) -> None:
        """Keys of the region, int32, shape (region vertex,)."""
        xml = self._header((), lambda: label_axis(self.seg, self.networks))
        self._write(path("", ".dlabel.nii"), xml, self._whole(self.frame.spread(keys)[None]), "ConnDenseLabel")

    def write_scalars(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the region, each float32 of shape (region vertex,)."""
        self.write_cortex(path, {name: self.frame.spread(values) for name, values in maps.items()})

    def write_cortex(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the brain, each of shape (brain vertex,), stored as float32."""
        xml = self._header(tuple(maps), lambda: ScalarAxis(list(maps)))
        values = self._whole(np.stack(list(maps.values())).astype(np.float32))
        self._write(path("", ".dscalar.nii"), xml, values, "ConnDenseScalar")

    def _header(self, kind: tuple[str, ...], axis: Callable) -> bytes:
        if kind not in self._headers:
            models = brain_axis(self.frame.brain)
            models = models if self.frame.volume is None else models + self.frame.volume
            self._headers[kind] = Cifti2Header.from_axes((axis(), models)).to_xml()
        return self._headers[kind]

    def _whole(self, values: np.ndarray) -> np.ndarray:
        """Values (map, brain vertex) with 0 for every voxel."""
        voxels = 0 if self.frame.volume is None else len(self.frame.volume)
        return np.pad(values, ((0, 0), (0, voxels)))

    @staticmethod
    def _write(path: Path, xml: bytes, values: np.ndarray, intent: str) -> None:
        """One NIfTI-2 file: dimensions 5 and 6 are map and vertex, values are stored as they are, without scaling."""
        image = nibabel.Nifti2Image(values[None, None, None, None], None, dtype=values.dtype)
        image.header["pixdim"][:] = 1
        image.header.set_intent(intent, name=intent)
        image.header.extensions.append(Nifti1Extension(CIFTI_EXTENSION, xml))
        with whole_file(path) as temporary:
            image.to_filename(temporary)


# Grey from black at 0 to white at 1, whatever a file's values are.
GREY = (
    '<PaletteColorMapping Version="1"><ScaleMode>MODE_USER_SCALE</ScaleMode>'
    "<UserScaleValues>-1 0 0 1</UserScaleValues><PaletteName>Gray_Interp_Positive</PaletteName>"
    "<InterpolatePalette>true</InterpolatePalette><DisplayPositiveData>true</DisplayPositiveData>"
    "<DisplayZeroData>false</DisplayZeroData><DisplayNegativeData>false</DisplayNegativeData>"
    "<ThresholdType>THRESHOLD_TYPE_OFF</ThresholdType></PaletteColorMapping>"
)


def write_relief(path: Path, mesh: Mesh, grey: np.ndarray) -> None:
    """The grey of the folded cortex, to see maps on: 0 black to 1 white, left then right, shape (mesh vertex,)."""
    everything = Vertices.of(mesh, *(np.arange(count) for count in mesh.counts))
    axis = ScalarAxis(["relief"], meta=[{"PaletteColorMapping": GREY}])
    xml = Cifti2Header.from_axes((axis, brain_axis(everything))).to_xml()
    Cifti._write(path, xml, grey.astype(np.float32)[None], "ConnDenseScalar")


def label_axis(name: str, networks: Networks) -> LabelAxis:
    """The label axis of one map, with its complete table."""
    return LabelAxis([name], [networks.table()])


def brain_axis(brain: Vertices) -> BrainModelAxis:
    """The brain models of some cortical vertices, hemispheres in the order in which they come."""
    first = int(brain.hemisphere[0])
    sides = [side for side in (first, 1 - first) if np.any(brain.hemisphere == side)]
    models = [
        BrainModelAxis.from_surface(brain.number[brain.hemisphere == side], brain.mesh.counts[side], CORTEX[side])
        for side in sides
    ]
    return models[0] if len(models) == 1 else models[0] + models[1]


def write_surface(path: Path, surface: Surface, hemisphere: int, kind: str) -> None:
    """A surface as GIFTI; kind: `midthickness` or `inflated`. Coordinates are stored as float32."""
    shape, layer = {"midthickness": ("Anatomical", "MidThickness"), "inflated": ("Inflated", "MidThickness")}[kind]
    meta = {
        "AnatomicalStructurePrimary": ("CortexLeft", "CortexRight")[hemisphere],
        "AnatomicalStructureSecondary": layer,
        "GeometricType": shape,
    }
    points = GiftiDataArray(surface.coordinates.astype(np.float32), "NIFTI_INTENT_POINTSET", meta=meta)
    faces = GiftiDataArray(
        surface.triangles.astype(np.int32), "NIFTI_INTENT_TRIANGLE", meta={"TopologicalType": "Closed"}
    )
    with whole_file(path) as temporary:
        GiftiImage(darrays=[points, faces]).to_filename(temporary)


class Gifti:
    """Writes label.gii and func.gii, one file for each hemisphere that the region touches, with all mesh vertices."""

    def __init__(self, frame: Frame, networks: Networks, seg: str):
        self.frame, self.networks, self.seg = frame, networks, seg

    def write_labels(self, path: Callable[[str, str], Path], keys: np.ndarray) -> None:
        """Keys of the region, int32, shape (region vertex,)."""
        table = GiftiLabelTable()
        for key, (name, rgba) in self.networks.table().items():
            table.labels.append(GiftiLabel(key, *rgba))
            table.labels[-1].label = name
        shown = {self.seg: self.frame.on_shown(keys)}
        self._write(path, ".label.gii", shown, self.frame.shown, "NIFTI_INTENT_LABEL", table)

    def write_scalars(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the region, each float32 of shape (region vertex,)."""
        shown = {name: self.frame.on_shown(values) for name, values in maps.items()}
        self._write(path, ".func.gii", shown, self.frame.shown, "NIFTI_INTENT_NONE", None)

    def write_cortex(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the brain, each float32 of shape (brain vertex,)."""
        self._write(path, ".func.gii", maps, self.frame.brain, "NIFTI_INTENT_NONE", None)

    @staticmethod
    def _write(path, suffix: str, maps: Mapping[str, np.ndarray], vertices: Vertices, intent: str, table) -> None:
        for side in np.unique(vertices.hemisphere).tolist():
            arrays = [
                GiftiDataArray(spread_mesh(vertices, values, side), intent, meta={"Name": name})
                for name, values in maps.items()
            ]
            structure = {"AnatomicalStructurePrimary": ("CortexLeft", "CortexRight")[side]}
            image = GiftiImage(meta=GiftiMetaData(structure), labeltable=table, darrays=arrays)
            with whole_file(path(f"hemi-{'LR'[side]}_", suffix)) as temporary:
                image.to_filename(temporary)
