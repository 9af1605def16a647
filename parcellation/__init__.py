"""Individual functional parcellation of Broca's area from resting-state fMRI, with calibrated uncertainty."""

__version__ = "0.1.0"


def load_result(path):
    """A finished result as labelled arrays: see `parcellation.result`, which is loaded only when it is needed."""
    from parcellation.result import load_result as load

    return load(path)
