"""Maps that other programs open: label and probability maps of subjects and of the population, as a BIDS derivative.

    frame = Frame(brain, region)                      # what a CIFTI file carries, and what was parcelled
    export = Export(out, frame, named_networks(2), targets.names, "broca2", (Cifti,), {"Draws": 64})
    write_population(export, population)
    for posterior in posteriors:
        write_subject(export, posterior)

What is written has been checked: shapes, finite values, probabilities that add up.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas

from parcellation.errors import BadData
from parcellation.files import write_json, write_text
from parcellation.label_table import Networks
from parcellation.map_files import Cifti, Frame, Gifti
from parcellation.meshes import Mesh


@dataclass(frozen=True, eq=False)
class Export:
    """Where and how the maps of one study are written.

    out: folder of the derivative; targets: names of the connectivity targets; seg: the segmentation's name in file
    names, letters and digits; styles: `Cifti`, `Gifti` or both; provenance: what every dseg sidecar says besides;
    target_of: the target that each vertex of the brain shows in maps of profiles, -1 for none (`profile_maps.fill`);
    pairs: networks (positions) that answers have a contrast of besides; subject_profiles: whether each subject has maps
    of profiles.
    """

    out: Path
    frame: Frame
    networks: Networks
    targets: Sequence[str]
    seg: str
    styles: tuple[type[Cifti] | type[Gifti], ...] = (Cifti,)
    provenance: dict = field(default_factory=dict)
    target_of: np.ndarray | None = None
    pairs: Sequence[tuple[int, int]] = ()
    subject_profiles: bool = False

    def __post_init__(self):
        if not re.fullmatch(r"[A-Za-z0-9]+", self.seg):
            raise BadData(f"segmentation name: expected letters and digits, got {self.seg!r}")

    @cached_property
    def writers(self) -> tuple[Cifti | Gifti, ...]:
        """A writer of each style, with the headers that all its files share."""
        return tuple(style(self.frame, self.networks, self.seg) for style in self.styles)

    @property
    def mesh(self) -> Mesh:
        """The mesh of all maps."""
        return self.frame.brain.mesh


def surface_path(out: Path, mesh: Mesh, hemisphere: int, kind: str) -> Path:
    """Where the group's surface of one hemisphere lies in a derivative; kind: `midthickness` or `inflated`."""
    folder = f"tpl-{mesh.space}"
    return out / folder / f"{folder}_hemi-{'LR'[hemisphere]}_den-{mesh.density}_{kind}.surf.gii"


def relief_path(out: Path, mesh: Mesh) -> Path:
    """Where the grey of the group's folds lies, to see maps on in Workbench."""
    return out / f"tpl-{mesh.space}" / f"tpl-{mesh.space}_den-{mesh.density}_desc-relief_curv.dscalar.nii"


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
    naming, functional = (_subject_naming(export, label, folder) for folder in ("anat", "func"))
    dead = export.frame.shown[~export.frame.on_shown(posterior.mask)]
    facts = {
        "Subject": posterior.subject,
        "Sessions": list(posterior.sessions),
        "Frames": [float(frames) for frames in posterior.frames],
        "VerticesWithoutData": {name: dead.number[dead.hemisphere == side].tolist() for side, name in enumerate("LR")},
    }
    _write_labels(export, naming, posterior.probability, facts, where)
    _, confidence = shown_labels(posterior.probability)
    maps = {
        "entropy": posterior.entropy,
        "confidence": confidence,
        "mutual information": posterior.mutual_information,
    }
    _write_scalars(export, naming("stat-uncertainty_boldmap"), maps, UNCERTAINTY, where)
    _write_profiles(export, functional, posterior, where)
    _write_parcels(export, functional, posterior)
    profiles = functional("stat-profile_boldmap")
    if export.subject_profiles:
        _write_profile_maps(export, profiles, posterior)
        return
    for old in profiles("", "").parent.glob(f"*_seg-{export.seg}_*_stat-profile_boldmap.*"):
        old.unlink()  # of an answer before this one, when they were wanted


def write_population(export: Export, population) -> None:
    """Maps and profiles of the population, from a `posterior.PopulationPosterior`; errors as in `write_subject`."""
    naming = _population_naming(export)
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
        "variability": {"between subjects": population.between, "within subjects": population.within},
    }.items():
        _write_scalars(export, naming(f"stat-{stat}_boldmap"), maps, {stat: POPULATION[stat]}, "population")
    _write_profiles(export, naming, population, "population")
    _write_parcels(export, naming, population)
    _write_profile_maps(export, naming("stat-profile_boldmap"), population)
    description = {
        "Name": f"{export.seg}, {len(export.networks)} networks",
        "Description": "Population map: the most probable network of each vertex",
        "SpatialReference": export.mesh.space,
        "Density": export.frame.density,
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
    "variability": "Bits by which subjects differ in their label (mutual information of label and subject), and the "
    "mean entropy of a subject's own label; they add up to the entropy of the subjects' mean probability",
}


def _naming(folder: Path, prefix: str, entities: str):
    """A function from a suffix such as `dseg` to a function from (hemisphere entity, extension) to a path."""
    return lambda suffix: lambda hemi, extension: folder / f"{prefix}_{hemi}{entities}_{suffix}{extension}"


def _subject_naming(export: Export, label: str, folder: str):
    stem = f"space-{export.mesh.space}_seg-{export.seg}_den-{export.frame.density}"
    return _naming(export.out / f"sub-{label}" / folder, f"sub-{label}", stem)


def _population_naming(export: Export):
    space = export.mesh.space
    return _naming(export.out / f"tpl-{space}", f"tpl-{space}", f"atlas-{export.seg}_den-{export.frame.density}")


def subject_path(export: Export, subject: str) -> Path:
    """The label file of a subject, who is named as in the manifest or as a participant."""
    return _subject_naming(export, bids_label(subject), "anat")("dseg")("", ".dlabel.nii")


def population_path(export: Export) -> Path:
    """The population's label file."""
    return _population_naming(export)("dseg")("", ".dlabel.nii")


def _write_labels(export: Export, naming, probability: np.ndarray, facts: dict, where: str) -> None:
    networks = export.networks
    checked = _checked(probability, (len(export.frame.region), len(networks)), f"{where}: probability")
    if np.any(checked < 0) or np.any(np.abs(checked.sum(1) - 1) > 1e-3):
        worst = checked[np.abs(checked.sum(1) - 1).argmax()].sum()
        got = f"a sum of {worst:.4g} and values down to {checked.min():.4g}"
        raise BadData(f"{where}: probability: expected values >= 0 that add up to 1 at each vertex, got {got}")
    maps = dict(zip(networks.names, np.ascontiguousarray(checked.T), strict=True))
    for writer in export.writers:
        writer.write_labels(naming("dseg"), shown_labels(checked)[0])
        writer.write_scalars(naming("probseg"), maps)
    common = _where(export) | export.provenance | facts
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
    checked = {n: _checked(v, shape, f"{where}: {n}") for n, v in maps.items()}
    for writer in export.writers:
        writer.write_scalars(path, checked)
    write_json(path("", ".json"), _where(export) | {"Maps": list(maps), "Meaning": meaning})


def _where(export: Export) -> dict[str, str]:
    """What every sidecar of a map says of its mesh."""
    return {"Density": export.frame.density, "SpatialReference": export.mesh.space}


def _write_profiles(export: Export, naming, posterior, where: str) -> None:
    """The connectivity profile of each network, and what sets it apart, as tables: one row a network and target."""
    for stat, rows, meaning in (
        ("profile", export.networks.names, "Connectivity of a network with a target"),
        ("contrast", contrast_names(export.networks.names, export.pairs), "Difference of networks' connectivity"),
    ):
        K, T = len(rows), len(export.targets)
        columns = {
            name: _checked(getattr(posterior, f"{stat}_{name}"), (K, T), f"{where}: {stat} {name}").ravel()
            for name in ("mean", "low", "high")
        }
        names = {"network": np.repeat(rows, T), "target": np.tile(np.asarray(export.targets, object), K)}
        path = naming(f"stat-{stat}_network")
        write_table(path("", ".tsv"), pandas.DataFrame(names | columns))
        described = {"mean": f"{meaning}, in the units of the study's features; mean of the posterior"} | INTERVAL
        write_json(path("", ".json"), {n: {"Description": text} for n, text in described.items()})


def _write_parcels(export: Export, naming, posterior) -> None:
    """Of a region of parcels a table, one row a parcel: its label and the probability of each network."""
    if export.frame.parcels is None:
        return
    names, (keys, confidence) = export.networks.names, shown_labels(posterior.probability)
    columns = {"parcel": export.frame.parcels.names, "label": [names[key - 1] for key in keys]}
    columns |= {"confidence": confidence, "entropy": posterior.entropy}
    columns |= dict(zip(names, np.asarray(posterior.probability, np.float32).T, strict=True))
    path = naming("stat-parcels_network")
    write_table(path("", ".tsv"), pandas.DataFrame(columns))
    meaning = {"parcel": "Name of the parcel in the data", "label": "Most probable network"}
    meaning |= {"confidence": "Probability of the label", "entropy": "Entropy of the probabilities, in bits"}
    meaning |= {name: f"Posterior probability of {name}" for name in names}
    write_json(path("", ".json"), {name: {"Description": text} for name, text in meaning.items()})


INTERVAL = {"low": "Lower end of the 90 % credible interval", "high": "Upper end of the 90 % credible interval"}


def contrast_names(networks: Sequence[str], pairs: Sequence[tuple[int, int]] = ()) -> tuple[str, ...]:
    """What each contrast is called: of two networks their one difference, of more each against the mean of the others.

    pairs: networks (positions) whose differences follow. The order is that of `posterior.contrasts`.
    """
    others = [f"{name} minus the others" for name in networks]
    standard = [f"{networks[0]} minus {networks[1]}"] if len(networks) == 2 else others
    return (*standard, *(f"{networks[first]} minus {networks[second]}" for first, second in pairs))


def _write_profile_maps(export: Export, path, posterior) -> None:
    """Mean profiles and contrasts on the cortex: every vertex shows the value of its target."""
    if export.target_of is None:
        return
    names = [*export.networks.names, *contrast_names(export.networks.names, export.pairs)]
    values = np.concatenate([posterior.profile_mean, posterior.contrast_mean])
    shown = np.where(export.target_of >= 0, values[:, export.target_of], 0)
    for writer in export.writers:
        writer.write_cortex(path, dict(zip(names, shown.astype(np.float32), strict=True)))
    meaning = {
        "profile": "Mean connectivity of each network with the target that a vertex is of or nearest to, then contrasts"
    }
    write_json(path("", ".json"), _where(export) | {"Maps": names, "Meaning": meaning})


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
