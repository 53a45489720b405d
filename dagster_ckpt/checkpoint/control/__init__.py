"""The records by which the runs of a job know of each other: one module per directory under ``control/``."""
