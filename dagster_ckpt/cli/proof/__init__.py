"""The commands that start Spark on a copy of a checkpoint: its state, and a restore drill; and the rows of two jobs."""
