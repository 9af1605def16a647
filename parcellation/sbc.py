"""Simulation-based calibration: whether posteriors are as wide as they say, over data sets of their own prior.

If theta is drawn from the prior, x given theta, and L draws from p(theta | x) are independent, then the rank of theta
among them is uniform on 0 .. L (Talts et al. 2018). A posterior that is too narrow has ranks at both ends, one that is
too wide has them in the middle, a shifted one at one end. Here draws come from q itself, hence are independent, and
need no thinning.

A site has m elements in each of N data sets. Elements of one data set may be correlated, data sets are not: every error
bar and test is over data sets. Marginal ranks do not see a posterior that ignores the data, since the prior passes too;
the rank of the log likelihood does (Modrak et al. 2023), so it is judged as one more quantity.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtri
from scipy.stats import f as fisher
from scipy.stats import t as student

BINS = 10
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of credible intervals
LEVEL = 0.01  # of the test of uniformity: how often an exact posterior is refused
BLOCKS = 20  # of data sets, left out one after the other
THREE_ERRORS = 2 * student.sf(3, BLOCKS - 1)  # how often an exact width is more than three of its errors away: .7 %
FARTHEST = np.array([20.0, 4.0])  # shift and log factor that are looked for


@dataclass(frozen=True)
class Width:
    """How a Gaussian posterior has to change to be calibrated, with standard errors over data sets.

    factor: of its standard deviation, above 1 for one that is too narrow or lies about at random by more than it says;
    shift: of its mean, in its standard deviations, the same in all data sets.
    """

    factor: float
    factor_error: float
    shift: float
    shift_error: float


@dataclass(frozen=True)
class Calibration:
    """What ranks say of one quantity.

    shares (bins,) of the ranks, in order, and their errors; p of the test of uniformity; coverage of the central
    intervals at LEVELS, and their errors; width; data_sets and elements that were ranked.
    """

    shares: list[float]
    share_errors: list[float]
    p: float
    coverage: list[float]
    coverage_errors: list[float]
    width: Width
    data_sets: int
    elements: int

    @property
    def uniform(self) -> bool:
        """Whether the test of uniformity accepts the ranks at LEVEL."""
        return self.p >= LEVEL

    @property
    def verdict(self) -> str:
        """The verdict on this quantity alone."""
        return self.verdict_among(1)

    def verdict_among(self, quantities: int) -> str:
        """In words: too narrow, too wide, too low, too high, else not uniform, else calibrated.

        Of exact posteriors of so many quantities, each with its three tests, all are called calibrated but for about
        LEVEL of uniformity and twice THREE_ERRORS of width (Bonferroni). Equal bins hardly see the outermost twentieth
        of the ranks, where a posterior with tails that are too light fails; the width does.
        """
        width, words = self.width, []
        most = student.isf(THREE_ERRORS / 2 / quantities, BLOCKS - 1)
        if abs(width.factor - 1) > most * width.factor_error:
            words.append("too narrow" if width.factor > 1 else "too wide")
        if abs(width.shift) > most * width.shift_error:
            words.append("too low" if width.shift > 0 else "too high")
        return ", ".join(words) or ("calibrated" if self.p >= LEVEL / quantities else "not uniform")

    def figures(self) -> dict[str, float | list[float]]:
        """Everything as plain numbers, by name."""
        content = asdict(self)
        return content | content.pop("width") | {"uniform": float(self.uniform)}


def ranks(truth: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of the draws (L, *shape) lie below the true value (*shape): integers 0 .. L, shape (m,).

    Ties, of which labels have many, are broken at random. Raises ValueError where shapes differ or a number is NaN.
    """
    truth, draws = np.asarray(truth), np.asarray(draws)
    if draws.shape[1:] != truth.shape:
        raise ValueError(f"ranks: expected draws of shape (L, {', '.join(map(str, truth.shape))}), got {draws.shape}")
    if np.isnan(truth).any() or np.isnan(draws).any():
        raise ValueError("ranks: expected numbers, got NaN")
    below, ties = (draws < truth).sum(0), (draws == truth).sum(0)
    return (below + rng.integers(0, ties + 1)).reshape(-1)


def judge(ranked: np.ndarray, draws: int) -> Calibration:
    """Every diagnostic of the ranks (N, m) of one quantity among so many draws."""
    shares, errors = histogram(ranked, draws)
    covered = [coverage(ranked, draws, level) for level in LEVELS]
    return Calibration(
        shares.tolist(),
        errors.tolist(),
        uniformity(ranked, draws),
        [share for share, _ in covered],
        [error for _, error in covered],
        width(ranked, draws),
        *ranked.shape,
    )


def histogram(ranked: np.ndarray, draws: int, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
    """Share of the ranks (N, m) in each of equal bins, and the standard error of a share of 1 / bins, both (bins,).

    The error is binomial with the spread over data sets in place of independent elements. Raises ValueError unless
    draws + 1 is a multiple of the bins, without which bins could not be equal.
    """
    per_set = _per_set(ranked, draws, bins)
    return per_set.mean(0), _error(per_set, 1 / bins, ranked.shape[1])


def uniformity(ranked: np.ndarray, draws: int, bins: int = BINS) -> float:
    """p-value of the hypothesis that ranks (N, m) are uniform: Hotelling's test that all bins have the same mean share.

    It is Pearson's chi-square with the covariance of the shares as data sets have it, so correlated elements do not
    feign precision. The moment about uniform shares, in place of the covariance, serves also where data sets do not
    vary; with t the squared distance in it, Hotelling's is (N - 1) t / (1 - t). Raises ValueError for fewer data sets
    than three a bin.
    """
    per_set = _per_set(ranked, draws, bins)[:, 1:] - 1 / bins  # shares sum to 1: one says nothing
    count, free = per_set.shape
    if count < 3 * bins:
        raise ValueError(f"uniformity: expected at least {3 * bins} data sets for {bins} bins, got {count}")
    away, moment = per_set.mean(0), per_set.T @ per_set / count
    explained = min(float(away @ np.linalg.pinv(moment) @ away), 1.0)  # 1 where data sets do not vary
    if explained > 1 - 1e-9:
        return 0.0
    return float(fisher.sf(explained / (1 - explained) * (count - free) / free, free, count - free))


def coverage(ranked: np.ndarray, draws: int, level: float) -> tuple[float, float]:
    """Share of true values inside the central interval of this level, and its standard error were the level true.

    The error is binomial, or larger where elements of a data set are covered together.
    """
    outside = (1 - level) / 2 * (draws + 1)
    inside = (ranked + 0.5 > outside) & (ranked + 0.5 < draws + 1 - outside)
    per_set = inside.mean(1, keepdims=True)
    return float(per_set.mean()), float(_error(per_set, level, ranked.shape[1])[0])


def width(ranked: np.ndarray, draws: int) -> Width:
    """Factor and shift that would repair a Gaussian posterior, by maximum likelihood of its ranks (N, m).

    A truth that is Normal(shift, factor^2) in units of the posterior has rank r where it lies between the quantiles
    r / (L + 1) and (r + 1) / (L + 1); beyond the outermost draws nothing more is asked of it. Errors are a jackknife
    over blocks of data sets.
    """
    blocks = np.array_split(ranked, min(BLOCKS, len(ranked)))
    counts = np.stack([np.bincount(block.ravel(), minlength=draws + 1) for block in blocks])
    whole = _fit(counts.sum(0), np.zeros(2))
    left_out = np.stack([_fit(counts.sum(0) - one, whole) for one in counts])
    spread = np.square(left_out - left_out.mean(0)).sum(0)
    errors = np.sqrt((len(blocks) - 1) / len(blocks) * spread)
    factor = float(np.exp(whole[1]))
    return Width(factor, float(factor * errors[1]), float(whole[0]), float(errors[0]))


def _fit(counts: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Shift and log factor from the number of truths at every rank (L + 1,)."""
    (seen,) = np.nonzero(counts)
    edges = ndtri(np.arange(len(counts) + 1) / len(counts))
    # A smooth copy of the tail on the negative side, where its logarithm is exact.
    mirrored = edges[seen] > 0
    low, high = np.where(mirrored, -edges[seen + 1], edges[seen]), np.where(mirrored, -edges[seen], edges[seen + 1])
    sign, weights = np.where(mirrored, -1.0, 1.0), counts[seen] / counts.sum()

    def loss(parameters: np.ndarray) -> float:
        shift, factor = parameters[0] * sign, np.exp(parameters[1])
        below, above = log_ndtr((low - shift) / factor), log_ndtr((high - shift) / factor)
        return -float(weights @ (above + np.log1p(-np.exp(np.minimum(below - above, -1e-12)))))

    found = minimize(loss, start, method="L-BFGS-B", bounds=[(-limit, limit) for limit in FARTHEST])
    return found.x


def _per_set(ranked: np.ndarray, draws: int, bins: int) -> np.ndarray:
    """Share of each data set's ranks in each bin (N, bins)."""
    if (draws + 1) % bins:
        raise ValueError(f"ranks: expected draws + 1 to be a multiple of {bins} bins, got {draws} draws")
    binned = ranked * bins // (draws + 1)
    return (binned[..., None] == np.arange(bins)).mean(1)


def _error(per_set: np.ndarray, expected: float, elements: int) -> np.ndarray:
    """Standard error of mean shares (N, ...) were `expected` true: binomial, or of data sets where that is larger."""
    between = np.square(per_set - expected).mean(0)
    return np.sqrt(np.maximum(between, expected * (1 - expected) / elements) / len(per_set))
