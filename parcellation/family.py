"""The variational family: q(theta | x) = product over sites of a shared conditional flow, one encoding per variable.

A site's encodings are either *free* (PAVI-F: a row of parameters per ground variable) or *encoded* (PAVI-E: a function
of the data). The hybrid frees the population's sites, so that the objective stays an evidence lower bound, and encodes
those of subjects and sessions, so that a new subject needs no training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

import parcellation.recognition  # noqa: F401  an encoder of its own file, by name
from parcellation.encoders import Encoding, encoder_class
from parcellation.errors import UsageError
from parcellation.flows import make_flow, pushforward
from parcellation.plates import Batch, Noise, Observed, Site, Template, Values


def scheme_sites(template: Template, scheme: str) -> dict[str, str]:
    """`free` or `encoded` for every site, from a scheme: free (PAVI-F), encoded (PAVI-E) or hybrid."""
    population = {site.name for site in template.population_sites()}
    if scheme == "hybrid":
        return {site.name: "free" if site.name in population else "encoded" for site in template.sites}
    if scheme not in ("free", "encoded"):
        raise UsageError(f"model.scheme: expected free, encoded or hybrid, got {scheme!r}")
    return {site.name: scheme for site in template.sites}


class FreeEncoding(nn.Module):
    """One row of encoding parameters per ground variable of a site.

    Rows of the outermost plate are visited rarely, so their gradient is sparse: an unvisited row must not move.
    """

    def __init__(self, template: Template, site: Site, cards: Mapping[str, int], extra: int):
        super().__init__()
        self.plates, self.event, self.extra = template.plates, site.event, extra
        self.sizes = tuple(cards[plate] if plate in site.plates else 1 for plate in template.plates)
        self.sparse = template.unit_plate in site.plates
        rows, width = int(torch.tensor(self.sizes).prod()), max(1, int(torch.tensor(self.event).prod()))
        self.rows = nn.Embedding(rows, 2 * width, sparse=self.sparse)
        nn.init.zeros_(self.rows.weight)

    def forward(self, index: Mapping[str, Tensor]) -> Encoding:
        """Encodings at the given positions of some plates; all positions of the others."""
        device = self.rows.weight.device
        place = torch.zeros((), dtype=torch.long, device=device)
        for plate, size in zip(self.plates, self.sizes, strict=True):
            positions = torch.arange(size, device=device) if size == 1 or plate not in index else index[plate]
            place = (place * size)[..., None] + positions
        table = self.rows(place).unflatten(-1, (2,) + self.event)
        estimate, log_precision = table.unbind(len(self.sizes))
        return Encoding(estimate, log_precision, estimate.new_zeros(*estimate.shape, self.extra))

    @torch.no_grad()
    def set(self, encoding: Encoding) -> None:
        """Start from this encoding at every ground variable."""
        shape = self.sizes + self.event
        both = [
            part.expand(shape).reshape(self.rows.num_embeddings, -1)
            for part in (encoding.estimate, encoding.log_precision)
        ]
        self.rows.weight.copy_(torch.cat(both, -1))


@dataclass(frozen=True)
class Draw:
    """Values of sites drawn from q, and the log density of each, summed over the event: shape (*draws, *plates)."""

    values: dict[str, Tensor]
    log_q: dict[str, Tensor]


class Family(nn.Module):
    """q for one template grounded at the full cardinalities `cards`.

    flow: name of the flow of every site, or a mapping from site to name; by default `centred` for free sites on the
    outermost plate, whose rows are visited rarely, and `precision` for the others.
    """

    def __init__(
        self,
        template: Template,
        cards: Mapping[str, int],
        scheme: str = "hybrid",
        flow: str | Mapping[str, str] | None = None,
        encoder: str | None = None,
        **encoder_settings,
    ):
        super().__init__()
        self.settings = dict(cards=dict(cards), scheme=scheme, flow=flow, encoder=encoder, **encoder_settings)
        self.template, self.cards, self.schemes = template, dict(cards), scheme_sites(template, scheme)
        self.generative = template.generative
        encoded = [site for site in template.sites if self.schemes[site.name] == "encoded"]
        build = encoder_class(encoder or template.encoder)
        self.encoder = build(template, encoded, **encoder_settings) if encoded else None
        self.fixed: dict[str, Encoding] = {}  # encoded population sites, settled once training has ended
        names = self._default_flows() if flow is None else flow
        names = {site.name: names if isinstance(names, str) else names[site.name] for site in template.sites}
        self.flows = nn.ModuleDict({name: make_flow(kind, build.extra) for name, kind in names.items()})
        self.free = nn.ModuleDict(
            {
                site.name: FreeEncoding(template, site, cards, build.extra)
                for site in template.sites
                if self.schemes[site.name] == "free"
            }
        )

    def _apply(self, function, recurse=True):
        """Settled encodings move with the weights."""
        self.fixed = {name: encoding.map(function) for name, encoding in self.fixed.items()}
        return super()._apply(function, recurse)

    def _default_flows(self) -> dict[str, str]:
        unit = self.template.unit_plate
        rare = {s.name for s in self.template.sites if unit in s.plates and self.schemes[s.name] == "free"}
        return {site.name: "centred" if site.name in rare else "precision" for site in self.template.sites}

    def population_encodings(self) -> dict[str, Encoding]:
        """Encodings of the population sites that are part of the model, parents first: free ones, and settled ones."""
        names = [site.name for site in self.template.population_sites()]
        known = {name: self.free[name]({}) for name in names if name in self.free} | self.fixed
        return {name: known[name] for name in names if name in known}

    @torch.no_grad()
    def centre(self, observed: Observed) -> dict[str, Tensor]:
        """Medians of the population sites that are part of the model: what encoders measure new data against."""
        return self._medians(self.population_encodings(), observed)[0]

    def _medians(self, encodings: Mapping[str, Encoding], observed: Observed) -> tuple[dict, dict[str, Encoding]]:
        """Medians of these sites with the parents at theirs, and the encodings, those of centred flows with centres."""
        medians, centred = {}, {}
        for name, encoding in encodings.items():
            mean, sd = self.template.site(name).prior(medians, observed)
            centred[name] = replace(encoding, centre=mean) if self.flows[name].centred else encoding
            medians[name] = self.flows[name](centred[name], mean, sd)(mean)
        return medians, centred

    def encodings(self, batch: Batch) -> dict[str, Encoding]:
        """One encoding per ground variable of every site of the batch."""
        result = {}
        if self.encoder is not None:
            result |= self.encoder(batch, self.centre(batch.seen))
            result = {name: self._scored(name, encoding, batch) for name, encoding in result.items()}
        for name, free in self.free.items():
            result[name] = free(batch.index)
        result |= self.fixed
        if not any(flow.centred for flow in self.flows.values()):
            return result
        return self._medians({site.name: result[site.name] for site in self.template.sites}, batch.scored)[1]

    def answers(self, observations: Mapping[str, Encoding], observed: Observed) -> dict[str, Encoding]:
        """Encodings for the rows of free sites, parents first, from noisy observations of their ground variables.

        A row of a centred flow holds the posterior's median instead of the observation.
        """
        medians, answers = {}, dict(observations)
        for name, seen in observations.items():
            mean, sd = self.template.site(name).prior(medians, observed)
            share = (seen.log_precision + 2 * sd.log()).sigmoid()
            medians[name] = mean + share * (seen.estimate - mean)
            if self.flows[name].centred:
                answers[name] = replace(seen, estimate=medians[name])
        return answers

    def draw_population(self, observed: Observed, noise: Noise, draws: int) -> dict[str, Tensor]:
        """Draws of the population sites, shape (draws, *plates, *event), with the outermost plate of size 1."""
        values: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, encoding in self._medians(self.population_encodings(), observed)[1].items():
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
                transform = functional_call(flow, _detached(flow), (encoding.detach(), mean, sd))
            density = pushforward(transform, mean, sd).log_prob(values[site.name])
            log_q[site.name] = density.sum(tuple(range(-len(site.event), 0))) if site.event else density
        return Draw(values, log_q)


def _detached(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}
