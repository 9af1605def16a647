"""Readers fed with damaged files: `python -m pipelines.fuzz --minutes 10 [FILES...]`."""
