"""``_metadata``: the manifest of a checkpoint and, by existing, the mark of its completion.

It is JSON that a person can read. The last member is a SHA-256 over every byte before it, so that a truncated
or flipped file is found before anything in it is believed. References to files are relative to the directory
``_metadata`` lies in: a job's directory can be copied elsewhere and still restores.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from dagster_ckpt.checkpoint.seal import is_sealed, seal
from dagster_ckpt.checkpoint.snapshot import Json
from dagster_ckpt.errors import CorruptMetadata, UnknownMetadataVersion
from dagster_ckpt.filesystem import Stored

__all__ = ["FORK", "SAVEPOINT", "CheckpointMetadata", "FileEntry"]

#: The kind of a savepoint: self-contained, in a directory of the user's.
SAVEPOINT = "savepoint"
#: The kind of the first checkpoint of a job that was forked: a copy of a checkpoint or savepoint of another.
FORK = "fork"
FORMAT = "dagster_ckpt"
VERSION = 1
#: Of a manifest with files that their store has copied.
VERSION_WITH_COPIES = 2
_VERSIONS = (VERSION, VERSION_WITH_COPIES)
_GO_ON = "List what can be restored with `dagster-ckpt list --path ...`, and name another checkpoint in restore_from."


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        path: its name within the snapshot.
        size: bytes.
        sha256: checksum of its bytes, in hex; ``None`` for a file whose bytes nobody has read, as its store copied it.
        inline: its bytes, when they are kept in ``_metadata`` itself.
        reference: otherwise where they lie, relative to the checkpoint's directory (``../shared/...``).
        offset: where they begin there, for a small file packed with others; ``None`` for a whole file.
        stored: what the store said of a file that it copied.
    """

    path: str
    size: int
    sha256: str | None
    inline: bytes | None = None
    reference: str | None = None
    offset: int | None = None
    stored: Stored | None = None

    def to_json(self) -> dict[str, Json]:
        if self.stored is not None:
            return {
                "path": self.path,
                "size": self.size,
                **({} if self.stored.crc32c is None else {"crc32c": self.stored.crc32c}),
                **({} if self.stored.md5 is None else {"md5": self.stored.md5}),
                "version": self.stored.version,
                "file": self.reference,
            }
        entry: dict[str, Json] = {"path": self.path, "size": self.size, "sha256": self.sha256}
        if self.reference is not None:
            entry["file"] = self.reference
            return entry if self.offset is None else {**entry, "offset": self.offset}
        data = self.inline or b""
        try:
            return {**entry, "text": data.decode("utf-8")}
        except UnicodeDecodeError:
            return {**entry, "base64": base64.b64encode(data).decode("ascii")}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> FileEntry:
        inline: bytes | None = None
        if "text" in entry:
            inline = entry["text"].encode("utf-8")
        elif "base64" in entry:
            inline = base64.b64decode(entry["base64"], validate=True)
        path, reference = entry["path"], entry.get("file")
        if (inline is None) == (reference is None):
            raise ValueError(f"{path} must be either inline or a reference")
        for name, parts in (
            (path, path.split("/")),
            (reference, (reference or "").removeprefix("../").split("/")),
        ):
            if name is not None and (".." in parts or name.startswith("/")):
                raise ValueError(f"{name} leaves the checkpoint")
        size, offset = int(entry["size"]), entry.get("offset")
        if "version" in entry:
            if reference is None or offset is not None or "sha256" in entry:
                raise ValueError(f"{path} is a copy, and such a file lies whole under a name of its own")
            stored = Stored(size, str(entry["version"]), entry.get("crc32c"), entry.get("md5"))
            return cls(path, size, None, reference=reference, stored=stored)
        return cls(path, size, entry["sha256"], inline, reference, None if offset is None else int(offset))


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Everything known about one completed checkpoint.

    Attributes:
        job_name: the job's stable name.
        job_id: its lineage of state, 32 hex digits.
        checkpoint_id: N of ``chk-N``.
        epoch: the writer's epoch; with ``checkpoint_id`` it orders checkpoints.
        batch: the last committed micro-batch covered.
        mode: ``EXACTLY_ONCE`` or ``AT_LEAST_ONCE``.
        kind: ``checkpoint``, ``salvage`` when taken from a dead run's live location, ``fork`` when copied from another
            job, or ``savepoint``.
        restored_from: the :attr:`reference` of what the writing run began with, ``None`` for a fresh start; of a fork
            the directory of what it was copied from.
        writer: run id, host and process of the writer.
        triggered_at: when the attempt began, ISO 8601 in UTC.
        written_at: when its last data file was durable, ISO 8601 in UTC.
        timings_ms: milliseconds by step (``align``, ``pin``, ``write``).
        new_bytes: bytes this checkpoint had to write: what no retained one had, and what was left of packs that are
            mostly dead.
        facts: what Spark says about the job at the cut.
        sink: the sink's position, ``None`` where it has none.
        files: every file, inline or by reference.
        location: the directory it lies in, when that is not its place in the job's storage, as for a savepoint; not
            part of ``_metadata``, which can be moved.
    """

    job_name: str
    job_id: str
    checkpoint_id: int
    epoch: int
    batch: int
    mode: str
    kind: str
    restored_from: str | None
    writer: Mapping[str, Json]
    triggered_at: str
    written_at: str
    timings_ms: Mapping[str, float]
    new_bytes: int
    facts: Mapping[str, Json]
    sink: Mapping[str, Json] | None
    files: tuple[FileEntry, ...]
    location: str | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What orders the checkpoints of one job id: epoch, then id."""
        return (self.epoch, self.checkpoint_id)

    @property
    def name(self) -> str:
        """``chk-N``, or the name of a savepoint's directory."""
        return f"chk-{self.checkpoint_id}" if self.location is None else PurePosixPath(self.location).name

    @property
    def reference(self) -> str:
        """``{job id}/chk-N``, unique below the job's name; of what lies elsewhere, its directory."""
        return self.location or f"{self.job_id}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def references(self) -> frozenset[str]:
        """The stored files it needs, relative to its directory."""
        return frozenset(file.reference for file in self.files if file.reference is not None)

    def with_timing(self, step: str, milliseconds: float) -> CheckpointMetadata:
        """A copy that also knows how long ``step`` took."""
        return replace(self, timings_ms={**self.timings_ms, step: milliseconds})

    def encode(self) -> bytes:
        """The bytes of ``_metadata``."""
        document = {
            "format": FORMAT,
            "version": VERSION_WITH_COPIES if any(file.stored is not None for file in self.files) else VERSION,
            "job": {"name": self.job_name, "id": self.job_id},
            "checkpoint": {
                "id": self.checkpoint_id,
                "epoch": self.epoch,
                "batch": self.batch,
                "kind": self.kind,
                "mode": self.mode,
                "restored_from": self.restored_from,
                "triggered_at": self.triggered_at,
                "written_at": self.written_at,
                "timings_ms": dict(self.timings_ms),
            },
            "writer": dict(self.writer),
            "totals": {
                "files": len(self.files),
                "bytes": self.size,
                "new_bytes": self.new_bytes,
                "inline_files": sum(file.inline is not None for file in self.files),
            },
            "spark": dict(self.facts),
            "sink": None if self.sink is None else dict(self.sink),
        }
        # A file to a line: as easy to read, and without indentation the encoder that is written in C does it.
        files = ",\n  ".join(json.dumps(file.to_json(), ensure_ascii=False) for file in self.files)
        head = json.dumps(document, indent=1, ensure_ascii=False).removesuffix("\n}")
        body = f'{head},\n "files": [\n  {files}\n ]'.encode()
        return seal(body)

    @classmethod
    def decode(cls, data: bytes, where: str) -> CheckpointMetadata:
        """Read ``_metadata``; ``where`` names it in errors.

        Raises:
            CorruptMetadata: it is truncated, was changed, or is something else.
            UnknownMetadataVersion: a release newer than this one wrote it.
        """
        if not is_sealed(data):
            _raise_for_version(data, where)
            raise CorruptMetadata(
                f"{where} is truncated or was changed: its checksum does not match its content.", hint=_GO_ON
            )
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']!r}")
            _check_version(document["version"], where)
            checkpoint = document["checkpoint"]
            return cls(
                job_name=document["job"]["name"],
                job_id=document["job"]["id"],
                checkpoint_id=checkpoint["id"],
                epoch=checkpoint["epoch"],
                batch=checkpoint["batch"],
                mode=checkpoint["mode"],
                kind=checkpoint["kind"],
                restored_from=checkpoint["restored_from"],
                writer=document["writer"],
                triggered_at=checkpoint["triggered_at"],
                written_at=checkpoint["written_at"],
                timings_ms=checkpoint["timings_ms"],
                new_bytes=document["totals"]["new_bytes"],
                facts=document["spark"],
                sink=document["sink"],
                files=tuple(FileEntry.from_json(entry) for entry in document["files"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptMetadata(f"{where} is not a checkpoint's _metadata: {error}.", hint=_GO_ON) from error


def _check_version(version: object, where: str) -> None:
    if version not in _VERSIONS:
        raise UnknownMetadataVersion(
            f"{where} has metadata version {version!r}; this release reads version {VERSION_WITH_COPIES}.",
            hint="Restore it with the release that wrote it, or install a newer release of dagster-ckpt.",
        )


def _raise_for_version(data: bytes, where: str) -> None:
    """A later version may have another kind of digest: say so rather than call it corrupt."""
    try:
        document = json.loads(data)
    except ValueError:
        return
    if isinstance(document, dict) and document.get("format") == FORMAT and document.get("version") not in _VERSIONS:
        _check_version(document.get("version"), where)
