"""Batches: their plans, the one in flight, and their replay."""
