"""What labels say about a smooth map, about subjects' deviations from it, and about how smooth both are.

Labels z with probabilities softmax(B' eta), eta[v] = logits_group[v] + phi[v] T, and r their posterior. In contrasts

    slope        g = B (r - pi),        certain  C = diag B (diag pi - pi pi') B',     missing as in `label_pooling`

of a vertex's eta; of weights T they are phi' g, phi' diag(C - missing) phi. Contrasts are taken one by one, as a
mean-field posterior does, and modes together. Steps of Newton's method use row sums of the absolute matrix in place of
its diagonal, a bound of it (Gershgorin), and move no vertex by more than `FARTHEST`, so they do not overshoot.

The log sd's of weights are found by Fisher scoring: with mode w, prior variance s^2, posterior variance u and
share = 1 - u / s^2, a weight's log sd has slope w^2 / s^2 - share and information 2 share^2.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.encoding import SMALL, Encoding
from parcellation.label_pooling import LEAST_KNOWN, SessionLabels, SharedLabels, label_pooling, spread
from parcellation.plates import Observed, Template, Values
from parcellation.shares import log_shares, shares

# How much the map is heeded in the steps of the first pass: where it is sure, a patch of vertices that all say
# otherwise, each too weakly to be believed alone, would move nothing. Then in those of a later one.
HEED, SETTLE = (0.0, 0.0, 0.3, 0.6, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)
FARTHEST = 4.0  # that a step moves a vertex's logits by
LEAST = 0.01  # of the prior's precision: information that every weight has
STRIDE = 0.7  # at most, of a log sd in one pass
LARGEST = 8.0  # of an observation's distance to the prior's mean, as in `label_pooling`


class SmoothLabels(SharedLabels):
    """One label per subject and vertex, from a map that is smooth, and that subjects may deviate from smoothly."""

    def __init__(self, template: Template):
        super().__init__(template)
        self.smooth = template.topography

    def start(self, centre: Values, observed: Observed) -> dict[str, Tensor]:
        """The map; where subjects deviate, weights (S, 1, 1, K-1, J) at 0 and their prior sd."""
        group = centre["logits_group"]
        log_map = log_shares(group @ self.template.basis.to(group))
        state = {"log_map": log_map, "group": group}
        state |= {name: centre[name] for name in ("spectrum_group", "log_residual")}
        if self.smooth.subjects:
            _, sd = self.template.site("topography").prior(centre, observed)
            weights = sd.new_zeros(len(observed.x), *sd.shape[1:])
            state |= {"weights": weights, "sd": sd, "spectrum_subject": centre["spectrum_subject"]}
        return state

    def assign(
        self, evidence: Float[Tensor, "S T V K"], labels: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "S 1 V K"], dict[str, Tensor]]:
        """Label probabilities given the evidence of all sessions, and the subjects' weights nearer to their mode."""
        evidence = evidence.sum(1, keepdim=True)
        if not self.smooth.subjects:
            assignment = shares(labels["log_map"] + evidence)
            return assignment, {**labels, "assignment": assignment}
        state = dict(labels)
        for heed in HEED if "assignment" not in labels else SETTLE:
            state = self._at(state, evidence, heed)
            state["weights"] = self._step(state)
        state = self._at(state, evidence)
        return state["assignment"], state

    def _at(self, state: dict[str, Tensor], evidence: Tensor, heed: float = 1.0) -> dict[str, Tensor]:
        """Map and label probabilities of the subjects at these weights, the map heeded so much for labels."""
        logits = state["group"] + self.smooth.field(state["weights"])
        log_map = log_shares(logits @ self.template.basis.to(logits))
        return {**state, "log_map": log_map, "assignment": shares(heed * log_map + evidence)}

    def _step(self, state: Mapping[str, Tensor]) -> Float[Tensor, "S 1 1 C J"]:
        """Weights after one step towards their mode."""
        weights, sd, basis = state["weights"], state["sd"], self.template.basis.to(state["sd"])
        slope = self._slope(state) - weights / sd**2
        share = state["log_map"].exp()
        known = torch.maximum(_bound(share, basis), _bound((share + state["assignment"]) / 2, basis))
        curvature = self._squared(known) + torch.diag_embed(sd**-2)
        step = torch.linalg.solve(curvature, slope)
        farthest = self.smooth.field(step).abs().amax((-2, -1))[..., None, None, None]
        return weights + step * (FARTHEST / farthest.clamp_min(FARTHEST))

    def _slope(self, state: Mapping[str, Tensor]) -> Float[Tensor, "S 1 1 C J"]:
        """Of the log likelihood, by the weights."""
        away = (state["assignment"] - state["log_map"].exp()) @ self.template.basis.to(state["log_map"]).mT
        return (away.mT @ self.smooth.phi.to(away))[:, :, None]

    def _squared(self, known: Float[Tensor, "S 1 V C"]) -> Float[Tensor, "S 1 1 C J J"]:
        """phi' diag(known) phi, contrast by contrast."""
        phi = self.smooth.phi.to(known)
        products = (phi[:, :, None] * phi[:, None, :]).flatten(1)
        return (known.mT @ products).unflatten(-1, (phi.shape[1],) * 2)[:, :, None]

    def subject_encodings(self, labels: Mapping[str, Tensor]) -> dict[str, Encoding]:
        """Encoding of subjects' deviations; none where there are none."""
        if not self.smooth.subjects:
            return {}
        least = LEAST / labels["sd"] ** 2
        known = self._information(labels)
        return {"topography": Encoding.about(labels["weights"], self._slope(labels), known, least, self.extra)}

    def _information(self, labels: Mapping[str, Tensor]) -> Float[Tensor, "S 1 1 C J J"]:
        basis = self.template.basis
        certain, missing = spread(labels["log_map"].exp(), basis), spread(labels["assignment"], basis)
        return self._squared(torch.maximum(certain - missing, LEAST_KNOWN * certain))

    def statistics(self, labels: Mapping[str, Tensor], someone: Tensor) -> dict[str, Tensor]:
        """Sums over subjects at the current values, which are in them too, times the number of subjects."""
        there, basis = someone[:, None, None], self.template.basis
        share, assignment = labels["log_map"].exp()[:, 0], labels["assignment"][:, 0]
        share, count = share.expand(assignment.shape), someone.sum()
        sums = {
            "labels": (there * assignment).sum(0),
            "slope": (there * ((assignment - share) @ basis.to(share).mT)).sum(0),
            "certain": (there * spread(share, basis)).sum(0),
            "missing": (there * spread(assignment, basis)).sum(0),
        }
        current = {"logits": labels["group"][0, 0], "residual": labels["log_residual"][0, 0, 0]}
        current |= {name: labels[name][0, 0, 0] for name in ("spectrum_group", "spectrum_subject") if name in labels}
        sums |= {f"now_{name}": count * value for name, value in current.items()}
        return sums | (self._scores(labels, someone) if self.smooth.subjects else {})

    def _scores(self, labels: Mapping[str, Tensor], someone: Tensor) -> dict[str, Tensor]:
        """Slopes and information about the subjects' log sd's, shape (J,) each."""
        encoding, sd = self.subject_encodings(labels)["topography"], labels["sd"]
        zero = torch.zeros_like(labels["weights"])
        mode, root = encoding.whitened(zero, sd)
        there = someone[:, None, None, None, None]
        slope, known = _log_sd(mode, root)
        return {name: (there * part).sum((0, 1, 2, 3)) for name, part in (("score", slope), ("score_known", known))}

    def population(self, sums: Mapping[str, Tensor], full: Tensor | float) -> dict[str, Encoding]:
        """Encodings of the population's map, of its weights, and of the scales; `full` members stand for each one."""
        n = sums["subjects"].clamp_min(1)
        now = {name.removeprefix("now_"): value / n for name, value in sums.items() if name.startswith("now_")}
        certain = (full * sums["certain"]).clamp_min(SMALL)
        known = full * torch.maximum(sums["certain"] - sums["missing"], LEAST_KNOWN * sums["certain"])
        known = known.clamp_min(SMALL)
        seen = now["logits"] + (full * sums["slope"] / certain).clamp(-FARTHEST, FARTHEST)
        rough, sd = (2 * now["residual"]).exp(), self.smooth.log_sd(now["spectrum_group"]).exp()
        weights, observation, scores = self._weights(seen, certain, known, rough, sd)
        smooth = (weights @ self.smooth.phi.to(weights).mT).mT
        logits = (certain * seen + smooth / rough) / (certain + 1 / rough)
        pull = ((logits - smooth) / (rough * known)).clamp(-LARGEST, LARGEST)
        extra = torch.stack([1 - known / certain, certain / (full * n)], -1)
        share = known * rough / (1 + known * rough)
        ratio = (logits - smooth).square() / rough
        encodings = {
            "spectrum_group": self._spectrum(now["spectrum_group"], *scores),
            "log_residual": self._log_residual(now["residual"], (ratio - share).sum(), (2 * share.square()).sum()),
            "topography_group": observation,
            "logits_group": Encoding(logits[None, None] + pull, known.log()[None, None], extra[None, None]),
        }
        if self.smooth.subjects:
            found = self._spectrum(now["spectrum_subject"], full * sums["score"], full * sums["score_known"])
            encodings["spectrum_subject"] = found
        return encodings

    def _weights(self, seen, certain, known, rough, sd) -> tuple[Tensor, Encoding, tuple[Tensor, Tensor]]:
        """The map's weights (K-1, J), their encoding, and slopes and information of their log sd's.

        seen: noisy observations of logits (V, K-1), of precision `certain` were labels seen, else `known`; each vertex
        also differs from the smooth map by an sd^2 of `rough`.
        """
        phi = self.smooth.phi.to(seen)
        trust, prior = 1 / (1 / certain + rough), torch.diag_embed(sd**-2)
        weights = torch.linalg.solve(self._squared(trust[None, None])[0, 0, 0] + prior, (trust * seen).mT @ phi)
        information = self._squared((1 / (1 / known + rough))[None, None])[0, 0, 0]
        one = Encoding.about(weights, weights / sd**2, information, LEAST / sd**2, self.extra)
        mode, root = one.whitened(torch.zeros_like(weights), sd)
        scores = tuple(part.sum(0) for part in _log_sd(mode, root))
        return weights, one.map(lambda part: part[None, None, None]), scores

    def _spectrum(self, now: Float[Tensor, " 3"], slope: Float[Tensor, " J"], known: Float[Tensor, " J"]) -> Encoding:
        """Encoding of a spectrum: one step of scoring from where it is."""
        design = self.smooth.slopes(now)
        information, floor = design.mT @ (known[:, None] * design), torch.full_like(now, LEAST)
        step = torch.linalg.solve(information + torch.diag(floor), slope @ design).clamp(-STRIDE, STRIDE)
        one = Encoding.about(now + step, 0 * now, information, floor, self.extra)
        return one.map(lambda part: part[None, None, None])

    def _log_residual(self, now: Tensor, slope: Tensor, known: Tensor) -> Encoding:
        known = known + LEAST
        estimate = now + (slope / known).clamp(-STRIDE, STRIDE)
        parts = estimate, known.log(), known.new_zeros(self.extra)
        return Encoding(*(part[None, None, None] for part in parts))


def _log_sd(
    mode: Float[Tensor, "*n J"], root: Float[Tensor, "*n J J"]
) -> tuple[Float[Tensor, "*n J"], Float[Tensor, "*n J"]]:
    """Slope and information about the log sd of every weight, from mode and precision's root in units of the sd."""
    share = 1 - torch.cholesky_inverse(root).diagonal(dim1=-2, dim2=-1)
    return mode.square() - share, 2 * share.square()


def _bound(share: Float[Tensor, "*_ K"], basis: Float[Tensor, "K-1 K"]) -> Float[Tensor, "*_ K-1"]:
    """Diagonal bound of B (diag p - p p') B': the sums of its rows' absolute values."""
    mean = share @ basis.mT
    whole = (basis * share[..., None, :]) @ basis.mT - mean[..., None] * mean[..., None, :]
    return whole.abs().sum(-1)


def labels_of(template: Template) -> SharedLabels | SessionLabels:
    """How the labels of a template are pooled."""
    smooth = getattr(template, "topography", None)
    return label_pooling(template) if smooth is None else SmoothLabels(template)
