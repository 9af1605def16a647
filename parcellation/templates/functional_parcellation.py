"""Functional parcellation: networks' fingerprints vary over subjects and sessions, labels over vertices and subjects.

Plates: subject (S), session (T), vertex (V). K networks, D features; all sites are Normal given their parents:

    log_kappa          log sd of an observation around its network's fingerprint, for a run of reference length
    slope              logit of the share of noise variance that falls with the number of frames, in (0, 1)
    log_epsilon[k]     log sd between subjects;  log_sigma[k]  log sd between sessions of a subject
    mu[k]              population fingerprint, anchored at reference[k]
    logits_group[v]    population map, K-1 contrasts
    log_kappa_session  Normal(log_kappa + slope/2 log(frames_reference / frames), 0.3)
    mu_subject[k]      Normal(mu[k], epsilon[k]);  mu_session[k]  Normal(mu_subject[k], sigma[k])
    z                  Categorical(softmax(logits_group)), one label per subject and vertex, shared by the sessions
    x                  Normal(mu_session[z], kappa_session)

With modes of the region, the map is smooth and subjects may deviate from it smoothly (`topography`).

z is summed out exactly:  log p(x | .) = logsumexp_k( log pi_k + sum_t log Normal(x_t; mu_session_tk, kappa_session_t))
It is shared by a subject's sessions, so this sum does not add over sessions and the session plate may not be reduced.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from parcellation.networks import (
    Scorer,
    add_evidence,
    constant,
    contrast_basis,
    heavy_tailed,
    population_profiles,
    profile_spread,
    session_density,
    session_profiles,
    session_square,
    weighted_sessions,
)
from parcellation.plates import Batch, Noise, Observed, Site, Template, Values
from parcellation.shares import log_shares, log_total
from parcellation.topography import Topography

MAP_SD = 2.5  # per contrast: networks of a prior map reach a mean largest share of .86 / .65 / .54 for K = 2 / 7 / 17


class FunctionalParcellation(Template):
    """The template for K networks and D features over V vertices.

    reference: fingerprints that name the networks, shape (K, D), in the units of the features (mean square 1);
    frames_reference: frames of a run of reference length; phi (V, J), eigenvalues (J,), decay, deviations: modes of the
    region for a smooth map, and whether subjects deviate, as in `topography`; none if unset.
    """

    plates = ("subject", "session", "vertex")
    reducible = frozenset({"subject", "vertex"})
    likelihood_only = frozenset({"vertex"})
    encoder = "network_pooling"

    def __init__(
        self,
        reference: Float[Tensor, "K D"],
        frames_reference: float,
        phi: Float[Tensor, "V J"] | None = None,
        eigenvalues: Float[Tensor, " J"] | None = None,
        decay: float = 1.0,
        deviations: bool = False,
    ):
        self.reference, self.frames_reference = reference, frames_reference
        K, D = reference.shape
        self.networks, self.features = K, D
        self.basis = contrast_basis(K).to(reference.device)
        self.spread, self.map_sd = profile_spread(reference), MAP_SD
        self.topography = None if phi is None else Topography(phi, eigenvalues, decay, deviations)
        layout, own = self._layout(K - 1)
        self.sites = (*population_profiles(reference), *layout, *session_profiles(K, D, frames_reference), *own)

    def _layout(self, contrasts: int) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
        """Sites of the population's map, and of subjects' deviations from it."""
        smooth, prior = self.topography, ((0.0, MAP_SD), (contrasts,))
        if smooth is None:
            site = Site("logits_group", ("vertex",), (contrasts,), lambda v, o: constant(o, *prior))
            return (site,), ()
        return (*smooth.group_sites(contrasts), *smooth.subject_spectrum()), smooth.subject_sites(contrasts)

    def hyperparameters(self) -> dict:
        """Constructor arguments."""
        plain, smooth = dict(reference=self.reference, frames_reference=self.frames_reference), self.topography
        if smooth is None:
            return plain
        return plain | dict(
            phi=smooth.phi, eigenvalues=smooth.eigenvalues, decay=smooth.decay, deviations=smooth.subjects
        )

    @property
    def deviations(self) -> bool:
        """Whether subjects deviate from the population's map by sites of their own."""
        return self.topography is not None and self.topography.subjects

    def log_map(self, values: Values) -> Float[Tensor, "*draws 1 1 V K"]:
        """Log probability of every network in the population, shape (*draws, 1, 1, V, K): a mean over its subjects."""
        contrasts = values["logits_group"]
        if self.deviations:
            return self.topography.mean_log_map(contrasts, values["spectrum_subject"], self.basis)
        return log_shares(contrasts @ self.basis.to(contrasts))

    def log_labels(self, values: Values, observed: Observed) -> Float[Tensor, "*draws S 1 V K"]:
        """Log probability of every label in these subjects, given their deviations, shape (*draws, S or 1, 1, V, K)."""
        if not self.deviations:
            return self.log_map(values)
        logits = values["logits_group"] + self.topography.field(values["topography"], observed)
        return log_shares(logits @ self.basis.to(logits))

    def reduce(self, batch: Batch, index: Mapping[str, Tensor]) -> Batch:
        """As any template; which vertices are scored is a covariate, for modes to be found by."""
        reduced = super().reduce(batch, index)
        if self.topography is None or "vertex" not in index:
            return reduced
        scored, place = reduced.scored, reduced.index["vertex"][None, None].to(reduced.scored.x)
        return replace(reduced, scored=replace(scored, covariates={**scored.covariates, "vertex": place}))

    def log_joint(
        self, values: Values, observed: Observed, power: Tensor | float = 1.0, tail: float | None = None
    ) -> Float[Tensor, "*draws S 1 V K"]:
        """log p(z = k, x | all other sites): shape (*draws, S, 1, V, K); masked observations count 0.

        power <= 1, a number or (S, 1, V), tempers what the data say about a label *inside* the sum over labels, for
        observations whose features are not as independent as the model takes them to be (see `label_power`). With a
        tail the evidence of each session is `heavy_tailed`, and known up to a constant of each vertex.
        """
        power = power[..., None] if torch.is_tensor(power) else power
        profiles, log_kappa = values["mu_session"], values["log_kappa_session"]
        if tail is None:
            return self.log_labels(values, observed) + power * self.log_emission(profiles, log_kappa, observed)
        squares = (session_square(profiles, log_kappa, observed, t) for t in range(observed.x.shape[1]))
        return self.log_labels(values, observed) + sum(heavy_tailed(square, power, tail) for square in squares)

    def scorer(self, observed: Observed, power: Tensor | float = 1.0, tail: float | None = None) -> Scorer:
        """A function of values: `log_joint` of these data up to a constant of each vertex, which no probability needs.

        Of many values it is much cheaper. Its log_map, (V, K), takes the place of the population's.
        """
        if tail is None:
            sessions = weighted_sessions(observed, power)
        weight = power[..., None] if torch.is_tensor(power) else power

        def scores(values: Values, log_map: Tensor | None = None) -> Float[Tensor, "*draws S 1 V K"]:
            profiles, log_kappa = values["mu_session"], values["log_kappa_session"]
            total = self._logits(values, observed) if log_map is None else log_map.to(observed.x).mT[None]
            if tail is None:
                return add_evidence(total, profiles, log_kappa, sessions).mT.unsqueeze(-3)
            squares = (session_square(profiles, log_kappa, observed, t) for t in range(observed.x.shape[1]))
            return total.mT.unsqueeze(-3) + sum(heavy_tailed(square, weight, tail) for square in squares)

        return scores

    def _logits(self, values: Values, observed: Observed) -> Float[Tensor, "*draws S K V"]:
        """Log probabilities of labels up to a constant of each vertex, shape (*draws, S or 1, K, V)."""
        contrasts = values["logits_group"]
        if self.deviations:
            contrasts = contrasts + self.topography.field(values["topography"], observed)
        return self.basis.to(contrasts).mT @ contrasts.squeeze(-3).mT

    def log_emission(
        self,
        profiles: Float[Tensor, "*draws #S #T 1 K D"],
        log_kappa: Float[Tensor, "*draws #S #T 1"],
        observed: Observed,
    ) -> Float[Tensor, "*draws S 1 V K"]:
        """log p(x | z = k, profiles, noise), summed over sessions: shape (*draws, S, 1, V, K).

        profiles: (*draws, S, T, 1, K, D); log_kappa: (*draws, S, T, 1). Sessions are added one by one, so that a
        session without data adds exactly nothing.
        """
        total = None
        for t in range(observed.x.shape[1]):
            one = session_density(profiles, log_kappa, observed, t)
            total = one if total is None else total + one
        return total

    def log_likelihood(self, values: Values, observed: Observed) -> Float[Tensor, "*draws S 1 V"]:
        """log p(x | sites) with the label summed out, shape (*draws, S, 1, V); a vertex without data contributes 0."""
        seen = observed.mask.any(1, keepdim=True)
        return torch.where(seen, log_total(self.log_joint(values, observed)), 0.0)

    def labels(self, values: Values, blank: Observed, noise: Noise) -> Int[Tensor, "S 1 V"]:
        """Labels drawn from every subject's map, one for every subject and vertex, shape (S, 1, V)."""
        uniform = torch.special.ndtr(noise("z", (blank.mask.shape[0], 1, blank.mask.shape[2])))
        steps = self.log_labels(values, blank).exp().cumsum(-1)[..., :-1]
        return (uniform[..., None] > steps).sum(-1)

    def observations(self, values: Values, blank: Observed, noise: Noise) -> Observed:
        """Fingerprints about those of each vertex's label, which is drawn first: no site holds it."""
        labels, D = self.labels(values, blank, noise), self.features
        profiles = values["mu_session"].expand(*blank.mask.shape[:2], 1, -1, -1)[:, :, 0]  # (S, T, K, D)
        at = labels[..., None].expand(*blank.mask.shape, D)
        x = profiles.gather(2, at) + values["log_kappa_session"].exp()[..., None] * noise("x", (*blank.mask.shape, D))
        return Observed(x * blank.mask[..., None], blank.mask, blank.covariates)


TEMPLATE = FunctionalParcellation
