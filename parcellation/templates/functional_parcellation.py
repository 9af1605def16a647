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

z is summed out exactly:  log p(x | .) = logsumexp_k( log pi_k + sum_t log Normal(x_t; mu_session_tk, kappa_session_t))
It is shared by a subject's sessions, so this sum does not add over sessions and the session plate may not be reduced.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.plates import Observed, Site, Template, Values

LOG_KAPPA = (-0.3, 1.0)  # features have mean square 1, so the noise of one observation is near or below 1
LOG_SCALES = (-2.0, 1.5)  # differences between people: anywhere from invisible to as large as the signal
SLOPE = (0.0, 1.5)  # logit scale: close to uniform on (0, 1)
SESSION_NOISE = 0.3  # sessions of equal length differ in noise by about a third
MAP_SD = 2.5  # per contrast: networks of a prior map reach a mean largest share of .86 / .65 / .54 for K = 2 / 7 / 17


class FunctionalParcellation(Template):
    """The template for K networks and D features over V vertices.

    reference: fingerprints that name the networks, shape (K, D), in the units of the features (mean square 1);
    frames_reference: frames of a run of reference length.
    """

    plates = ("subject", "session", "vertex")
    reducible = frozenset({"subject", "vertex"})
    likelihood_only = frozenset({"vertex"})
    encoder = "network_pooling"

    def __init__(self, reference: Float[Tensor, "K D"], frames_reference: float):
        self.reference, self.frames_reference = reference, frames_reference
        K, D = reference.shape
        self.networks, self.features = K, D
        self.basis = contrast_basis(K)
        self.spread = float((reference - reference.mean(0)).square().mean().sqrt().clamp_min(1e-3))
        self.sites = (
            Site("log_kappa", (), (), lambda v, o: _normal(o, LOG_KAPPA, ())),
            Site("slope", (), (), lambda v, o: _normal(o, SLOPE, ())),
            Site("log_epsilon", (), (K,), lambda v, o: _normal(o, LOG_SCALES, (K,))),
            Site("log_sigma", (), (K,), lambda v, o: _normal(o, LOG_SCALES, (K,))),
            Site("mu", (), (K, D), self._mu),
            Site("logits_group", ("vertex",), (K - 1,), lambda v, o: _normal(o, (0.0, MAP_SD), (K - 1,))),
            Site("log_kappa_session", ("subject", "session"), (), self._log_kappa_session),
            Site("mu_subject", ("subject",), (K, D), lambda v, o: (v["mu"], v["log_epsilon"].exp()[..., None])),
            Site("mu_session", ("subject", "session"), (K, D), self._mu_session),
        )

    def hyperparameters(self) -> dict:
        """Constructor arguments."""
        return dict(reference=self.reference, frames_reference=self.frames_reference)

    def _mu(self, values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        reference = self.reference.to(observed.x)[None, None, None]
        return reference, torch.full_like(reference, self.spread)

    def _mu_session(self, values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        return values["mu_subject"], values["log_sigma"].exp()[..., None]

    def _log_kappa_session(self, values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        shortness = (self.frames_reference / observed.covariates["frames"].clamp_min(1)).log()
        mean = values["log_kappa"] + 0.5 * values["slope"].sigmoid() * shortness
        return mean, torch.full_like(mean, SESSION_NOISE)

    def log_map(self, values: Values) -> Float[Tensor, "*draws 1 1 V K"]:
        """Log probability of every network in the population, shape (*draws, 1, 1, V, K)."""
        contrasts = values["logits_group"]
        return (contrasts @ self.basis.to(contrasts)).log_softmax(-1)

    def log_joint(
        self, values: Values, observed: Observed, power: Tensor | float = 1.0
    ) -> Float[Tensor, "*draws S 1 V K"]:
        """log p(z = k, x | all other sites): shape (*draws, S, 1, V, K); masked observations count 0.

        power <= 1, a number or (S, 1, V), tempers what the data say about a label *inside* the sum over labels, for
        observations whose features are not as independent as the model takes them to be (see `label_power`).
        """
        evidence = self.log_emission(values["mu_session"], values["log_kappa_session"], observed)
        return self.log_map(values) + (evidence * power[..., None] if torch.is_tensor(power) else evidence * power)

    def log_emission(
        self, profiles: Float[Tensor, "*draws S T 1 K D"], log_kappa: Float[Tensor, "*draws S T 1"], observed: Observed
    ) -> Float[Tensor, "*draws S 1 V K"]:
        """log p(x | z = k, profiles, noise), summed over sessions: shape (*draws, S, 1, V, K).

        profiles: (*draws, S, T, 1, K, D); log_kappa: (*draws, S, T, 1). Sessions are added one by one, so that a
        session without data adds exactly nothing.
        """
        total = None
        for t in range(observed.x.shape[1]):
            one = self._session(profiles, log_kappa, observed, t)
            total = one if total is None else total + one
        return total

    def _session(self, profiles: Tensor, log_kappa: Tensor, observed: Observed, t: int) -> Tensor:
        x, mask = observed.x[:, t], observed.mask[:, t, :, None]  # (S, V, D), (S, V, 1)
        m = profiles[..., min(t, profiles.shape[-4] - 1), 0, :, :]  # (*draws, S, K, D)
        log_sd = log_kappa[..., min(t, log_kappa.shape[-2] - 1), :, None]  # (*draws, S, 1, 1)
        square = observed.squares[:, t, :, None] - 2 * (m @ x.mT).mT + m.square().sum(-1).unsqueeze(-2)
        density = -0.5 * square * (-2 * log_sd).exp() - self.features * (log_sd + 0.5 * math.log(2 * math.pi))
        return torch.where(mask, density, 0.0).unsqueeze(-3)  # (*draws, S, 1, V, K)

    def log_likelihood(self, values: Values, observed: Observed) -> Float[Tensor, "*draws S 1 V"]:
        """log p(x | sites) with the label summed out, shape (*draws, S, 1, V); a vertex without data contributes 0."""
        seen = observed.mask.any(1, keepdim=True)
        return torch.where(seen, self.log_joint(values, observed).logsumexp(-1), 0.0)


def contrast_basis(networks: int) -> Float[Tensor, "{networks}-1 {networks}"]:
    """Orthonormal contrasts of K networks (Helmert), shape (K-1, K), float64: a prior on them treats networks alike."""
    K = networks
    basis = torch.tril(torch.ones(K, K, dtype=torch.float64), -1)[1:]
    basis[torch.arange(K - 1), torch.arange(1, K)] = -torch.arange(1, K, dtype=torch.float64)
    return basis / basis.norm(dim=1, keepdim=True)


def _normal(observed: Observed, prior: tuple[float, float], event: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    shape = (1, 1, 1) + event
    return observed.x.new_full(shape, prior[0]), observed.x.new_full(shape, prior[1])


TEMPLATE = FunctionalParcellation
