"""``_metadata``: the manifest of a checkpoint. A checkpoint is complete when its ``_metadata`` exists.

The manifest is JSON that a person can read. Its last member is a SHA-256 over every byte before that member, so a
truncated or flipped manifest is found before any of its content is used. References to files are relative to the
directory of ``_metadata``: a job's directory can be copied elsewhere and still restores.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.kinds import CHANGED, SAVEPOINT
from dagster_ckpt.checkpoint.format.manifest_schema import check_head, check_paths, local_name, stored_name
from dagster_ckpt.errors import CheckpointFailure, CorruptMetadata, UnknownMetadataVersion
from dagster_ckpt.filesystem import Stored
from dagster_ckpt.stored_json import Json, hex_digits, is_sealed, parsed, seal, text, whole

__all__ = ["CheckpointMetadata", "FileEntry"]

FORMAT = "dagster_ckpt"
VERSION = 1
#: The version of a manifest that has files copied by the storage.
VERSION_WITH_COPIES = 2
#: The version of the manifest of a savepoint that a user gave a name or a note.
VERSION_WITH_NAME = 3
#: The version of the manifest of a copy that was changed before its query started.
VERSION_OF_CHANGED = 4
_VERSIONS = (VERSION, VERSION_WITH_COPIES, VERSION_WITH_NAME, VERSION_OF_CHANGED)
#: Most bytes of a manifest, and most files of a checkpoint. A manifest that refers to 10^6 files takes 230 MiB.
LONGEST = 1 << 30
MOST_FILES = 4_000_000
#: What :meth:`CheckpointMetadata.encode` writes before the list of files, and after the list.
_FILES = b',\n "files": ['
_DIGEST = b',\n "digest": '
_COMPONENT = rb"[!#-\-0-\[\]-~][ !#-.0-\[\]-~]{0,254}"
_NAME = rb"%b(?:/%b)*" % (_COMPONENT, _COMPONENT)
#: The line of nearly every file. Whatever matches, :meth:`FileEntry.from_json` accepts.
_ORDINARY = re.compile(
    rb'  \{"path": "(%b)", "size": ([0-9]{1,18}), "sha256": "([0-9a-f]{64})", "file": "((?:\.\./shared/)?%b)"'
    rb'(?:, "offset": ([0-9]{1,18}))?\}' % (_NAME, _NAME)
).fullmatch
#: Most bytes of an ordinary line, so that no name in the line can be too long.
_ORDINARY_LENGTH = 2048
#: Bytes of lines that are looked at together.
_BLOCK = 1 << 16
#: Most lines that are remembered from one manifest to the next: 30 MiB.
_MOST_KNOWN = 100_000
_GO_ON = "List what can be restored with `dagster-ckpt list`, and name another checkpoint in restore_from."


class FileEntry(NamedTuple):
    """One file of a checkpoint. A tuple, because a frozen dataclass takes four times as long to make.

    Attributes:
        path: the file's name within the snapshot.
        size: bytes.
        sha256: checksum of the bytes, in hex; ``None`` for a file that the storage copied, whose bytes nobody read.
        inline: the bytes, when ``_metadata`` itself holds them.
        reference: otherwise the stored file that holds the bytes, relative to the checkpoint's directory
            (``../shared/...``).
        offset: where the bytes begin in the stored file, for a small file packed with others; ``None`` when the
            stored file is the whole file.
        stored: what the storage reported about a file that it copied.
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
        """The reverse of :meth:`to_json`.

        Raises:
            ValueError: a member is not what it must be, or the file would lie outside its checkpoint.
            KeyError: a member is missing.
            TypeError: ``entry`` is not an entry.
        """
        path, size = local_name(entry["path"]), whole(entry["size"], "a size")
        reference, offset = entry.get("file"), entry.get("offset")
        inline: bytes | None = None
        if "text" in entry:
            inline = entry["text"].encode("utf-8")
        elif "base64" in entry:
            inline = base64.b64decode(entry["base64"], validate=True)
        if (inline is None) == (reference is None):
            raise ValueError(f"{path} must be either inline or a reference")
        if reference is not None:
            stored_name(reference)
        if offset is not None:
            whole(offset, "an offset")
        if "version" in entry:
            if reference is None or offset is not None or "sha256" in entry:
                raise ValueError(f"{path} is a copy, and a copied file is stored whole under its own name")
            crc32c, md5 = (None if name not in entry else text(entry[name], name) for name in ("crc32c", "md5"))
            stored = Stored(size, text(entry["version"], "a version"), crc32c, md5)
            return cls(path, size, None, reference=reference, stored=stored)
        return cls(path, size, hex_digits(entry["sha256"]), inline, reference, offset)


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Everything known about one completed checkpoint.

    Attributes:
        job_name: the job's stable name.
        job_id: the lineage of state, 32 hex digits.
        checkpoint_id: N of ``chk-N``.
        epoch: the writer's epoch; epoch and ``checkpoint_id`` order checkpoints.
        batch: the last committed micro-batch covered.
        mode: ``EXACTLY_ONCE`` or ``AT_LEAST_ONCE``.
        kind: ``checkpoint``, ``salvage`` when taken from a dead run's live location, ``fork`` when copied from another
            job, ``rescale`` or ``moved`` when the copy was changed before its query started, or ``savepoint``.
        restored_from: the :attr:`reference` of the checkpoint or savepoint that the writing start restored, ``None``
            for a start from nothing; for a fork, the directory that the fork was copied from.
        writer: run id, host and process of the writer.
        triggered_at: when the checkpoint attempt began, ISO 8601 in UTC.
        written_at: when the last data file was durable, ISO 8601 in UTC.
        timings_ms: milliseconds by step (``align``, ``pin``, ``write``).
        new_bytes: bytes that this checkpoint had to write: data that no retained checkpoint had, and the live rest of
            packs that are mostly dead.
        facts: what Spark says about the job at the cut.
        sink: the sink's position, ``None`` for a sink without one.
        files: every file, inline or by reference.
        location: the directory of a savepoint, or of another checkpoint outside its place in the job's storage.
            ``_metadata`` does not say it, because ``_metadata`` can be moved.
        given_name: the name that a user gave the savepoint, ``None`` for none.
        note: what a user wrote about the savepoint, in one line.
        reference: ``{job id}/chk-N``, unique within the job; outside the job's storage, the directory.
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
    facts: Facts
    sink: Mapping[str, Json] | None
    files: tuple[FileEntry, ...]
    location: str | None = None
    given_name: str | None = None
    note: str = ""
    #: Made once: retention asks for it again and again.
    reference: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reference", self.location or f"{self.job_id}/chk-{self.checkpoint_id}")

    @property
    def key(self) -> tuple[int, int]:
        """Orders the checkpoints of one job id: epoch, then id."""
        return (self.epoch, self.checkpoint_id)

    @property
    def name(self) -> str:
        """``chk-N``, or the name of a savepoint's directory."""
        return f"chk-{self.checkpoint_id}" if self.location is None else PurePosixPath(self.location).name

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def duration_ms(self) -> float:
        """Milliseconds from the cut to the last durable file."""
        return round(float(sum(self.timings_ms.get(step, 0) for step in ("pin", "write"))), 3)

    @property
    def references(self) -> frozenset[str]:
        """The stored files that the checkpoint needs, relative to its directory."""
        return frozenset(file.reference for file in self.files if file.reference is not None)

    def encode(self) -> bytes:
        """The bytes of ``_metadata``.

        Raises:
            CheckpointFailure: :meth:`decode` would refuse these bytes.
        """
        named = {key: value for key, value in (("name", self.given_name), ("note", self.note)) if value}
        copied = VERSION_WITH_COPIES if any(file.stored is not None for file in self.files) else VERSION
        document = {
            "format": FORMAT,
            "version": VERSION_OF_CHANGED if self.kind in CHANGED else VERSION_WITH_NAME if named else copied,
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
                **named,
            },
            "writer": dict(self.writer),
            "totals": {
                "files": len(self.files),
                "bytes": self.size,
                "new_bytes": self.new_bytes,
                "inline_files": sum(file.inline is not None for file in self.files),
            },
            "spark": self.facts.to_json(),
            "sink": None if self.sink is None else dict(self.sink),
        }
        try:
            check_head(document)
            for file in self.files:
                local_name(file.path)
            self._check_files()
            # One line per file is as easy to read, and json.dumps uses its C encoder only without indentation.
            files = ",\n  ".join(json.dumps(file.to_json(), ensure_ascii=False) for file in self.files)
            head = json.dumps(document, indent=1, ensure_ascii=False).removesuffix("\n}")
            data = seal(head.encode() + _FILES + f"\n  {files}\n ]".encode())
            _check_length(data)
        except (TypeError, ValueError) as error:
            raise CheckpointFailure(
                f"The _metadata of {self.name} of job {self.job_name!r} cannot be written, because nobody could read "
                f"it again: {error}.",
                hint="If the error is about the sink, the sink's position must be JSON values. If the error is about "
                "files, the job has more state than one checkpoint can name.",
            ) from error
        return data

    def _check_files(self) -> None:
        """Check that all files fit into one directory, and that a savepoint needs no file outside its directory.

        Raises:
            ValueError: a check failed.
        """
        if len(self.files) > MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files")
        check_paths(file.path for file in self.files)
        if self.kind == SAVEPOINT and any(reference.startswith("../") for reference in self.references):
            raise ValueError("it is a savepoint and refers to files outside its directory")

    @classmethod
    def decode(cls, data: bytes, where: str, known: dict[bytes, FileEntry] | None = None) -> CheckpointMetadata:
        """Read ``_metadata``.

        Args:
            data: its bytes.
            where: names it in errors.
            known: files of other manifests by their lines; those of this manifest are added. Checkpoints share most of
                their files, and a line that is known is not parsed again.

        Raises:
            CorruptMetadata: ``data`` is truncated, was changed, or is no manifest.
            UnknownMetadataVersion: a newer release wrote the manifest.
        """
        try:
            _check_length(data)
            if not is_sealed(data):
                _raise_for_version(data, where)
                raise CorruptMetadata(
                    f"{where} is truncated or was changed: its checksum does not match its content.", hint=_GO_ON
                )
            return cls._decode(data, where, {} if known is None else known)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptMetadata(f"{where} is not a checkpoint's _metadata: {error}.", hint=_GO_ON) from error

    @classmethod
    def _decode(cls, data: bytes, where: str, known: dict[bytes, FileEntry]) -> CheckpointMetadata:
        at = data.find(_FILES)
        if at < 0:
            raise ValueError("it has no list of files")
        document = parsed(data[:at] + b"}")
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        _check_version(document["version"], where)
        head = check_head(document)
        checkpoint = document["checkpoint"]
        metadata = cls(
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
            facts=head.spark,
            sink=document["sink"],
            files=tuple(islice(_entries(data, at + len(_FILES), known), MOST_FILES + 1)),
            given_name=head.checkpoint.name,
            note=head.checkpoint.note,
        )
        metadata._check_files()
        return metadata


def _entries(data: bytes, at: int, known: dict[bytes, FileEntry]) -> Iterator[FileEntry]:
    """The files of a manifest, read line by line: 10^6 entries as text and JSON take far more memory than parsed.

    Args:
        data: the manifest.
        at: where its list of files begins, after the bracket.
        known: files by their lines, as for :meth:`CheckpointMetadata.decode`.

    Raises:
        ValueError: there is no list of files, or the digest does not follow the list.
    """
    end = data.rindex(_DIGEST)
    if not data.startswith(b'\n  {"', at):  # no files, or another layout
        yield from map(FileEntry.from_json, parsed(b"[" + data[at:end]))
        return
    if not data.endswith(b"\n ]", at, end):
        raise ValueError("its list of files is truncated")
    at, end = at + 1, end - len("\n ]")
    while at < end:
        stop = data.index(b"\n", min(at + _BLOCK, end))
        yield from [known.get(line) or _entry(line, known) for line in data[at:stop].removesuffix(b",").split(b",\n")]
        at = stop + 1


def _entry(line: bytes, known: dict[bytes, FileEntry]) -> FileEntry:
    if len(line) < _ORDINARY_LENGTH and (ordinary := _ORDINARY(line)) is not None:
        path, size, sha256, reference, offset = ordinary.groups()
        begins = None if offset is None else int(offset)
        entry = FileEntry(path.decode(), int(size), sha256.decode(), None, reference.decode(), begins)
    else:
        entry = FileEntry.from_json(parsed(line))
    if len(known) < _MOST_KNOWN:
        known[line] = entry
    return entry


def _check_length(data: bytes) -> None:
    if len(data) > LONGEST:
        raise ValueError(f"it has {len(data)} bytes, more than {LONGEST}")


def _check_version(version: object, where: str) -> None:
    if version not in _VERSIONS:
        raise UnknownMetadataVersion(
            f"{where} has metadata version {version!r}; this release reads version {_VERSIONS[-1]}.",
            hint="Restore it with the release that wrote it, or install a newer release of dagster-ckpt.",
        )


def _raise_for_version(data: bytes, where: str) -> None:
    """Report a newer version as such: its digest may be of another kind, and the manifest is not corrupt."""
    try:
        document = parsed(data)
    except ValueError:
        return
    if isinstance(document, dict) and document.get("format") == FORMAT and document.get("version") not in _VERSIONS:
        _check_version(document.get("version"), where)
