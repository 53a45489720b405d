"""What knows Spark: capturing and restoring the checkpointLocation of a streaming query, and its sinks."""
