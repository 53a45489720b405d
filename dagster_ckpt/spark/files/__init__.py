"""Spark's own files in a checkpointLocation."""
