"""What labels say about the sites that they are drawn from: shared by a subject's sessions, or each session's own.

With pi = softmax(logits) and r the posterior of a label, the log likelihood of logits in contrasts B (K - 1, K) has

    gradient  B (r - pi),    information  diag B [(diag pi - pi pi') - (diag r - r r')] B'

summed over labels: what labels would say were they seen, less what is missing because they are not (Louis 1982). A
vertex without data has r = pi and says exactly nothing.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.encoding import SMALL, Encoding
from parcellation.plates import Observed, Template, Values
from parcellation.shares import log_shares, shares

LEAST_KNOWN = 0.02  # share of a label's information that is never missing
STRIDE = 4.0  # at most, of the variance between subjects in one pass
STEPS = 3  # a pass takes towards the mode of a subject's logits
LARGEST = 8.0  # an estimate lies at most about so many units from the prior's mean: labels of extreme odds are clear


class SharedLabels:
    """One label per subject and vertex, drawn from the population's map."""

    extra: ClassVar[int] = 2

    def __init__(self, template: Template):
        self.template = template

    def start(self, centre: Values, observed: Observed) -> dict[str, Tensor]:
        """What is assumed of the labels of these subjects."""
        return {"log_map": self.template.log_map(centre)}

    def assign(
        self, evidence: Float[Tensor, "S T V K"], labels: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "S 1 V K"], dict[str, Tensor]]:
        """Label probabilities given the evidence of all sessions."""
        assignment = shares(labels["log_map"] + evidence.sum(1, keepdim=True))
        return assignment, {**labels, "assignment": assignment}

    def subject_encodings(self, labels: Mapping[str, Tensor]) -> dict[str, Encoding]:
        """No site of a subject is on its vertices."""
        return {}

    def statistics(self, labels: Mapping[str, Tensor], someone: Tensor) -> dict[str, Tensor]:
        """Sums over subjects: label probabilities (V, K) and the information that is missing of them (V, K-1)."""
        assignment = someone[:, None, None] * labels["assignment"][:, 0]
        missing = someone[:, None, None] * spread(labels["assignment"][:, 0], self.template.basis)
        return {"labels": assignment.sum(0), "missing": missing.sum(0)}

    def population(self, sums: Mapping[str, Tensor], full: Tensor | float) -> dict[str, Encoding]:
        """Encoding of the population map, its mode and information; `full` members stand for each counted one."""
        counted, basis = sums["subjects"], self.template.basis.to(sums["missing"])
        logits = map_mode(full * sums["labels"], basis, self.template.map_sd)
        certain = counted * spread(shares(logits @ basis), basis)
        known = torch.maximum(certain - sums["missing"], LEAST_KNOWN * certain).clamp_min(SMALL)
        extra = torch.stack([1 - known / certain.clamp_min(SMALL), certain / counted.clamp_min(1)], -1)
        # As a noisy observation: what leads to the mode once the prior has drawn it to 0.
        estimate = logits * (1 + 1 / (full * known * self.template.map_sd**2))
        return {"logits_group": Encoding(*(part[None, None] for part in (estimate, (full * known).log(), extra)))}


class SessionLabels:
    """One label per subject, session and vertex, drawn from the subject's own logits at the vertex."""

    extra: ClassVar[int] = 2

    def __init__(self, template: Template):
        self.template = template

    def start(self, centre: Values, observed: Observed) -> dict[str, Tensor]:
        """Logits at the population's, (1, 1, V, K-1), and the variance between subjects."""
        group = centre["logits_group"]
        return {"group": group, "logits": group, "variance": (2 * centre["log_tau"]).exp()[..., None]}

    def assign(
        self, evidence: Float[Tensor, "S T V K"], labels: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "S T V K"], dict[str, Tensor]]:
        """Label probabilities of every session, and the subjects' logits a few steps nearer to their mode.

        Steps are divided by a bound of the curvature, (1/2) a session (Boehning 1992), so they never overshoot.
        """
        basis = self.template.basis.to(evidence)
        group, logits, variance = labels["group"], labels["logits"], labels["variance"]
        sessions = evidence.shape[1]
        for _ in range(STEPS):
            log_p = log_shares(logits @ basis)
            assignment = shares(log_p + evidence)
            gradient = ((assignment - log_p.exp()) @ basis.mT).sum(1, keepdim=True)
            logits = logits + (gradient - (logits - group) / variance) / (0.5 * sessions + 1 / variance)
        share = shares(logits @ basis)
        assignment = shares(log_shares(logits @ basis) + evidence)
        labels = {**labels, "logits": logits, "assignment": assignment}
        labels["gradient"] = ((assignment - share) @ basis.mT).sum(1, keepdim=True)
        labels["certain"] = sessions * spread(share, basis)
        labels["missing"] = spread(assignment, basis).sum(1, keepdim=True)
        return assignment, labels

    def subject_encodings(self, labels: Mapping[str, Tensor]) -> dict[str, Encoding]:
        """Encoding of the logits: their mode and its information, the prior taken out again."""
        precision = self._precision(labels)
        estimate = labels["group"] + labels["gradient"] * (labels["variance"] + 1 / precision)
        extra = torch.stack([labels["certain"], labels["missing"]], -1)
        return {"label_logits": Encoding(estimate, precision.log(), extra)}

    def _precision(self, labels: Mapping[str, Tensor]) -> Float[Tensor, "S 1 V contrast"]:
        return torch.maximum(labels["certain"] - labels["missing"], labels["gradient"].abs() / LARGEST).clamp_min(SMALL)

    def statistics(self, labels: Mapping[str, Tensor], someone: Tensor) -> dict[str, Tensor]:
        """Sums over subjects: of logits' distance to the population's, of the weight of each, and of their square.

        The square less what it would be at a variance of 0, so that its mean over squared weights is the variance
        between subjects: a step of scoring, of the same fixed point as an expectation-maximisation and much faster.
        """
        there = someone[:, None, None]
        away = (labels["logits"] - labels["group"])[:, 0]
        precision, variance = self._precision(labels)[:, 0], labels["variance"][:, 0]
        share = precision * variance / (1 + precision * variance)
        square = away.square() - variance * share * (1 - share)
        return {
            "logits": (there * labels["logits"][:, 0]).sum(0),
            "away": (there * away).sum(0),
            "share": (there * share).sum(0),
            "logits_square": (there * square).sum(),
            "logits_share2": (there * share.square()).sum(),
            "inverse_variance": (there * (0 * share + 1 / variance)).sum(0).mean(),
        }

    def population(self, sums: Mapping[str, Tensor], full: Tensor | float) -> dict[str, Encoding]:
        """Encodings of the population's logits and of the log sd between subjects."""
        subjects = sums["subjects"].clamp_min(1)
        group = (sums["logits"] - sums["away"]) / subjects
        share = sums["share"] + 0.5
        estimate, precision = group + sums["away"] / share, full * share * sums["inverse_variance"] / subjects
        extra = torch.stack([1 - share / (subjects + 0.5), torch.zeros_like(share)], -1)
        parts = estimate, precision.log(), extra
        known, before = sums["logits_share2"].clamp_min(SMALL), subjects / sums["inverse_variance"]
        found = (sums["logits_square"] / known).clamp(before / STRIDE, before * STRIDE)
        log_tau = 0.5 * found.log(), (full * known).log()
        tau = Encoding(*(part[None, None, None] for part in log_tau), extra.new_zeros(1, 1, 1, self.extra))
        return {"logits_group": Encoding(*(part[None, None] for part in parts)), "log_tau": tau}


def spread(share: Float[Tensor, "*_ K"], basis: Float[Tensor, "K-1 K"]) -> Float[Tensor, "*_ K-1"]:
    """Variance of every contrast of a label with these probabilities: the diagonal of B (diag p - p p') B'."""
    basis = basis.to(share)
    return share @ basis.square().mT - (share @ basis.mT).square()


def map_mode(
    labels: Float[Tensor, "V K"], basis: Float[Tensor, "K-1 K"], sd: float, steps: int = 6
) -> Float[Tensor, "V contrast"]:
    """Mode of a map's contrasts under Normal(0, sd), given counts of labels (V, K): Newton's method.

    Starts at counts with one half added, which is near the mode and on its flatter side. Steps are taken in the K
    logits with that prior on each, which leaves their sum at 0: n (diag p - p p') + 1/sd^2, a diagonal less one
    product, is inverted in K operations (Sherman and Morrison).
    """
    basis, counts = basis.to(labels), labels.mT.contiguous()  # (K, V), as `shares` goes through memory
    counted, logits = counts.sum(0), (counts + 0.5).log()
    logits = logits - logits.mean(0)
    for _ in range(steps):
        expected = counted * logits.softmax(0)
        gradient = counts - expected - logits / sd**2
        told = expected / (expected + 1 / sd**2)
        alone = gradient / (expected + 1 / sd**2)
        # The product's denominator, n - sum n p told, is sum told / sd^2 without a difference of nearly equal numbers.
        logits = logits + alone + told * ((expected * alone).sum(0) / (told.sum(0) / sd**2).clamp_min(SMALL))
    return logits.mT @ basis.mT


def label_pooling(template: Template) -> SharedLabels | SessionLabels:
    """How the labels of a template are pooled: each session's own where a site holds a subject's logits."""
    own = any(site.name == "label_logits" for site in template.sites)
    return SessionLabels(template) if own else SharedLabels(template)
