"""What a checkpoint takes of Spark's state."""
