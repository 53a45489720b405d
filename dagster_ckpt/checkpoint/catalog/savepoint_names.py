"""Names of savepoints: unique in a job, for as long as the savepoint is there."""

from __future__ import annotations

import contextlib

from pydantic import TypeAdapter, ValidationError

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control import Label, NamedSavepoint, name_taken
from dagster_ckpt.checkpoint.format import CheckpointMetadata, SavepointName
from dagster_ckpt.errors import CheckpointNotFound, CorruptCheckpoint, InvalidConfiguration

__all__ = ["check_label", "give_name", "gone_with_name", "made_by"]

_NAME: TypeAdapter[str] = TypeAdapter(SavepointName)
_LONGEST_NOTE = 1000


def check_label(label: Label) -> None:
    """Check what a user calls a savepoint.

    Raises:
        InvalidConfiguration: a name or the note cannot be used.
    """
    dated = None if label.series is None else f"{label.series}-20260301-030000"
    for what, given, name in (("name", label.name, label.name), ("series", label.series, dated)):
        try:
            if name is not None:
                _NAME.validate_python(name)
        except ValidationError:
            raise InvalidConfiguration(
                f"The {what} of a savepoint cannot be {given!r}.",
                hint="Use up to 100 letters, digits, dots, hyphens and underscores, or 84 for a series. Begin with a "
                "letter or digit.",
            ) from None
    if len(label.note) > _LONGEST_NOTE or not label.note.isprintable():
        raise InvalidConfiguration(
            "The note of a savepoint cannot be used.", hint=f"Write one line of at most {_LONGEST_NOTE} characters."
        )


def gone_with_name(catalog: CheckpointCatalog, name: str, request: str | None = None) -> NamedSavepoint | None:
    """The savepoint that had a name and is gone, or that the same request has made; ``None`` if none ever had the name.

    Raises:
        SavepointFailed: a savepoint that is there has the name.
        CorruptRecord: nobody can tell which savepoint has the name.
    """
    named = catalog.records.taken_savepoints.named(name)
    if named is None or (request is not None and named.request == request):
        return named
    try:
        catalog.resolve(named.reference)
    except CheckpointNotFound:
        return named
    except CorruptCheckpoint:  # there, and damaged
        pass
    raise name_taken(name, named.reference)


def made_by(catalog: CheckpointCatalog, name: str, request: str) -> CheckpointMetadata | None:
    """The savepoint that a request has made under a name; ``None`` if the request has made no savepoint.

    The driver that made it may have died before it answered the request.

    Raises:
        CorruptRecord: nobody can tell which savepoint has the name.
    """
    named = catalog.records.taken_savepoints.named(name)
    if named is not None and named.request == request:
        with contextlib.suppress(CheckpointNotFound, CorruptCheckpoint):  # another one takes its place
            return catalog.resolve(named.reference)
    return None


def give_name(
    catalog: CheckpointCatalog, savepoint: CheckpointMetadata, series: str | None, request: str | None = None
) -> None:
    """Give a savepoint its name, if it has one, just before its ``_metadata`` makes it complete.

    Raises:
        SavepointFailed: a savepoint that is there, and that another request has made, has the name.
    """
    if savepoint.given_name is None:
        return
    named = NamedSavepoint(
        savepoint.given_name,
        savepoint.reference,
        savepoint.note,
        series,
        savepoint.job_id,
        savepoint.epoch,
        savepoint.checkpoint_id,
        savepoint.written_at,
        request=request,
    )
    catalog.records.taken_savepoints.give(named, over=gone_with_name(catalog, named.name, request))
