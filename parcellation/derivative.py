"""The files around the maps that make a folder a BIDS derivative: description, participants, ignore list, citation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas

from parcellation import __version__
from parcellation.errors import BadData
from parcellation.files import write_json, write_text
from parcellation.maps import bids_label, shown_labels, write_table

BIDS_VERSION = "1.10.1"

# What this derivative holds beyond the standard.
IGNORED = (
    "*.html",
    "CITATION.md",
    "diagnostics",
    "figures",
    "logs",
    "*.scene",
    "*.spec",
    "*.dscalar.nii",
    "*_probseg.json",
    "*.func.gii",
    "*.surf.gii",
    "*_boldmap.json",
    "*_network.tsv",
    "*_network.json",
)

COLUMNS = {
    "participant_id": "Subject, as in the file names",
    "source_subject": "Subject, as in the manifest",
    "sessions": "Number of sessions with data",
    "frames": "Frames kept, over all sessions",
    "masked_vertices": "Vertices of the region without data in any session; they show the population's answer",
    "mean_confidence": "Mean posterior probability of the labels shown, over vertices with data",
    "amortization_gap": "Lower bound of the amortization gap, in nats; n/a where it was not measured",
    "log_density": "Mean log predictive density of a value of the fingerprints given the training cohort's population, "
    "in nats",
    "novelty_p": "Share of subjects like the training cohort's that are as unlike it as this one; n/a where the model "
    "cannot tell",
    "flags": "What to look at before this subject is used, separated by semicolons",
}

REFERENCES = (
    "Rouillard L, Le Bris A, Moreau T, Wassermann D. PAVI: Plate-amortized variational inference. "
    "Transactions on Machine Learning Research, 2023.",
    "Kong R, et al. Spatial topography of individual-specific cortical networks predicts human cognition, personality, "
    "and emotion. Cerebral Cortex 29:2533-2551, 2019.",
    "Glasser MF, et al. The minimal preprocessing pipelines for the Human Connectome Project. NeuroImage 80:105-124, "
    "2013.",
)


def participant(posterior, flags: Sequence[str] = (), amortization_gap: float | None = None) -> dict:
    """The participants.tsv row of one `posterior.SubjectPosterior`; None is written as n/a."""
    confidence = shown_labels(posterior.probability)[1][posterior.mask]
    return {
        "participant_id": f"sub-{bids_label(posterior.subject)}",
        "source_subject": posterior.subject,
        "sessions": len(posterior.sessions),
        "frames": round(float(sum(posterior.frames))),
        "masked_vertices": int(np.count_nonzero(~posterior.mask)),
        "mean_confidence": round(float(confidence.mean()), 4) if len(confidence) else None,
        "amortization_gap": amortization_gap,
        "log_density": None,
        "novelty_p": None,
        "flags": "; ".join(flags) or None,
    }


def write_dataset(
    out: Path,
    name: str,
    facts: Mapping[str, object],
    participants: Sequence[dict],
    *,
    sources: Sequence[str] = (),
    code_url: str | None = None,
    citation: str,
) -> None:
    """Write the files at the root of the derivative.

    facts: what is said of the software's run, such as the hash of the resolved study; participants: rows of
    `participant`; sources: addresses or names of the data sets that the maps come from; citation: see `methods_text`.
    Raises BadData when two subjects get one label.
    """
    table = pandas.DataFrame(list(participants), columns=list(COLUMNS))
    doubled = table.loc[table.participant_id.duplicated(keep=False), "source_subject"].tolist()
    if doubled:
        raise BadData(f"{out}: expected subjects whose names differ in letters and digits, got {', '.join(doubled)}")
    software = {"Name": "parcellation", "Version": __version__, **facts}
    description = {
        "Name": name,
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [software | ({"CodeURL": code_url} if code_url else {})],
        "SourceDatasets": [{"URL": source} for source in sources],
    }
    write_json(out / "dataset_description.json", description)
    write_text(out / ".bidsignore", "".join(f"{pattern}\n" for pattern in IGNORED))
    write_table(out / "participants.tsv", table.sort_values("participant_id"))
    write_json(out / "participants.json", {name: {"Description": text} for name, text in COLUMNS.items()})
    write_text(out / "CITATION.md", citation)


def methods_text(
    *,
    region: str,
    vertices: int,
    space: str,
    targets: int,
    networks: int,
    trained_on: int,
    subjects: int,
    draws: int,
    settings: Mapping[str, Mapping] | None = None,
    population_of: int | None = None,
    modes: int = 0,
    deviations: bool = False,
    refinement: int = 0,
    parcels: bool = False,
) -> str:
    """The methods paragraph of a run, with references, as Markdown.

    trained_on: subjects that the model was trained on; subjects: those that maps were made for; settings: the resolved
    study, of which cleaning and features are described, nothing if None; population_of: subjects that the population
    was inferred again from, None where it is the model's; refinement: steps for each subject; modes: of the region that
    its map is smooth in, 0 for a free map; deviations: whether subjects deviate from it in the same modes; parcels:
    whether the region's vertices stand for parcels.
    """
    one, many = ("parcel", "parcels") if parcels else ("vertex", "vertices")
    again = (
        f"The population's networks, their map and the variation between people were then inferred again from the "
        f"{population_of} subjects of the present cohort by expectation-maximisation, starting at the trained ones; "
        f"the rest of the model was not changed. "
    )
    own = ", and so are the deviations of subjects from it" if deviations else ""
    smooth = (
        f"The population's map is smooth, a weighted sum of the region's first {modes} Laplacian modes and a residual "
        f"of each vertex{own}; how smooth was learned. "
    )
    refined = (
        f"The approximate posterior of each subject was then improved by {refinement} natural-gradient steps of its "
        f"own on the evidence lower bound, with the population's draws held fixed. "
    )
    then = "Given this population, maps" if population_of else "Maps"
    prepared = _prepared(settings) if settings else ""
    references = "\n".join(f"{number}. {text}" for number, text in enumerate(REFERENCES, 1))
    return (
        "# How to describe and cite these maps\n\n"
        f"The {region} ({vertices} {many}, {space}) was parcellated into {networks} functional networks from "
        f"resting-state connectivity. Each {one} was described by the Fisher-z transformed correlations of its time "
        f"series with {targets} cortical targets. {prepared}A hierarchical Bayesian model with population, subject, "
        f"session and {one} levels was fitted to {trained_on} subjects by plate-amortized variational inference [1] "
        f"with parcellation {__version__}; its levels between and within subjects follow the multi-session "
        f"hierarchical model of [2]. {smooth if modes else ''}{again if population_of else ''}{then} of {subjects} "
        f"subjects were then inferred without further training. {refined if refinement else ''}Network probabilities "
        f"are means over {draws} posterior draws, a {one}'s label is its most probable network, and entropy is given "
        f"in bits. For data of the Human Connectome Project, cite [3] as well."
        f"\n\n"
        f"{references}\n"
    )


def _prepared(study: Mapping[str, Mapping]) -> str:
    """What the study says was done to series and fingerprints, as sentences that end with a space."""
    data, features = study["data"], study["features"]
    cleaned = {
        _regressed(data["confounds"]): data["confounds"] != "none",
        "detrending": data["detrend"],
        f"frames left out after head movements of more than {data['motion_limit']} mm": data["motion_limit"],
        "band-pass filtering at {} to {} Hz".format(*(data["band_pass"] or (0, 0))): data["band_pass"],
        f"smoothing along the mesh (FWHM {data['smoothing_fwhm']} mm)": data["smoothing_fwhm"],
    }
    done = [what for what, wanted in cleaned.items() if wanted]
    series = f"Series had {_listed(done)} before" if done else "Series were taken as they were distributed"
    changed = {
        "kept as their strongest 10 %": features["connectivity"] == "binarized",
        "freed of the region's mean": features["remove_region_mean"],
        "centred over targets": features["center"],
        "scaled to unit length": features["unit_norm"],
    }
    how = [what for what, wanted in changed.items() if wanted]
    fingerprints = f"; fingerprints were {_listed(how)}" if how else ""
    return f"{series}; runs of fewer than {data['minimum_frames']} frames were left out{fingerprints}. "


def _regressed(confounds: object) -> str:
    """Which confounds a study names: all, a strategy by name or by its components, or columns."""
    if confounds == "all":
        return "regression of all confounds of their files"
    if isinstance(confounds, Mapping):
        return f"regression of fMRIPrep's confounds ({', '.join(confounds['strategy'])})"
    if isinstance(confounds, str):
        return f"regression of fMRIPrep's confounds by the strategy {confounds}"
    return f"regression of {', '.join(confounds)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
