"""Checkpoints in a bucket, through fsspec."""
