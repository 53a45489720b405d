"""Copies that Azure Blob Storage makes by itself, pinned to ETags, through adlfs' client.

Azure tells no checksum of a blob that could be believed. The MD5 that a blob may have is what its writer said of it and
nobody compared, and a copy inherits it; Hadoop's driver gives another one by default. So a copy is as good as the
store's word: that it made it of these very bytes, and that nobody has written to it since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError, ResourceNotFoundError
from azure.storage.blob import BlobProperties
from azure.storage.blob.aio import BlobClient
from fsspec.asyn import AsyncFileSystem

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.buckets.azure_answers import error_code, is_marker, status_of
from dagster_ckpt.filesystem.buckets.bucket import ObjectFileSystem
from dagster_ckpt.filesystem.port import Part
from dagster_ckpt.filesystem.server_side import Copy, ServerSide, Stored

__all__ = ["AzureServerSide"]

#: What a copy says of itself, in its metadata: of which bytes it is one.
_COPY_OF = "dagster_ckpt_copy_of"
#: What is answered to a copy that cannot be made, or that was made before.
_UNMET = frozenset({404, 409, 412})
#: Seconds between two looks at a copy that the store makes later: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: So many looks in a row may find that nothing more has been copied.
_MOST_LOOKS = 600


class AzureServerSide(ObjectFileSystem, ServerSide):
    """The blobs below one prefix, as Azure itself handles them."""

    tells_checksums = False

    @property
    def copies(self) -> ServerSide:
        return self

    def stored(self, path: str) -> Stored:
        with self._errors(f"look at {self._shown(path)}"):
            return self._await(lambda client: self._look(client, path))

    def stored_below(self, path: str) -> Mapping[str, Stored]:
        prefix = f"{self._key(path)}/"
        found = self._all_below(path)
        return {item.name.removeprefix(prefix): _stored(item) for item in found if _is_whole_file(item)}

    def read_stored(self, path: str, version: str, part: Part | None = None) -> bytes:
        offset, length = (None, None) if part is None else (part.offset, part.size)

        async def read(client: AsyncFileSystem) -> bytes:
            async with self._blob(client, path) as blob:
                try:
                    stream = await blob.download_blob(
                        offset, length, etag=_quoted(version), match_condition=MatchConditions.IfNotModified
                    )
                    return await stream.readall()
                except (ResourceNotFoundError, ResourceModifiedError) as error:
                    raise FileNotFoundError(self._shown(path)) from error

        with self._errors(f"read {self._shown(path)}"):
            return self._await(read)

    def copy(self, copy: Copy) -> Stored:
        with self._errors(f"copy {self._shown(copy.source)} to {self._shown(copy.target)}"):
            return self._await(lambda client: self._copied(client, copy))

    def remove_below(self, path: str) -> int:
        found = list(self._all_below(path))
        with self._errors(f"delete {self._shown(path)}"):
            found += self._await(lambda client: self._own_marker(client, path))
            if not found:
                return 0

            def remove(name: str) -> None:
                self._await(lambda client: self._removed(client, name))

            with ThreadPoolExecutor(min(self.concurrency, len(found)), "dagster-ckpt-remove") as pool:
                # A directory is empty once everything below it is gone.
                for _, items in groupby(sorted(found, key=_order), key=_order):
                    list(pool.map(remove, [item.name for item in items]))
        return len(found)

    async def _look(self, client: AsyncFileSystem, path: str) -> Stored:
        async with self._blob(client, path) as blob:
            try:
                about = await blob.get_blob_properties()
            except ResourceNotFoundError as error:
                raise FileNotFoundError(self._shown(path)) from error
        if not _is_whole_file(about):
            raise FileNotFoundError(self._shown(path))
        return _stored(about)

    def _all_below(self, path: str) -> Sequence[BlobProperties]:
        prefix = f"{self._key(path)}/"

        async def listed(client: AsyncFileSystem) -> list[BlobProperties]:
            async with client.service_client.get_container_client(self.bucket) as container:
                try:
                    pages = container.list_blobs(name_starts_with=prefix, include=["metadata", "copy"])
                    return [item async for item in pages]
                except ResourceNotFoundError as error:
                    raise FileNotFoundError(self.bucket) from error

        with self._errors(f"list {self._shown(path)}"), self._bucket_is_there(f"list {self._shown(path)}"):
            return self._await(listed)

    async def _own_marker(self, client: AsyncFileSystem, path: str) -> list[BlobProperties]:
        async with self._blob(client, path) as blob:
            try:
                about: BlobProperties = await blob.get_blob_properties()
            except ResourceNotFoundError:
                return []
        return [about] if is_marker(about) else []

    async def _removed(self, client: AsyncFileSystem, name: str) -> None:
        async with client.service_client.get_blob_client(self.bucket, name) as blob:
            try:
                await blob.delete_blob()
            except ResourceNotFoundError:
                return  # or a repeated request found that the first had been carried out
            except HttpResponseError as error:
                if error_code(error) == "DirectoryIsNotEmpty":
                    return  # somebody still writes to it
                if error_code(error) != "PendingCopyOperation":
                    raise
                await blob.abort_copy(await blob.get_blob_properties())
                await blob.delete_blob()

    async def _copied(self, client: AsyncFileSystem, copy: Copy) -> Stored:
        of = copy.of or await self._look(client, copy.source)
        mark = self._mark(copy.source, of)
        async with self._blob(client, copy.source) as source, self._blob(client, copy.target) as target:
            unmet: HttpResponseError | None = None
            try:
                # Where there is a SAS it is in the URL; of an account's own blob the credentials of the request do.
                await target.start_copy_from_url(
                    source.url,
                    metadata={_COPY_OF: mark},
                    source_etag=_quoted(of.version),
                    source_match_condition=MatchConditions.IfNotModified,
                    match_condition=MatchConditions.IfMissing,
                )
            except HttpResponseError as error:
                if status_of(error) not in _UNMET:
                    raise
                # The target is there, or the source is another one, or gone: also when a request was carried out, its
                # reply was lost, and the client has repeated it. What is there decides.
                unmet = error
            try:
                about = await target.get_blob_properties()
            except ResourceNotFoundError as error:
                if unmet is not None and status_of(unmet) == 409:
                    raise unmet from error  # it was not the source that stood in the way
                raise FileNotFoundError(self._shown(copy.source)) from unmet or error
            if (about.metadata or {}).get(_COPY_OF) != mark:
                raise StorageError(f"{self._shown(copy.target)} exists already and holds something else.") from unmet
            return self._made(copy, of, await _concluded(target, about))

    def _made(self, copy: Copy, of: Stored, about: BlobProperties) -> Stored:
        """What a copy is that the store has concluded."""
        what = f"copy {self._shown(copy.source)} to {self._shown(copy.target)}"
        if about.copy.status != "success":
            why = about.copy.status_description or about.copy.status
            if str(why).startswith(("404", "412")):
                raise FileNotFoundError(self._shown(copy.source))
            raise StorageError(f"Could not {what}: {why}.", hint="The next checkpoint tries again.")
        if about.size != of.size:
            raise StorageError(f"Could not {what}: it came out with {about.size} bytes instead of {of.size}.")
        return _stored(about)

    def _mark(self, path: str, of: Stored) -> str:
        return hashlib.sha256(f"{self._key(path)}\n{of.version}".encode()).hexdigest()

    def _blob(self, client: AsyncFileSystem, path: str) -> BlobClient:
        blob: BlobClient = client.service_client.get_blob_client(self.bucket, self._key(path))
        return blob

    def _key(self, path: str) -> str:
        return self._object(path).partition("/")[2]


async def _concluded(target: BlobClient, about: BlobProperties) -> BlobProperties:
    """What a copy is when the store is done with it: it may make it later, which shows at the target."""
    copied, looks, pause = about.copy.progress, 0, _FIRST_PAUSE
    try:
        while about.copy.status == "pending":
            if looks == _MOST_LOOKS:
                raise StorageError(
                    f"Azure does not go on with a copy ({copied} bytes).",
                    hint="It was given up. The next checkpoint tries again.",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            about = await target.get_blob_properties()
            looks = looks + 1 if about.copy.progress == copied else 0
            copied = about.copy.progress
    except BaseException:  # cancelled, too
        with contextlib.suppress(Exception):
            await target.abort_copy(about)
        raise
    return about


def _stored(about: BlobProperties) -> Stored:
    # A listing has the ETag without its quotes, a header with them.
    return Stored(int(about.size), str(about.etag).strip('"'))


def _quoted(version: str) -> str:
    return f'"{version}"'


def _is_whole_file(about: BlobProperties) -> bool:
    """Not a directory, and not a copy that is still made, or came to nothing."""
    is_directory = is_marker(about) or about.name.endswith("/")
    return not is_directory and about.copy.status in {None, "success"}


def _order(item: BlobProperties) -> tuple[bool, int]:
    """Files first, then directories from below."""
    return is_marker(item), -item.name.count("/") if is_marker(item) else 0
