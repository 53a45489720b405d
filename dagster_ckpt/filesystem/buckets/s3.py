"""Checkpoints in Amazon S3, and in stores that speak its protocol, through s3fs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback
from s3fs.core import _error_wrapper

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.filesystem.buckets.bucket import PASSING, REPEATED, SET_THE_CLOCK, ObjectFileSystem, check_options
from dagster_ckpt.filesystem.buckets.s3_copies import NotAsPinned, S3ServerSide
from dagster_ckpt.filesystem.buckets.transfers import in_chunks

__all__ = ["S3FileSystem"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
#: What a user may say about the connection; everything else is decided here.
_OPTIONS = frozenset(
    {
        "anon",
        "client_kwargs",
        "config_kwargs",
        "endpoint_url",
        "key",
        "profile",
        "requester_pays",
        "s3_additional_kwargs",
        "secret",
        "token",
    }
)
#: Seconds without a byte of the answer after which a request is given up and repeated.
_SILENCE = 60.0
#: The most parts that an upload may have.
_MOST_PARTS = 10_000
#: Attempts at a create that meets a conflicting request of somebody else, and seconds before the second.
_CONFLICTS = 5
_PAUSE = 0.2
#: Conditions that the object which is asked for is the one that was seen.
_PINNED = frozenset({"IfMatch", "CopySourceIfMatch"})

_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
_BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_CLOCK = frozenset({"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"})
#: Seconds that the clock of who signs a request may be off.
_MOST_OFF = 15 * 60.0
_ELSEWHERE = frozenset(
    {
        "301",
        "307",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_TOO_MUCH = frozenset({"429", "503", "RequestLimitExceeded", "ServiceUnavailable", "SlowDown", "TooManyRequests"})


class S3FileSystem(S3ServerSide):
    """Objects of a bucket of Amazon S3 below one prefix.

    A store that speaks S3's protocol will do if it honours ``If-None-Match: *`` for single requests and for uploads in
    parts; a job finds out when it starts. What is uploaded is compared with its CRC32 by the store, unless the
    user's ``config_kwargs`` switch that off.

    An upload in parts that is broken off is aborted. What the process cannot abort any more, because it was killed or
    has no connection, is invisible and is paid for until a lifecycle rule of the bucket removes it.

    Args:
        bucket: the bucket, or an access point's alias.
        prefix: names below which everything lies, without slashes at its ends; may be empty.
        options: of ``s3fs.S3FileSystem``: ``key``, ``secret`` and ``token``, or ``profile``, or ``anon``;
            ``endpoint_url``, ``requester_pays``, ``client_kwargs`` (``region_name``, ``verify``), ``config_kwargs`` (of
            botocore's ``Config``), ``s3_additional_kwargs`` (``ServerSideEncryption``, ``SSEKMSKeyId``). Without
            credentials those are used that the AWS libraries find.

    Raises:
        InvalidConfiguration: the bucket has no possible name, an option is unknown, or the endpoint is none.
    """

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidConfiguration(
                f"{bucket!r} is no name of a bucket of S3.",
                hint="Write the checkpoint path as s3://bucket/directory; an access point is named by its alias.",
            )
        check_options("s3", options or {}, _OPTIONS, "; a region is client_kwargs={'region_name': ...}")
        _check_endpoint((options or {}).get("endpoint_url"))
        super().__init__(f"s3://{bucket}/{prefix}".rstrip("/"))
        self._made_of = (bucket, prefix, dict(options or {}))

    def __reduce__(self) -> tuple[type[S3FileSystem], tuple[str, str, dict[str, Any]]]:
        return (S3FileSystem, self._made_of)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self._made_of[2]

    def _connect(self) -> AsyncFileSystem:
        try:
            return _client(os.getpid(), json.dumps(self._made_of[2], sort_keys=True))
        except Exception as error:
            raise self._told("connect", error) from self._cause(error)

    def _was_refused(self, error: BaseException) -> bool:
        status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        # 501: the store does not know the header that makes a create exclusive.
        return isinstance(error, _NO_CREDENTIALS) or (400 <= status < 500 and status not in PASSING) or status == 501

    def _explained(self, what: str, error: BaseException) -> StorageError:
        code = _code(error)
        if isinstance(error, FileNotFoundError):
            return StorageUnusable(
                f"Could not {what}: there is no bucket {self.bucket!r}, or it cannot be seen.",
                hint=f"Create it (`aws s3 mb s3://{self.bucket}`), or correct the checkpoint path.",
            )
        if code in _CLOCK or _is_off(error):
            return StorageError(
                f"Could not {what}: the clock of this machine is not that of the store of bucket {self.bucket!r} "
                f"({_message(error)}).",
                hint=SET_THE_CLOCK,
            )
        if isinstance(error, _NO_CREDENTIALS) or code in _BAD_CREDENTIALS:
            return StorageError(
                f"Could not {what}: the credentials for bucket {self.bucket!r} are missing or are not accepted "
                f"({_message(error)}).",
                hint="Run `aws sso login` or `aws configure`, give the machine a role, or give the storage options "
                "`key` and `secret` (with `token` if they are temporary), or `profile`.",
            )
        if isinstance(error, PermissionError):
            return StorageError(
                f"Could not {what}: permission denied on bucket {self.bucket!r} ({_message(error)}).",
                hint=f"Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on "
                f"arn:aws:s3:::{self._root}/*, and s3:ListBucket on arn:aws:s3:::{self.bucket}.",
            )
        if code in _ELSEWHERE:
            return StorageError(
                f"Could not {what}: bucket {self.bucket!r} is in another region ({_message(error)}).",
                hint="Set AWS_REGION, or the storage option client_kwargs={'region_name': ...}.",
            )
        if code == "NotImplemented":
            return StorageUnusable(
                f"Could not {what}: the store of bucket {self.bucket!r} cannot do that ({_message(error)}).",
                hint="It must honour If-None-Match: * for PutObject and CompleteMultipartUpload.",
            )
        if code in _TOO_MUCH:
            return StorageError(
                f"Could not {what}: bucket {self.bucket!r} takes no more requests for now ({_message(error)}).",
                hint="Take checkpoints less often (interval), or give jobs prefixes of their own.",
            )
        if isinstance(error, OSError | BotoCoreError | ClientError):
            return StorageError(
                f"Could not {what}: {_message(error)}",
                hint=f"Bucket {self.bucket!r} was asked several times. If the network is all right, the next "
                "checkpoint tries again.",
            )
        return StorageError(f"Could not {what}: {type(error).__name__}: {_message(error)}")


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


class _Client(s3fs.S3FileSystem):  # type: ignore[misc]  # s3fs publishes no types
    """s3fs, with names that are taken told as such by every store, and uploads that are aborted when cancelled."""

    # botocore repeats each request by itself; twice that is enough.
    retries = 2

    async def _call_s3(self, method: str, *given: Any, **parameters: Any) -> Any:
        for attempt in range(1, _CONFLICTS + 1):
            try:
                return await self._ask(method, *given, **parameters)
            except OSError as error:
                code = _code(error)
                # Only Amazon's own answer says which condition was not met; no request here has two.
                if code == "PreconditionFailed":
                    kind = NotAsPinned if _PINNED & parameters.keys() else FileExistsError
                    raise kind(parameters.get("Key")) from error
                if code == "NoSuchUpload":
                    raise _UploadGone(_message(error)) from error
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
            return await _error_wrapper(
                attempted, kwargs=self._get_s3_method_kwargs(call, *given, **parameters), retries=self.retries
            )
        except Exception as error:
            if attempts > 1 or _answer(error).get("ResponseMetadata", {}).get("RetryAttempts"):
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


def _part(number: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A part as an upload is completed with it: an upload with checksums wants those of its parts."""
    checksums = {
        name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"
    }
    return {"PartNumber": number, "ETag": answer["ETag"], **checksums}


@cache
def _client(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    given = json.loads(options)
    network = {
        "connect_timeout": 10,
        "read_timeout": _SILENCE,
        "max_pool_connections": ObjectFileSystem.concurrency,
        "http_session_cls": _Session,
    }
    return _Client(
        **{**given, "config_kwargs": {**network, **given.get("config_kwargs", {})}},
        use_listings_cache=False,
        skip_instance_cache=True,
        # Requests side by side are those of several objects. With more for one, each read asks for the size first.
        max_concurrency=1,
    )


def _check_endpoint(endpoint: object) -> None:
    if endpoint is None:
        return
    parts = urlsplit(str(endpoint))
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or parts.query:
        raise InvalidConfiguration(
            "The storage option endpoint_url is not the URL of a server.",
            hint="Write it as https://host or https://host:port; credentials belong into `key` and `secret`.",
        )


def _answer(error: BaseException) -> Mapping[str, Any]:
    """What the store answered to a request that failed; nothing if it did not."""
    known = error if isinstance(error, ClientError) else error.__cause__
    answer: Mapping[str, Any] = known.response if isinstance(known, ClientError) else {}
    return answer


def _is_off(error: BaseException) -> bool:
    """Whether a request was refused with a date that makes every signature of this machine worthless.

    An answer to a request for the size of an object has no body that could say so.
    """
    about = _answer(error).get("ResponseMetadata", {})
    date = about.get("HTTPHeaders", {}).get("date")
    if about.get("HTTPStatusCode") != 403 or date is None:
        return False
    try:
        return abs(parsedate_to_datetime(date).timestamp() - time.time()) > _MOST_OFF
    except ValueError:
        return False


def _code(error: BaseException) -> str:
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _message(error: BaseException) -> str:
    about = _answer(error).get("Error", {})
    text = str(about.get("Message") or about.get("Code") or error).strip() or type(error).__name__
    return text.partition("\n")[0]
