"""Checkpoints in HDFS, through Spark's own Hadoop client."""
