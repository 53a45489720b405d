"""What Spark's error means for the job: the state of another query, a query that cannot run, or a failure."""

from __future__ import annotations

from dagster_ckpt.checkpoint import CheckpointMetadata
from dagster_ckpt.errors import CheckpointError, QueryFailed, QueryMismatch, QueryNotBuilt

__all__ = ["another_query", "failed_in_batch", "failure_of", "not_built"]

#: Spark's error conditions for state that belongs to another query.
_MISMATCHES = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "UNEXPECTED_STREAMING_SOURCE",
    "in the checkpoint offsets and now there are",
    "Wrong basePath",
)

_MEND = (
    "If it passes by itself, the job goes on by its restart strategy. The same error at the next start ends the job: "
    "mend the function, and launch again."
)

#: Spark's report contains this text while a query has not reached a batch.
_BEGINNING = "Current State: INITIALIZING"


def failure_of(error: Exception, job_name: str, restored: CheckpointMetadata | None) -> CheckpointError:
    """The error of this package for an error of Spark.

    Args:
        error: Spark's error.
        job_name: the job's name.
        restored: the checkpoint that the query resumed from.

    Returns:
        :class:`QueryMismatch` when the state belongs to another query, :class:`QueryNotBuilt` when Spark cannot even
        plan the query, else :class:`QueryFailed`.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - PySpark is loaded where it runs

    text = str(error)
    if restored is not None and any(mark in text for mark in _MISMATCHES):
        return another_query(job_name, restored, f"Spark says: {_first_line(text)}")
    if isinstance(error, AnalysisException):
        return QueryNotBuilt(f"Spark cannot plan the query of job {job_name!r}: {_first_line(text)}", hint=_MEND)
    return QueryFailed(f"The query of job {job_name!r} failed: {_first_line(text)}")


def not_built(error: Exception, job_name: str) -> QueryNotBuilt:
    """The error for an exception of the job's own function; the caller makes that exception the cause."""
    said = _first_line(str(error))
    return QueryNotBuilt(
        f"The function of job {job_name!r} did not build its query: {type(error).__name__}{said and f': {said}'}",
        hint=_MEND,
    )


def failed_in_batch(error: CheckpointError) -> bool:
    """Whether a query failed in a batch, and not earlier, while it opened its sources and its sink."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - PySpark is loaded where it runs

    cause = error.__cause__
    return isinstance(cause, StreamingQueryException) and _BEGINNING not in str(cause)


def another_query(job_name: str, restored: CheckpointMetadata, why: str) -> QueryMismatch:
    """The error when a checkpoint was taken of another query; ``why`` is a sentence."""
    return QueryMismatch(
        f"The query of job {job_name!r} is not the one {restored.name} was taken of. {why}",
        hint="Run the query as it was, or start from nothing into an empty sink with restore_from: none.",
    )


def _first_line(text: str) -> str:
    """The error in one line; for an error in Python code, with the line of its message."""
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else text
    if "Traceback (most recent call last):" in text:
        traceback = text.partition("Traceback (most recent call last):")[2].splitlines()
        said = next((line for line in traceback if line and not line[0].isspace()), "")
        first = f"{first.removesuffix('Traceback (most recent call last):').rstrip()} {said}"
    return first[:500]
