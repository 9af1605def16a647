"""Individual functional parcellation of Broca's area from resting-state fMRI, with calibrated uncertainty."""

import importlib

__version__ = "0.1.0"


def load_result(path):
    """A finished result as labelled arrays: see `parcellation.result`, which is loaded only when it is needed."""
    return importlib.import_module("parcellation.result").load_result(path)
