"""Tables of confounds as fMRIPrep writes them."""

import numpy as np
import pandas as pd

MOTION = [f"{kind}_{axis}" for kind in ("trans", "rot") for axis in "xyz"]
ENDINGS = ("", "_derivative1", "_power2", "_derivative1_power2")


def fmriprep_table(frames: int, seed: int = 0) -> pd.DataFrame:
    """Confounds that strategies choose from; derivatives and displacements have no value in the first row."""
    random = np.random.default_rng(seed)
    columns = [f"{name}{ending}" for name in (*MOTION, "csf", "white_matter", "global_signal") for ending in ENDINGS]
    columns += ["cosine00", "cosine01", "framewise_displacement", "std_dvars", "a_comp_cor_00", "aroma_motion_01"]
    table = pd.DataFrame(random.normal(size=(frames, len(columns))), columns=columns)
    table[["framewise_displacement", "std_dvars"]] = random.uniform(0, 0.4, size=(frames, 2))
    later = [name for name in columns if "derivative1" in name or name in ("framewise_displacement", "std_dvars")]
    table.loc[0, later] = np.nan
    return table
