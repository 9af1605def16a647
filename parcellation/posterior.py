"""A trained model applied to new subjects: no training, one subject at a time.

The population stays as trained: its draws are part of the model's answer and the same for everyone. A subject's draws
are seeded by model, site, subject and session, so a result does not depend on who else is inferred, on the order of the
sessions, or on a session without data beside them. The same holds where answers are refined (`semi_amortized`), with
the population frozen at its draws.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from parcellation.encoders import ENCODERS
from parcellation.encoding import Encoding
from parcellation.errors import BadData, UsageError
from parcellation.family import Family
from parcellation.label_summary import LabelSums, draw_labels, split_entropy
from parcellation.model_file import TrainedModel
from parcellation.network_pooling import NetworkPooling, Profiles, Summaries
from parcellation.plates import Batch, Noise, Observed, Values
from parcellation.semi_amortized import Rule, check_refinable, natural_rule, refine
from parcellation.shares import shares

INTERVAL = (0.05, 0.95)
PART = 1 << 21  # label probabilities that are held at a time, about as many as a processor's cache has room for
PASSES = 3  # towards a subject's own layout of networks, profiles as they are


@dataclass(frozen=True)
class SubjectPosterior:
    """One subject's answer. V vertices, K networks, C contrasts (see `contrasts`).

    probability: mean over draws, (V, K); entropy of it and mutual_information between label and draw, in bits, (V,);
    mask: False where no session has data, (V,): such a vertex has the population's answer; profile_*: connectivity of
    each network, mean and 90 % interval, (K, target); contrast_*: the same of contrasts of networks, (C, target);
    label_draws: networks 0..K-1 drawn from the label probabilities of every draw; frames: kept frames of each session.
    """

    subject: str
    sessions: tuple[str, ...]
    frames: tuple[float, ...]
    probability: Float[np.ndarray, "V K"]
    entropy: Float[np.ndarray, " V"]
    mutual_information: Float[np.ndarray, " V"]
    mask: Bool[np.ndarray, " V"]
    profile_mean: Float[np.ndarray, "K target"]
    profile_low: Float[np.ndarray, "K target"]
    profile_high: Float[np.ndarray, "K target"]
    contrast_mean: Float[np.ndarray, "C target"]
    contrast_low: Float[np.ndarray, "C target"]
    contrast_high: Float[np.ndarray, "C target"]
    label_draws: Integer[np.ndarray, "draws V"]


@dataclass(frozen=True)
class PopulationPosterior:
    """The population's answer, as in SubjectPosterior.

    consensus: share of the given subjects whose label is the population's, (V,); betweensd: standard deviation of a
    network's probability over subjects, (V, K); within, between: see `split_entropy`, in bits, (V,); all NaN-free, and
    0 when no subjects were given.
    """

    probability: Float[np.ndarray, "V K"]
    entropy: Float[np.ndarray, " V"]
    mutual_information: Float[np.ndarray, " V"]
    profile_mean: Float[np.ndarray, "K target"]
    profile_low: Float[np.ndarray, "K target"]
    profile_high: Float[np.ndarray, "K target"]
    contrast_mean: Float[np.ndarray, "C target"]
    contrast_low: Float[np.ndarray, "C target"]
    contrast_high: Float[np.ndarray, "C target"]
    consensus: Float[np.ndarray, " V"]
    betweensd: Float[np.ndarray, "V K"]
    within: Float[np.ndarray, " V"]
    between: Float[np.ndarray, " V"]


class Posterior:
    """A frozen model with its draws of the population.

    refinement: steps that improve a subject's encodings beyond the encoder's; rule: what a step does; pairs: networks
    (positions) whose contrasts follow those that all answers have.
    Raises UsageError for a model whose subject sites have free encodings: it knows its training subjects only; and for
    steps where none of them can be refined.
    """

    def __init__(
        self,
        model: TrainedModel,
        draws: int = 64,
        refinement: int = 0,
        rule: Rule = natural_rule,
        pairs: Sequence[tuple[int, int]] = (),
    ):
        self.model, self.draws, self.refinement, self.rule, self.pairs = model, draws, refinement, rule, pairs
        self.family, self.template = model.family.eval(), model.family.template
        check_applicable(self.family)
        if refinement:
            check_refinable(self.family)
        self.blank = model.blank()
        self.population = self.family.draw_population(self.blank, self._noise("population", ()), draws)
        self.centre = self.family.centre(self.blank)  # as all subjects are measured against: taken once

    def _noise(self, subject: str, sessions: tuple[str, ...], *purpose: int | str) -> Noise:
        """Standard normal noise keyed by model, site, subject, purpose if any, and, on the session plate, session."""
        key = (subject, *map(str, purpose))
        dimension = self.template.plates.index("session") if "session" in self.template.plates else None

        def noise(name: str, shape: tuple[int, ...]) -> Tensor:
            dtype, device = self.blank.x.dtype, self.blank.x.device
            site = self.template.site(name)
            if "session" not in site.plates:
                return torch.randn(shape, generator=self._generator(name, *key), dtype=dtype).to(device)
            axis = len(shape) - len(site.event) - len(self.template.plates) + dimension
            one = (*shape[:axis], 1, *shape[axis + 1 :])
            parts = [torch.randn(one, generator=self._generator(name, *key, s), dtype=dtype) for s in sessions]
            return torch.cat(parts, axis).to(device)

        return noise

    def _generator(self, *key: str) -> torch.Generator:
        digest = hashlib.sha256("\0".join((self.model.digest, *key)).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    @torch.no_grad()
    def draw(self, subject: str, sessions: tuple[str, ...], observed: Observed) -> dict[str, Tensor]:
        """Draws of every site for one subject, (draws, 1, ...)."""
        cards = dict(zip(self.template.plates, observed.mask.shape, strict=True))
        batch = Batch(observed, observed, {}, cards)
        noise = self._noise(subject, sessions)
        if self.refinement:
            encodings = self.refined(subject, sessions, batch)
        else:
            encodings = self.family.encodings(batch, self.centre)
        if not self.model.label_power.plain:
            encodings = self._tempered(batch, encodings)
        return self.family.draw(batch, noise, encodings, self.population, path=False, draws=(self.draws,)).values

    @torch.no_grad()
    def refined(self, subject: str, sessions: tuple[str, ...], batch: Batch) -> dict[str, Encoding]:
        """Encodings of a subject's sites after the steps, with an estimate for each population draw."""

        def noise(*purpose: int | str) -> Noise:
            return self._noise(subject, sessions, *purpose)

        encodings = self.family.encodings(batch, self.centre)
        return refine(self.family, batch, encodings, self.population, noise, self.refinement, self.rule)

    def _tempered(self, batch: Batch, encodings: dict[str, Encoding]) -> dict[str, Encoding]:
        """Encodings of which the profiles are pooled by labels as they are believed, not by those of full evidence.

        A session's noise stays what the power was chosen with, or is refined. encodings: under full evidence; refined
        profiles are then believed by these labels.
        """
        encoder, centre = pooling(self.family), self.centre
        summaries = encoder.summarise(batch.seen, centre)
        if self.refinement:
            summaries = self._refined_summaries(batch.seen, summaries, encodings)
        state = tempered_state(self.model, batch.seen, self._population_map, summaries.profiles, centre)
        believed = replace(summaries, labels=state)
        again = encoder.subject_encodings(encoder.pooled(batch.seen, state["assignment"], believed, centre))
        told = ("mu_subject", "mu_session", "topography")
        return {
            name: replace(again[name], centre=encoding.centre) if name in told else encoding
            for name, encoding in encodings.items()
        }

    def _refined_summaries(self, seen: Observed, summaries: Summaries, refined: Mapping[str, Encoding]) -> Summaries:
        """Summaries with the medians of refined sites, on average over the population draws."""
        mean = {name: _estimate_of_all(encoding) for name, encoding in refined.items()}
        medians, _ = self.family.medians(self.family.population_encodings() | mean, seen)
        return replace(
            summaries,
            subject=(medians["mu_subject"][:, 0, 0], summaries.subject[1]),
            session=(medians["mu_session"][:, :, 0], summaries.session[1]),
            noise=medians["log_kappa_session"].exp()[..., 0],
        )

    def labels(self, values: dict[str, Tensor], observed: Observed) -> Float[Tensor, "draws V K"]:
        """Label probabilities of every draw, shape (draws, V, K); exact given the draw and the model's label power.

        At a power the population's map enters by its mean over draws: p(k, x) = E[pi_k] p(x | k). Averaging
        probabilities over draws of it instead would let the data say nothing about the map, and be less sure.
        """
        return torch.cat(list(self.label_parts(values, observed)))

    @torch.no_grad()
    def label_parts(self, values: dict[str, Tensor], observed: Observed) -> Iterator[Float[Tensor, "_ V K"]]:
        """The same, some draws at a time: of a whole cortex all of them take gigabytes."""
        chosen = self.model.label_power
        power = chosen.at(observed.mask.sum(1, keepdim=True).to(observed.x.dtype))
        log_map = {}
        if chosen.plain:
            scores = self.template.scorer(observed)
        else:
            scores = self.template.scorer(observed, power, chosen.tail)
            if "topography" in values:  # a subject's own deviation is averaged over, the population's map is its mean
                values = {**values, "logits_group": values["logits_group"].mean(0, keepdim=True)}
            else:
                own = values["logits_group"] is self.population["logits_group"]
                log_map = {"log_map": self._population_map if own else self._mean_map(values)}
        for part in self._parts(values, observed.mask.shape[2]):
            yield shares(scores(part if chosen.plain else chosen.compared(part), **log_map)[:, 0, 0])

    def _parts(self, values: dict[str, Tensor], vertices: int) -> list[dict[str, Tensor]]:
        draws = max(len(value) for value in values.values())
        size = max(1, PART // (vertices * self.template.networks))
        return [
            {name: value[first : first + size] if len(value) == draws else value for name, value in values.items()}
            for first in range(0, draws, size)
        ]

    @cached_property
    def _population_map(self) -> Float[Tensor, "V K"]:
        return self._mean_map(self.population)

    def _mean_map(self, values: dict[str, Tensor]) -> Float[Tensor, "V K"]:
        """Log of the population's map, its mean over draws."""
        total, count = 0.0, 0
        for part in self._parts(values, self.blank.mask.shape[2]):
            one = self.template.log_map(part).exp().flatten(0, -3)
            total, count = total + one.sum(0), count + len(one)
        return (total / count).log()

    def subject(self, subject: str, sessions: tuple[str, ...], observed: Observed, back: Callable) -> SubjectPosterior:
        """The answer for one subject; observed has shapes (1, T, V, D). `back` maps profiles to targets.

        Raises BadData when the result is not finite.
        """
        observed = observed.to(self.blank.x.device, self.blank.x.dtype)
        values = self.draw(subject, sessions, observed)
        sums, generator = LabelSums(), self._generator("labels", subject)
        drawn = [draw_labels(sums.add(part), generator) for part in self.label_parts(values, observed)]
        probability, entropy, information = sums.summary()
        if not np.isfinite(probability).all():
            vertex = int(np.flatnonzero(~np.isfinite(probability).all(-1))[0])
            raise BadData(f"subject {subject}: the posterior is not finite at vertex {vertex} of the region")
        return SubjectPosterior(
            subject,
            sessions,
            tuple(observed.covariates["frames"].flatten().tolist()),
            probability,
            entropy,
            information,
            observed.mask.any(1)[0].cpu().numpy(),
            *_profiles(back(values["mu_subject"][:, 0, 0, 0].cpu().numpy()), self.pairs),
            np.concatenate(drawn),
        )

    def maps(self) -> Float[np.ndarray, "draws V K"]:
        """The population's map in every draw: probabilities of the networks before any data of a subject."""
        return self.template.log_map(self.population)[:, 0, 0].exp().cpu().numpy()

    @torch.no_grad()
    def of_population(self, subjects: Float[np.ndarray, "S V K"] | None, back: Callable) -> PopulationPosterior:
        """The population's answer; `subjects` are label probabilities (S, V, K) that it is compared with."""
        sums = LabelSums()
        for part in self._parts(self.population, self.blank.mask.shape[2]):
            sums.add(self.template.log_map(part)[:, 0, 0].exp())
        probability, entropy, information = sums.summary()
        profile = _profiles(back(self.population["mu"][:, 0, 0, 0].cpu().numpy()), self.pairs)
        consensus, within, between = np.zeros((3, len(probability)))
        spread = np.zeros_like(probability)
        if subjects is not None and len(subjects):
            consensus = (subjects.argmax(-1) == probability.argmax(-1)).mean(0)
            spread = subjects.std(0)
            within, between = split_entropy(subjects)
        return PopulationPosterior(probability, entropy, information, *profile, consensus, spread, within, between)


def applicable(family: Family) -> bool:
    """Whether a family tells of others than its training subjects."""
    return not _stuck(family)


def _stuck(family: Family) -> list[str]:
    unit = family.template.unit_plate
    return [site.name for site in family.template.sites if unit in site.plates and site.name in family.free]


def check_applicable(family: Family) -> None:
    """Refuse a family that knows its training subjects only; raises UsageError."""
    if stuck := _stuck(family):
        raise UsageError(f"model.scheme free: {', '.join(stuck)} are known for training subjects only; train a hybrid")


def pooling(family: Family) -> NetworkPooling:
    """The family's own pooling by networks, or an encoder of its template's kind where it encodes otherwise.

    Raises UsageError for a template that is not of networks and their fingerprints.
    """
    if isinstance(family.encoder, NetworkPooling):
        return family.encoder
    template = family.template
    if ENCODERS[template.encoder] is not NetworkPooling:
        raise UsageError(f"model: expected a model of networks, got {type(template).__name__}; see docs/method.md")
    return NetworkPooling(template, template.sites)


@torch.no_grad()
def tempered_labels(
    model: TrainedModel,
    observed: Observed,
    log_map: Float[Tensor, "V K"] | None = None,
    profiles: Profiles | None = None,
    centre: Values | None = None,
) -> Float[Tensor, "S 1 V K"]:
    """Label probabilities at the model's label power, as `tempered_state` has them."""
    return tempered_state(model, observed, log_map, profiles, centre)["assignment"]


@torch.no_grad()
def tempered_state(
    model: TrainedModel,
    observed: Observed,
    log_map: Float[Tensor, "V K"] | None = None,
    profiles: Profiles | None = None,
    centre: Values | None = None,
) -> dict[str, Tensor]:
    """What labels are, `assignment` (S, 1, V, K), and say at the model's label power, as the pooling has it.

    Population and profiles are at their estimates. log_map: the population's, as maps are made with; if None its
    estimate, which is surer than the mean over draws. A smooth map that subjects deviate from is always its estimate.
    centre: `Family.centre` of the model, where many are asked for.
    """
    chosen, centre = model.label_power, model.family.centre(observed) if centre is None else centre
    profiles = pooling(model.family).summarise(observed, centre).profiles if profiles is None else profiles
    known = {
        **centre,
        "mu_subject": profiles.subject[:, None, None],
        "mu_session": profiles.session[:, :, None],
        "log_kappa_session": profiles.noise.log()[..., None],
    }
    power, template = chosen.at(observed.mask.sum(1, keepdim=True).to(observed.x.dtype)), model.family.template
    state = dict(profiles.labels)
    if "weights" not in state:
        tail = {} if chosen.tail is None else {"tail": chosen.tail}
        given = {} if log_map is None else {"log_map": log_map}
        scores = template.scorer(observed, power, **tail)(chosen.compared(known), **given)
        return {**state, "assignment": shares(scores)}
    known["topography"] = state["weights"]
    evidence = template.log_joint(chosen.compared(known), observed, power, chosen.tail)
    evidence = evidence - template.log_labels(known, observed)
    labels = pooling(model.family).labels
    state = labels.start(centre, observed)
    for _ in range(PASSES):
        _, state = labels.assign(evidence, state)
    return state


def contrasts(
    profiles: Float[np.ndarray, "draws K target"], pairs: Sequence[tuple[int, int]] = ()
) -> Float[np.ndarray, "draws C target"]:
    """What sets networks apart: of two the first minus the second, of more each minus the mean of the others.

    pairs: networks (positions) of which the first minus the second follows.
    """
    K = profiles.shape[1]
    if K == 2:
        standard = profiles[:, :1] - profiles[:, 1:]
    else:
        standard = (profiles - profiles.mean(1, keepdims=True)) * (K / max(K - 1, 1))
    first, second = np.array(pairs, int).reshape(-1, 2).T
    return np.concatenate([standard, profiles[:, first] - profiles[:, second]], 1)


def _profiles(draws: Float[np.ndarray, "draws K target"], pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, ...]:
    """Mean, low and high of profiles, then of their contrasts."""
    return *_interval(draws), *_interval(contrasts(draws, pairs))


def _estimate_of_all(encoding: Encoding) -> Encoding:
    """The encoding with one estimate, the mean over draws where every draw has its own."""
    own = encoding.estimate.ndim > encoding.log_precision.ndim
    return replace(encoding, estimate=encoding.estimate.mean(0)) if own else encoding


def _interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high of draws (draws, K, target)."""
    low, high = np.quantile(draws, INTERVAL, axis=0)
    return draws.mean(0), low, high
