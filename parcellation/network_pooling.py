"""An encoder for mixtures of networks: attention to networks, unrolled, and the population read off everybody.

A subject's data are pooled by network: who belongs where, given the population. What the subjects' summaries say about
the population adds over subjects, so a cohort is streamed through in chunks and only sums are kept; a few such passes
are an expectation-maximisation, whose answer comes with the widths that missing labels and noisy averages leave
(Louis 1982). It has no weights: an encoding of the whole cohort holds for every step of a training.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from parcellation.encoding import SMALL, Encoding
from parcellation.label_pooling import SharedLabels
from parcellation.plates import Batch, Observed, Site, Template, Values
from parcellation.smooth_labels import labels_of

log = logging.getLogger(__name__)

PASSES = 40  # over a cohort, at most: scales that are hard to tell apart are slow
BATCH_PASSES = 3  # over a batch, where the population is that of each batch
SETTLED = 0.03  # posterior sd's that a pass still moves the population by, root mean square of the worst site
LEAST = 0.02  # share of an observed variance that a component of it has at least: its logarithm must exist


@dataclass(frozen=True)
class Summaries:
    """What one subject's data say, given the population; S subjects, T sessions, K networks, D features.

    assignment (S, 1 or T, V, K); count (S, T, K) of vertices; average (S, T, K, D) fingerprints; noise (S, T) sd, and
    the one that sessions were weighed by, which was assumed; observations (S, T) number of features seen; ambiguity
    (S, T, K) mean uncertainty of the members; subject_average (S, K, D) with precision subject_precision (S, K);
    subject, session: posterior mean and variance; between: variance between subjects and between sessions that was
    assumed, (1, K) each; labels: what labels say.
    """

    assignment: Float[Tensor, "S _ V K"]
    count: Float[Tensor, "S T K"]
    average: Float[Tensor, "S T K D"]
    noise: Float[Tensor, "S T"]
    assumed: Float[Tensor, "S T"]
    observations: Float[Tensor, "S T"]
    ambiguity: Float[Tensor, "S T K"]
    subject_average: Float[Tensor, "S K D"]
    subject_precision: Float[Tensor, "S K"]
    subject: tuple[Float[Tensor, "S K D"], Float[Tensor, "S K"]]
    session: tuple[Float[Tensor, "S T K D"], Float[Tensor, "S T K"]]
    between: tuple[Float[Tensor, "1 K"], Float[Tensor, "1 K"]]
    labels: Mapping[str, Tensor]

    @property
    def profiles(self) -> "Profiles":
        """The subjects' and sessions' profiles, at their means, and noise."""
        return Profiles(self.subject[0], self.session[0], self.noise, self.labels)


@dataclass(frozen=True)
class Profiles:
    """What labels are told by: profiles of subjects (S, K, D) and sessions (S, T, K, D), noise (S, T), as `Summaries`.

    labels: what is known of them beyond the population's map, nothing if empty.
    """

    subject: Float[Tensor, "S K D"]
    session: Float[Tensor, "S T K D"]
    noise: Float[Tensor, "S T"]
    labels: Mapping[str, Tensor] = field(default_factory=dict)


class NetworkPooling(nn.Module):
    """Attention pooling by network, unrolled.

    Each pass assigns vertices to networks by the current profiles and the population map (a softmax over networks: the
    attention of Lee et al. 2019 with the profiles as seeds), averages their fingerprints, and shrinks the averages
    towards subject and population as the plate model says: coordinate ascent, which a trained correction in the flows
    then completes. It has no weights of its own, sees all vertices, and needs no gradient.
    """

    extra = SharedLabels.extra

    def __init__(self, template: Template, sites: Sequence[Site], passes: int = 3):
        super().__init__()
        self.template, self.names, self.passes = template, {site.name for site in sites}, passes
        self.labels = labels_of(template)

    @classmethod
    def extras(cls, template: Template) -> int:
        """Number of further summaries in an encoding."""
        return cls.extra

    @torch.no_grad()
    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` holds the current values of population sites that are not encoded here."""
        encodings, known = {}, centre
        if any(site.name not in known for site in self.template.population_sites()):  # read off the batch
            centre = {**self.start(batch.seen), **known}
            for _ in range(BATCH_PASSES):
                encodings, found = self._pass([batch], batch.cards, centre)
                centre = {**found, **known}
        encodings |= self.subject_encodings(self.summarise(batch.seen, centre))
        return {name: encoding for name, encoding in encodings.items() if name in self.names}

    @torch.no_grad()
    def population_of(
        self,
        batches: Iterable[Batch],
        cards: Mapping[str, int],
        names: Collection[str],
        start: Values | None = None,
    ) -> dict[str, Encoding]:
        """Encodings of population sites from data that come in parts; a full model has `cards`.

        batches: gone through once a pass, so an iterator that is spent after one is not enough; start: population
        values to begin with, else reference fingerprints and an even map.
        """
        centre, population = start, {}
        for number in range(PASSES):
            before = population
            population, centre = self._pass(batches, cards, centre)
            if before and (moved := _moved(before, population)) < SETTLED:
                log.info("population settled after %d passes", number + 1)
                break
        else:
            log.warning("population: still moving by %.2f of its sd after %d passes", moved, PASSES)
        return {name: encoding for name, encoding in population.items() if name in names}

    def _pass(self, batches: Iterable[Batch], cards: Mapping[str, int], centre: Values | None) -> tuple[dict, dict]:
        """Population encodings and values from one pass over the data, given the values so far."""
        sums: dict[str, Tensor] = {}
        for batch in batches:
            centre = self.start(batch.seen) if centre is None else centre
            one = self.statistics(self.summarise(batch.seen, centre), batch.seen)
            sums = {name: sums.get(name, 0) + value for name, value in one.items()}
        population = self.population(sums, cards["subject"])
        return population, self.centre(population, batch.seen)

    def start(self, observed: Observed) -> dict[str, Tensor]:
        """Population values before any data: reference fingerprints and an even map."""
        values = {}
        for site in self.template.population_sites():
            mean, _ = site.prior(values, observed)
            values[site.name] = mean.expand(self.template.shape(site, observed))
        return values

    def centre(self, population: Mapping[str, Encoding], observed: Observed) -> dict[str, Tensor]:
        """Population values given these encodings and the prior, as precisions weigh the two."""
        values = {}
        for site in self.template.population_sites():
            mean, sd = site.prior(values, observed)
            values[site.name] = population[site.name].combined(mean, sd)
        return values

    def summarise(self, observed: Observed, centre: Values) -> Summaries:
        """Unrolled coordinate ascent for every subject, the population fixed at `centre`."""
        mu = centre["mu"][:, :, 0]  # (1, 1, K, D)
        between = (2 * centre["log_epsilon"]).exp()[0, 0], (2 * centre["log_sigma"]).exp()[0, 0]  # (1, K)
        S, T = observed.mask.shape[:2]
        noise = centre["log_kappa"].exp()[..., 0].expand(S, T)
        session = mu.expand(S, T, -1, -1), between[0].new_zeros(S, T, mu.shape[-2])
        labels = self.labels.start(centre, observed)
        for _ in range(self.passes):
            assignment, labels = self.labels.assign(self.evidence(observed, session, noise), labels)
            summaries = _pool(observed, assignment, labels, mu[:, 0], between, session, noise)
            session, noise = summaries.session, summaries.noise
        return summaries

    def pooled(
        self, observed: Observed, assignment: Float[Tensor, "S _ V K"], s: Summaries, centre: Values
    ) -> Summaries:
        """The summaries with networks averaged by these label probabilities instead."""
        labels = {**s.labels, "assignment": assignment}
        return _pool(observed, assignment, labels, centre["mu"][:, 0, 0], s.between, s.session, s.noise)

    def evidence(self, observed: Observed, session: tuple, noise: Tensor) -> Float[Tensor, "S T V K"]:
        """Expected log density of every observation under every network, up to a constant of each; 0 where masked.

        session: mean (S, T, K, D) and variance (S, T, K) of the profiles; noise (S, T).
        """
        profiles, variance = session
        precision = noise[..., None] ** -2
        network = -0.5 * precision * (profiles.square().sum(-1) + self.template.features * variance)
        weights, x = (part.flatten(0, 1) for part in (precision[..., None] * profiles, observed.x))
        expected = torch.baddbmm(network.flatten(0, 1)[..., None], weights, x.mT)  # (S T, K, V)
        return torch.where(observed.mask[:, :, None], expected.unflatten(0, noise.shape), 0.0).mT

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
        } | self.labels.subject_encodings(s.labels)

    def statistics(self, s: Summaries, observed: Observed) -> dict[str, Tensor]:
        """Sums over the subjects of what the population sites need; sums of batches are sums of the whole."""
        present = observed.mask.any(-1)  # (S, T)
        someone = present.any(1)  # (S,): a subject without any data says nothing
        shortness = 0.5 * (self.template.frames_reference / observed.covariates["frames"][..., 0].clamp_min(1)).log()
        level = s.noise.log()
        noise = torch.stack([torch.ones_like(level), level, shortness, shortness**2, shortness * level])
        profiles = _between_subjects(s, someone) | _between_sessions(s)
        sums = {"subjects": someone.sum(), "noise": (present * noise).sum((1, 2)), **profiles}
        return sums | self.labels.statistics(s.labels, someone)

    def population(self, sums: Mapping[str, Tensor], subjects: int) -> dict[str, Encoding]:
        """Encodings of the population sites from summed statistics, for a full model of so many subjects."""
        full = subjects / sums["subjects"].clamp_min(1)
        D = self.template.features
        weight = sums["weight"].clamp_min(SMALL)
        mu = sums["profile"] / weight[:, None]
        between, between_precision = _between(sums, mu, D)
        within = _variance(sums["session_square"], sums["session_excess"], sums["session_weight2"])
        within_precision = 2 * D * sums["session_share2"]
        parts = {
            **self._noise(*sums["noise"], full),
            "log_epsilon": (0.5 * between.log(), full * between_precision),
            "log_sigma": (0.5 * within.log(), full * within_precision),
            "mu": (mu, full * weight[:, None]),
        }
        encodings = {name: _encoding(*part) for name, part in parts.items()}
        return encodings | self.labels.population(sums, full)

    def _noise(self, sessions, total, q, qq, ql, full) -> dict[str, tuple[Tensor, Tensor]]:
        """Log noise over half the log shortness of a session, a line: its height at no shortness, and its slope.

        Estimate and precision of each; a session's own noise is known far better than sessions differ (sd about .3).
        """
        n = sessions.clamp_min(1)
        spread = (qq - q.square() / n).clamp_min(0)
        share = ((ql - q * total / n) / spread.clamp_min(SMALL)).clamp(0.02, 0.98)
        precision = 10 * spread * (share * (1 - share)).square()
        slope = torch.where(spread > SMALL, share.logit(), 0.0)
        shrunk = (slope * precision / (precision + 0.5)).sigmoid()
        return {"log_kappa": ((total - shrunk * q) / n, full * 10 * n), "slope": (slope, full * precision)}


def _encoding(estimate: Tensor, precision: Tensor) -> Encoding:
    """An encoding of a site outside all plates: plate dimensions in front, two constant extras behind."""
    estimate, log_precision = estimate[None, None, None], precision.clamp_min(SMALL).log()[None, None, None]
    return Encoding(estimate, log_precision, log_precision.new_zeros(*log_precision.shape, NetworkPooling.extra))


def _moved(before: Mapping[str, Encoding], after: Mapping[str, Encoding]) -> float:
    """How far the population has moved, in sd's of what is known of it: root mean square, of the worst site."""

    def one(name: str) -> float:
        scaled = (after[name].estimate - before[name].estimate) * (0.5 * after[name].log_precision).exp()
        return float(scaled.square().mean().sqrt())

    return max(one(name) for name in after)


def _between_subjects(s: Summaries, someone: Tensor) -> dict[str, Tensor]:
    """Sums over subjects whose average has variance v about their profile: weights w = 1 / (epsilon^2 + v).

    weight: sum w; profile: sum w average; square, cross, weight2: of w^2 average^2 (mean over features), w^2 average,
    w^2; excess: sum w^2 v, v as `_variances` has it; share2: sum (w epsilon^2)^2.
    """
    prior, precision = 1 / s.between[0], s.subject_precision.clamp_min(SMALL)
    weight = someone[:, None] * prior * precision / (prior + precision)  # (S, K)
    average, (_, _, variance) = s.subject_average, _variances(s)
    return {
        "weight": weight.sum(0),
        "profile": (weight[..., None] * average).sum(0),
        "square": (weight**2 * average.square().mean(-1)).sum(0),
        "cross": (weight[..., None] ** 2 * average).sum(0),
        "weight2": (weight**2).sum(0),
        "excess": (weight**2 * variance).sum(0),
        "share2": (weight * s.between[0]).square().sum(0),
    }


def _between_sessions(s: Summaries) -> dict[str, Tensor]:
    """Sums over the sessions of what tells their variance about their subject, as `_between_subjects` has them.

    A session's average is compared with its subject's, of which it is a part: with one session nothing is learned, and
    the variance stays as it was.
    """
    weight, own, whole = _variances(s)
    leverage = weight / s.subject_precision.clamp_min(SMALL)[:, None]
    square = (s.average - s.subject_average[:, None]).square().mean(-1)
    return {
        "session_square": (weight**2 * square).sum((0, 1)),
        "session_weight2": (weight**2).sum((0, 1)),
        "session_excess": (weight**2 * (own - whole[:, None])).sum((0, 1)),
        "session_share2": ((weight * s.between[1]).square() * (1 - leverage).clamp_min(0)).sum((0, 1)),
    }


def _variances(s: Summaries) -> tuple[Float[Tensor, "S T K"], Float[Tensor, "S T K"], Float[Tensor, "S K"]]:
    """Weights of sessions in their subject's average, the noise variance of each, and the variance of that average.

    An average with weights r has the variance noise^2 sum r^2 / (sum r)^2, less than noise^2 / count by its ambiguity.
    By the noise that was assumed when the subject's average was taken: weights must be those of that average, or a
    subject's only session would differ from its subject and seem to tell how sessions vary.
    """
    own, precision = (s.count / s.assumed[..., None] ** 2).clamp_min(SMALL), s.subject_precision.clamp_min(SMALL)
    weight = (s.observations > 0)[..., None] / (s.between[1] + 1 / own)
    less = s.ambiguity / own
    whole = 1 / precision - ((weight / precision[:, None]).square() * less).sum(1)
    return weight, 1 / own - less, whole


def _between(sums: Mapping[str, Tensor], mu: Tensor, features: int) -> tuple[Tensor, Tensor]:
    """Variance between subjects, and the precision of its logarithm's half.

    One step of Fisher scoring on the averages' likelihood; the squares are about a mean of the same subjects.
    """
    square = sums["square"] - 2 * (mu * sums["cross"]).mean(-1) + sums["weight2"] * mu.square().mean(-1)
    subjects = sums["subjects"]
    square = square.clamp_min(0) * subjects / (subjects - 1).clamp_min(1)
    return _variance(square, sums["excess"], sums["weight2"]), 2 * features * sums["share2"]


def _variance(square: Tensor, excess: Tensor, weight: Tensor) -> Tensor:
    """A component of variance from weighted squares, less what else is in them; never less than a small share."""
    weight = weight.clamp_min(SMALL**2)
    return torch.maximum((square - excess) / weight, LEAST * square / weight).clamp_min(SMALL)


def _pool(observed, assignment, labels, mu, between, session, noise) -> Summaries:
    """One pooling: averages by network, then means and variances of session and subject profiles, then the noise."""
    D, present = observed.x.shape[-1], observed.mask.any(-1)[..., None]  # (S, T, 1)
    weight = torch.where(observed.mask[..., None], assignment, 0.0)  # (S, T, V, K)
    count = weight.sum(2)
    average = weight.mT @ observed.x / count.clamp_min(SMALL)[..., None]
    square = torch.linalg.vector_norm(weight, dim=2).square()  # no temporary as large as weight
    ambiguity = (count - square).clamp_min(0) / count.clamp_min(SMALL)
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
    found = torch.where(present[..., 0], (residual / observations.clamp_min(1)).clamp_min(SMALL).sqrt(), noise)
    return Summaries(
        assignment,
        count,
        average,
        found,
        noise,
        observations,
        ambiguity,
        subject_average,
        precision,
        subject,
        (profile, variance),
        between,
        labels,
    )
