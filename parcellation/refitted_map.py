"""The population's map where label evidence is tempered: counted anew from what labels are at the label power.

Evidence that is believed less leaves most of what a map is to its prior, and the mode of a broad normal prior is far
surer of a network than so few subjects can be.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parcellation.encoding import Encoding
from parcellation.model_file import TrainedModel
from parcellation.network_pooling import Profiles
from parcellation.plates import Batch, Noise, Observed, Values, gaussian_noise
from parcellation.posterior import pooling, tempered_labels, tempered_state
from parcellation.training import Source, chunks

TOGETHER = 8  # draws of the population at a time
HALF = 0.5  # count of a network at a vertex where nobody has it


@torch.no_grad()
def refit_map(model: TrainedModel, source: Source, passes: int = 6) -> None:
    """Set the population map to what labels are at the model's label power, counted, with half a count a network more.

    Labels are those that each half of a subject's sessions tells by itself, as when the power was chosen: those of all
    sessions are surer, and so is their map, which leaves a subject's own evidence too little to say.
    """
    template, pool = model.family.template, pooling(model.family).labels
    if template.topography is not None:
        _refit_smooth_map(model, source, passes)
        return
    centre = model.family.centre(model.blank())
    log_map = template.log_map(centre)[0, 0]
    known = _Known(source, model)  # does not depend on the map that is looked for
    for _ in range(passes):
        sums: dict[str, Tensor] = {}
        for chunk in chunks(source, template, 8):
            labels = half_labels(model, chunk.seen, log_map, centre, known.of(chunk, centre))
            someone = chunk.seen.mask.any(-1).any(1)
            one = pool.statistics({"assignment": labels}, someone) | {"subjects": someone.sum()}
            sums = {name: sums.get(name, 0) + value for name, value in one.items()}
        counts = sums["labels"].double() + HALF
        log_map = (counts / counts.sum(-1, keepdim=True)).log()
    _place(model, pool.population(sums, source.cards["subject"] / sums["subjects"])["logits_group"], log_map)


def _refit_smooth_map(model: TrainedModel, source: Source, passes: int) -> None:
    """The same of a smooth map, whose prior is learned with it; sessions count in full."""
    fuller = replace(model, label_power=replace(model.label_power, persistence=0.0))
    pool = pooling(model.family).labels
    for _ in range(passes):
        sums: dict[str, Tensor] = {}
        for chunk in chunks(source, model.family.template, 8):
            labels, someone = tempered_state(fuller, chunk.seen), chunk.seen.mask.any(-1).any(1)
            one = pool.statistics(labels, someone) | {"subjects": someone.sum()}
            sums = {name: sums.get(name, 0) + value for name, value in one.items()}
        for name, encoding in pool.population(sums, source.cards["subject"] / sums["subjects"]).items():
            _set(model, name, encoding)


def half_labels(
    model: TrainedModel,
    observed: Observed,
    log_map: Float[Tensor, "V K"],
    centre: Values | None = None,
    known: Sequence[Profiles] | None = None,
) -> Float[Tensor, "S 1 V K"]:
    """Label probabilities of either half of the sessions, every other one, on average over the halves with data.

    centre: `Family.centre` of the model, known: profiles by each half, where many are asked for.
    """
    total, halves = 0.0, 0.0
    for number, half in enumerate(_halves(observed)):
        there = half.mask.any(-1).any(1)[:, None, None, None]
        profiles = None if known is None else known[number]
        total = total + there * tempered_labels(model, half, log_map, profiles, centre)
        halves = halves + there
    return total / halves.clamp_min(1)


class _Known:
    """Profiles of all subjects by each half of their sessions, in places of their own.

    Small pieces between the large ones that come and go would leave gaps in memory as large as those.
    """

    def __init__(self, source: Source, model: TrainedModel):
        self.model, (K, D) = model, model.family.template.reference.shape
        blank, subjects = model.blank().x, source.cards["subject"]

        def places(sessions: int) -> Profiles:
            return Profiles(*(blank.new_empty(subjects, *one) for one in ((K, D), (sessions, K, D), (sessions,))))

        self.places = [places(len(part)) for part in _alternating(source.cards["session"])]
        self.seen: set[int] = set()

    def of(self, chunk: Batch, centre: Values) -> list[Profiles]:
        """Those of a chunk; the first time they are read off its data."""
        index = chunk.index["subject"]
        if not self.seen.issuperset(index.tolist()):
            self.seen.update(index.tolist())
            for place, half in zip(self.places, _halves(chunk.seen), strict=True):
                found = pooling(self.model.family).summarise(half, centre).profiles
                place.subject[index], place.session[index] = found.subject, found.session
                place.noise[index] = found.noise
        return [Profiles(place.subject[index], place.session[index], place.noise[index]) for place in self.places]


def _halves(observed: Observed) -> list[Observed]:
    parts = _alternating(observed.mask.shape[1])
    return [observed.select(1, part.to(observed.x.device)) for part in parts]


def _alternating(count: int) -> list[Int[Tensor, " n"]]:
    return [torch.arange(first, count, 2) for first in range(min(2, count))]


def without(mean: Float[Tensor, "V K"], labels: Float[Tensor, "V K"], subjects: int) -> Float[Tensor, "V K"]:
    """The map of all others, from everybody's as `refit_map` counts it and one subject's label probabilities."""
    halves = HALF * mean.shape[-1]
    counts = (mean * (subjects + halves) - labels).clamp_min(HALF)
    return counts / counts.sum(-1, keepdim=True)


def mean_map(model: TrainedModel, draws: int = 32) -> Float[Tensor, "V K"]:
    """Mean of the population's map over draws, the same ones at every call, float64."""
    blank = model.blank()
    noise = _antithetic(gaussian_noise(torch.Generator().manual_seed(0), blank.x.device, blank.x.dtype))
    total = 0.0
    for _ in range(draws // TOGETHER):  # of a whole cortex all of them take a gigabyte
        values = model.family.draw_population(blank, noise, TOGETHER)
        for draw in range(TOGETHER):
            one = {name: value[draw : draw + 1] for name, value in values.items()}
            total = total + model.family.template.log_map(one)[0, 0, 0].double().exp()
    return total / (draws // TOGETHER * TOGETHER)


def _place(model: TrainedModel, encoding: Encoding, log_map: Float[Tensor, "V K"], steps: int = 6) -> None:
    """Set the map's encoding, moved until the mean map of its posterior is this one; its widths stay.

    What a flow has learned to correct, and that a mean of probabilities is less sure than a median, is thereby undone.
    """
    family, blank = model.family, model.blank()
    template = family.template
    basis = template.basis.to(log_map)
    share = (encoding.log_precision + 2 * template.site("logits_group").prior({}, blank)[1].log()).sigmoid()
    for _ in range(steps):
        _set(model, "logits_group", encoding)
        missing = (log_map - mean_map(model).log()) @ basis.mT
        encoding = replace(encoding, estimate=encoding.estimate + (missing.to(share) / share).clamp(-2, 2))


def _set(model: TrainedModel, name: str, encoding: Encoding) -> None:
    """Set a population site's encoding."""
    family = model.family
    if name in family.free and name not in family.fixed:
        family.free[name].set(encoding)
    else:
        family.fixed[name] = encoding


def _antithetic(noise: Noise) -> Noise:
    """Half of the draws, and their opposites: means over draws err less."""

    def both(name: str, shape: tuple[int, ...]) -> Tensor:
        half = noise(name, (shape[0] // 2, *shape[1:]))
        return torch.cat([half, -half])

    return both
