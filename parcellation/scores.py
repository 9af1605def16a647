"""How good a posterior over labels is, and the oracle that no method can beat by more than chance.

Posteriors have shape (subject, vertex, network) and sum to 1 over networks; labels are integers (subject, vertex). A
vertex that is not to be scored is left out by the caller. Every comparison in the project uses these definitions.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax

SMALLEST = 1e-12


def match_networks(posterior: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Reorder a posterior's networks, once for the whole cohort, to agree best with `labels`.

    Networks of an unsupervised method are numbered arbitrarily; the order that makes most vertices agree is found by
    linear assignment. Shapes: posterior (..., vertex, network), labels (..., vertex); returns the posterior's shape.
    """
    networks = posterior.shape[-1]
    assigned = posterior.argmax(-1)
    counts = np.array([[np.sum((assigned == a) & (labels == b)) for b in range(networks)] for a in range(networks)])
    rows, columns = linear_sum_assignment(-counts)
    order = np.empty(networks, int)
    order[columns] = rows
    return posterior[..., order]


def calibration(posterior: np.ndarray, labels: np.ndarray, bins: int = 10) -> dict[str, float]:
    """Accuracy, confidence, expected calibration error (`ece`) and negative log-likelihood (`nll`, nats) of labels.

    The calibration error is the mean over equal bins of confidence of |confidence - accuracy|, weighted by the share of
    vertices in the bin (Guo et al. 2017). Shapes: posterior (..., vertex, network), labels (..., vertex).
    """
    confidence, hit = posterior.max(-1).ravel(), (posterior.argmax(-1) == labels).ravel()
    chosen = np.take_along_axis(posterior, np.asarray(labels)[..., None].astype(int), -1)[..., 0]
    nll = -np.log(np.clip(chosen, SMALLEST, 1)).mean()
    return {
        "accuracy": float(hit.mean()),
        "confidence": float(confidence.mean()),
        "ece": calibration_error(confidence, hit, bins),
        "nll": float(nll),
    }


def calibration_error(confidence: np.ndarray, hit: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error, as in `calibration`, of confidences (n,) and whether labels were right (n,)."""
    index = np.clip((confidence * bins).astype(int), 0, bins - 1)
    inside = [index == b for b in range(bins) if (index == b).any()]
    return float(sum(one.mean() * abs(confidence[one].mean() - hit[one].mean()) for one in inside))


def unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to norm 1 over the last dimension; a row of zeros stays zero."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def held_out_cosine(posterior: np.ndarray, profiles: np.ndarray, other: np.ndarray) -> float:
    """Mean cosine between the predicted fingerprint, sum_k p_k profile_k, and the other sessions' mean fingerprint.

    profiles: (network, feature) for the population's or (subject, network, feature) for the subjects' own; other:
    (subject, vertex, feature), centred over features. Say which profiles were used and give every method compared the
    same kind: a group map with good subject profiles scores high too.
    """
    equation = "svk,kd->svd" if profiles.ndim == 2 else "svk,skd->svd"
    return float((unit(np.einsum(equation, posterior, profiles)) * unit(other)).sum(-1).mean())


def predictive_gain(first: np.ndarray, second: np.ndarray, group: np.ndarray) -> float:
    """Nats a vertex that two halves of a subject's sessions tell about each other's labels beyond the group map.

    first, second: posteriors (subject, vertex, network) from disjoint sessions; group: the training cohort's map
    (vertex, network). The critic sum_k first_k second_k / group_k, normalised by its mean over pairs of different
    subjects, gives the lower bound of Donsker and Varadhan on the information between the halves given the vertex: 0
    for the group map itself, negative for confident nonsense, largest for the right posteriors. No emission density
    enters, so any two methods can be compared, and a likelihood power can be chosen by it.
    """
    return float(subject_gains(first, second, group).mean())


def subject_gains(first: np.ndarray, second: np.ndarray, group: np.ndarray) -> np.ndarray:
    """What each subject has in the predictive gain, their mean: shape (subject,). Other shapes as there."""
    same = np.log(np.maximum((first * second / group).sum(-1), SMALLEST)).mean(-1)
    # The sum over pairs of different subjects is that over all pairs less that of each with itself.
    every = (first.sum(0) * second.sum(0) / group).sum(-1)
    different = (every - (first * second / group).sum((0, 2))).mean() / (len(first) * (len(first) - 1))
    return same - np.log(different)


def retest(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """How one half's posterior does against the other half's labels, and how well different subjects' labels agree.

    A description, not a criterion: the exact posterior does not minimise these (a noisy repeat is not the truth), and
    the group map agrees with itself perfectly. Shapes as in `predictive_gain`.
    """
    labels, again = first.argmax(-1), second.argmax(-1)
    pairs = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if i != j]
    between = np.mean([(labels[i] == again[j]).mean() for i, j in pairs])
    return calibration(first, again) | {"between_subjects": float(between)}


def session_profiles(x: np.ndarray, mask: np.ndarray, labels: np.ndarray, networks: int) -> np.ndarray:
    """Mean features of each network's vertices by their true labels, shape (session, network, feature).

    x: (session, vertex, feature), mask: (session, vertex), labels: (vertex,). A feature transform of one row (centring,
    unit norm, projection) is not linear, so the transform of a noiseless fingerprint is not the mean of the transformed
    noisy ones; what a likelihood in feature space needs is the latter, and over many vertices its noise averages out.
    A network without a vertex in a session gets its mean over the other sessions, and NaN where it has none at all.
    """
    member = (labels[:, None] == np.arange(networks)) * mask[..., None]  # (session, vertex, network)
    count = member.sum(1)[..., None].astype(float)
    total = np.einsum("tvk,tvd->tkd", member.astype(x.dtype), x)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, total.sum(0) / count.sum(0))


def scaled_profiles(x: np.ndarray, mask: np.ndarray, noiseless: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """True session profiles on the scale of noisy features, shape (session, network, feature).

    noiseless: the session's noiseless fingerprints through the transform of the data, (session, network, feature).
    Noise enlarges a row's norm, so a unit-norm transform shrinks what is left of the profile, and a projection moves
    its origin: both are one factor and one offset a session, fitted by least squares at the true labels. Unlike in
    `session_profiles` the directions of the differences are exact. Other arguments as in `session_profiles`.
    """
    result = np.zeros(noiseless.shape)
    for session, profiles in enumerate(noiseless):
        seen = mask[session]
        if not seen.any():
            continue
        expected, found = profiles[labels[seen]], x[session, seen]
        away = expected - expected.mean(0)
        factor = (away * (found - found.mean(0))).sum() / max((away**2).sum(), SMALLEST)
        result[session] = factor * (profiles - expected.mean(0)) + found.mean(0)
    return result


def oracle_posterior(
    x: np.ndarray,
    mask: np.ndarray,
    profiles: np.ndarray | None,
    prior: np.ndarray,
    labels: np.ndarray,
    folds: int = 10,
) -> np.ndarray:
    """Label posterior of one subject that knows everything but the labels, shape (vertex, network).

    x: features (session, vertex, feature), after the very transform that the judged method saw; mask: (session,
    vertex); profiles: true session fingerprints (session, network, feature) on the scale of the features
    (`scaled_profiles`), or None to measure them (`session_profiles`); prior: the true group probabilities (vertex,
    network); labels: true labels (vertex,), which enter only through the noise and, if measured, the profiles, both
    from the *other* folds' vertices: a vertex that helped to measure its own profile is drawn towards its true label.

    Features are projected on the K - 1 directions in which the session's profiles differ, and the noise is a normal
    distribution there, its covariance over directions and sessions measured at the true labels. So noise that lasts
    over sessions and noise that features share are counted once, and the posterior is calibrated for a method that
    judges a vertex along the profiles' differences; for independent noise of one size it is the exact posterior. (Noise
    outside these directions that correlates with noise inside could be used too, by a full noise covariance.)
    """
    fold = np.arange(len(labels)) % folds
    evidence = np.zeros(prior.shape)
    for one in range(min(folds, len(labels))):
        here, rest = fold == one, fold != one
        known = profiles
        if known is None:
            known = session_profiles(x[:, rest], mask[:, rest], labels[rest], prior.shape[1])
        evidence[here] = _evidence(x, mask, known, labels, here, rest)
    return softmax(np.log(np.maximum(prior, SMALLEST)) + evidence, axis=-1)


def _evidence(x, mask, profiles, labels, here, rest) -> np.ndarray:
    """Log density of the vertices `here` under each network (vertex, network); noise measured at those of `rest`."""
    unknown = np.isnan(profiles).any((0, 2))
    centre = np.nanmean(np.where(unknown[:, None], np.nan, profiles), axis=1, keepdims=True)
    contrast = np.where(unknown[:, None], 0, profiles - centre)
    basis = np.linalg.svd(contrast, full_matrices=False)[2][:, : profiles.shape[1] - 1]  # (session, direction, feature)
    scores = np.einsum("tvd,tcd->vtc", x - centre, basis)
    expected = np.einsum("tkd,tcd->ktc", contrast, basis)
    seen = np.repeat(mask.T, basis.shape[1], 1)  # (vertex, session x direction)
    scores, expected = scores.reshape(len(scores), -1), expected.reshape(len(expected), -1)
    covariance = _covariance(scores[rest] - expected[labels[rest]], seen[rest])
    evidence = _log_normal(scores[here], seen[here], expected, covariance)
    evidence[:, unknown] = -np.inf
    return evidence


def _covariance(residual: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Second moments of the residuals over the vertices where both entries were seen, slightly ridged."""
    residual = np.where(seen, residual, 0)
    counts = seen.astype(float).T @ seen
    covariance = residual.T @ residual / np.maximum(counts, 1)
    return covariance + 1e-6 * np.diag(covariance).mean() * np.eye(len(covariance))


def _log_normal(scores, seen, expected, covariance) -> np.ndarray:
    """Log density up to a constant of each vertex, of the entries seen there; 0 for a vertex never seen."""
    result = np.zeros((len(scores), len(expected)))
    for pattern in np.unique(seen, axis=0):
        if not pattern.any():
            continue
        rows = (seen == pattern).all(1)
        precision = np.linalg.inv(covariance[np.ix_(pattern, pattern)])
        residual = scores[rows][:, None, pattern] - expected[None][..., pattern]  # (vertex, network, entry)
        result[rows] = -0.5 * np.einsum("vka,ab,vkb->vk", residual, precision, residual)
    return result
