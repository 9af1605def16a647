"""Colours of networks that readers with any colour vision can tell apart.

Up to eight are the palette of Okabe and Ito (2008), its black replaced by the wine of Paul Tol's `muted` scheme, since
black reads as a hole in a grey cortex. Beyond, each further colour is the candidate farthest from all before it, for
normal vision and for deuteranopia at once.
"""

import numpy as np

EIGHT = ("0072B2", "D55E00", "009E73", "CC79A7", "56B4E9", "E69F00", "F0E442", "882255")

# Linear RGB as a deuteranope sees it: Machado, Oliveira & Fernandes 2009, severity 1.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
# Linear RGB (sRGB primaries) to CIE XYZ relative to the D65 white.
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def network_colours(count: int) -> np.ndarray:
    """Colours of `count` networks, uint8, shape (network, 3); the first ones do not depend on the count."""
    fixed = np.array([[int(code[at : at + 2], 16) for at in (0, 2, 4)] for code in EIGHT], np.uint8)
    return fixed[:count] if count <= len(fixed) else _extended(fixed, count)


def _extended(fixed: np.ndarray, count: int) -> np.ndarray:
    levels = np.linspace(0, 255, 13).astype(np.uint8)
    candidates = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    lightness, *chroma = lab(candidates).T
    # Neither grey, as the cortex is, nor too dark or pale to be seen with shading and transparency.
    candidates = candidates[(np.hypot(*chroma) > 25) & (lightness > 25) & (lightness < 92)]
    seen, nearest = _seen(candidates), difference(candidates[:, None], fixed[None]).min(1)
    chosen = list(fixed)
    while len(chosen) < count:
        farthest = int(nearest.argmax())
        chosen.append(candidates[farthest])
        nearest = np.minimum(nearest, np.linalg.norm(seen - seen[:, farthest, None], axis=-1).min(0))
    return np.array(chosen, np.uint8)


def far_apart(beside: np.ndarray) -> np.ndarray:
    """Colours of networks of which some lie beside each other, uint8, shape (network, 3): neighbours' differ clearly.

    beside: bool, symmetric, shape (network, network). The colours are those of `network_colours`, each used once. In
    turn, the network with most neighbours that have one takes, of those that are left, the colour that is farthest from
    its neighbours'. Then the two neighbours that are most alike exchange a colour with another network, as long as that
    leaves both of the exchange further from their neighbours than those two were.
    """
    count = len(beside)
    colours = network_colours(count)
    apart = difference(colours[:, None], colours[None])
    taken = np.full(count, -1)
    left = np.ones(count, bool)
    for _ in range(count):
        open_ = taken < 0
        network = int(np.argmax(np.where(open_, (beside & ~open_).sum(1) * count + beside.sum(1), -1)))
        around = taken[beside[network] & ~open_]
        distance = apart[:, around].min(1) if len(around) else np.arange(count, 0, -1.0)
        taken[network] = int(np.argmax(np.where(left, distance, -1)))
        left[taken[network]] = False
    while _exchanged(taken, beside, apart):
        pass
    return colours[taken]


def _exchanged(taken: np.ndarray, beside: np.ndarray, apart: np.ndarray) -> bool:
    """Make the best exchange for the two neighbours that are most alike; whether there was one that helps."""
    now = np.where(beside, apart[taken][:, taken], np.inf)
    if not len(now) or not np.isfinite(now).any():
        return False
    worst, best = now.min(), (-np.inf, 0, 0)
    for network in np.unravel_index(np.argmin(now), now.shape):
        own = np.where(beside[network], apart[taken][:, taken], np.inf).min(1)  # with the colour of each other network
        # Each other network, with this one's colour.
        given = np.where(beside, apart[taken[network], taken][None], np.inf).min(1)
        gain = np.where(beside[network], -np.inf, np.minimum(own, given))
        gain[network] = -np.inf
        best = max(best, (float(gain.max()), int(network), int(gain.argmax())))
    gain, network, other = best
    if gain <= worst:
        return False
    taken[[network, other]] = taken[[other, network]]
    return True


def difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """CIE 1976 colour difference of colours (..., 3) in 0..255, the smaller one of normal vision and deuteranopia."""
    return np.linalg.norm(_seen(first) - _seen(second), axis=-1).min(0)


def _seen(colours: np.ndarray) -> np.ndarray:
    """CIELAB to normal vision and to deuteranopia, shape (2, ..., 3)."""
    return np.stack([lab(colours), lab(colours, DEUTERANOPIA)])


def lab(colours: np.ndarray, vision: np.ndarray | None = None) -> np.ndarray:
    """CIELAB of sRGB colours (..., 3) in 0..255; `vision` is a matrix on linear RGB, the identity if None."""
    linear = np.asarray(colours, float) / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    linear = linear if vision is None else np.clip(linear @ vision.T, 0, 1)
    xyz = linear @ XYZ.T / XYZ.sum(1)
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
