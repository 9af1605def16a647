"""Data set descriptions, region and target definitions, and the schema of a manifest."""
