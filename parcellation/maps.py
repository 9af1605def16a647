"""Maps that other programs open: label and probability maps of subjects and of the population, as a BIDS derivative.

    frame = Frame(brain, region)                      # what a CIFTI file carries, and what was parcelled
    export = Export(out, frame, named_networks(2), targets.names, "broca2", Cifti, {"Draws": 64})
    write_population(export, population)
    for posterior in posteriors:
        write_subject(export, posterior)

Outside the region every label is key 0 `???`, transparent, and every value 0; no file ever holds a NaN.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import nibabel
import numpy as np
import pandas
from nibabel.cifti2 import BrainModelAxis, Cifti2Header, LabelAxis, ScalarAxis
from nibabel.gifti import GiftiDataArray, GiftiImage, GiftiLabel, GiftiLabelTable, GiftiMetaData
from nibabel.nifti1 import Nifti1Extension

from parcellation.colours import network_colours
from parcellation.errors import BadData
from parcellation.files import whole_file, write_json, write_text
from parcellation.surfaces import Mesh, Vertices

UNLABELLED = "???"
CIFTI_EXTENSION = 32
CORTEX = ("CIFTI_STRUCTURE_CORTEX_LEFT", "CIFTI_STRUCTURE_CORTEX_RIGHT")


@dataclass(frozen=True, eq=False)
class Networks:
    """Names and colours of the networks, in the order of their keys 1..K.

    names: unique printable ASCII, since Workbench drops other letters and merges
    two labels of one name without a word; colours: uint8, shape
    (network, 3). Raises BadData on a name that a label table, a TSV or a file could not give back.
    """

    names: tuple[str, ...]
    colours: np.ndarray

    def __post_init__(self):
        doubled = sorted({name for name in self.names if self.names.count(name) > 1})
        unusable = [
            n for n in self.names if not n or n != n.strip() or n == UNLABELLED or not (n.isascii() and n.isprintable())
        ]
        if doubled or unusable:
            raise BadData(f"network names: expected unique printable names in ASCII, got {doubled or unusable}")
        if np.shape(self.colours) != (len(self.names), 3):
            shape = np.shape(self.colours)
            raise BadData(f"network colours: expected shape ({len(self.names)}, 3), got {shape}")

    def __len__(self) -> int:
        return len(self.names)

    def table(self) -> dict[int, tuple[str, tuple[float, ...]]]:
        """The label table: key -> (name, red green blue alpha in 0..1), key 0 transparent."""
        rows = zip(self.names, np.asarray(self.colours, float) / 255, strict=True)
        table = {0: (UNLABELLED, (0.0, 0.0, 0.0, 0.0))}
        return table | {key: (name, (*colour.tolist(), 1.0)) for key, (name, colour) in enumerate(rows, 1)}


def named_networks(count: int, names: Sequence[str] | None = None) -> Networks:
    """Networks with the standard colours; without names they are `network-01`, `network-02`, ..."""
    width = max(2, len(str(count)))
    names = tuple(names) if names else tuple(f"network-{k:0{width}d}" for k in range(1, count + 1))
    if len(names) != count:
        raise BadData(f"network names: expected {count}, got {len(names)}: {', '.join(names)}")
    return Networks(names, network_colours(count))


@dataclass(frozen=True, eq=False)
class Frame:
    """Which vertices a map carries and which of them were parcelled.

    brain: cortical vertices of an exported CIFTI, one block a hemisphere; region: the parcelled ones, all of them in
    brain, in the order of every array that is exported. Raises BadData otherwise.
    """

    brain: Vertices
    region: Vertices

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

    @cached_property
    def rows(self) -> np.ndarray:
        """Row of every region vertex in the brain, shape (region vertex,)."""
        brain = _identity(self.brain)
        order = np.argsort(brain)
        return order[np.searchsorted(brain, _identity(self.region), sorter=order)]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values of the region, shape (..., region vertex), as (..., brain vertex) with 0 elsewhere."""
        spread = np.zeros((*values.shape[:-1], len(self.brain)), values.dtype)
        spread[..., self.rows] = values
        return spread

    def spread_mesh(self, values: np.ndarray, hemisphere: int) -> np.ndarray:
        """Values of the region on every mesh vertex of one hemisphere, 0 elsewhere."""
        here = self.region.hemisphere == hemisphere
        spread = np.zeros((*values.shape[:-1], self.brain.mesh.counts[hemisphere]), values.dtype)
        spread[..., self.region.number[here]] = values[..., here]
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
        self._write(path("", ".dlabel.nii"), xml, self.frame.spread(keys)[None], "ConnDenseLabel")

    def write_scalars(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the region, each float32 of shape (region vertex,)."""
        xml = self._header(tuple(maps), lambda: ScalarAxis(list(maps)))
        values = self.frame.spread(np.stack(list(maps.values())).astype(np.float32))
        self._write(path("", ".dscalar.nii"), xml, values, "ConnDenseScalar")

    def _header(self, kind: tuple[str, ...], axis: Callable) -> bytes:
        if kind not in self._headers:
            self._headers[kind] = Cifti2Header.from_axes((axis(), brain_axis(self.frame.brain))).to_xml()
        return self._headers[kind]

    @staticmethod
    def _write(path: Path, xml: bytes, values: np.ndarray, intent: str) -> None:
        """One NIfTI-2 file: dimensions 5 and 6 are map and vertex, values are stored as they are, without scaling."""
        image = nibabel.Nifti2Image(values[None, None, None, None], None, dtype=values.dtype)
        image.header["pixdim"][:] = 1
        image.header.set_intent(intent, name=intent)
        image.header.extensions.append(Nifti1Extension(CIFTI_EXTENSION, xml))
        with whole_file(path) as temporary:
            image.to_filename(temporary)


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
        self._write(path, ".label.gii", {self.seg: keys}, "NIFTI_INTENT_LABEL", table)

    def write_scalars(self, path: Callable[[str, str], Path], maps: Mapping[str, np.ndarray]) -> None:
        """Named maps of the region, each float32 of shape (region vertex,)."""
        self._write(path, ".func.gii", maps, "NIFTI_INTENT_NONE", None)

    def _write(self, path, suffix: str, maps: Mapping[str, np.ndarray], intent: str, table) -> None:
        for side in np.unique(self.frame.region.hemisphere).tolist():
            arrays = [
                GiftiDataArray(self.frame.spread_mesh(values, side), intent, meta={"Name": name})
                for name, values in maps.items()
            ]
            structure = {"AnatomicalStructurePrimary": ("CortexLeft", "CortexRight")[side]}
            image = GiftiImage(meta=GiftiMetaData(structure), labeltable=table, darrays=arrays)
            with whole_file(path(f"hemi-{'LR'[side]}_", suffix)) as temporary:
                image.to_filename(temporary)


@dataclass(frozen=True, eq=False)
class Export:
    """Where and how the maps of one study are written.

    out: folder of the derivative; targets: names of the connectivity targets; seg: the segmentation's name in file
    names, letters and digits; style: `Cifti` or `Gifti`; provenance: what every dseg sidecar says besides.
    """

    out: Path
    frame: Frame
    networks: Networks
    targets: Sequence[str]
    seg: str
    style: type[Cifti] | type[Gifti] = Cifti
    provenance: dict = field(default_factory=dict)

    def __post_init__(self):
        if not re.fullmatch(r"[A-Za-z0-9]+", self.seg):
            raise BadData(f"segmentation name: expected letters and digits, got {self.seg!r}")

    @cached_property
    def writer(self) -> Cifti | Gifti:
        """The writer of this style, with the headers that all files share."""
        return self.style(self.frame, self.networks, self.seg)

    @property
    def mesh(self) -> Mesh:
        """The mesh of all maps."""
        return self.frame.brain.mesh


def bids_label(subject: str) -> str:
    """A subject's name as BIDS allows it in file names: letters and digits, without `sub-`."""
    label = re.sub(r"[^A-Za-z0-9]", "", subject.removeprefix("sub-"))
    if not label:
        raise BadData(f"subject {subject!r}: expected a letter or digit in its name")
    return label


def shown_labels(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys 1..K (int32) and confidences (float32) of probabilities (vertex, network); ties go to the lower key."""
    probability = np.asarray(probability, np.float32)  # as stored, so that a file's label is its own maximum
    return probability.argmax(1).astype(np.int32) + 1, probability.max(1)


def write_subject(export: Export, posterior) -> None:
    """Maps and connectivity profiles of one subject.

    posterior: see `posterior.SubjectPosterior`; arrays in the order of `export.frame.region`. Raises BadData when its
    shapes differ from the region's, a value is not finite, or probabilities do not add up to 1.
    """
    where = f"subject {posterior.subject}"
    label = bids_label(posterior.subject)
    stem = f"space-{export.mesh.space}_seg-{export.seg}_den-{export.mesh.density}"
    naming = _naming(export.out / f"sub-{label}" / "anat", f"sub-{label}", stem)
    missing = export.frame.region.number[~posterior.mask], export.frame.region.hemisphere[~posterior.mask]
    facts = {
        "Subject": posterior.subject,
        "Sessions": list(posterior.sessions),
        "Frames": [float(frames) for frames in posterior.frames],
        "VerticesWithoutData": {name: missing[0][missing[1] == side].tolist() for side, name in enumerate("LR")},
    }
    _write_labels(export, naming, posterior.probability, facts, where)
    _, confidence = shown_labels(posterior.probability)
    maps = {
        "entropy": posterior.entropy,
        "confidence": confidence,
        "mutual information": posterior.mutual_information,
    }
    _write_scalars(export, naming("stat-uncertainty_boldmap"), maps, UNCERTAINTY, where)
    functional = _naming(export.out / f"sub-{label}" / "func", f"sub-{label}", stem)
    _write_profiles(export, functional("stat-profile_network"), posterior, where)


def write_population(export: Export, population) -> None:
    """Maps and profiles of the population, from a `posterior.PopulationPosterior`; errors as in `write_subject`."""
    space = export.mesh.space
    naming = _naming(export.out / f"tpl-{space}", f"tpl-{space}", f"atlas-{export.seg}_den-{export.mesh.density}")
    _write_labels(export, naming, population.probability, {}, "population")
    _, confidence = shown_labels(population.probability)
    shape = len(export.frame.region), len(export.networks)
    between = dict(
        zip(export.networks.names, _checked(population.betweensd, shape, "population: betweensd").T, strict=True)
    )
    for stat, maps in {
        "entropy": {"entropy": population.entropy},
        "confidence": {"confidence": confidence},
        "consensus": {"consensus": population.consensus},
        "betweensd": between,
    }.items():
        _write_scalars(export, naming(f"stat-{stat}_boldmap"), maps, {stat: POPULATION[stat]}, "population")
    _write_profiles(export, naming("stat-profile_network"), population, "population")
    description = {
        "Name": f"{export.seg}, {len(export.networks)} networks",
        "Description": "Population map: the most probable network of each vertex",
        "SpatialReference": space,
        "Density": export.mesh.density,
    }
    write_json(export.out / f"atlas-{export.seg}_description.json", description | export.provenance)


UNCERTAINTY = {
    "entropy": "Entropy of the label's posterior probabilities, in bits",
    "confidence": "Posterior probability of the label that is shown",
    "mutual information": "Part of the entropy that is disagreement between posterior draws, in bits",
}
POPULATION = {
    "entropy": "Entropy of the population's network probabilities, in bits",
    "confidence": "Probability of the population's label",
    "consensus": "Share of subjects whose label is the population's",
    "betweensd": "Standard deviation over subjects of the probability of each network",
}


def _naming(folder: Path, prefix: str, entities: str):
    """A function from a suffix such as `dseg` to a function from (hemisphere entity, extension) to a path."""
    return lambda suffix: lambda hemi, extension: folder / f"{prefix}_{hemi}{entities}_{suffix}{extension}"


def _write_labels(export: Export, naming, probability: np.ndarray, facts: dict, where: str) -> None:
    networks = export.networks
    checked = _checked(probability, (len(export.frame.region), len(networks)), f"{where}: probability")
    if np.any(checked < 0) or np.any(np.abs(checked.sum(1) - 1) > 1e-3):
        worst = checked[np.abs(checked.sum(1) - 1).argmax()].sum()
        raise BadData(
            f"{where}: probability: expected values >= 0 that add up to 1 at each vertex, got a sum of {worst}"
        )
    export.writer.write_labels(naming("dseg"), shown_labels(checked)[0])
    maps = dict(zip(networks.names, np.ascontiguousarray(checked.T), strict=True))
    export.writer.write_scalars(naming("probseg"), maps)
    common = {"Density": export.mesh.density, "SpatialReference": export.mesh.space} | export.provenance | facts
    labels = {"Description": "Most probable network of each vertex", "Manual": False}
    probabilities = {"Description": "Posterior probability of each network", "LabelMap": list(networks.names)}
    write_json(naming("dseg")("", ".json"), common | labels)
    write_json(naming("probseg")("", ".json"), common | probabilities)
    colours = ["#{:02X}{:02X}{:02X}".format(*map(int, colour)) for colour in networks.colours]
    index = range(1, len(networks) + 1)
    write_table(
        naming("dseg")("", ".tsv"), pandas.DataFrame({"index": index, "name": networks.names, "color": colours})
    )


def _write_scalars(export: Export, path, maps: Mapping[str, np.ndarray], meaning: dict, where: str) -> None:
    shape = (len(export.frame.region),)
    export.writer.write_scalars(path, {n: _checked(v, shape, f"{where}: {n}") for n, v in maps.items()})
    write_json(path("", ".json"), {"Density": export.mesh.density, "Maps": list(maps), "Meaning": meaning})


def _write_profiles(export: Export, path, posterior, where: str) -> None:
    """The connectivity profile of each network as a table, one row a network and target."""
    K, T = len(export.networks), len(export.targets)
    columns = {
        name: _checked(getattr(posterior, f"profile_{name}"), (K, T), f"{where}: profile {name}").ravel()
        for name in ("mean", "low", "high")
    }
    names = {"network": np.repeat(export.networks.names, T), "target": np.tile(np.asarray(export.targets, object), K)}
    write_table(path("", ".tsv"), pandas.DataFrame(names | columns))
    meaning = "Connectivity of a network with a target, in the units of the study's features"
    interval = {"low": "Lower end of the 90 % credible interval", "high": "Upper end of the 90 % credible interval"}
    write_json(path("", ".json"), {n: {"Description": d} for n, d in ({"mean": meaning} | interval).items()})


def _checked(values: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The values as float32, when they have that shape and are all finite."""
    values = np.asarray(values, np.float32)
    if values.shape != shape:
        raise BadData(f"{what}: expected shape {shape}, got {values.shape}")
    if not np.isfinite(values).all():
        raise BadData(f"{what}: expected finite values, got {np.count_nonzero(~np.isfinite(values))} others")
    return values


def write_table(path: Path, table: pandas.DataFrame) -> None:
    """Write a TSV as BIDS has it: tabs, `n/a` for what is missing, six significant digits."""
    write_text(path, table.to_csv(sep="\t", index=False, float_format="%.6g", na_rep="n/a", lineterminator="\n"))
