"""The variational family: q(theta | x) = product over sites of a shared conditional flow, one encoding per variable.

A site's encodings are either *free* (PAVI-F: a row of parameters per ground variable) or *encoded* (PAVI-E: a function
of the data). The hybrid frees the population's sites, so that the objective stays an evidence lower bound, and encodes
those of subjects and sessions, so that a new subject needs no training.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributions import Transform
from torch.func import functional_call

import parcellation.recognition
import parcellation.vector_sets  # noqa: F401  encoders in files of their own, by name
from parcellation.encoders import Encoding, encoder_class
from parcellation.errors import UsageError
from parcellation.flows import log_density
from parcellation.free_encoding import FreeEncoding
from parcellation.plates import Batch, Noise, Observed, Site, Template, Values
from parcellation.summary_bank import Pooling, SummaryBank
from parcellation.warped_flows import build_flow


def scheme_sites(template: Template, scheme: str | Mapping[str, str]) -> dict[str, str]:
    """`free` or `encoded` for every site, from a scheme: free (PAVI-F), encoded (PAVI-E) or hybrid.

    A mapping says it of some sites by name; the others are as in the hybrid. Raises UsageError for anything else.
    """
    population = {site.name for site in template.population_sites()}
    hybrid = {site.name: "free" if site.name in population else "encoded" for site in template.sites}
    if isinstance(scheme, Mapping):
        check_sites(template, "model.scheme", scheme)
        if wrong := {kind for kind in scheme.values() if kind not in ("free", "encoded")}:
            raise UsageError(f"model.scheme: expected free or encoded for a site, got {', '.join(map(repr, wrong))}")
        return hybrid | dict(scheme)
    if scheme == "hybrid":
        return hybrid
    if scheme not in ("free", "encoded"):
        raise UsageError(f"model.scheme: expected free, encoded or hybrid, got {scheme!r}")
    return dict.fromkeys(hybrid, scheme)


def check_sites(template: Template, what: str, named: Mapping[str, object]) -> None:
    """Raises UsageError when a mapping names a site that the template does not have."""
    there = [site.name for site in template.sites]
    if unknown := sorted(named.keys() - set(there)):
        raise UsageError(f"{what}: expected sites among {', '.join(there)}, got {', '.join(unknown)}")


@dataclass(frozen=True)
class Draw:
    """Values of sites drawn from q, and the log density of each, summed over the event: shape (*draws, *plates)."""

    values: dict[str, Tensor]
    log_q: dict[str, Tensor]


class Family(nn.Module):
    """q for one template grounded at the full cardinalities `cards`.

    scheme: see `scheme_sites`. flow: name of the flow of every site, or of some sites by theirs; by default `centred`
    for free sites on the outermost plate, whose rows are visited rarely, and `precision` for the others. encoding_size:
    numbers in a free row and in a deep set's encodings, which are then vectors to decode; None for rows that are the
    encodings themselves.
    bank: encode population sites from all members of the outermost plate, as last visited, instead of from the batch
    (see `summary_bank`).
    """

    def __init__(
        self,
        template: Template,
        cards: Mapping[str, int],
        scheme: str | Mapping[str, str] = "hybrid",
        flow: str | Mapping[str, str] | None = None,
        encoder: str | None = None,
        encoding_size: int | None = None,
        bank: bool = False,
        **encoder_settings,
    ):
        super().__init__()
        scheme = scheme if isinstance(scheme, str) else dict(scheme)
        self.settings = dict(cards=dict(cards), scheme=scheme, flow=flow, encoder=encoder, encoding_size=encoding_size)
        self.settings |= ({"bank": True} if bank else {}) | encoder_settings
        self.template, self.cards, self.schemes = template, dict(cards), scheme_sites(template, scheme)
        self.generative = template.generative
        encoded = [site for site in template.sites if self.schemes[site.name] == "encoded"]
        chosen = encoder or template.encoder
        if chosen == "deep_set" and encoding_size is not None:
            chosen, encoder_settings = "vector_set", {"size": encoding_size, **encoder_settings}
        build = encoder_class(chosen)
        self.encoder = build(template, encoded, **encoder_settings) if encoded else None
        self.bank = self._bank(encoded) if bank else None
        self.fixed: dict[str, Encoding] = {}  # encoded population sites, once they are settled
        extra = build.extras(template)
        free = [site for site in template.sites if self.schemes[site.name] == "free"]
        vectors = {site.name: encoding_size or 0 for site in free}
        if chosen == "vector_set" and self.encoder is not None:
            vectors |= {site.name: self.encoder.size for site in encoded}
        self.flows = self._flows(flow, extra, vectors)
        self.free = nn.ModuleDict(
            {site.name: FreeEncoding(template, site, cards, extra, encoding_size) for site in free}
        )

    def _apply(self, function, recurse=True):
        """Settled encodings move with the weights."""
        self.fixed = {name: encoding.map(function) for name, encoding in self.fixed.items()}
        return super()._apply(function, recurse)

    def _flows(self, chosen: str | Mapping[str, str] | None, extra: int, vectors: Mapping[str, int]) -> nn.ModuleDict:
        """One flow a site; `vectors` says how long the vectors of some sites' encodings are."""
        template, flows = self.template, {}
        if isinstance(chosen, Mapping):
            check_sites(template, "model.flows", chosen)
        for site in template.sites:
            rare = template.unit_plate in site.plates and self.schemes[site.name] == "free"
            kind = chosen if isinstance(chosen, str) else (chosen or {}).get(site.name)
            if site.joint and rare:
                raise UsageError(
                    f"model.scheme: expected {site.name} encoded, as it is told by all vertices together, got it free"
                )
            if site.joint and kind not in (None, "joint") and not isinstance(chosen, str):
                raise UsageError(f"model.flows: {site.name} has a flow of its own, got {kind!r} for it; leave it out")
            kind = "joint" if site.joint else kind or ("centred" if rare else "precision")
            flows[site.name] = build_flow(kind, extra, site.name, site.event, vectors.get(site.name, 0), rare)
        return nn.ModuleDict(flows)

    def _bank(self, encoded: list[Site]) -> SummaryBank:
        population = [site for site in encoded if self.template.unit_plate not in site.plates]
        if not population:
            raise UsageError("model.bank: expected encoded population sites, of which alone there are summaries")
        if not isinstance(self.encoder, Pooling):
            kind = type(self.encoder).__name__
            raise UsageError(f"model.bank: {kind} has no weights to train for the population: settle it beforehand")
        return SummaryBank(self.template, population, self.cards, self.encoder.channels)

    def visit(self, batch: Batch) -> None:
        """Put these members of the outermost plate into the bank; the next encodings have a gradient through them."""
        self.bank.visit(batch.index[self.template.unit_plate], self.encoder.members(batch))

    def population_encodings(self) -> dict[str, Encoding]:
        """Encodings of the population sites that are part of the model, parents first: free ones, and settled ones."""
        names = [site.name for site in self.template.population_sites()]
        known = {name: self.free[name]({}) for name in names if name in self.free} | self.fixed
        return {name: known[name] for name in names if name in known}

    @torch.no_grad()
    def centre(self, observed: Observed) -> dict[str, Tensor]:
        """Medians of the population sites that are part of the model: what encoders measure new data against."""
        return self.medians(self.population_encodings(), observed)[0]

    def medians(self, encodings: Mapping[str, Encoding], observed: Observed) -> tuple[dict, dict[str, Encoding]]:
        """Medians of these sites, parents at theirs, and the encodings, those of centred flows with centres."""
        medians, centred = {}, {}
        for name, encoding in encodings.items():
            mean, sd = self.template.site(name).prior(medians, observed)
            centred[name] = replace(encoding, centre=mean) if self.flows[name].centred else encoding
            medians[name] = self.flows[name](centred[name], mean, sd)(mean.expand(encoding.estimate.shape))
        return medians, centred

    def encodings(self, batch: Batch, centre: Values | None = None) -> dict[str, Encoding]:
        """One encoding per ground variable of every site of the batch; centre: `centre`, where it is known already."""
        result = {}
        if self.encoder is not None:
            result |= self.encoder(batch, self.centre(batch.seen) if centre is None else centre)
            if self.bank is not None and self.template.unit_plate in batch.index:
                result |= self.bank.encodings(self.encoder)
            result = {name: self._scored(name, encoding, batch) for name, encoding in result.items()}
        for name, free in self.free.items():
            result[name] = free(batch.index)
        result |= {name: self._scored(name, encoding, batch) for name, encoding in self.fixed.items()}
        if not any(flow.centred for flow in self.flows.values()):
            return result
        return self.medians({site.name: result[site.name] for site in self.template.sites}, batch.scored)[1]

    def answers(self, observations: Mapping[str, Encoding], observed: Observed) -> dict[str, Encoding]:
        """Encodings for the rows of free sites, parents first, from noisy observations of their ground variables.

        A row of a centred flow holds the posterior's median instead of the observation.
        """
        medians, answers = {}, dict(observations)
        for name, seen in observations.items():
            mean, sd = self.template.site(name).prior(medians, observed)
            medians[name] = seen.combined(mean, sd)
            if self.flows[name].centred:
                answers[name] = replace(seen, estimate=medians[name])
        return answers

    def draw_population(self, observed: Observed, noise: Noise, draws: int) -> dict[str, Tensor]:
        """Draws of the population sites, shape (draws, *plates, *event), with the outermost plate of size 1."""
        values: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, encoding in self.medians(self.population_encodings(), observed)[1].items():
                site = self.template.site(name)
                mean, sd = site.prior(values, observed)
                base = mean + sd * noise(name, (draws,) + self.template.shape(site, observed))
                values[name] = self.flows[name](encoding, mean, sd)(base)
        return values

    def _scored(self, name: str, encoding: Encoding, batch: Batch) -> Encoding:
        """Restrict to the scored positions of plates that encoders see whole."""
        site = self.template.site(name)
        for plate in self.template.likelihood_only & batch.index.keys() & set(site.plates):
            d, index = self.template.plates.index(plate), batch.index[plate]
            encoding = encoding.map(
                lambda part, d=d, index=index: part.index_select(d, index) if part.shape[d] > 1 else part
            )
        return encoding

    def draw(
        self,
        batch: Batch,
        noise: Noise,
        encodings: Mapping[str, Encoding] | None = None,
        given: Values | None = None,
        path: bool = True,
        draws: tuple[int, ...] = (),
    ) -> Draw:
        """Draw every site in turn, parents first; sites in `given` keep those values and get no density.

        path: evaluate log q at detached parameters ("sticking the landing", Roeder et al. 2017): the gradient is then
        that of the sampling path alone, unbiased, and without variance where q is exact.
        """
        encodings = self.encodings(batch) if encodings is None else encodings
        values, log_q = dict(given or {}), {}
        for site in self.template.sites:
            if site.name in values:
                continue
            mean, sd = site.prior(values, batch.scored)
            flow, encoding = self.flows[site.name], encodings[site.name]
            transform = flow(encoding, mean, sd)
            base = mean + sd * noise(site.name, draws + self.template.shape(site, batch.scored))
            values[site.name] = transform(base)
            if path:
                transform = _held_call(flow, encoding.detach(), mean, sd)
            log_q[site.name] = log_density(transform, mean, sd, values[site.name], len(site.event))
        return Draw(values, log_q)


def _held_call(flow: nn.Module, *arguments) -> Transform:
    """The flow's transform, without a gradient by the flow's own parameters.

    Where tensors stand in for its parameters (`torch.func`), they cannot be held, and detached ones stand in for them.
    """
    own = dict(flow.named_parameters())
    if all(isinstance(parameter, nn.Parameter) for parameter in own.values()):
        with _held(own.values()):
            return flow(*arguments)
    return functional_call(flow, {name: parameter.detach() for name, parameter in own.items()}, arguments)


@contextlib.contextmanager
def _held(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within this context what is computed has no gradient by these parameters."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
