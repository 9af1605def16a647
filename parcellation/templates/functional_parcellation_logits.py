"""Functional parcellation with a label vector of its own for every subject and vertex, as in the PAVI paper.

All as in `functional_parcellation`, but labels are drawn anew in each session, from logits that are the subject's own:

    log_tau               log sd between subjects of a vertex's logits
    label_logits[s, v]    Normal(logits_group[v], tau), K-1 contrasts
    z[s, t, v]            Categorical(softmax(label_logits[s, v]))
    x[s, t, v]            Normal(mu_session[z], kappa_session)

z is summed out exactly, in each session by itself:

    log p(x | .) = sum_t logsumexp_k( log pi_k + log Normal(x_t; mu_session_tk, kappa_session_t))

so every plate may be reduced in the likelihood; encoders must still see all sessions and vertices of a subject. What a
subject's map shows is the label in the sessions at hand, p(z_t | x) averaged over them; softmax(label_logits) is the
label in another session of this person.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.networks import (
    Scorer,
    constant,
    contrast_basis,
    population_profiles,
    profile_spread,
    session_density,
    session_profiles,
)
from parcellation.plates import Observed, Site, Template, Values
from parcellation.shares import log_shares, log_total

MAP_SD = 2.5  # per contrast, as in `functional_parcellation`
LOG_TAU = (0.0, 1.0)  # people's logits differ by about one, within a factor of e


class FunctionalParcellationLogits(Template):
    """The template for K networks and D features over V vertices.

    reference: fingerprints that name the networks, shape (K, D), in the units of the features (mean square 1);
    frames_reference: frames of a run of reference length.
    """

    plates = ("subject", "session", "vertex")
    reducible = frozenset({"subject", "session", "vertex"})
    likelihood_only = frozenset({"session", "vertex"})
    encoder = "network_pooling"

    def __init__(self, reference: Float[Tensor, "K D"], frames_reference: float):
        self.reference, self.frames_reference = reference, frames_reference
        K, D = reference.shape
        self.networks, self.features = K, D
        self.basis = contrast_basis(K)
        self.spread, self.map_sd = profile_spread(reference), MAP_SD
        self.sites = (
            *population_profiles(reference),
            Site("logits_group", ("vertex",), (K - 1,), lambda v, o: constant(o, (0.0, MAP_SD), (K - 1,))),
            Site("log_tau", (), (), lambda v, o: constant(o, LOG_TAU, ())),
            *session_profiles(K, D, frames_reference),
            Site("label_logits", ("subject", "vertex"), (K - 1,), _own_logits),
        )

    def hyperparameters(self) -> dict:
        """Constructor arguments."""
        return dict(reference=self.reference, frames_reference=self.frames_reference)

    def log_map(self, values: Values) -> Float[Tensor, "*draws 1 1 V K"]:
        """Log probability of every network over the population's people, shape (*draws, 1, 1, V, K).

        The mean of softmax over Normal(logits_group, tau), with logits shrunk by 1 / sqrt(1 + pi/8 variance of their
        difference) (MacKay 1992), within about .01 for two networks.
        """
        variance = 2 * (2 * values["log_tau"]).exp()[..., None]
        shrunk = values["logits_group"] / (1 + math.pi / 8 * variance).sqrt()
        return log_shares(shrunk @ self.basis.to(shrunk))

    def log_labels(self, values: Values) -> Float[Tensor, "*draws S 1 V K"]:
        """Log probability of every label in a session of these subjects, shape (*draws, S, 1, V, K)."""
        logits = values["label_logits"]
        return log_shares(logits @ self.basis.to(logits))

    def log_joint(
        self, values: Values, observed: Observed, power: Tensor | float = 1.0
    ) -> Float[Tensor, "*draws S 1 V K"]:
        """log p(z_t = k | x_t, sites), the mean probability over the sessions at hand: (*draws, S, 1, V, K).

        A vertex that no session saw has the label of any session, softmax(label_logits). power tempers the evidence of
        a session beyond what the logits hold of it.
        """
        evidence = self.log_emission(values["mu_session"], values["log_kappa_session"], observed)
        evidence = evidence * power[..., None] if torch.is_tensor(power) else evidence * power
        own = log_shares(self.log_labels(values) + evidence)
        seen = observed.mask | ~observed.mask.any(1, keepdim=True)
        total = torch.where(seen[..., None], own, -torch.inf).logsumexp(-3, keepdim=True)
        return total - seen.sum(1, keepdim=True)[..., None].log()

    def scorer(self, observed: Observed, power: Tensor | float = 1.0) -> Scorer:
        """A function of values: `log_joint` of these data."""
        return lambda values: self.log_joint(values, observed, power)

    def log_emission(
        self, profiles: Float[Tensor, "*draws S T 1 K D"], log_kappa: Float[Tensor, "*draws S T 1"], observed: Observed
    ) -> Float[Tensor, "*draws S T V K"]:
        """log p(x | z = k, profiles, noise) of every session, shape (*draws, S, T, V, K); 0 where masked."""
        sessions = range(observed.x.shape[1])
        return torch.cat([session_density(profiles, log_kappa, observed, t) for t in sessions], -3)

    def log_likelihood(self, values: Values, observed: Observed) -> Float[Tensor, "*draws S T V"]:
        """log p(x | sites) with labels summed out, shape (*draws, S, T, V); a masked observation contributes 0."""
        evidence = self.log_emission(values["mu_session"], values["log_kappa_session"], observed)
        return torch.where(observed.mask, log_total(self.log_labels(values) + evidence), 0.0)


def _own_logits(values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
    return values["logits_group"], values["log_tau"].exp()[..., None].expand_as(values["logits_group"])


TEMPLATE = FunctionalParcellationLogits
