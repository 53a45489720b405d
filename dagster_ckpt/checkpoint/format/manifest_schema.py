"""Checks of a manifest's members before they are used: types, bounds, and names.

Anyone who can write to a storage can write a manifest with a right digest. A manifest that passes has the types that
:class:`~dagster_ckpt.checkpoint.format.manifest.CheckpointMetadata` promises, and can be written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dagster_ckpt.checkpoint.format.facts import Facts, Number, Signed
from dagster_ckpt.checkpoint.format.layout import is_job_id, is_job_name
from dagster_ckpt.checkpoint.format.records import SavepointName
from dagster_ckpt.filesystem import inside
from dagster_ckpt.stored_json import LONGEST_TEXT, SIGNED_64, check_tree, shown

__all__ = ["Head", "check_head", "check_paths", "local_name", "stored_name"]

_SHARED = "../shared/"


def local_name(path: object) -> str:
    """``path`` if it can name a file in a snapshot.

    Raises:
        ValueError: ``path`` may lead out of the snapshot.
    """
    try:
        return inside(path)
    except ValueError as error:
        raise ValueError(f"{error}, so it leaves the checkpoint") from None


def stored_name(reference: object) -> str:
    """``reference`` if it leads to a stored file in its checkpoint's directory or in ``../shared/``.

    Raises:
        ValueError: ``reference`` may lead elsewhere.
    """
    local_name(reference.removeprefix(_SHARED) if isinstance(reference, str) else reference)
    return str(reference)


def check_paths(paths: Iterable[str]) -> None:
    """Check that files with these names can be in one directory.

    Raises:
        ValueError: a name occurs twice, or names both a file and a directory.
    """
    listed = list(paths)
    files = set(listed)
    if len(files) < len(listed):
        twice = next(path for path, count in Counter(listed).items() if count > 1)
        raise ValueError(f"{shown(twice)} is there twice")
    directories: set[str] = set()
    above = {path.rpartition("/")[0] for path in files}
    while above:
        directories |= above
        above = {directory.rpartition("/")[0] for directory in above} - directories
    if not files.isdisjoint(directories):
        raise ValueError(f"{shown(min(files & directories))} is a file and a directory")


def check_head(document: Any) -> Head:
    """Check everything in a manifest except its files.

    Raises:
        ValueError: a check failed.
    """
    # The schema does not bound the depth of these members, and pydantic quotes their keys in its errors.
    check_tree([document.get(member) for member in ("checkpoint", "writer", "spark", "sink")])
    try:
        return Head.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _moment(value: str) -> str:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone")
    moment.timestamp()
    return value


def _job_name(value: str) -> str:
    if not is_job_name(value):
        raise ValueError("no job can have this name")
    return value


def _job_id(value: str) -> str:
    if not is_job_id(value):
        raise ValueError("not a job id, which is 32 hex digits")
    return value


_Whole = Annotated[int, Field(ge=0, le=SIGNED_64)]
_Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
_Moment = Annotated[str, Field(max_length=64), AfterValidator(_moment)]


class _Strict(BaseModel):
    """Converts no value, and ignores members that this release does not know: a newer one may have written them."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Job(_Strict):
    name: Annotated[str, AfterValidator(_job_name)]
    id: Annotated[str, AfterValidator(_job_id)]


class _Checkpoint(_Strict):
    id: _Whole
    epoch: Annotated[int, Field(ge=0, le=9_999_999_999)]
    batch: _Whole
    kind: Literal["checkpoint", "salvage", "fork", "rescale", "moved", "savepoint"]
    mode: Literal["EXACTLY_ONCE", "AT_LEAST_ONCE"]
    restored_from: _Text | None
    triggered_at: _Moment
    written_at: _Moment
    timings_ms: dict[_Text, Number]
    name: SavepointName | None = None
    note: _Text = ""


class _Totals(_Strict):
    new_bytes: _Whole


class _Sink(_Strict):
    """The members of every sink's position that this package reads; each sink has more members."""

    kind: _Text = ""
    path: _Text = ""
    batch: Signed | None = None


class Head(_Strict):
    """Everything in a manifest except its files. The sink's position is checked, then used unconverted."""

    format: Literal["dagster_ckpt"]
    version: int
    job: _Job
    checkpoint: _Checkpoint
    writer: dict[_Text, Any]
    totals: _Totals
    spark: Facts
    sink: _Sink | None
