"""Individual functional parcellation of Broca's area from resting-state fMRI, with calibrated uncertainty."""

__version__ = "0.1.0"
