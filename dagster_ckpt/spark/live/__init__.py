"""The checkpointLocation that Spark writes to now."""
