"""Requests to Amazon S3, through s3fs: uploads, copies, and objects pinned to ETags.

An ETag names the bytes under a key and is only compared: the ETag of an object that was uploaded in parts, or is
encrypted with a key of KMS, is not an MD5. The CRC32C that the bucket computes while it copies proves a copy.
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
from dagster_ckpt.filesystem.buckets.private_members import AIOBOTOCORE, AIOHTTP, S3FS
from dagster_ckpt.filesystem.buckets.transfers import in_chunks, sending_once
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found, byte_range
from dagster_ckpt.filesystem.server_side import Stored
from dagster_ckpt.filesystem.values import Part

__all__ = ["NotAsPinned", "S3Client", "answer_of", "client_of", "code_of", "message_of", "status_of"]

S3FS.check()
AIOBOTOCORE.check()
AIOHTTP.check()

#: Seconds without a byte of the answer after which a request is abandoned and repeated.
_SILENCE = 60.0
#: The most parts that an upload may have.
_MOST_PARTS = 10_000
#: Attempts at a create that meets a conflicting request of another client, and seconds before the second attempt.
_CONFLICTS = 5
_PAUSE = 0.2
#: Conditions that the requested object is the pinned one.
_PINNED = frozenset({"IfMatch", "CopySourceIfMatch"})


class NotAsPinned(FileNotFoundError):
    """An object exists, but is not the pinned object."""


class _UploadGone(OSError):
    """An upload in parts is gone: an earlier request completed it, or another client aborted it."""


class _Session(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore publishes no types
    """Sends requests, each once and with a time limit."""

    async def _get_session(self, proxy_url: Any) -> Any:
        return sending_once(await super()._get_session(proxy_url))

    async def send(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(transfers.LONGEST_REQUEST):
                return await super().send(request)
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error


class S3Client(s3fs.S3FileSystem):  # type: ignore[misc]  # s3fs publishes no types
    """s3fs that reports taken names alike for every service, and aborts cancelled uploads."""

    # botocore repeats each request by itself; doubling that is enough.
    retries = 2

    async def _call_s3(self, method: str, *given: Any, **parameters: Any) -> Any:
        in_doubt = False
        for attempt in range(1, _CONFLICTS + 1):
            try:
                return await self._ask(in_doubt, method, *given, **parameters)
            except OSError as error:
                in_doubt = REPEATED in getattr(error, "__notes__", ())
                code = code_of(error)
                # Only Amazon's own answer names the unmet condition; every request here has at most one.
                if code == "PreconditionFailed":
                    kind = NotAsPinned if _PINNED & parameters.keys() else FileExistsError
                    raise kind(parameters.get("Key")) from error
                if code == "NoSuchUpload":
                    raise _UploadGone(message_of(error)) from error
                # This request did nothing and may be repeated; an earlier one may still be carried out.
                # An upload in parts would have to begin again, but its name has one writer, so it meets no conflicts.
                if code != "ConditionalRequestConflict" or method != "put_object" or attempt == _CONFLICTS:
                    raise
            await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    async def _ask(self, in_doubt: bool, method: str, *given: Any, **parameters: Any) -> Any:
        """Call as s3fs does; an error gets a note if this request, or an earlier one ``in_doubt``, was repeated."""
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
            if in_doubt or attempts > 1 or answer_of(error).get("ResponseMetadata", {}).get("RetryAttempts"):
                error.add_note(REPEATED)
            raise

    async def _ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        """List one directory only: for an empty directory s3fs would list the parent, too."""
        if not detail:
            raise NotImplementedError
        found: list[dict[str, Any]] = await self._lsdir(path)
        return found

    async def _put_file(self, lpath: str, rpath: str, *, callback: Callback, chunksize: int, mode: str) -> None:
        """Upload a file in parts, one after the other, and create the object exclusively from them.

        s3fs's own method leaves the parts in the bucket when it is cancelled, and omits the checksums of the parts when
        it completes the upload.
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
        except BaseException:  # also when cancelled: parts are paid for until the upload is aborted
            with contextlib.suppress(Exception):
                await self._call_s3("abort_multipart_upload", **upload)
            raise

    async def _completed(self, upload: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
        try:
            await self._call_s3(
                "complete_multipart_upload", **upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except _UploadGone as error:
            # An earlier request may have completed the upload: the caller reads the object to find out.
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

        # Only s3fs knows that a request can be repeated when its connection breaks while the bytes arrive.
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
        # One object per request: a request for a thousand reports a result for each, and not every service knows it.
        await self._call_s3("delete_object", Bucket=bucket, Key=key)

    async def copy_object(
        self, bucket: str, source: str, target: str, of: Stored | None, version: str | None
    ) -> Stored:
        """Copy an object, or exactly one version of the object, to another name.

        Args:
            bucket: of both objects.
            source: key of the object.
            target: key of the copy.
            of: the object as it was pinned.
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
    """A part as the request that completes the upload lists it: an upload with checksums needs those of its parts."""
    checksums = {
        name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"
    }
    return {"PartNumber": number, "ETag": answer["ETag"], **checksums}


@cache
def client_of(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: it reuses connections and tokens."""
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
        # One request at a time per object: with more, each read asks for the size first. Objects run side by side.
        max_concurrency=1,
    )


def answer_of(error: BaseException) -> Mapping[str, Any]:
    """What the bucket answered to a failed request; empty if it did not answer."""
    known = error if isinstance(error, ClientError) else error.__cause__
    answer: Mapping[str, Any] = known.response if isinstance(known, ClientError) else {}
    return answer


def status_of(error: BaseException) -> int:
    """The HTTP status of an error, 0 for none."""
    return int(answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: BaseException) -> str:
    """The service's own name for an error."""
    return str(answer_of(error).get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
    """The message of an error, in one line."""
    about = answer_of(error).get("Error", {})
    text = str(about.get("Message") or about.get("Code") or error).strip() or type(error).__name__
    return text.partition("\n")[0]


def _etag(answer: Mapping[str, Any]) -> str:
    # Some services omit the quotation marks in some answers.
    return str(answer["ETag"]).strip('"')


def _crc32c(answer: Mapping[str, Any]) -> str | None:
    """The CRC32C of all bytes; ``None`` for the checksum of checksums that an object uploaded in parts may have."""
    told = answer.get("ChecksumCRC32C")
    if told is None or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        return str(told) if len(base64.b64decode(told, validate=True)) == 4 else None
    except binascii.Error:  # a checksum of parts, which ends with the number of parts
        return None
