"""Requests to Amazon S3, through s3fs: uploads, copies, and objects pinned to ETags.

An ETag names the bytes under a key, and is compared and nothing more: of an object that came in parts, or is encrypted
with a key of KMS, it is no MD5. What proves a copy is the CRC32C that the store takes while it makes it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import s3fs.core
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ClientError, ReadTimeoutError
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback

from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.filesystem.buckets.bucket import REPEATED, ObjectFileSystem
from dagster_ckpt.filesystem.buckets.private_members import S3FS
from dagster_ckpt.filesystem.buckets.transfers import in_chunks
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found, byte_range
from dagster_ckpt.filesystem.server_side import Stored
from dagster_ckpt.filesystem.values import Part

__all__ = ["NotAsPinned", "S3Client", "answer_of", "client_of", "code_of", "message_of", "status_of"]

S3FS.check()

#: Seconds without a byte of the answer after which a request is given up and repeated.
_SILENCE = 60.0
#: The most parts that an upload may have.
_MOST_PARTS = 10_000
#: Attempts at a create that meets a conflicting request of somebody else, and seconds before the second.
_CONFLICTS = 5
_PAUSE = 0.2
#: Conditions that the object which is asked for is the one that was seen.
_PINNED = frozenset({"IfMatch", "CopySourceIfMatch"})


class NotAsPinned(FileNotFoundError):
    """An object is there, and is not the one that was pinned."""


class _UploadGone(OSError):
    """An upload in parts is not there: it was completed before, or aborted by somebody else."""


class _Session(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore publishes no types
    """What sends requests, each of which has so much time."""

    async def send(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(transfers.LONGEST_REQUEST):
                return await super().send(request)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error


class S3Client(s3fs.S3FileSystem):  # type: ignore[misc]  # s3fs publishes no types
    """s3fs, with names that are taken told as such by every store, and uploads that are aborted when cancelled."""

    # botocore repeats each request by itself; twice that is enough.
    retries = 2

    async def _call_s3(self, method: str, *given: Any, **parameters: Any) -> Any:
        for attempt in range(1, _CONFLICTS + 1):
            try:
                return await self._ask(method, *given, **parameters)
            except OSError as error:
                code = code_of(error)
                # Only Amazon's own answer says which condition was not met; no request here has two.
                if code == "PreconditionFailed":
                    kind = NotAsPinned if _PINNED & parameters.keys() else FileExistsError
                    raise kind(parameters.get("Key")) from error
                if code == "NoSuchUpload":
                    raise _UploadGone(message_of(error)) from error
                # Nothing was done, and the request may be repeated. An upload in parts would begin again: its name
                # is nobody else's, so that it has no conflicts.
                if code != "ConditionalRequestConflict" or method != "put_object" or attempt == _CONFLICTS:
                    raise
            await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    async def _ask(self, method: str, *given: Any, **parameters: Any) -> Any:
        """What s3fs does with a call, with a note of an error that answers a repeated request."""
        await self.set_session()
        call = getattr(await self.get_s3(parameters.get("Bucket")), method)
        attempts = 0

        async def attempted(**asked: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return await call(**asked)

        try:
            return await s3fs.core._error_wrapper(  # noqa: SLF001
                attempted, kwargs=self._get_s3_method_kwargs(call, *given, **parameters), retries=self.retries
            )
        except Exception as error:
            if attempts > 1 or answer_of(error).get("ResponseMetadata", {}).get("RetryAttempts"):
                error.add_note(REPEATED)
            raise

    async def _ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        """One directory. Where there is nothing, s3fs lists the one above, too."""
        if not detail:
            raise NotImplementedError
        found: list[dict[str, Any]] = await self._lsdir(path)
        return found

    async def _put_file(self, lpath: str, rpath: str, *, callback: Callback, chunksize: int, mode: str) -> None:
        """Upload a file in parts, one after the other, and create the object exclusively from them.

        Not s3fs's own, which leaves the parts in the bucket when it is cancelled, and does not tell the checksums of
        the parts when it completes the upload.
        """
        if mode != "create":
            raise NotImplementedError(mode)
        bucket, key, _ = self.split_path(rpath)
        begun = await self._call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        upload = {"Bucket": bucket, "Key": key, "UploadId": begun["UploadId"]}
        parts: list[dict[str, Any]] = []
        try:
            for number, chunk in enumerate(in_chunks(lpath, chunksize, _MOST_PARTS), 1):
                answer = await self._call_s3("upload_part", **upload, PartNumber=number, Body=chunk)
                parts.append(_part(number, answer))
                callback.relative_update(len(chunk))
            await self._completed(upload, parts)
        except BaseException:  # cancelled, too: parts are paid for until somebody aborts the upload
            with contextlib.suppress(Exception):
                await self._call_s3("abort_multipart_upload", **upload)
            raise

    async def _completed(self, upload: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
        try:
            await self._call_s3(
                "complete_multipart_upload", **upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except _UploadGone as error:
            # A request before this one may have completed it: what is there tells.
            raise FileExistsError(upload["Key"]) from error

    async def look(self, bucket: str, key: str) -> Stored:
        found = await self._call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        return Stored(int(found["ContentLength"]), _etag(found), _crc32c(found))

    async def read_version(self, bucket: str, key: str, version: str, part: Part | None) -> bytes:

        async def whole() -> bytes:
            answer = await self._call_s3(
                "get_object", Bucket=bucket, Key=key, IfMatch=f'"{version}"', **byte_range(part)
            )
            try:
                return bytes(await answer["Body"].read())
            finally:
                answer["Body"].close()

        # Of a connection that breaks while the bytes come only s3fs knows that the request can be repeated.
        found: bytes = await s3fs.core._error_wrapper(whole, retries=self.retries)  # noqa: SLF001
        return found

    async def found_below(self, bucket: str, prefix: str) -> list[Found]:
        found: list[Found] = []
        goes_on: dict[str, str] = {}
        while True:
            page = await self._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **goes_on)
            for item in page.get("Contents", ()):
                is_file = not item["Key"].endswith("/")
                found.append(Found(item["Key"], Stored(int(item["Size"]), _etag(item)) if is_file else None))
            if not (token := page.get("NextContinuationToken")):
                return found
            goes_on = {"ContinuationToken": token}

    async def delete_object(self, bucket: str, key: str) -> None:
        # Not a thousand in one request: its answer tells of each by itself what became of it, and not every store
        # knows that request.
        await self._call_s3("delete_object", Bucket=bucket, Key=key)

    async def copy_object(
        self, bucket: str, source: str, target: str, of: Stored | None, version: str | None
    ) -> Stored:
        """Copy an object, or this version of it and no other, to another name.

        Args:
            bucket: of both.
            source: key of the object.
            target: key of the copy.
            of: what the object was when it was pinned.
            version: the version that the object must have.
        """
        pin = {} if version is None else {"CopySourceIfMatch": f'"{version}"'}
        answer = await self._call_s3(
            "copy_object",
            Bucket=bucket,
            Key=target,
            CopySource={"Bucket": bucket, "Key": source},
            ChecksumAlgorithm="CRC32C",
            **pin,
        )
        made: Mapping[str, Any] = answer.get("CopyObjectResult", {})
        if of is None or "ETag" not in made or (checksum := _crc32c(made)) is None:
            return await self.look(bucket, target)
        return Stored(of.size, _etag(made), checksum)


def _part(number: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A part as an upload is completed with it: an upload with checksums wants those of its parts."""
    checksums = {
        name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"
    }
    return {"PartNumber": number, "ETag": answer["ETag"], **checksums}


@cache
def client_of(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    given = json.loads(options)
    network = {
        "connect_timeout": 10,
        "read_timeout": _SILENCE,
        "max_pool_connections": ObjectFileSystem.concurrency,
        "http_session_cls": _Session,
    }
    return S3Client(
        **{**given, "config_kwargs": {**network, **given.get("config_kwargs", {})}},
        use_listings_cache=False,
        skip_instance_cache=True,
        # Requests side by side are those of several objects. With more for one, each read asks for the size first.
        max_concurrency=1,
    )


def answer_of(error: BaseException) -> Mapping[str, Any]:
    """What the store answered to a request that failed; nothing if it did not."""
    known = error if isinstance(error, ClientError) else error.__cause__
    answer: Mapping[str, Any] = known.response if isinstance(known, ClientError) else {}
    return answer


def status_of(error: BaseException) -> int:
    """The HTTP status that an error came with, 0 for none."""
    return int(answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: BaseException) -> str:
    """The store's own name for an error."""
    return str(answer_of(error).get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
    """What an error says, in one line."""
    about = answer_of(error).get("Error", {})
    text = str(about.get("Message") or about.get("Code") or error).strip() or type(error).__name__
    return text.partition("\n")[0]


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
