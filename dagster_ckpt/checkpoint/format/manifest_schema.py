"""What the members of a manifest must be before anything in them is believed: types, bounds, and names.

Whoever can write to a storage can write a manifest with a right digest. What passes here has the types that
:class:`~dagster_ckpt.checkpoint.format.manifest.CheckpointMetadata` promises, and could be written again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from dagster_ckpt.checkpoint.format.layout import is_job_id, is_job_name
from dagster_ckpt.checkpoint.format.values import LONGEST_TEXT, SIGNED_64, check_tree, shown
from dagster_ckpt.filesystem.names import inside

__all__ = ["Head", "check_head", "check_paths", "local_name", "stored_name"]

_SHARED = "../shared/"


def local_name(path: object) -> str:
    """``path``, the name of a file in a snapshot.

    Raises:
        ValueError: it may lead elsewhere.
    """
    try:
        return inside(path)
    except ValueError as error:
        raise ValueError(f"{error}, so it leaves the checkpoint") from None


def stored_name(reference: object) -> str:
    """``reference``, where a file is stored relative to its checkpoint's directory: there, or in ``../shared/``.

    Raises:
        ValueError: it may lead elsewhere.
    """
    local_name(reference.removeprefix(_SHARED) if isinstance(reference, str) else reference)
    return str(reference)


def check_paths(paths: Iterable[str]) -> None:
    """Make sure that files of these names can be in one directory.

    Raises:
        ValueError: a name is there twice, or is both of a file and of a directory.
    """
    files: set[str] = set()
    directories: set[str] = set()
    for path in paths:
        if path in files:
            raise ValueError(f"{shown(path)} is there twice")
        files.add(path)
        above = path.rpartition("/")[0]
        while above and above not in directories:
            directories.add(above)
            above = above.rpartition("/")[0]
    if not files.isdisjoint(directories):
        raise ValueError(f"{shown(min(files & directories))} is a file and a directory")


def check_head(document: Any) -> Head:
    """Make sure that everything in a manifest but its files is what it must be.

    Raises:
        ValueError: it is not.
    """
    # What is left is bounded by the schema; this is not, and its names are in the errors.
    check_tree([document.get(member) for member in ("checkpoint", "writer", "spark", "sink")])
    try:
        return Head.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _moment(value: str) -> str:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    moment.timestamp()
    return value


def _job_name(value: str) -> str:
    if not is_job_name(value):
        raise ValueError("no job can have this name")
    return value


def _job_id(value: str) -> str:
    if not is_job_id(value):
        raise ValueError("no job id, which is 32 hex digits")
    return value


_Whole = Annotated[int, Field(ge=0, le=SIGNED_64)]
_Signed = Annotated[int, Field(ge=-SIGNED_64 - 1, le=SIGNED_64)]
_Number = _Signed | Annotated[FiniteFloat, Field(ge=-1e18, le=1e18)]
_Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
_Moment = Annotated[str, Field(max_length=64), AfterValidator(_moment)]


class _Strict(BaseModel):
    """Nothing is converted. What this release does not know is passed over: a newer one may have written it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Job(_Strict):
    name: Annotated[str, AfterValidator(_job_name)]
    id: Annotated[str, AfterValidator(_job_id)]


class _Checkpoint(_Strict):
    id: _Whole
    epoch: Annotated[int, Field(ge=0, le=9_999_999_999)]
    batch: _Whole
    kind: Literal["checkpoint", "salvage", "fork", "savepoint"]
    mode: Literal["EXACTLY_ONCE", "AT_LEAST_ONCE"]
    restored_from: _Text | None
    triggered_at: _Moment
    written_at: _Moment
    timings_ms: dict[_Text, _Number]


class _Totals(_Strict):
    new_bytes: _Whole


class _Operator(_Strict):
    id: str
    name: str
    partitions: _Signed
    stores: list[str]


class _Source(_Strict):
    id: str
    offset: Any


class _Facts(_Strict):
    """What is read of what Spark says; other members are for people."""

    query_id: str = ""
    batch: _Signed | None = None
    planned_batch: _Signed | None = None
    watermark_ms: _Signed | None = None
    timestamp_ms: _Signed | None = None
    state_store_provider: str | None = None
    state_format: _Signed | None = None
    partitions: _Signed | None = None
    operators: list[_Operator] = []
    sources: list[_Source] = []
    sql_confs: dict[str, str] = {}
    spark_version: str | None = None
    accepted_loss: list[str] = []
    progress: dict[str, _Number | str | None] = {}


class _Sink(_Strict):
    """What is read of every sink's position; each has more of its own."""

    kind: _Text = ""
    path: _Text = ""
    batch: _Signed | None = None


class Head(_Strict):
    """Everything in a manifest but its files. Facts and the sink's position are checked, and taken as they are."""

    format: Literal["dagster_ckpt"]
    version: int
    job: _Job
    checkpoint: _Checkpoint
    writer: dict[_Text, Any]
    totals: _Totals
    spark: _Facts
    sink: _Sink | None
