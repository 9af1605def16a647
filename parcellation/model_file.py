"""A trained model on disk: `model.safetensors` with the numbers, `model.json` with everything else.

The JSON is written last and holds the checksum of the numbers, so a model is whole or it is not there. It carries all
that is needed to check a new cohort against the model: mesh, vertices, targets, feature settings, and the study.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from parcellation import __version__
from parcellation.encoders import Encoding
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.family import Family
from parcellation.files import checksum, write_json
from parcellation.novelty import Reference
from parcellation.plates import Observed, Template, template_class
from parcellation.retest_link import UNLINKED, RetestLink
from parcellation.tensor_file import write_arrays

FORMAT = 1
# What a model of ours stays far below; a file that says more is not built, since that would take the memory it says.
MOST_OBSERVED = 10**8  # ground variables below one member of the outermost plate
MOST_PARTS = 10_000  # layers, passes, numbers in an encoding


@dataclass(frozen=True)
class LabelPower:
    """How much of its evidence about a label a vertex is believed, and how the evidence is measured.

    single: the power for one session; persistence: share of a vertex's deviation from its network that lasts over a
    subject's sessions, so that T sessions say less than T times as much. checked: whether they were chosen on data.
    tail: None for Gaussian evidence, else the degrees of freedom of `networks.heavy_tailed`, inside which the power is.
    profiles: whose fingerprints a vertex is compared with: the `session`'s own as the model has it, the `subject`'s or
    the `population`'s, which the noise of the subject's own data is less in.
    """

    single: float = 1.0
    persistence: float = 0.0
    checked: bool = False
    tail: float | None = None
    profiles: str = "session"

    def at(self, sessions):
        """The power for this number of sessions with data (a number, array or tensor, elementwise)."""
        return self.single / (1 + self.persistence * (sessions - 1) * (sessions > 1))

    @property
    def plain(self) -> bool:
        """Whether label probabilities are the model's own, exact given its sites."""
        return self.single == 1 and self.persistence == 0 and self.tail is None and self.profiles == "session"

    def compared(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sites' values with the profiles that vertices are compared with in the place of the session's."""
        chosen = {"session": "mu_session", "subject": "mu_subject", "population": "mu"}[self.profiles]
        return {**values, "mu_session": values[chosen]} if chosen in values else dict(values)


@dataclass(frozen=True)
class TrainedModel:
    """A trained family, and what it was trained on.

    identity: JSON values that a cohort must agree with (vertices, targets, features); details: further JSON values
    (study, training subjects, ...); arrays: the feature map's; novelty: the training cohort as new data are compared
    with it, None in models of before there was such a thing.
    """

    family: Family
    identity: dict
    details: dict
    arrays: dict[str, np.ndarray]
    digest: str = ""
    label_power: LabelPower = LabelPower()
    novelty: Reference | None = None
    retest_link: RetestLink = UNLINKED

    def blank(self) -> Observed:
        """An observation of nothing, with one member of the outermost plate: what population sites are shaped by."""
        cards, parameter = self.family.cards, next(self.family.parameters())
        sizes = [1] + [cards[plate] for plate in self.family.template.plates[1:]]
        x = parameter.new_zeros(*sizes, 1)
        mask = torch.zeros(sizes, dtype=torch.bool, device=parameter.device)
        return Observed(x, mask, {"frames": parameter.new_ones(1, 1, 1)})

    def check(self, identity: dict) -> None:
        """Refuse a cohort that the model does not describe; raises BadData with what differs, expected and got."""
        for name, expected in self.identity.items():
            got = identity.get(name)
            if got != expected:
                raise BadData(
                    f"the cohort does not fit the model: {name}: expected {_short(expected)}, got {_short(got)}"
                )


def save_model(folder: Path, model: TrainedModel) -> TrainedModel:
    """Write a model; returns it with its digest."""
    family = model.family
    tensors, plain = {}, {}
    for name, value in family.template.hyperparameters().items():
        if isinstance(value, torch.Tensor):
            tensors[f"template.{name}"] = value
        else:
            plain[name] = value
    tensors |= {f"family.{name}": value for name, value in family.state_dict().items()}
    for name, encoding in family.fixed.items():
        tensors |= {f"fixed.{name}.{part}": value for part, value in encoding.parts().items()}
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    arrays |= {f"features.{name}": value for name, value in model.arrays.items()}
    if model.novelty is not None:
        arrays |= {f"novelty.{name}": value for name, value in model.novelty.to_arrays().items()}
    write_arrays(folder / "model.safetensors", arrays)
    header = {
        "format": FORMAT,
        "software": __version__,
        "numbers": checksum(folder / "model.safetensors"),
        "template": family.template.__class__.__module__.rsplit(".", 1)[-1],
        "hyperparameters": plain,
        "family": family.settings,
        "label_power": asdict(model.label_power),
        "retest_link": asdict(model.retest_link),
        "identity": model.identity,
        "details": model.details,
    }
    write_json(folder / "model.json", header)
    return load_model(folder)


def load_model(folder: Path, device: torch.device | str = "cpu") -> TrainedModel:
    """Read a model.

    Raises InputMissing when there is none and BadData when it is damaged or of another format.
    """
    folder = Path(folder)
    path = folder / "model.json"
    if not path.exists():
        raise InputMissing(f"{folder}: no trained model there (model.json is missing); `parcellation train` makes one")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise BadData(
                f"{path}: expected model format {FORMAT}, got {header['format']} (software {header['software']})"
            )
        if (got := checksum(folder / "model.safetensors")) != header["numbers"]:
            raise BadData(f"{folder / 'model.safetensors'}: damaged: expected checksum {header['numbers']}, got {got}")
        arrays = load_file(folder / "model.safetensors")
        family, power = _family(header, arrays), LabelPower(**header["label_power"])
        link = RetestLink(**header.get("retest_link", {}))  # files of earlier versions have none
        _check_powers(power, link)
        identity, details = _mapping(header["identity"]), _mapping(header["details"])
        known = {n.removeprefix("novelty."): v for n, v in arrays.items() if n.startswith("novelty.")}
        novelty = Reference.from_arrays(known) if known else None
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError, UsageError) as error:
        raise BadData(f"{folder}: not a readable model: {type(error).__name__}: {error}") from error
    settings = [header[name] for name in ("numbers", "hyperparameters", "family", "label_power")]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    features = {n.removeprefix("features."): v for n, v in arrays.items() if n.startswith("features.")}
    return TrainedModel(family.to(device), identity, details, features, digest, power, novelty, link)


def _family(header: dict, arrays: dict[str, np.ndarray]) -> Family:
    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {n.removeprefix(prefix): torch.from_numpy(v) for n, v in arrays.items() if n.startswith(prefix)}

    cls = template_class(header["template"])
    _check_sizes(header["family"], cls.plates)
    template = cls(**header["hyperparameters"], **part("template."))
    numbers = part("family.")
    _check_shapes(template, header["family"], numbers)
    # In the numbers' own precision before they are copied, so that none is rounded.
    family = Family(template, **header["family"]).to(next(iter(numbers.values())).dtype)
    family.load_state_dict(numbers)
    fixed = part("fixed.")
    for name in {key.split(".")[0] for key in fixed}:
        parts = {key.split(".")[1]: value for key, value in fixed.items() if key.split(".")[0] == name}
        family.fixed[name] = Encoding(**parts)
    return family


def _check_shapes(template: Template, settings: dict, numbers: Mapping[str, torch.Tensor]) -> None:
    """Refuse numbers that are not a family's before one is made: a header may say anything."""
    try:
        with torch.device("meta"):  # of the same shapes, without memory
            family = Family(template, **settings)
    except RuntimeError:
        return  # flows that look at numbers while they are made; loading refuses other shapes as well
    expected = {name: tuple(value.shape) for name, value in family.state_dict().items()}
    got = {name: tuple(value.shape) for name, value in numbers.items()}
    if differing := sorted({name for name, _ in expected.items() ^ got.items()}):
        name = differing[0]
        raise ValueError(f"{name}: expected numbers of shape {expected.get(name)}, got {got.get(name)}")


def _mapping(value: object) -> dict:
    if not isinstance(value, dict):
        raise TypeError(f"identity and details: expected mappings, got {_short(value)}")
    return value


def _check_powers(power: LabelPower, link: RetestLink) -> None:
    """Raise ValueError for powers that make no probabilities."""
    numbers = [power.single, power.persistence, link.own, link.map, *([] if power.tail is None else [power.tail])]
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        raise ValueError(f"label_power and retest_link: expected finite numbers, got {numbers}")
    if power.profiles not in ("session", "subject", "population"):
        raise ValueError(f"label_power: expected profiles of session, subject or population, got {power.profiles!r}")


def _check_sizes(settings: dict, plates: tuple[str, ...]) -> None:
    """Raise ValueError for settings of a family that nobody can have trained."""
    inner = math.prod(settings["cards"][plate] for plate in plates[1:])
    parts = [value for value in settings.values() if isinstance(value, int)]
    if not 0 < inner <= MOST_OBSERVED or min(settings["cards"].values()) < 1:
        raise ValueError(f"cards: expected at most {MOST_OBSERVED} inside the outermost plate, got {settings['cards']}")
    if not all(0 <= part <= MOST_PARTS for part in parts):
        raise ValueError(f"family: expected numbers of parts up to {MOST_PARTS}, got {max(parts, key=abs)}")


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
