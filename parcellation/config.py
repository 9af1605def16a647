"""A study is one YAML file: an unknown key is an error, and every default that was used can be read back.

    name: broca
    data: {layout: hcp, root: HCP}
    outputs: {directory: results}

is a whole study; `load_study` returns it with all defaults resolved and all paths absolute.
"""

import difflib
import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from parcellation.descriptions import usual_cleaning
from parcellation.errors import UsageError
from parcellation.jobs import Cluster
from parcellation.section import Section
from parcellation.yaml_file import read_yaml

Derived = Literal["basic", "derivatives", "power2", "full"]


class Confounds(Section):
    """Confounds out of fMRIPrep's table; every key is the argument of that name of nilearn's `load_confounds`."""

    strategy: list[Literal["motion", "high_pass", "wm_csf", "global_signal", "compcor", "ica_aroma", "scrub"]]
    motion: Derived = "full"
    wm_csf: Derived = "basic"
    global_signal: Derived = "basic"
    compcor: Literal[
        "anat_combined", "anat_separated", "temporal", "temporal_anat_combined", "temporal_anat_separated"
    ] = "anat_combined"
    n_compcor: Literal["all"] | Annotated[int, Field(ge=1)] = "all"
    scrub: int = Field(default=5, ge=0, description="frames; a shorter stretch between censored ones is censored")
    fd_threshold: float = Field(default=0.5, gt=0, description="mm")
    std_dvars_threshold: float = Field(default=1.5, gt=0)

    @model_validator(mode="after")
    def _together(self) -> "Confounds":
        if not self.strategy:
            raise ValueError("strategy: expected at least one component; for no confounds, say `confounds: none`")
        if "compcor" in self.strategy and "high_pass" not in self.strategy:
            raise ValueError("strategy: compcor needs high_pass, with which its components were computed")
        return self


class Data(Section):
    """Where the runs are, and how they are cleaned.

    `layout` is a description in `data_manifest/` (such as `hcp`) of the tree at `root`, or `manifest` for a table; of
    a tree, runs of `tasks` and only these `variants` (first come, first used) are taken, with `*` for any characters.
    `space` names the surface template of files that do not say it themselves (`fsLR` or `fsaverage`); `group` keeps
    only the manifest rows of that group. Cleaning follows `nilearn.signal.clean`: `band_pass` in Hz; `confounds` are
    all columns of a run's table, some of them, or a strategy of `nilearn.interfaces.fmriprep`. Settings of cleaning
    that are not given are the layout's. `surfaces` names the left hemisphere's file of the data's mesh by kind
    (`midthickness`, `inflated`, `sphere`), where no tree or package has them; the right one's is beside it.
    """

    layout: str = Field(default="hcp", pattern=r"^[a-z0-9][a-z0-9_-]*$")
    root: Path | None = None
    manifest: Path | None = None
    tasks: list[str] | None = Field(default=None, min_length=1)
    variants: list[str] | None = Field(default=None, min_length=1)
    space: Literal["fsLR", "fsaverage"] | None = None
    group: str | None = None
    confounds: Literal["none", "all", "simple", "scrubbing", "compcor"] | list[str] | Confounds = "none"
    band_pass: tuple[float, float] | None = None
    detrend: bool = False
    motion_limit: float | None = Field(default=None, gt=0, description="mm from a frame to the next")
    smoothing_fwhm: float | None = Field(default=None, gt=0, description="along the mesh, in mm")
    minimum_frames: int = Field(default=20, ge=2, description="kept frames below which a run is excluded")
    minimum_minutes_run: float = Field(default=0, ge=0, description="of kept frames")
    minimum_minutes_session: float = Field(default=0, ge=0, description="of kept frames")
    surfaces: dict[Literal["midthickness", "inflated", "sphere"], Path] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _cleaned_as_usual(cls, content: object) -> object:
        return usual_cleaning(content.get("layout", "hcp")) | content if isinstance(content, dict) else content

    @model_validator(mode="after")
    def _source(self) -> "Data":
        if self.layout != "manifest" and self.root is None:
            raise ValueError(f"layout {self.layout} needs `root`, the folder that holds the subjects' folders")
        if self.layout == "manifest" and self.manifest is None:
            raise ValueError("layout manifest needs `manifest`, a TSV with the columns subject, session, run, bold")
        if ignored := [name for name in ("tasks", "variants") if self.layout == "manifest" and getattr(self, name)]:
            raise ValueError(f"{ignored[0]}: a manifest says itself which files are used; leave this out")
        if self.band_pass is not None and not 0 <= self.band_pass[0] < self.band_pass[1]:
            raise ValueError(f"band_pass: expected low < high in Hz, got {list(self.band_pass)}")
        return self


class Region(Section):
    """The labels whose vertices are parcelled.

    Without `labels`, the definition called `name` in `data_manifest/regions.yaml` gives them. `label_file` is a label
    file on the data's mesh (`.dlabel.nii`, `.label.gii` or `.annot`; for `both`, a dlabel or two files).
    """

    name: str = Field(default="broca", pattern=r"^[A-Za-z0-9]+$")
    hemisphere: Literal["left", "right", "both"] = "left"
    labels: list[str] | None = None
    label_file: Path | None = None


class Targets(Section):
    """What a vertex's connectivity is measured with: evenly spaced vertices, or the parcels of a label file."""

    kind: Literal["vertices", "parcels"] = "vertices"
    count: int = Field(default=1483, ge=2, description="spaced vertices; fsaverage5 always has its fsaverage3 ones")
    label_file: Path | None = None
    seed: int = Field(default=0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _source(self) -> "Targets":
        if self.kind == "parcels" and self.label_file is None:
            raise ValueError("targets of kind parcels need `label_file`")
        return self


class Features(Section):
    """How fingerprints become the features that the model sees.

    `components: auto` uses up to 512 targets as they are and projects more to 256 principal components, `none` never
    projects; a number always does.
    """

    connectivity: Literal["correlation", "binarized"] = "correlation"
    remove_region_mean: bool = True
    center: bool = True
    unit_norm: bool = True
    components: Literal["auto", "none"] | Annotated[int, Field(ge=1)] = "auto"
    precision: Literal["float16", "float32"] = "float16"


class Topography(Section):
    """Smooth maps: weighted modes of the region, of its mesh or of a graph; `modes: 0`, or `none`, turns them off.

    `subjects` lets each subject's layout deviate smoothly. `graph` is a table of pairs of neighbours, places in the
    region from 0, for parcels and voxels; `dimensions` is 3 in a volume.
    """

    modes: int = Field(default=0, ge=0)
    subjects: bool = True
    graph: Path | None = None
    dimensions: Literal[2, 3] = 2

    @model_validator(mode="before")
    @classmethod
    def _off(cls, content: object) -> object:
        return {} if content in ("none", None) else content

    def __str__(self) -> str:
        return super().__str__() if self.modes else "none"


class Model(Section):
    """The template and the variational family; `file` names a trained model to apply instead."""

    file: Path | None = None
    template: str = "functional_parcellation"
    networks: int = Field(default=2, ge=2, le=1000)
    names: list[str] | None = None
    scheme: Literal["hybrid", "free", "encoded"] | dict[str, Literal["free", "encoded"]] = "hybrid"
    flows: dict[str, str] = Field(default={}, description="flow of a site by name; the others have an affine one")
    encoding_size: int | None = Field(
        default=None, ge=1, le=10_000, description="numbers in a free row; as many as the encoding has, if unset"
    )
    encoder_passes: int = Field(default=3, ge=1, le=1000)
    label_power: float = Field(
        default=1.0, gt=0, le=1, description="how far a vertex's evidence is believed where no two sessions can tell"
    )
    topography: Topography = Topography()

    @model_validator(mode="after")
    def _one_name_a_network(self) -> "Model":
        if self.names is not None and len(set(self.names)) != self.networks:
            raise ValueError(f"names: expected {self.networks} different ones, one a network, got {self.names}")
        return self


class Training(Section):
    """Optimisation: reduced cardinalities, steps, and which subjects take part (all, when both are unset)."""

    subjects: list[str] | None = None
    group: str | None = None
    batch_subjects: int = Field(default=8, ge=1)
    batch_vertices: int | None = Field(default=None, ge=1, description="vertices in a step's likelihood; all if unset")
    steps: int = Field(default=200, ge=1)
    learning_rate: float = Field(default=0.02, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32)
    checkpoint_every: int = Field(default=100, ge=1, description="steps")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1, description="more only pay for whole-cortex models")
    precision: Literal["auto", "float32", "tf32"] = Field(
        default="auto", description="of products on a GPU; tf32 rounds factors to 10 bits, as much as float16 has"
    )
    inner_steps: int = Field(default=0, ge=0, le=20, description="of refinement that a training step goes through")
    inner_gradient: Literal["full", "first_order"] = "full"


class Outputs(Section):
    """Where results go. `work` holds what is prepared and trained; `directory` is the BIDS derivative people open."""

    directory: Path = Path("results")
    work: Path = Path("work")
    atlas: Path | None = Field(default=None, description="label file whose areas the report compares networks with")
    draws: int = Field(default=64, ge=1, le=10_000)
    grayordinates: Literal["cortex", "all"] = Field(
        default="cortex", description="whether CIFTI maps also carry the input's voxels, as 0 (den-91k)"
    )
    gifti: bool = Field(default=False, description="maps also as GIFTI on fsLR, as they always are on fsaverage")
    contrasts: list[tuple[str, str]] = Field(
        default=[], description="pairs of networks by name, whose difference of connectivity is written besides"
    )
    profile_maps: bool = Field(default=False, description="each subject's connectivity also on the cortex")

    @model_validator(mode="after")
    def _two_networks_a_contrast(self) -> "Outputs":
        if same := [first for first, second in self.contrasts if first == second]:
            raise ValueError(f"contrasts: expected two different networks in a pair, got {same[0]!r} twice")
        return self

    @model_validator(mode="after")
    def _one_density(self) -> "Outputs":
        if self.gifti and self.grayordinates == "all":
            raise ValueError("gifti files hold no voxels: leave grayordinates at cortex")
        return self


class Study(Section):
    """The whole study. A study of a new cohort names only name, data, model.file and outputs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    data: Data
    region: Region = Region()
    targets: Targets = Targets()
    features: Features = Features()
    model: Model = Model()
    training: Training = Training()
    outputs: Outputs = Outputs()
    cluster: Cluster = Cluster()

    def resolved(self) -> dict:
        """The study with every default, as plain JSON values, without `cluster`: all that results depend on."""
        return self.model_dump(mode="json", exclude={"cluster"})

    def digest(self) -> str:
        """SHA-256 of the resolved study without its paths, so that the same study elsewhere has the same digest."""
        content = json.dumps(_without_paths(self.resolved()), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def said(self, section: str) -> set[str]:
        """Keys of a section that the file sets itself, as opposed to defaults."""
        if section not in self.model_fields_set:
            return set()
        return set(getattr(self, section).model_fields_set)


MOST_FAULTS = 20  # told of one file
PATHS = {"root", "manifest", "surfaces", "label_file", "file", "directory", "work", "atlas", "graph", "snakemake"}


def _without_paths(content: dict) -> dict:
    return {
        key: _without_paths(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if key not in PATHS
    }


def load_study(path: Path) -> Study:
    """Read a study file. Relative paths are relative to the file.

    Raises InputMissing when there is no file, and UsageError, naming the key and its nearest valid name, when it is
    wrong.
    """
    path = Path(path)
    content = read_yaml(path, "study")
    if not isinstance(content, dict):
        keys = ", ".join(Study.model_fields)
        raise UsageError(f"{path}: expected a mapping with the keys {keys}, got {_got(content)}")
    return parse_study(content, path)


def parse_study(content: dict, path: Path) -> Study:
    """Validate a study given as plain values; `path` is the file it is from, which its relative paths start at."""
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        raise UsageError("\n".join(f"{path}: {line}" for line in _explain(error.errors()))) from None
    return anchored(study, path)


def anchored(section: Section, path: Path) -> Section:
    """The same section with every path absolute, those of the file `path` that it is from being relative to it.

    Which keys were set by the user is kept. Raises UsageError for what is no path on any system.
    """
    try:
        return _anchor(section, path.resolve().parent)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    except RuntimeError as error:
        raise UsageError(f"{path}: a path begins with `~` of a user who has no home folder: {error}") from None


def _anchor(section: Section, folder: Path) -> Section:
    update = {}
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, Section):
            update[key] = _anchor(value, folder)
        elif isinstance(value, Path):
            update[key] = _absolute(key, value, folder)
        elif isinstance(value, dict) and any(isinstance(one, Path) for one in value.values()):
            update[key] = {name: _absolute(key, one, folder) for name, one in value.items()}
    # `model_copy` would count every path as set by the user, also those that are defaults.
    said = set(section.model_fields_set)
    copy = section.model_copy(update=update)
    copy.__pydantic_fields_set__.clear()
    copy.__pydantic_fields_set__.update(said)
    return copy


def _absolute(key: str, path: Path, folder: Path) -> Path:
    # Tables, logs and jobs hold paths as text, a line each; no system takes a NUL.
    if any(unicodedata.category(letter) == "Cc" for letter in str(path)):
        raise ValueError(f"{key}: expected a path without control characters, got {str(path)!r}")
    return folder / path.expanduser()


def _explain(errors: list[dict]) -> list[str]:
    """One line a faulty key: where, expected, got. A key with alternatives has an error for each of them."""
    faults: dict[str, list[str]] = {}
    for error in errors:
        where, _ = _field(error["loc"])
        faults.setdefault(where, []).append(_unknown_key(error["loc"]) if _is_unknown(error) else _expected(error))
    lines = [f"{where}: {', or '.join(list(dict.fromkeys(faults[where]))[:3])}".lstrip(": ") for where in faults]
    return lines if len(lines) <= MOST_FAULTS else [*lines[:MOST_FAULTS], f"and {len(lines) - MOST_FAULTS} more"]


def _is_unknown(error: dict) -> bool:
    return error["type"] in ("extra_forbidden", "invalid_key")


def _field(location: tuple) -> tuple[str, type[Section]]:
    """The dotted name of a key in the file, and the section that holds it.

    Below a key that is no section, validation adds names of alternatives, such as `list[str]`: they are left out.
    """
    section, names = Study, []
    for part in location:
        names.append(str(part))
        known = section.model_fields.get(part) if isinstance(part, str) else None
        if known is None or not (isinstance(known.annotation, type) and issubclass(known.annotation, Section)):
            break
        section = known.annotation
    return ".".join(names), section


def _unknown_key(location: tuple) -> str:
    valid = list(_field(location)[1].model_fields)
    nearest = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.5)
    return "unknown key; " + (f"did you mean {nearest[0]!r}?" if nearest else f"valid keys: {', '.join(valid)}")


def _expected(error: dict) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("missing", "value_error"):
        return message
    # YAML reads 001 as the number 1: only the user can give back what is lost.
    quotes = error["type"] == "string_type" and not isinstance(error["input"], (list, dict, type(None)))
    return f"{message}, got {_got(error['input'])}{' (write it in quotes)' if quotes else ''}"


def _got(value: object) -> str:
    got = repr(value)
    return got if len(got) <= 60 else got[:57] + "..."
