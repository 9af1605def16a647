"""A finished result as labelled arrays, to go on from in a notebook.

    import parcellation

    result = parcellation.load_result("results")
    result.participants                      # pandas, a row a subject
    one = result.subject("100307")
    one.labels                               # pandas, a network a vertex, indexed by hemisphere and vertex
    one.probability["Broca-anterior"]
    image = one.surface_image("confidence")  # nilearn, on the result's inflated surface

Everything is read from the files of the folder when it is asked for, so a result of a thousand subjects loads at once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nibabel
import numpy as np
import pandas

from parcellation.errors import BadData, InputMissing, NotADataset, NothingSelected
from parcellation.label_table import Networks
from parcellation.map_files import CORTEX, spread_mesh
from parcellation.maps import surface_path
from parcellation.meshes import HEMISPHERES, Mesh, Surface, read_surface
from parcellation.surfaces import Vertices

ATLAS = re.compile(
    r"tpl-(?P<space>[A-Za-z0-9]+)_atlas-(?P<seg>[A-Za-z0-9]+)_den-(?P<density>[A-Za-z0-9]+)_dseg\.dlabel\.nii"
)
INDEX = ("hemisphere", "vertex")


def load_result(path: Path | str) -> "Result":
    """The result in a folder that `parcellation infer` has written.

    Raises InputMissing when there is no folder, NotADataset when it holds no result, and BadData for a damaged file.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputMissing(f"{path}: no such folder")
    found = [(one, match) for one in sorted(path.glob("tpl-*/*")) if (match := ATLAS.fullmatch(one.name))]
    if len(found) != 1:
        what = "none" if not found else f"{len(found)}: {', '.join(one.name for one, _ in found)}"
        raise NotADataset(f"{path}: expected a result with one population map, tpl-*/*_dseg.dlabel.nii, got {what}")
    atlas, match = found[0]
    return Result(path, match["space"], match["seg"], match["density"], atlas)


@dataclass(frozen=True, eq=False)
class Result:
    """A result: `population`, and `subject(name)` for each of `subjects`.

    space: template of the mesh; seg: the segmentation's name, density: the maps' density, as file names have them;
    atlas: the population's label file.
    """

    path: Path
    space: str
    seg: str
    density: str
    atlas: Path

    @cached_property
    def participants(self) -> pandas.DataFrame:
        """participants.tsv, indexed by participant_id; texts as they are, n/a as NaN."""
        text = {"participant_id": str, "source_subject": str}
        table = read_table(self.path / "participants.tsv", dtype=text)
        return table.set_index("participant_id")

    @property
    def subjects(self) -> list[str]:
        """Participants, such as `sub-100307`."""
        return list(self.participants.index)

    @cached_property
    def sizes(self) -> pandas.DataFrame:
        """Sizes of every subject's networks, indexed by participant_id and network; see sizes_network.json."""
        table = read_table(self.path / "sizes_network.tsv", dtype={"participant_id": str})
        return table.set_index(["participant_id", "network"])

    @cached_property
    def networks(self) -> Networks:
        """Names and colours, in the order of the keys 1..K."""
        table = _open(self.atlas).header.get_axis(0).label[0]
        rows = [table[key] for key in sorted(table) if key]
        colours = np.rint(255 * np.array([colour[:3] for _, colour in rows]))
        return Networks(tuple(name for name, _ in rows), colours.astype(np.uint8))

    @cached_property
    def brain(self) -> Vertices:
        """The cortical vertices that every file carries."""
        axis, parts, counts = _open(self.atlas).header.get_axis(1), [[], []], [0, 0]
        for structure, _, model in axis.iter_structures():
            if structure in CORTEX:
                parts[CORTEX.index(structure)] = model.vertex
                counts[CORTEX.index(structure)] = axis.nvertices[structure]
        counts = [count or max(counts) for count in counts]
        return Vertices.of(Mesh(self.space, tuple(counts)), *parts)

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the region's vertices in every file: those that the population map gives to a network."""
        return np.flatnonzero(read_cifti(self.atlas)[1][0])

    @cached_property
    def region(self) -> Vertices:
        """The vertices that were parcelled, in the order of the files."""
        axis = _open(self.atlas).header.get_axis(1)
        cortex = np.isin(axis.name, CORTEX)
        hemisphere = (axis.name == CORTEX[1]).astype(np.uint8)
        everything = Vertices(self.brain.mesh, hemisphere[cortex], axis.vertex[cortex].astype(np.int32))
        return everything[self.rows]

    @cached_property
    def index(self) -> pandas.MultiIndex:
        """Hemisphere (L or R) and vertex of the region's rows in all tables."""
        letters = np.array(list("LR"))[self.region.hemisphere]
        return pandas.MultiIndex.from_arrays([letters, self.region.number], names=INDEX)

    @cached_property
    def population(self) -> "Maps":
        """The population's maps."""
        start = f"tpl-{self.space}_atlas-{self.seg}_den-{self.density}"
        return Maps(self, "population", self.atlas.parent, self.atlas.parent, start)

    def subject(self, name: str) -> "Maps":
        """A subject's maps; name: with or without `sub-`. Raises NothingSelected for one who is not there."""
        label = name.removeprefix("sub-")
        folder = self.path / f"sub-{label}"
        if not (folder / "anat").is_dir():
            raise NothingSelected(f"{self.path}: no subject {label!r}; there are {', '.join(self.subjects[:5])}, ...")
        start = f"sub-{label}_space-{self.space}_seg-{self.seg}_den-{self.density}"
        return Maps(self, f"sub-{label}", folder / "anat", folder / "func", start)

    def surfaces(self, kind: str = "inflated") -> tuple[Surface, Surface] | None:
        """Both hemispheres of the group's surface; kind: `inflated` or `midthickness`; None where none was known."""
        mesh = self.brain.mesh
        paths = [surface_path(self.path, mesh, one, kind) for one in (0, 1)]
        if not all(path.is_file() for path in paths):
            return None
        left, right = (read_surface(path, count) for path, count in zip(paths, mesh.counts, strict=True))
        return left, right


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of one subject, or of the population, as tables of the region's vertices."""

    result: Result
    name: str
    anat: Path
    func: Path
    start: str

    @cached_property
    def keys(self) -> np.ndarray:
        """Keys 1..K of the label map, int32, shape (region vertex,)."""
        return self._read("dseg.dlabel.nii")[1][0]

    @property
    def labels(self) -> pandas.Series:
        """The network of each vertex, a categorical of the networks' names."""
        names = self.result.networks.names
        values = pandas.Categorical.from_codes(self.keys - 1, categories=list(names))
        return pandas.Series(values, index=self.result.index, name="network")

    @cached_property
    def probability(self) -> pandas.DataFrame:
        """Probability of each network, a column a network."""
        return self._table("probseg.dscalar.nii")

    @cached_property
    def uncertainty(self) -> pandas.DataFrame:
        """Of a subject entropy (bits), confidence and mutual information (bits); of the population also consensus."""
        if self.name != "population":
            return self._table("stat-uncertainty_boldmap.dscalar.nii")
        stats = ("entropy", "confidence", "consensus")
        return pandas.concat([self._table(f"stat-{stat}_boldmap.dscalar.nii") for stat in stats], axis=1)

    @cached_property
    def betweensd(self) -> pandas.DataFrame:
        """The population's: standard deviation over subjects of each network's probability."""
        return self._table("stat-betweensd_boldmap.dscalar.nii")

    @cached_property
    def variability(self) -> pandas.DataFrame:
        """The population's: bits of a label that vary between subjects, and that are uncertain within a subject."""
        return self._table("stat-variability_boldmap.dscalar.nii")

    @cached_property
    def profile(self) -> pandas.DataFrame:
        """Connectivity with each target: mean, low, high, indexed by network and target."""
        return read_table(self.func / f"{self.start}_stat-profile_network.tsv").set_index(["network", "target"])

    @cached_property
    def contrast(self) -> pandas.DataFrame:
        """What sets networks apart: mean, low, high, indexed by the contrast's name and target."""
        return read_table(self.func / f"{self.start}_stat-contrast_network.tsv").set_index(["network", "target"])

    def contrast_map(self) -> tuple[str, np.ndarray]:
        """The population's first contrast on the cortex: its name, and a value a brain vertex, 0 for none."""
        names, values = read_cifti(self.anat / f"{self.start}_stat-profile_boldmap.dscalar.nii")
        at = len(self.result.networks)
        return names[at], values[at, : len(self.result.brain)]

    def values(self, what: str) -> np.ndarray:
        """One map of the region: `labels` (keys), a column of `uncertainty`, or a network's name (its probability).

        Raises NothingSelected for another name.
        """
        if what == "labels":
            return self.keys
        for table in (self.uncertainty, self.probability):
            if what in table:
                return table[what].to_numpy()
        known = ["labels", *self.uncertainty, *self.probability]
        raise NothingSelected(f"{self.name}: no map is called {what!r}; there are {', '.join(known)}")

    def surface_image(self, what: str = "labels", kind: str = "inflated"):
        """A map as nilearn's SurfaceImage on the group's surface, both hemispheres, 0 outside the region.

        what: see `values`. Raises InputMissing where the result has no surface.
        """
        surfaces = self.result.surfaces(kind)
        if surfaces is None:
            raise InputMissing(f"{self.result.path}: has no {kind} surface; the vertices are in the tables' index")
        from nilearn.surface import InMemoryMesh, PolyMesh, SurfaceImage  # 1 s, needed here only

        region, values = self.result.region, self.values(what)
        parts = [InMemoryMesh(one.coordinates, one.triangles) for one in surfaces]
        data = {side: spread_mesh(region, values, one) for one, side in enumerate(HEMISPHERES)}
        return SurfaceImage(PolyMesh(*parts), data)

    def _read(self, end: str) -> tuple[list[str], np.ndarray]:
        names, values = read_cifti(self.anat / f"{self.start}_{end}")
        return names, values[:, self.result.rows]

    def _table(self, end: str) -> pandas.DataFrame:
        names, values = self._read(end)
        return pandas.DataFrame(values.T, index=self.result.index, columns=names)


def read_cifti(path: Path) -> tuple[list[str], np.ndarray]:
    """Names of a file's maps and their values, shape (map, brain vertex), as stored."""
    image = _open(path)
    return image.header.get_axis(0).name.tolist(), np.asanyarray(image.dataobj)


def _open(path: Path) -> nibabel.Cifti2Image:
    if not path.is_file():
        raise InputMissing(f"{path}: no such file")
    try:
        image = nibabel.load(path)
    except Exception as error:  # nibabel raises errors of many kinds, from its XML parser's to zlib's
        raise BadData(f"{path}: cannot be read: {error}") from error
    if not isinstance(image, nibabel.Cifti2Image):
        raise BadData(f"{path}: expected a CIFTI-2 file, got {type(image).__name__}")
    return image


def read_table(path: Path, dtype=None, na_values: Sequence[str] = ("n/a",)) -> pandas.DataFrame:
    """A TSV of a result, where only `n/a` is missing: a network may be called `None`."""
    if not path.is_file():
        raise InputMissing(f"{path}: no such file")
    return pandas.read_csv(path, sep="\t", dtype=dtype, na_values=list(na_values), keep_default_na=False)
