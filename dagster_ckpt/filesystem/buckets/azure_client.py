"""Requests to Azure Blob Storage, through adlfs: uploads, copies, and blobs pinned to ETags.

Azure reports no checksum of a blob that can be trusted. The MD5 that a blob may have comes from its writer, Azure does
not compare it, and a copy inherits it; Hadoop's driver gives another MD5 by default. So a copy rests on Azure's word:
that Azure made the copy of exactly these bytes, and that nobody has written to the copy since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import adlfs
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
    ServiceResponseError,
)
from azure.storage.blob import BlobBlock, BlobProperties
from azure.storage.blob.aio import BlobClient, BlobPrefix
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.filesystem.buckets.bucket import REPEATED
from dagster_ckpt.filesystem.buckets.private_members import ADLFS, AIOHTTP
from dagster_ckpt.filesystem.buckets.transfers import in_chunks, sending_once
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found
from dagster_ckpt.filesystem.server_side import Stored
from dagster_ckpt.filesystem.values import Part

__all__ = ["AzureClient", "client_of", "error_code", "status_of", "stored_of"]

ADLFS.check()
AIOHTTP.check()

#: Seconds that the end of a process waits for connections to close.
_CLOSING = 0.5
#: The most blocks that a blob may have.
_MOST_BLOCKS = 50_000
#: Answers to a request that finds the name of its blob taken.
_TAKEN = frozenset({"BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList"})
#: The key in a copy's metadata that names the copied bytes.
_COPY_OF = "dagster_ckpt_copy_of"
#: Statuses for a copy that cannot be made, or that was made before.
_UNMET = frozenset({404, 409, 412})
#: Seconds between two looks at a copy that Azure makes later: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: How many looks in a row may find no progress of the copy.
_MOST_LOOKS = 600


async def _in_time(transport: Any, send: Callable[..., Awaitable[Any]], request: Any, **options: Any) -> Any:
    """Send one request once; a request that takes too long raises an error after which Azure's library repeats it."""
    try:
        async with asyncio.timeout(transfers.LONGEST_REQUEST):
            await transport.open()
            sending_once(transport.session)
            return await send(request, **options)
    except TimeoutError as error:
        raise ServiceResponseError(f"Not done after {transfers.LONGEST_REQUEST:.0f} seconds", error=error) from error


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    """Close connections; adlfs waits for that when the process ends, and an upload that stalls holds its connection."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await close()


class AzureClient(adlfs.AzureBlobFileSystem):  # type: ignore[misc]  # adlfs publishes no types
    """adlfs that compares what arrives, uploads in bounded memory, and sends one request per page of a listing."""

    def do_connect(self) -> None:
        """Connect as adlfs does; each request gets a time limit, and so does the end of the connections."""
        super().do_connect()
        # Neither adlfs nor a connected client takes a transport.
        transport = self.service_client._pipeline._transport  # noqa: SLF001
        transport.send = partial(_in_time, transport, transport.send)
        transport.close = partial(_closed, transport.close)

    async def _pipe_file(self, path: str, value: bytes, *, mode: str) -> None:
        repeated: list[Mapping[str, Any]] = []
        try:
            await super()._pipe_file(
                path,
                value,
                mode=mode,
                validate_content=True,
                retry_hook=lambda **request: repeated.append(request),
            )
        except ResourceNotFoundError as error:
            raise FileNotFoundError(path) from error
        except HttpResponseError as error:
            if mode == "create" and error_code(error) in _TAKEN:
                raise FileExistsError(path) from error
            if repeated:
                error.add_note(REPEATED)
            raise

    async def _put_file(self, lpath: str, rpath: str, *, callback: Callback, chunksize: int, mode: str) -> None:
        """Upload a file in blocks, one after the other, and create the blob exclusively from them.

        adlfs's own method holds 64 MiB at a time.
        """
        if mode != "create":
            raise NotImplementedError(mode)
        container, name, _ = self.split_path(rpath)
        blocks: list[BlobBlock] = []
        try:
            async with self.service_client.get_blob_client(container, name) as blob:
                for chunk in in_chunks(lpath, chunksize, _MOST_BLOCKS):
                    block = BlobBlock(uuid.uuid4().hex)
                    await blob.stage_block(block.id, chunk, length=len(chunk), validate_content=True)
                    blocks.append(block)
                    callback.relative_update(len(chunk))
                await blob.commit_block_list(blocks, match_condition=MatchConditions.IfMissing)
        except ResourceNotFoundError as error:
            raise FileNotFoundError(rpath) from error
        except HttpResponseError as error:
            # The writer that committed the name discarded the blocks of all others.
            if isinstance(error, ResourceExistsError) or error_code(error) in _TAKEN:
                raise FileExistsError(rpath) from error
            raise

    async def _ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        if not detail:
            raise NotImplementedError
        container, directory, _ = self.split_path(path)
        found: dict[str, bool] = {}
        async with self.service_client.get_container_client(container) as client:
            with _missing(path):
                async for item in client.walk_blobs(
                    name_starts_with=f"{directory}/" if directory else None, include=["metadata"], delimiter="/"
                ):
                    name = item.name.rstrip("/")
                    is_directory = isinstance(item, BlobPrefix) or is_marker(item)
                    # A directory may appear twice: as a common prefix of names, and as its own marker.
                    found[name] = found.get(name, False) or is_directory
        kinds = {True: "directory", False: "file"}
        return [{"name": f"{container}/{name}", "type": kinds[kind]} for name, kind in found.items()]

    async def remove_marker(self, path: str) -> None:
        """Delete the marker of an empty directory; do nothing when there is none, or the directory is not empty."""
        container, name, _ = self.split_path(path)
        async with self.service_client.get_blob_client(container, name) as blob:
            try:
                if is_marker(await blob.get_blob_properties()):
                    await blob.delete_blob()
            except ResourceNotFoundError:
                pass
            except HttpResponseError as error:
                if error_code(error) != "DirectoryIsNotEmpty":
                    raise

    async def look(self, bucket: str, key: str) -> Stored:
        async with self._blob(bucket, key) as blob:
            with _missing(f"{bucket}/{key}"):
                about = await blob.get_blob_properties()
        if not _is_whole_file(about):
            raise FileNotFoundError(f"{bucket}/{key}")
        return stored_of(about)

    async def read_version(self, bucket: str, key: str, version: str, part: Part | None) -> bytes:
        offset, length = (None, None) if part is None else (part.offset, part.size)
        async with self._blob(bucket, key) as blob:
            with _missing(f"{bucket}/{key}"):
                stream = await blob.download_blob(
                    offset, length, etag=_quoted(version), match_condition=MatchConditions.IfNotModified
                )
                data: bytes = await stream.readall()
                return data

    async def found_below(self, bucket: str, prefix: str) -> list[Found]:
        async with self.service_client.get_container_client(bucket) as container:
            with _missing(bucket):
                pages = container.list_blobs(name_starts_with=prefix, include=["metadata", "copy"])
                return [
                    Found(item.name, stored_of(item) if _is_whole_file(item) else None, is_marker(item))
                    async for item in pages
                ]

    async def marker_of(self, bucket: str, key: str) -> list[Found]:
        """The marker of the directory with exactly this name, if there is one."""
        async with self._blob(bucket, key) as blob:
            try:
                about = await blob.get_blob_properties()
            except ResourceNotFoundError:
                return []
        return [Found(about.name, None, is_directory=True)] if is_marker(about) else []

    async def delete_object(self, bucket: str, key: str) -> None:
        async with self._blob(bucket, key) as blob:
            try:
                await blob.delete_blob()
            except ResourceNotFoundError:
                return  # or the first request was carried out, and this is the repeated one
            except HttpResponseError as error:
                if error_code(error) == "DirectoryIsNotEmpty":
                    return  # the blob still has a writer
                if error_code(error) != "PendingCopyOperation":
                    raise
                await blob.abort_copy(await blob.get_blob_properties())
                await blob.delete_blob()

    async def copy_blob(self, bucket: str, source: str, of: Stored, target: str) -> BlobProperties:
        """Copy exactly this version of a blob; return the properties of the finished copy.

        Raises:
            FileExistsError: the target holds something else.
            FileNotFoundError: the source is gone or was replaced.
        """
        mark = hashlib.sha256(f"{source}\n{of.version}".encode()).hexdigest()
        async with self._blob(bucket, source) as pinned, self._blob(bucket, target) as made:
            unmet: HttpResponseError | None = None
            try:
                # A SAS is in the URL; for a blob of the same account the credentials of the request are enough.
                await made.start_copy_from_url(
                    pinned.url,
                    metadata={_COPY_OF: mark},
                    source_etag=_quoted(of.version),
                    source_match_condition=MatchConditions.IfNotModified,
                    match_condition=MatchConditions.IfMissing,
                )
            except HttpResponseError as error:
                if status_of(error) not in _UNMET:
                    raise
                # The target exists, or the source was replaced or is gone. The same answer comes when a request was
                # carried out, its reply was lost, and the client repeated it. So the target's content decides.
                unmet = error
            try:
                about = await made.get_blob_properties()
            except ResourceNotFoundError as error:
                if unmet is not None and status_of(unmet) == 409:
                    raise unmet from error  # the source is unchanged: the target was the obstacle
                raise FileNotFoundError(f"{bucket}/{source}") from unmet or error
            if (about.metadata or {}).get(_COPY_OF) != mark:
                raise FileExistsError(f"{bucket}/{target}") from unmet
            return await _concluded(made, about)

    def _blob(self, bucket: str, key: str) -> BlobClient:
        blob: BlobClient = self.service_client.get_blob_client(bucket, key)
        return blob


@cache
def client_of(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: it reuses connections and tokens."""
    del process
    # Without being told, adlfs 2025.8 looks for no credentials.
    anonymous = {} if os.environ.get("AZURE_STORAGE_ANON") else {"anon": False}
    return AzureClient(
        **{**anonymous, **json.loads(options)},
        use_listings_cache=False,
        skip_instance_cache=True,
        # One request at a time per blob; several blobs are requested side by side.
        max_concurrency=1,
    )


def is_marker(blob: Any) -> bool:
    """Whether a blob only stands for a directory."""
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def status_of(error: BaseException) -> int:
    """The HTTP status of an error, 0 for none."""
    return int(getattr(error, "status_code", None) or 0)


def error_code(error: BaseException) -> str:
    """Azure's own name for an error."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code))


def stored_of(about: BlobProperties) -> Stored:
    """What Azure says about a blob."""
    # A listing has the ETag without quotes, a header has it with quotes.
    return Stored(int(about.size), str(about.etag).strip('"'))


def _quoted(version: str) -> str:
    return f'"{version}"'


@contextlib.contextmanager
def _missing(name: str) -> Iterator[None]:
    """Raise ``FileNotFoundError`` for a blob that is gone, or is not the pinned blob."""
    try:
        yield
    except (ResourceNotFoundError, ResourceModifiedError) as error:
        raise FileNotFoundError(name) from error


def _is_whole_file(about: BlobProperties) -> bool:
    """Whether the blob is neither a directory, nor an unfinished or failed copy."""
    is_directory = is_marker(about) or about.name.endswith("/")
    return not is_directory and about.copy.status in {None, "success"}


async def _concluded(target: BlobClient, about: BlobProperties) -> BlobProperties:
    """Wait until Azure has finished a copy, which it may make later; return the properties of the target."""
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
    except BaseException:  # also when cancelled
        with contextlib.suppress(Exception):
            await target.abort_copy(about)
        raise
    return about
