"""How large each network is: in the map that is shown, and over the posterior's draws of all labels.

The map gives every vertex wholly to its most probable network, so a network that is often second is smaller in it than
it is on average. A statistic of sizes should therefore take the mean over draws, with its interval.
"""

from collections.abc import Sequence

import numpy as np
import pandas

INTERVAL = (0.05, 0.95)
MEANINGS = {
    "participant_id": "Subject, as in the file names",
    "network": "Network, as in the label table",
    "vertices": "Vertices that the label map gives to the network",
    "vertices_mean": "Mean number of vertices over posterior draws of the labels",
    "vertices_low": "Lower end of its 90 % credible interval",
    "vertices_high": "Upper end of its 90 % credible interval",
    "area": "Area of the network in the label map, in mm2 of the midthickness surface; n/a where no surface is known",
    "area_mean": "Mean area over posterior draws of the labels, in mm2",
    "area_low": "Lower end of its 90 % credible interval",
    "area_high": "Upper end of its 90 % credible interval",
    "surface": "Whose surface areas are measured on: subject (their own), group, or none",
}


def network_sizes(
    participant: str,
    names: Sequence[str],
    shown: np.ndarray,
    draws: np.ndarray,
    areas: np.ndarray | None,
    surface: str,
) -> pandas.DataFrame:
    """Sizes of one subject's networks, one row each, with the columns `MEANINGS`.

    shown: label of each vertex in the map, from 0, shape (vertex,); draws: the same in every posterior draw, shape
    (draw, vertex); areas: mm2 of each vertex, shape (vertex,), None where no surface is known.
    """
    table = pandas.DataFrame({"participant_id": participant, "network": list(names)})
    for what, weight in (("vertices", np.ones(len(shown))), ("area", areas)):
        if weight is None:
            table[[what, f"{what}_mean", f"{what}_low", f"{what}_high"]] = np.nan
            continue
        sizes = np.stack([np.bincount(one, weight, len(names)) for one in draws])
        table[what] = np.bincount(shown, weight, len(names))
        table[f"{what}_mean"] = sizes.mean(0)
        table[f"{what}_low"], table[f"{what}_high"] = np.quantile(sizes, INTERVAL, axis=0)
    return table.assign(vertices=table.vertices.astype(int), surface=surface)[list(MEANINGS)]
