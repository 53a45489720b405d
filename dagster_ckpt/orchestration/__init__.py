"""Dagster: resources, assets, the resume sensor, and what the UI shows of checkpoints."""
