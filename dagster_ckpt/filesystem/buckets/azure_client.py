"""Requests to Azure Blob Storage, through adlfs: uploads, copies, and blobs pinned to ETags.

Azure tells no checksum of a blob that could be believed. The MD5 that a blob may have is what its writer said of it and
nobody compared, and a copy inherits it; Hadoop's driver gives another one by default. So a copy is as good as the
store's word: that it made it of these very bytes, and that nobody has written to it since.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import adlfs
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import BlobBlock, BlobProperties
from azure.storage.blob.aio import BlobClient, BlobPrefix
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback

from dagster_ckpt.errors import StorageError
from dagster_ckpt.filesystem.buckets.bucket import REPEATED
from dagster_ckpt.filesystem.buckets.private_members import ADLFS
from dagster_ckpt.filesystem.buckets.transfers import in_chunks
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found
from dagster_ckpt.filesystem.server_side import Stored
from dagster_ckpt.filesystem.values import Part

__all__ = ["AzureClient", "client_of", "error_code", "status_of", "stored_of"]

ADLFS.check()

#: The most blocks that a blob may have.
_MOST_BLOCKS = 50_000
#: What is answered when the name of a blob is taken, by the request that finds it so.
_TAKEN = frozenset({"BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList"})
#: What a copy says of itself, in its metadata: of which bytes it is one.
_COPY_OF = "dagster_ckpt_copy_of"
#: What is answered to a copy that cannot be made, or that was made before.
_UNMET = frozenset({404, 409, 412})
#: Seconds between two looks at a copy that the store makes later: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
#: So many looks in a row may find that nothing more has been copied.
_MOST_LOOKS = 600


class AzureClient(adlfs.AzureBlobFileSystem):  # type: ignore[misc]  # adlfs publishes no types
    """adlfs, with what arrives compared, uploads of bounded memory, and one request a page of a listing."""

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

        adlfs's own holds 64 MiB at a time.
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
            # Who committed the name discarded the blocks of everybody else for it.
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
                    # A directory may show twice: as what names have in common, and as itself.
                    found[name] = found.get(name, False) or is_directory
        kinds = {True: "directory", False: "file"}
        return [{"name": f"{container}/{name}", "type": kinds[kind]} for name, kind in found.items()]

    async def remove_marker(self, path: str) -> None:
        """Delete what stands for an empty directory; nothing when there is no such thing, or it is not empty."""
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
        """What stands for a directory of this very name, if anything does."""
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
                return  # or a repeated request found that the first had been carried out
            except HttpResponseError as error:
                if error_code(error) == "DirectoryIsNotEmpty":
                    return  # somebody still writes to it
                if error_code(error) != "PendingCopyOperation":
                    raise
                await blob.abort_copy(await blob.get_blob_properties())
                await blob.delete_blob()

    async def copy_blob(self, bucket: str, source: str, of: Stored, target: str) -> BlobProperties:
        """Copy this version of a blob and no other; what the copy is once the store is done with it.

        Raises:
            FileExistsError: something else lies at the target.
            FileNotFoundError: the source is gone or another one.
        """
        mark = hashlib.sha256(f"{source}\n{of.version}".encode()).hexdigest()
        async with self._blob(bucket, source) as pinned, self._blob(bucket, target) as made:
            unmet: HttpResponseError | None = None
            try:
                # Where there is a SAS it is in the URL; of an account's own blob the credentials of the request do.
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
                # The target is there, or the source is another one, or gone: also when a request was carried out, its
                # reply was lost, and the client has repeated it. What is there decides.
                unmet = error
            try:
                about = await made.get_blob_properties()
            except ResourceNotFoundError as error:
                if unmet is not None and status_of(unmet) == 409:
                    raise unmet from error  # it was not the source that stood in the way
                raise FileNotFoundError(f"{bucket}/{source}") from unmet or error
            if (about.metadata or {}).get(_COPY_OF) != mark:
                raise FileExistsError(f"{bucket}/{target}") from unmet
            return await _concluded(made, about)

    def _blob(self, bucket: str, key: str) -> BlobClient:
        blob: BlobClient = self.service_client.get_blob_client(bucket, key)
        return blob


@cache
def client_of(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    return AzureClient(
        **json.loads(options),
        use_listings_cache=False,
        skip_instance_cache=True,
        # Requests side by side are those of several blobs.
        max_concurrency=1,
    )


def is_marker(blob: Any) -> bool:
    """Whether a blob only stands for a directory."""
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def status_of(error: BaseException) -> int:
    """The HTTP status that an error came with, 0 for none."""
    return int(getattr(error, "status_code", None) or 0)


def error_code(error: BaseException) -> str:
    """Azure's own name for an error."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code))


def stored_of(about: BlobProperties) -> Stored:
    """What the store says about a blob."""
    # A listing has the ETag without its quotes, a header with them.
    return Stored(int(about.size), str(about.etag).strip('"'))


def _quoted(version: str) -> str:
    return f'"{version}"'


@contextlib.contextmanager
def _missing(name: str) -> Iterator[None]:
    """A blob that is gone, or is not the one that was pinned, is not found."""
    try:
        yield
    except (ResourceNotFoundError, ResourceModifiedError) as error:
        raise FileNotFoundError(name) from error


def _is_whole_file(about: BlobProperties) -> bool:
    """Not a directory, and not a copy that is still made, or came to nothing."""
    is_directory = is_marker(about) or about.name.endswith("/")
    return not is_directory and about.copy.status in {None, "success"}


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
