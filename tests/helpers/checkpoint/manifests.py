"""A manifest of a checkpoint that nobody took, for what is decided from manifests alone."""

from __future__ import annotations

from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

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
    triggered_at="2026-01-01T00:00:00.000+00:00",
    written_at="2026-01-01T00:00:01.000+00:00",
    timings_ms={},
    new_bytes=0,
    facts=Facts(),
    sink=None,
    files=(),
)
