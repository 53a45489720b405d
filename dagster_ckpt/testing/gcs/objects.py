"""The buckets of :mod:`~dagster_ckpt.testing.gcs.server`: objects, generations, and preconditions of requests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import google_crc32c

__all__ = ["MADE", "PAGE", "Buckets", "Page", "Refused", "StoredObject", "Upload"]

#: The most entries of one page of a listing.
PAGE = 1000
#: The creation time of everything.
MADE = "2026-01-01T00:00:00.000Z"
_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
_UNMET = "At least one of the pre-conditions you specified did not hold."
_NO_BUCKET = "The specified bucket does not exist."
#: The properties of an object that its writer sets.
_SAID = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
)
_MOST_COMPOSED = 32
_UNIT = 256 << 10
_MIB = 1 << 20


class Refused(Exception):
    """A request is not carried out.

    Args:
        status: of the answer.
        message: for the client.
    """

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object.

    Attributes:
        data: its bytes.
        generation: its number; generations rise.
        said: the properties that its writer set, by the names of the API.
        components: how many objects it was composed of; 0 for an object that was not composed.
    """

    data: bytes
    generation: int
    said: Mapping[str, Any] = field(default_factory=dict)
    components: int = 0

    @cached_property
    def md5(self) -> str:
        """In base64."""
        return base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode()

    @cached_property
    def crc32c(self) -> str:
        """In base64, most significant byte first."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @property
    def content_type(self) -> str:
        """The type that the writer set, or that of plain bytes."""
        return str(self.said.get("contentType") or "application/octet-stream")

    def resource(self, bucket: str, name: str) -> dict[str, Any]:
        """The API's description of the object."""
        # A composed object has no MD5: the server has never read all its bytes in a row.
        proof = {"componentCount": self.components} if self.components else {"md5Hash": self.md5}
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self.generation}",
            "name": name,
            "bucket": bucket,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "storageClass": "STANDARD",
            "timeCreated": MADE,
            "updated": MADE,
            "crc32c": self.crc32c,
            "etag": f"e{self.generation}",
            **proof,
            **self.said,
            "contentType": self.content_type,
        }


@dataclass(slots=True)
class Upload:
    """A resumable upload that is not finished."""

    bucket: str
    name: str
    conditions: Mapping[str, str]
    declared: Mapping[str, Any]
    received: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A copy in several requests that is not finished."""

    source: tuple[str, str, int]
    target: tuple[str, str]
    copied: int


@dataclass(slots=True)
class Page:
    """One page of a listing; the last page has no ``token``."""

    names: list[str] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str = ""

    def __len__(self) -> int:
        return len(self.names) + len(self.prefixes)


class Buckets:
    """All buckets, in memory. Refused requests raise :class:`Refused`."""

    def __init__(self) -> None:
        #: The bytes of objects whose names begin with this prefix are not kept.
        self.forget: str | None = None
        self.uploads: dict[str, Upload] = {}
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._rewrites: dict[str, _Rewrite] = {}
        self._generation = itertools.count(1_700_000_000_000_000)

    def names(self) -> list[str]:
        """The names of all buckets."""
        return sorted(self._buckets)

    def create(self, bucket: str) -> None:
        """Make an empty bucket; replace a bucket of this name."""
        self._buckets[bucket] = {}

    def make(self, bucket: str) -> None:
        """Make an empty bucket for a request; refuse an invalid or a taken name."""
        if not _BUCKET.fullmatch(bucket):
            raise Refused(400, f"Invalid bucket name: '{bucket}'")
        if bucket in self._buckets:
            raise Refused(409, "Your previous request to create the named bucket succeeded and you already own it.")
        self.create(bucket)

    def of(self, bucket: str) -> dict[str, StoredObject]:
        """The objects of a bucket, by name."""
        if bucket not in self._buckets:
            raise Refused(404, _NO_BUCKET)
        return self._buckets[bucket]

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object without preconditions."""
        self._buckets[bucket][name] = StoredObject(data, next(self._generation))

    def find(self, bucket: str, name: str, query: Mapping[str, str], unless: int = 304) -> StoredObject:
        """An existing object that meets the preconditions of a request.

        ``unless`` is the status for an excluded generation: 304 tells a reader that it already has the object.
        """
        found = self._buckets.get(bucket, {}).get(name)
        generation = query.get("generation")
        if found is None or (generation is not None and int(generation) != found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}")
        if query.get("ifGenerationNotMatch") == str(found.generation):
            raise Refused(unless, _UNMET)
        if not _holds(query, found):
            raise Refused(412, _UNMET)
        return found

    def store(
        self, bucket: str, name: str, data: bytes, query: Mapping[str, str], declared: Mapping[str, Any] | None = None
    ) -> StoredObject:
        """Store ``data``, if the preconditions hold and the data match the announced checksums."""
        self._require(bucket, name, query)
        said = _said(declared)
        stored = StoredObject(data, next(self._generation), said)
        for key, digest in (("md5Hash", stored.md5), ("crc32c", stored.crc32c)):
            if declared and key in declared and declared[key] != digest:
                raise Refused(400, f"What came has another {key} than was announced.")
        kept = self.forget is None or not name.startswith(self.forget)
        self._buckets[bucket][name] = stored if kept else StoredObject(b"", stored.generation, said)
        return stored

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Remove an object."""
        self.find(bucket, name, query, unless=412)
        del self._buckets[bucket][name]

    def copy(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        query: Mapping[str, str],
        declared: Mapping[str, Any] | None = None,
    ) -> StoredObject:
        """Store a copy; ``declared`` properties, if any, replace those of the original."""
        found = self._source(*source, query)
        self._require(*target, query)
        copied = StoredObject(found.data, next(self._generation), _said(declared) or found.said, found.components)
        self._buckets[target[0]][target[1]] = copied
        return copied

    def rewrite(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        query: Mapping[str, str],
        declared: Mapping[str, Any] | None = None,
    ) -> tuple[int, int, StoredObject | str]:
        """One step of a copy: bytes copied so far, bytes in all, and the copy or the token of the next step."""
        most = int(query.get("maxBytesRewrittenPerCall", "0"))
        if most % _MIB:
            raise Refused(400, "maxBytesRewrittenPerCall must be a multiple of 1 MiB")
        found = self._source(*source, query)
        self._require(*target, query)
        copied = 0
        if (token := query.get("rewriteToken")) is not None:
            begun = self._rewrites.pop(token, None)
            if begun is None or (begun.source, begun.target) != ((*source, found.generation), target):
                raise Refused(400, "Invalid rewriteToken")
            copied = begun.copied
        total = len(found.data)
        copied = min(total, copied + most) if most else total
        if copied < total:
            token = f"rewrite-{next(self._generation)}"
            self._rewrites[token] = _Rewrite((*source, found.generation), target, copied)
            return copied, total, token
        return total, total, self.copy(source, target, query, declared)

    def move(self, bucket: str, source: str, target: str, query: Mapping[str, str]) -> StoredObject:
        """Give an object another name, in one step."""
        if source == target:
            raise Refused(400, "The source and destination object names must be different.")
        moved = self.copy((bucket, source), (bucket, target), query)
        del self._buckets[bucket][source]
        return moved

    def compose(
        self,
        bucket: str,
        name: str,
        sources: Sequence[Mapping[str, Any]],
        query: Mapping[str, str],
        declared: Mapping[str, Any],
    ) -> StoredObject:
        """Store the bytes of several objects, one after the other."""
        if not 1 <= len(sources) <= _MOST_COMPOSED:
            raise Refused(400, f"The number of source components provided ({len(sources)}) must be 1 to 32.")
        parts = []
        for source in sources:
            wanted = {key: str(source[key]) for key in ("generation",) if key in source}
            wanted |= {key: str(value) for key, value in source.get("objectPreconditions", {}).items()}
            parts.append(self.find(bucket, str(source["name"]), wanted, unless=412))
        self._require(bucket, name, query)
        count = sum(part.components or 1 for part in parts)
        composed = StoredObject(b"".join(part.data for part in parts), next(self._generation), _said(declared), count)
        self._buckets[bucket][name] = composed
        return composed

    def begin(self, bucket: str, name: str, query: Mapping[str, str], declared: Mapping[str, Any]) -> str:
        """Begin a resumable upload; return its token."""
        self._require(bucket, name, query)
        token = f"upload-{next(self._generation)}"
        self.uploads[token] = Upload(bucket, name, query, declared)
        return token

    def append(self, token: str, data: bytes) -> tuple[Upload, StoredObject | None]:
        """Take all remaining bytes; the object is complete."""
        have = len(self._upload(token).received)
        return self.append_at(token, have, have + len(data), data)

    def append_at(
        self, token: str, begin: int | None, total: int | None, data: bytes
    ) -> tuple[Upload, StoredObject | None]:
        """Take bytes from ``begin`` (``None``: only report the progress); return the object after the last byte."""
        upload = self._upload(token)
        if begin is not None:
            have = len(upload.received)
            if begin > have:
                raise Refused(503, "There is a gap before these bytes.")
            if total is None and len(data) % _UNIT:
                raise Refused(400, "invalid: all but the last part must be multiples of 256 KiB")
            upload.received += data[have - begin :]
        if total is None or len(upload.received) < total:
            return upload, None
        del self.uploads[token]
        stored = self.store(upload.bucket, upload.name, bytes(upload.received), upload.conditions, upload.declared)
        return upload, stored

    def page(self, bucket: str, query: Mapping[str, str]) -> Page:
        """A page of a listing."""
        objects = self.of(bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        begin, end = query.get("startOffset", ""), query.get("endOffset")
        most = min(int(query.get("maxResults", PAGE)), PAGE)
        after = base64.urlsafe_b64decode(query["pageToken"]).decode() if "pageToken" in query else ""
        page, last = Page(), ""
        for name in sorted(objects):
            if not name.startswith(prefix) or name < begin or (end and name >= end):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            key = f"{prefix}{head}{delimiter}" if found else name
            if key == last or key <= after:
                continue
            if len(page) == most:
                page.token = base64.urlsafe_b64encode(last.encode()).decode()
                break
            last = key
            if found:
                page.prefixes.append(key)
            if not found or (name == key and query.get("includeTrailingDelimiter") == "true"):
                page.names.append(name)
        return page

    def _upload(self, token: str) -> Upload:
        if token not in self.uploads:
            raise Refused(404, "No such upload session.")
        return self.uploads[token]

    def _source(self, bucket: str, name: str, query: Mapping[str, str]) -> StoredObject:
        """The source of a copy, by the request's parameters about the source."""
        wanted = {"generation": query["sourceGeneration"]} if "sourceGeneration" in query else {}
        for key, value in query.items():
            if key.startswith("ifSource"):
                wanted[f"if{key.removeprefix('ifSource')}"] = value
        return self.find(bucket, name, wanted, unless=412)

    def _require(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        if not _holds(query, self.of(bucket).get(name)):
            raise Refused(412, _UNMET)


def _said(declared: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: declared[key] for key in _SAID if declared.get(key)} if declared else {}


def _holds(query: Mapping[str, str], found: StoredObject | None) -> bool:
    """Whether the preconditions of a request hold; an object's metadata never change here."""
    for what, now in (
        ("Generation", 0 if found is None else found.generation),
        ("Metageneration", 0 if found is None else 1),
    ):
        wanted, unwanted = query.get(f"if{what}Match"), query.get(f"if{what}NotMatch")
        if (wanted is not None and int(wanted) != now) or (unwanted is not None and int(unwanted) == now):
            return False
    return True
