"""Batch pipelines and example studies."""
