"""Control records: small JSON documents that one writer creates or replaces and others read.

Every record is written and read here. A record is sealed with a digest and names its own place, so a flipped bit, a
truncation and a record copied from elsewhere are found. Then the record's dataclass checks the members: strict types,
finite numbers, bounded lengths. A record of version 1 has neither digest nor place; the dataclass checks its members
too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from dagster_ckpt.checkpoint.format.layout import METADATA_FILE_NAME
from dagster_ckpt.clock import EARLIEST, LATEST
from dagster_ckpt.errors import CorruptRecord, InvalidConfiguration
from dagster_ckpt.filesystem import FileSystem, inside
from dagster_ckpt.stored_json import is_sealed, seal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "LONGEST_REASON",
    "Batch",
    "CheckpointId",
    "CheckpointName",
    "Count",
    "Epoch",
    "FileName",
    "JobId",
    "Line",
    "Moment",
    "Moved",
    "RunId",
    "SavepointName",
    "Seconds",
    "Text",
    "Token",
    "corrupt",
    "encode_record",
    "is_there_sealed",
    "read_record",
    "record_in",
]

VERSION = 2
#: Most bytes of a record. The longest records list the checkpoints or shared files of a job: a million names fit.
_LARGEST = 256 * 1024 * 1024
#: How a record of version 2 or later begins.
_BEGIN = b'{\n "version": '

#: The number of an epoch: ten digits in the name of its record.
Epoch = Annotated[int, Field(ge=1, lt=10**10)]
#: The id of a checkpoint, 0 where none was issued.
CheckpointId = Annotated[int, Field(ge=0, lt=10**15)]
#: The number of a micro-batch, -1 for "before the first".
Batch = Annotated[int, Field(ge=-1, lt=2**63)]
#: A number of things or of bytes.
Count = Annotated[int, Field(ge=0, lt=2**63)]
#: Seconds on a monotonic clock, or between two moments.
Seconds = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
#: Seconds since 1970; whoever reads a record tells people the date.
Moment = Annotated[float, Field(allow_inf_nan=False, ge=EARLIEST, le=LATEST)]
#: Text for people; errors of Spark are long.
Text = Annotated[str, Field(max_length=1_000_000)]
#: A name, a path or a URL.
Line = Annotated[str, Field(max_length=8192, pattern=r"^[^\x00]*$")]
#: The run that drives a job; part of the names of records.
RunId = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]{1,128}$")]
#: 32 hex digits: a lineage of state.
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
#: 32 hex digits: unique.
Token = JobId
#: The name that a user gave a savepoint; part of the names of records.
SavepointName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
#: ``{job id}/chk-N``.
CheckpointName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}/chk-[1-9][0-9]{0,14}$")]
#: A file in the directory that the record is about.
FileName = Annotated[str, AfterValidator(inside)]

#: Most characters of an error in a record: a person reads the first ones.
LONGEST_REASON = 10_000

_R = TypeVar("_R", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Moved:
    """A move of sources that was done.

    Attributes:
        asked: the request, as the checkpoint of kind ``moved`` tells it.
        checkpoint: that checkpoint.
    """

    asked: Text
    checkpoint: CheckpointName


@dataclass(frozen=True, slots=True)
class _Head:
    version: int
    place: str


def encode_record(record: DataclassInstance, place: str) -> bytes:
    """The bytes of a record.

    Args:
        record: the content.
        place: the path that the record is written to; the record is valid at that path only.

    Raises:
        InvalidConfiguration: a member is not of its type, so nobody could read the record back.
    """
    fields = {"version": getattr(record, "version", VERSION), "place": place, **asdict(record)}
    # An error may quote the name of a file that is not UTF-8.
    text = json.dumps(fields, indent=1, ensure_ascii=False).encode("utf-8", "replace")
    data = seal(text.removesuffix(b"\n}"))
    try:
        _decode(data, place, type(record))
    except ValueError as error:
        raise InvalidConfiguration(
            f"{place} cannot be recorded: {error}.",
            hint="Change the name, path or id that you chose and that the record would contain.",
        ) from None
    return data


def read_record(
    filesystem: FileSystem,
    path: str,
    make: type[_R],
    *,
    place: str | None = None,
    sealed_as: str | None = None,
    **named: object,
) -> _R | None:
    """The record at ``path``; ``None`` when there is none.

    Args:
        filesystem: the storage.
        path: of the record.
        make: the record's dataclass; its annotations say what each member may be.
        place: as for :func:`record_in`.
        sealed_as: as for :func:`record_in`.
        named: as for :func:`record_in`.

    Raises:
        CorruptRecord: the record was changed, or is not a ``make``.
    """
    data = filesystem.read_if_there(path)
    return None if data is None else record_in(data, filesystem, path, make, place=place, sealed_as=sealed_as, **named)


def record_in(
    data: bytes,
    filesystem: FileSystem,
    path: str,
    make: type[_R],
    *,
    place: str | None = None,
    sealed_as: str | None = None,
    **named: object,
) -> _R:
    """The record in what was read.

    Members that this release does not know are ignored: a newer release may have written the record.

    Args:
        data: what was read at ``path``.
        filesystem: the storage.
        path: of the record.
        make: the record's dataclass; its annotations say what each member may be.
        place: the path that the record was written for, where that is not ``path``.
        sealed_as: the path of another record, which the same release wrote. If that record is sealed, this record must
            be sealed too; otherwise a record of version 1 could replace a sealed one unnoticed.
        named: members whose values the name of the record tells too.

    Raises:
        CorruptRecord: the record was changed, or is not a ``make``.
    """
    try:
        record = _decode(data, path if place is None else place, make)
        if sealed_as is not None and not is_sealed(data) and is_there_sealed(filesystem, sealed_as):
            raise ValueError("it is of version 1, and the release that wrote it writes version 2")
        for name, told in named.items():
            if (value := getattr(record, name)) != told:
                raise ValueError(f"{name} is {value!r}, but its file name says {told!r}")
        return record
    except ValueError as error:
        raise corrupt(filesystem, path, str(error)) from None


def is_there_sealed(filesystem: FileSystem, path: str) -> bool:
    """Whether there is a record of version 2 or later at ``path``."""
    data = filesystem.read_if_there(path)
    return data is not None and is_sealed(data)


def corrupt(filesystem: FileSystem, path: str, why: str) -> CorruptRecord:
    """The error for a record at ``path`` that cannot be trusted, with what to do."""
    return CorruptRecord(
        f"{filesystem.url}/{path} cannot be believed: {why}.",
        hint="Something else has changed it. Make sure that no run of the job is alive, and put the file back from a "
        f"backup. Without a backup: {_way_on(path)}",
    )


def _way_on(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith(".choice"):
        return (
            "list the checkpoints with `dagster-ckpt list`, and launch the job with restore_from: {job id}/chk-N, "
            "which does not need this file. Do not delete it: it tells which checkpoints a rollback abandoned."
        )
    if "/epochs/" in path:
        return "launch the job with restore_from: {job id}/chk-N, which claims an epoch of its own."
    if "/issued/" in path and "-" not in name.removeprefix("e-"):
        return "write into the file a number above the id of every checkpoint and savepoint of the job."
    about_runs = ("/submissions/", "/messages/", "/requests/", "/failures/", "/standbys/")
    if name in {"heartbeat", "silent", "attendant", "submission"} or any(part in path for part in about_runs):
        return "delete the file. It is about the runs of the job, and no checkpoint depends on it."
    if "/pins/" in path:
        return "the pin still holds, as the file name tells the checkpoint. `dagster-ckpt unpin` removes the pin."
    if "/quarantine/" in path:
        return (
            "the checkpoint that the file name tells stays in quarantine. Launch the job with restore_from that "
            "checkpoint, or `dagster-ckpt dispose` it."
        )
    if "/deletions/" in path:
        return (
            "delete the file. What it was to delete then stays, and `dagster-ckpt sweep` finds what nothing refers "
            f"to; a directory without {METADATA_FILE_NAME} holds no checkpoint."
        )
    if "/savepoints/" in path:
        return "delete the file. The savepoint itself stays, and restore_from can name its directory."
    if "/starts/" in path:
        return "delete the file. It tells how long a start took, and nothing depends on it."
    return "delete the file."


def _decode(data: bytes, place: str, make: type[_R]) -> _R:
    """The record; raises ValueError with the reason."""
    if len(data) > _LARGEST:
        raise ValueError(f"it has {len(data)} bytes; no record is that long")
    if is_sealed(data):
        _check_head(data, place, getattr(make, "VERSIONS", (VERSION,)))
    elif data.startswith(_BEGIN) or b'"digest": "sha256:' in data[-100:]:
        raise ValueError("it is truncated or was changed: its checksum does not match its content")
    try:
        record: _R = _adapter(make).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
    return record


def _check_head(data: bytes, place: str, versions: Sequence[int]) -> None:
    """Check the version and the place of a sealed record."""
    try:
        head = _adapter(_Head).validate_json(data, strict=True)
    except ValidationError:
        raise ValueError("it does not tell its version and its place") from None
    if head.version not in versions:
        known = ", ".join(map(str, (1, *versions[:-1])))
        raise ValueError(f"it is of version {head.version}, and this release reads versions {known} and {versions[-1]}")
    if head.place != place:
        raise ValueError(f"it was written for {head.place!r}")


@cache
def _adapter(make: type[_R]) -> TypeAdapter[_R]:
    return TypeAdapter(make)
