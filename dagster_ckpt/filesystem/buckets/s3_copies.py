"""Copies that Amazon S3, or a store that speaks its protocol, makes by itself, pinned to ETags, through s3fs' client.

An ETag names the bytes under a key, and is compared and nothing more: of an object that came in parts, or is encrypted
with a key of KMS, it is no MD5. What proves a copy is the CRC32C that the store takes while it makes it.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsspec.asyn import AsyncFileSystem
from s3fs.core import _error_wrapper

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
from dagster_ckpt.filesystem.port import Part
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored

__all__ = ["NotAsPinned", "S3ServerSide"]

#: The most bytes that one request copies.
_MOST = 5 << 30
#: What no object has for its ETag.
_NONE = f'"{"0" * 32}"'
_LOCAL = "Set live_location to local: the live location then lies on a disk, and its files are uploaded."


class NotAsPinned(FileNotFoundError):
    """An object is there, and is not the one that was pinned."""


class S3ServerSide(ObjectFileSystem, ServerSide):
    """The objects below one prefix, as S3 itself handles them.

    Args:
        url: ``s3://bucket/prefix``.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._heeding = threading.Lock()
        self._heeds_pins = False

    @property
    def copies(self) -> ServerSide:
        return self

    @property
    def hadoop_url(self) -> str:
        # Hadoop's client for s3:// is long gone; that of today has a scheme of its own.
        return f"s3a{self.url.removeprefix('s3')}"

    def stored(self, path: str) -> Stored:
        with self._errors(f"look at {self._shown(path)}"):
            return self._look(path)

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        return {name: stored for name, stored in self._all_below(path) if name and not name.endswith("/")}

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        wanted = {**self._at(path), "IfMatch": f'"{version}"'}
        if part is not None:
            wanted["Range"] = f"bytes={part.offset}-{part.offset + part.size - 1}"

        async def read(client: AsyncFileSystem) -> bytes:
            async def whole() -> bytes:
                answer = await client._call_s3("get_object", **wanted)  # noqa: SLF001
                try:
                    return bytes(await answer["Body"].read())
                finally:
                    answer["Body"].close()

            # Of a connection that breaks while the bytes come only s3fs knows that the request can be repeated.
            found: bytes = await _error_wrapper(whole, retries=client.retries)
            return found

        with self._errors(f"read {self._shown(path)}"):
            return self._await(read)

    def copy(self, copy: Copy) -> Stored:
        what = f"copy {self._shown(copy.source)} to {self._shown(copy.target)}"
        if copy.of is not None and copy.of.size > _MOST:
            raise StorageError(
                f"Could not {what}: it has {copy.of.size} bytes, and S3 copies at most {_MOST} in one request.",
                hint=_LOCAL,
            )
        with self._errors(what):
            try:
                if copy.of is not None:
                    self._prove_pins(copy)
                made = self._copied(copy)
            except FileNotFoundError as error:
                # The source is gone or another one. So it also looks when a request was carried out and its reply was
                # lost, and Spark had deleted the source before the client repeated it. What is at the target decides.
                made = self._settled(copy, error)
        if made.crc32c is None:
            raise StorageUnusable(
                f"Could not {what}: the store of bucket {self.bucket!r} does not tell the CRC32C of its copy, without "
                "which nobody can prove it.",
                hint=f"It must honour x-amz-checksum-algorithm: CRC32C for CopyObject. {_LOCAL}",
            )
        if copy.of is not None and not made.is_copy_of(copy.of):
            raise StorageError(f"Could not {what}: it came out with other bytes than it was copied from.")
        return made

    def remove_below(self, path: str) -> int:
        # The directory's own marker, which Hadoop's connector makes, has its name and a slash.
        directory = self._key(path)
        keys = [f"{directory}/{name}" for name, _ in self._all_below(path)]
        if keys:
            with (
                self._errors(f"delete {self._shown(path)}"),
                ThreadPoolExecutor(min(self.concurrency, len(keys)), "dagster-ckpt-remove") as pool,
            ):
                # Not a thousand in one request: its answer tells of each by itself what became of it, and not every
                # store knows it.
                list(pool.map(lambda key: self._asked("delete_object", Bucket=self.bucket, Key=key), keys))
        return len(keys)

    def _look(self, path: str) -> Stored:
        found = self._asked("head_object", **self._at(path), ChecksumMode="ENABLED")
        return Stored(int(found["ContentLength"]), _etag(found), _crc32c(found))

    def _all_below(self, path: str) -> Iterator[tuple[str, Stored]]:
        prefix, token = f"{self._key(path)}/", None
        while True:
            page = self._page(prefix, token, path)
            for item in page.get("Contents", ()):
                yield item["Key"].removeprefix(prefix), Stored(int(item["Size"]), _etag(item))
            if not (token := page.get("NextContinuationToken")):
                return

    def _page(self, prefix: str, token: str | None, path: str) -> Mapping[str, Any]:
        goes_on = {} if token is None else {"ContinuationToken": token}
        with self._errors(f"list {self._shown(path)}"), self._bucket_is_there(f"list {self._shown(path)}"):
            return self._asked("list_objects_v2", Bucket=self.bucket, Prefix=prefix, **goes_on)

    def _prove_pins(self, copy: Copy) -> None:
        """Find out once that the store heeds what a copy is pinned by: one that does not would copy anything."""
        with self._heeding:
            if self._heeds_pins:
                return
            try:
                self._ask_for(copy, {"CopySourceIfMatch": _NONE})
            except NotAsPinned:
                self._heeds_pins = True
                return
            self._asked("delete_object", **self._at(copy.target))
            raise StorageUnusable(
                f"The store of bucket {self.bucket!r} copies an object that is not the one it was asked to copy.",
                hint=f"It must honour x-amz-copy-source-if-match for CopyObject. {_LOCAL}",
            )

    def _ask_for(self, copy: Copy, pin: Mapping[str, str]) -> Mapping[str, Any]:
        source, target = self._at(copy.source), self._at(copy.target)
        return self._asked("copy_object", **target, CopySource=source, ChecksumAlgorithm="CRC32C", **pin)

    def _copied(self, copy: Copy) -> Stored:
        answer = self._ask_for(copy, {} if copy.of is None else {"CopySourceIfMatch": f'"{copy.of.version}"'})
        made: Mapping[str, Any] = answer.get("CopyObjectResult", {})
        if copy.of is None or "ETag" not in made or (checksum := _crc32c(made)) is None:
            return self._look(copy.target)
        return Stored(copy.of.size, _etag(made), checksum)

    def _settled(self, copy: Copy, error: FileNotFoundError) -> Stored:
        """What lies at the target of a copy of what was pinned and is gone."""
        gone = FileNotFoundError(f"{self._shown(copy.source)} is gone, or is not what it was.")
        if copy.of is None:
            raise gone from error
        try:
            made = self._look(copy.target)
        except FileNotFoundError:
            raise gone from error
        if not made.is_copy_of(copy.of):
            raise StorageError(f"{self._shown(copy.target)} exists already and holds something else.") from error
        return made

    def _asked(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._await(lambda client: client._call_s3(method, **parameters))  # noqa: SLF001
        return found

    def _at(self, path: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._key(path)}

    def _key(self, path: str) -> str:
        return self._object(path).partition("/")[2]


def _etag(answer: Mapping[str, Any]) -> str:
    # Some stores leave the quotation marks out in one answer, and not in another.
    return str(answer["ETag"]).strip('"')


def _crc32c(answer: Mapping[str, Any]) -> str | None:
    """The CRC32C of all bytes; of an object that came in parts a store may tell one of its parts' checksums."""
    told = answer.get("ChecksumCRC32C")
    if told is None or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        return str(told) if len(base64.b64decode(told, validate=True)) == 4 else None
    except binascii.Error:  # as the checksum of parts is, which ends with their number
        return None
