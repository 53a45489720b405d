"""A manifest of a checkpoint that nobody took, for what is decided from manifests alone."""

from __future__ import annotations

from dagster_ckpt.checkpoint.metadata import CheckpointMetadata

JOB_ID = "a" * 32
#: Without files; what a test is about is put in its place with ``replace``.
MANIFEST = CheckpointMetadata(
    job_name="job",
    job_id=JOB_ID,
    checkpoint_id=1,
    epoch=1,
    batch=1,
    mode="EXACTLY_ONCE",
    kind="checkpoint",
    restored_from=None,
    writer={},
    triggered_at="",
    written_at="",
    timings_ms={},
    new_bytes=0,
    facts={},
    sink=None,
    files=(),
)
