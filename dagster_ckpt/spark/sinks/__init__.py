"""Sinks that a restore can bring back to a checkpoint: what one must be able to do, and those that can."""
