"""Copies that Google Cloud Storage makes by itself, pinned to generations, through gcsfs' client.

A listing has no checksums of objects that are encrypted with a key of the customer's; an answer about one object has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsspec.asyn import AsyncFileSystem

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
from dagster_ckpt.filesystem.port import Part
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored

__all__ = ["GcsServerSide"]

_OBJECT = "b/{}/o/{}"
_REWRITE = "b/{}/o/{}/rewriteTo/b/{}/o/{}"
_JSON = {"Content-Type": "application/json"}
#: Bytes that one request for a copy may copy; ``None`` for as many as the store thinks right.
_MOST_AT_ONCE: int | None = None


class GcsServerSide(ObjectFileSystem, ServerSide):
    """The objects below one prefix, as Google Cloud Storage itself handles them."""

    @property
    def copies(self) -> ServerSide:
        return self

    def stored(self, path: str) -> Stored:
        with self._errors(f"look at {self._shown(path)}"):
            return self._look(path)

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        found = dict(self._all_below(path))
        return {name: stored for name, stored in found.items() if name and not name.endswith("/")}

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        key = self._key(path)
        headers = {"Range": f"bytes={part.offset}-{part.offset + part.size - 1}"} if part is not None else {}
        with self._errors(f"read {self._shown(path)}"):
            _, data = self._await(
                lambda client: client._call(  # noqa: SLF001
                    "GET", _OBJECT, self.bucket, key, alt="media", generation=version, headers=headers
                )
            )
        return bytes(data)

    def copy(self, copy: Copy) -> Stored:
        what = f"copy {self._shown(copy.source)} to {self._shown(copy.target)}"
        with self._errors(what):
            try:
                made = self._rewrite(copy)
            except (FileExistsError, FileNotFoundError) as error:
                # The target is there, or the source is another one, or gone: also when a request was carried out, its
                # reply was lost, and the client has repeated it. What is there decides.
                made = self._settled(copy, error)
            if copy.of is not None and not made.is_copy_of(copy.of):
                raise StorageError(f"Could not {what}: it came out with other bytes than it was copied from.")
            return made

    def remove_below(self, path: str) -> int:
        # The directory's own marker, which Hadoop's connector makes, has its name and a slash.
        directory = self._key(path)
        names = [f"{directory}/{name}" for name, _ in self._all_below(path)]

        def remove(name: str) -> None:
            try:
                self._await(lambda client: client._call("DELETE", _OBJECT, self.bucket, name))  # noqa: SLF001
            except FileNotFoundError:
                return  # or a repeated request found that the first had been carried out

        if names:
            with (
                self._errors(f"delete {self._shown(path)}"),
                ThreadPoolExecutor(min(self.concurrency, len(names)), "dagster-ckpt-remove") as pool,
            ):
                list(pool.map(remove, names))
        return len(names)

    def _look(self, path: str, version: str | None = None) -> Stored:
        key = self._key(path)
        found = self._await(
            lambda client: client._call(  # noqa: SLF001
                "GET", _OBJECT, self.bucket, key, generation=version, json_out=True
            )
        )
        return _stored(found)

    def _all_below(self, path: str) -> Iterator[tuple[str, Stored]]:
        prefix, token = f"{self._key(path)}/", None
        while True:
            page = self._page(prefix, token, path)
            for item in page.get("items", ()):
                yield item["name"].removeprefix(prefix), _stored(item)
            if not (token := page.get("nextPageToken")):
                return

    def _page(self, prefix: str, token: str | None, path: str) -> Mapping[str, Any]:
        async def page(client: AsyncFileSystem) -> Mapping[str, Any]:
            found: Mapping[str, Any] = await client._call(  # noqa: SLF001
                "GET", "b/{}/o", self.bucket, prefix=prefix, pageToken=token, json_out=True
            )
            return found

        with self._errors(f"list {self._shown(path)}"), self._bucket_is_there(f"list {self._shown(path)}"):
            return self._await(page)

    def _rewrite(self, copy: Copy) -> Stored:
        source, target = self._key(copy.source), self._key(copy.target)

        async def rewritten(client: AsyncFileSystem) -> Mapping[str, Any]:
            token: str | None = None
            while True:  # a large object is copied in several requests
                answer: Mapping[str, Any] = await client._call(  # noqa: SLF001
                    "POST",
                    _REWRITE,
                    self.bucket,
                    source,
                    self.bucket,
                    target,
                    headers=_JSON,
                    ifGenerationMatch=0,
                    ifSourceGenerationMatch=None if copy.of is None else copy.of.version,
                    maxBytesRewrittenPerCall=_MOST_AT_ONCE,
                    rewriteToken=token,
                    json_out=True,
                )
                if answer["done"]:
                    made: Mapping[str, Any] = answer["resource"]
                    return made
                token = answer["rewriteToken"]

        return _stored(self._await(rewritten))

    def _settled(self, copy: Copy, error: OSError) -> Stored:
        """What lies at the target of a copy whose condition did not hold."""
        try:
            made = self._look(copy.target)
        except FileNotFoundError:
            raise FileNotFoundError(self._shown(copy.source)) from error
        of = copy.of
        if of is None or not of.has_checksum:
            # Nobody but the original knows its bytes. Where it is gone, so is what could tell that this is its copy.
            of = self._look(copy.source, None if of is None else of.version)
        if not made.is_same_content(of):
            raise StorageError(f"{self._shown(copy.target)} exists already and holds something else.") from error
        return made

    def _key(self, path: str) -> str:
        return self._object(path).partition("/")[2]


def _stored(about: Mapping[str, Any]) -> Stored:
    return Stored(int(about["size"]), str(about["generation"]), about.get("crc32c"), about.get("md5Hash"))
