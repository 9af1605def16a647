"""Encoders: permutation-invariant functions of the data that give one encoding per ground variable.

`DeepSet` serves any template: embed every observation, average over the plates that a site is not on, correct.
`NetworkPooling` serves mixtures of networks: its set embedding is attention to networks (who belongs where, given the
population), unrolled over a few passes, so that a subject's encoding for network k is about network k.

Encoders are size-free (means, never sums), see masks, and take the *full* cardinalities, so that what is learned on
reduced batches holds for the full model.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.errors import UsageError
from parcellation.plates import Batch, Observed, Site, Template, Values

SMALL = 1e-6


@dataclass(frozen=True)
class Encoding:
    """What a posterior knows about its ground variables, in the form of a noisy observation of them.

    estimate: shape (*plates, *event); log_precision: log of the inverse variance of the estimate, broadcastable to it;
    extra: further summaries, shape (*plates, *event or 1, C), C may be 0. centre: mean of the prior conditional where
    the parents are at their medians, for flows that measure parents from there (`Family` sees to it), else None.
    """

    estimate: Float[Tensor, "*#variables"]
    log_precision: Float[Tensor, "*#variables"]
    extra: Float[Tensor, "*_ C"]
    centre: Float[Tensor, "*#variables"] | None = None

    def parts(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        return {part.name: getattr(self, part.name) for part in fields(self) if getattr(self, part.name) is not None}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Encoding":
        """The encoding with a function applied to each of its tensors."""
        return Encoding(**{name: function(part) for name, part in self.parts().items()})

    def detach(self) -> "Encoding":
        """The same numbers, without a gradient."""
        return self.map(Tensor.detach)


def concatenate(parts: list[Encoding]) -> Encoding:
    """Encodings of successive members of the outermost plate, as one."""
    return Encoding(**{name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0].parts()})


class DeepSet(nn.Module):
    """Mean-pooled deep set, feature by feature, for sites whose event is that of an observation, (D,).

    For a site on plates P the estimate is a mean over the other plates of [x, embed(x)], linearly combined; its log
    precision starts at the log number of pooled members of the next plate and is corrected by the flow.
    """

    extra = 1

    def __init__(self, template: Template, sites: Sequence[Site], hidden: int = 8):
        super().__init__()
        self.template, self.sites = template, sites
        self.embed = MLP(1, hidden, [hidden], activation=nn.SiLU)
        self.combine = nn.ModuleDict({site.name: nn.Linear(hidden, 1) for site in sites})
        self.precision = nn.ParameterDict({site.name: torch.zeros(()) for site in sites})
        with torch.no_grad():
            for layer in self.combine.values():
                layer.weight.mul_(0.01)
                layer.bias.zero_()

    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` is not used."""
        channels = torch.cat([batch.seen.x[..., None], self.embed(batch.seen.x[..., None])], -1)
        return {site.name: self._encode(site, channels, batch) for site in self.sites}

    def population_of(self, batches: Iterable[Batch], cards: Mapping[str, int], names: Collection[str]) -> dict:
        """Encodings of population sites from data that come in parts; the parts are put together, so they must fit."""
        parts = list(batches)
        x, mask = torch.cat([part.seen.x for part in parts]), torch.cat([part.seen.mask for part in parts])
        whole = Observed(x, mask)
        encodings = self(Batch(whole, whole, {}, cards), {})
        return {name: encoding for name, encoding in encodings.items() if name in names}

    def _encode(self, site: Site, channels: Tensor, batch: Batch) -> Encoding:
        weight, log_count = batch.seen.mask.to(channels), channels.new_zeros(())
        # Innermost plates first: a mean of means, each over the members that have data.
        for d, plate in reversed(list(enumerate(self.template.plates))):
            if plate in site.plates:
                continue
            count = weight.sum(d, keepdim=True)
            channels = (weight[..., None, None] * channels).sum(d, keepdim=True) / count.clamp_min(1)[..., None, None]
            full = batch.cards[plate] / batch.seen.mask.shape[d]
            log_count = (full * count.clamp_min(SMALL)).log()
            weight = (count > 0).to(weight)
        estimate = channels[..., 0] + self.combine[site.name](channels[..., 1:])[..., 0]
        log_precision = (log_count + self.precision[site.name])[..., None].expand(*weight.shape, 1)
        return Encoding(estimate, log_precision, log_precision[..., None] / 5)


@dataclass(frozen=True)
class Summaries:
    """What one subject's data say, given the population; S subjects, T sessions, K networks, D features.

    assignment (S, 1, V, K); count (S, T, K) of vertices; average (S, T, K, D) fingerprints; noise (S, T) sd;
    observations (S, T) number of features seen; ambiguity (S, T, K) mean uncertainty of the members;
    subject_average (S, K, D) with precision subject_precision (S, K); subject, session: posterior mean and variance.
    """

    assignment: Float[Tensor, "S 1 V K"]
    count: Float[Tensor, "S T K"]
    average: Float[Tensor, "S T K D"]
    noise: Float[Tensor, "S T"]
    observations: Float[Tensor, "S T"]
    ambiguity: Float[Tensor, "S T K"]
    subject_average: Float[Tensor, "S K D"]
    subject_precision: Float[Tensor, "S K"]
    subject: tuple[Float[Tensor, "S K D"], Float[Tensor, "S K"]]
    session: tuple[Float[Tensor, "S T K D"], Float[Tensor, "S T K"]]


class NetworkPooling(nn.Module):
    """Attention pooling by network, unrolled.

    Each pass assigns vertices to networks by the current profiles and the population map (a softmax over networks: the
    attention of Lee et al. 2019 with the profiles as seeds), averages their fingerprints, and shrinks the averages
    towards subject and population as the plate model says: coordinate ascent, which a trained correction in the flows
    then completes. It has no weights of its own, sees all vertices, and needs no gradient.
    """

    extra = 2

    def __init__(self, template: Template, sites: Sequence[Site], passes: int = 3):
        super().__init__()
        self.template, self.names, self.passes = template, {site.name for site in sites}, passes

    @torch.no_grad()
    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` holds the current values of population sites that are not encoded here."""
        encodings = {}
        if not centre:  # the population itself is read off the batch
            encodings = self.population_of([batch], batch.cards, self.names)
            centre = {name: encoding.estimate for name, encoding in encodings.items()}
        encodings |= self.subject_encodings(self.summarise(batch.seen, centre))
        return {name: encoding for name, encoding in encodings.items() if name in self.names}

    @torch.no_grad()
    def population_of(self, batches: Iterable[Batch], cards: Mapping[str, int], names: Collection[str]) -> dict:
        """Encodings of population sites from data that come in parts; a full model has `cards`."""
        batches, centre, population = list(batches), None, {}
        for _ in range(2):
            sums: dict[str, Tensor] = {}
            for batch in batches:
                centre = self.start(batch.seen) if centre is None else centre
                one = self.statistics(self.summarise(batch.seen, centre), batch.seen)
                sums = {name: sums.get(name, 0) + value for name, value in one.items()}
            population = self.population(sums, cards["subject"])
            centre = {name: encoding.estimate for name, encoding in population.items()}
        return {name: encoding for name, encoding in population.items() if name in names}

    def start(self, observed: Observed) -> dict[str, Tensor]:
        """Population values before any data: reference fingerprints and an even map."""
        values = {}
        for site in self.template.population_sites():
            mean, _ = site.prior(values, observed)
            values[site.name] = mean.expand(self.template.shape(site, observed))
        return values

    def summarise(self, observed: Observed, centre: Values) -> Summaries:
        """Unrolled coordinate ascent for every subject, the population fixed at `centre`."""
        mu = centre["mu"][:, :, 0]  # (1, 1, K, D)
        log_map = self.template.log_map(centre)  # (1, 1, V, K)
        between = (2 * centre["log_epsilon"]).exp()[0, 0], (2 * centre["log_sigma"]).exp()[0, 0]  # (1, K)
        S, T = observed.mask.shape[:2]
        noise = centre["log_kappa"].exp()[..., 0].expand(S, T)
        session = mu.expand(S, T, -1, -1), between[0].new_zeros(S, T, mu.shape[-2])
        for _ in range(self.passes):
            assignment = self.assign(observed, log_map, session, noise)
            summaries = _pool(observed, assignment, mu[:, 0], between, session, noise)
            session, noise = summaries.session, summaries.noise
        return summaries

    def assign(
        self, observed: Observed, log_map: Tensor, session: tuple, noise: Tensor, power: Tensor | float = 1.0
    ) -> Float[Tensor, "S 1 V K"]:
        """Posterior label probabilities given profiles (their variance included) and noise, shape (S, 1, V, K).

        power tempers the evidence, a number or (S, 1, V, 1).
        """
        profiles, variance = session
        square = observed.squares[..., None] - 2 * (profiles @ observed.x.mT).mT + profiles.square().sum(-1)[:, :, None]
        expected = square + self.template.features * variance[:, :, None]
        evidence = torch.where(observed.mask[..., None], -0.5 * expected / noise[..., None, None] ** 2, 0.0)
        return (log_map + power * evidence.sum(1, keepdim=True)).softmax(-1)

    def subject_encodings(self, s: Summaries) -> dict[str, Encoding]:
        """Encodings of the sites of subjects and sessions."""
        share = (s.count / s.observations[..., None].clamp_min(1) * self.template.features).clamp_min(SMALL)
        extra = torch.stack([share.log(), s.ambiguity], -1)  # (S, T, K, 2)
        present = (s.observations > 0)[..., None, None]
        subject_extra = torch.where(present, extra, 0.0).sum(1) / present.sum(1).clamp_min(1)
        log_noise, log_count = s.noise.log()[..., None], s.count.clamp_min(SMALL).log()
        session_precision = (log_count - 2 * log_noise)[:, :, None, :, None]
        precision = (2 * s.observations).clamp_min(SMALL).log()[..., None]
        return {
            "log_kappa_session": Encoding(log_noise, precision, extra.mean(2)[:, :, None]),
            "mu_subject": Encoding(
                s.subject_average[:, None, None],
                s.subject_precision.clamp_min(SMALL).log()[:, None, None, :, None],
                subject_extra[:, None, None, :, None],
            ),
            "mu_session": Encoding(s.average[:, :, None], session_precision, extra[:, :, None, :, None]),
        }

    def statistics(self, s: Summaries, observed: Observed) -> dict[str, Tensor]:
        """Sums over the subjects of what the population sites need; sums of batches are sums of the whole."""
        present = observed.mask.any(-1).to(s.noise)  # (S, T)
        someone = present.amax(1)  # (S,): a subject without any data says nothing
        subject, session = s.subject, s.session
        between = (session[0] - subject[0][:, None]).square().mean(-1) + session[1]
        square = subject[0].square().mean(-1) + subject[1]
        return {
            "subjects": someone.sum(),
            "sessions": present.sum(),
            "profile": (someone[:, None, None] * subject[0]).sum(0),
            "square": (someone[:, None] * square).sum(0),
            "between_sessions": (present[..., None] * between).sum((0, 1)),
            "log_noise": (present * s.noise.log()).sum(),
            "labels": (someone[:, None, None] * s.assignment[:, 0]).sum(0),
        }

    def population(self, sums: Mapping[str, Tensor], subjects: int) -> dict[str, Encoding]:
        """Encodings of the population sites from summed statistics, for a full model of so many subjects."""
        S, D, K = sums["subjects"].clamp_min(1), self.template.features, self.template.networks
        sessions = subjects * sums["sessions"] / S
        mu = sums["profile"] / S
        between = (sums["square"] / S - mu.square().mean(-1)).clamp_min(SMALL)
        within = (sums["between_sessions"] / sums["sessions"].clamp_min(1)).clamp_min(SMALL)
        log = {
            n: torch.as_tensor(float(n), device=mu.device, dtype=mu.dtype).log() for n in (subjects, 2 * D * subjects)
        }
        return {
            "log_kappa": _encoding((sums["log_noise"] / sums["sessions"].clamp_min(1)), (10 * sessions).log()),
            "slope": _encoding(torch.zeros_like(sums["log_noise"]), torch.full_like(sums["log_noise"], -4.0)),
            "log_epsilon": _encoding(0.5 * between.log(), log[2 * D * subjects].expand(K)),
            "log_sigma": _encoding(0.5 * within.log(), (2 * D * sessions).log().expand(K)),
            "mu": _encoding(mu, (log[subjects] - between.log())[:, None]),
            "logits_group": self.map_encoding(sums["labels"], S, subjects),
        }

    def map_encoding(self, labels: Float[Tensor, "V K"], counted: Tensor, subjects: int) -> Encoding:
        """Encoding of the population map from label probabilities (V, K) summed over the subjects counted."""
        labels = (labels + 0.5) / (counted + 0.5 * self.template.networks)
        basis = self.template.basis.to(labels)
        spread = labels @ basis.square().mT - (labels @ basis.mT).square()
        return _encoding(labels.log() @ basis.mT, (subjects * spread.clamp_min(SMALL)).log(), 2)


def _encoding(estimate: Tensor, log_precision: Tensor, ones: int = 3) -> Encoding:
    """An encoding of a population site: plate dimensions in front, two constant extras behind."""
    for _ in range(ones):
        estimate, log_precision = estimate[None], log_precision[None]
    return Encoding(estimate, log_precision, log_precision.new_zeros(*log_precision.shape, NetworkPooling.extra))


def _pool(observed, assignment, mu, between, session, noise) -> Summaries:
    """One pooling: averages by network, then means and variances of session and subject profiles, then the noise."""
    D, present = observed.x.shape[-1], observed.mask.any(-1)[..., None]  # (S, T, 1)
    weight = torch.where(observed.mask[..., None], assignment, 0.0)  # (S, T, V, K)
    count = weight.sum(2)
    average = weight.mT @ observed.x / count.clamp_min(SMALL)[..., None]
    ambiguity = (weight * (1 - weight)).sum(2) / count.clamp_min(SMALL)
    own = count / noise[..., None] ** 2  # precision of a session's average
    trust = torch.where(present, 1 / (between[1] + 1 / own.clamp_min(SMALL)), 0.0)
    precision = trust.sum(1)
    subject_average = (trust[..., None] * average).sum(1) / precision.clamp_min(SMALL)[..., None]
    prior = 1 / between[0]
    share = (precision / (precision + prior))[..., None]
    subject = share * subject_average + (1 - share) * mu, 1 / (precision + prior)
    share = own / (own + 1 / between[1])
    variance = 1 / (own + 1 / between[1]) + (1 - share).square() * subject[1][:, None]
    profile = share[..., None] * average + (1 - share)[..., None] * subject[0][:, None]
    observations = observed.mask.sum(-1) * float(D)
    misfit = (average - profile).square().sum(-1) + D * variance - average.square().sum(-1)
    residual = (observed.mask * observed.squares).sum(-1) + (count * misfit).sum(-1)
    noise = torch.where(present[..., 0], (residual / observations.clamp_min(1)).clamp_min(SMALL).sqrt(), noise)
    return Summaries(
        assignment,
        count,
        average,
        noise,
        observations,
        ambiguity,
        subject_average,
        precision,
        subject,
        (profile, variance),
    )


ENCODERS = {"deep_set": DeepSet, "network_pooling": NetworkPooling}


def encoder_class(name: str) -> type[nn.Module]:
    """An encoder by its name; raises UsageError with the names there are."""
    if name not in ENCODERS:
        raise UsageError(f"encoder: expected one of {', '.join(ENCODERS)}, got {name!r}")
    return ENCODERS[name]
