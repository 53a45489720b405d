"""The run of a job: its starts, one after the other."""
