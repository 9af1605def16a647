"""Synthetic three-plate cohort (subject, session, vertex), the field's benchmark for individual parcellation.

    mu_l             ~ N(0, 1)            group network profiles, l = 1..L
    mu_{s,l}         ~ N(mu_l, sd_sub^2)
    mu_{s,t,l}       ~ N(mu_{s,l}, sd_ses^2)
    logits_{s,v}     = group_logits_v + N(0, 1), independent per subject, vertex, network
    z_{s,v}          ~ Categorical(softmax(logits_{s,v}))
    X_{s,t,v}        ~ N(mu_{s,t,z}, noise^2)

Vertices sit on a 40 x 30 sheet; the group logits vary smoothly from anterior to posterior. Draws are in the order of
the script that the rivals were measured with, so that equal seeds give equal cohorts.
"""

import numpy as np


def make(
    S=220, T=2, nx=40, ny=30, D=100, L=2, sd_sub=0.3, sd_ses=0.2, noise=1.5, amp=3.0, sd_logit=1.0, seed=0,
    map_seed=None, profiles=None,
):  # fmt: skip
    """A cohort: X (S, T, V, D) float32, z (S, V), group_logits (V, L), profiles mu_* and the settings of its noise.

    map_seed: the group's map lies along another direction, with another wave across it, drawn from this seed; profiles:
    group profiles (L, D) of another cohort, in place of this seed's own.
    """
    r = np.random.default_rng(seed)
    xy = np.stack(np.meshgrid(np.arange(nx), np.arange(ny), indexing="ij"), -1).reshape(-1, 2)
    # Smooth along the first axis, with a slow wave across the other, so that the border is curved.
    phase = xy[:, 0] / (nx - 1) - 0.5 + 0.08 * np.sin(2 * np.pi * xy[:, 1] / ny)
    if map_seed is not None:
        phase = _other_phase(xy / (nx - 1, ny - 1) - 0.5, np.random.default_rng(map_seed))
    group_logits = _group_logits(phase, L, amp)
    mu = r.normal(size=(L, D))  # drawn either way, so that everything else of a seed is the same
    mu = mu if profiles is None else np.asarray(profiles)
    mu_sub = mu + sd_sub * r.normal(size=(S, L, D))
    mu_ses = mu_sub[:, None] + sd_ses * r.normal(size=(S, T, L, D))
    V = nx * ny
    logits = group_logits + sd_logit * r.normal(size=(S, V, L))
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    z = (r.random((S, V, 1)) > p.cumsum(-1)).sum(-1).clip(0, L - 1)
    X = np.empty((S, T, V, D), np.float32)
    for s in range(S):
        for t in range(T):
            X[s, t] = mu_ses[s, t][z[s]] + noise * r.normal(size=(V, D))
    truth = dict(group_logits=group_logits, mu_group=mu, mu_sub=mu_sub, mu_ses=mu_ses, sd_logit=sd_logit)
    return dict(X=X, z=z, noise=noise, sd_sub=sd_sub, sd_ses=sd_ses, **truth)


def _group_logits(phase: np.ndarray, L: int, amp: float) -> np.ndarray:
    if L == 2:
        return np.stack([amp * 2 * phase * sign * 0.5 * 2 for sign in (-1, 1)], 1)
    return np.stack([-amp * ((phase - centre) * L) ** 2 for centre in np.linspace(-0.5, 0.5, L)], 1)


def _other_phase(xy: np.ndarray, r: np.random.Generator) -> np.ndarray:
    """A phase from -.5 to .5 along a random direction, with a wave across it; xy: (V, 2), each from -.5 to .5."""
    angle, shift = r.uniform(0, 2 * np.pi, 2)
    along = xy @ (np.cos(angle), np.sin(angle))
    across = xy @ (-np.sin(angle), np.cos(angle))
    return along / np.ptp(along) + 0.08 * np.sin(2 * np.pi * across + shift)
