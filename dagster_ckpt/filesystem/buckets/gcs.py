"""Checkpoints in Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any
from urllib.parse import quote

import aiohttp
import google.auth.exceptions
import requests.exceptions
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback
from gcsfs.core import GCSFileSystem
from gcsfs.retry import ChecksumError, HttpError, retry_request

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.filesystem.buckets.bucket import REPEATED, SET_THE_CLOCK, check_options, first_line
from dagster_ckpt.filesystem.buckets.gcs_copies import GcsServerSide
from dagster_ckpt.filesystem.buckets.transfers import in_chunks
from dagster_ckpt.shown_text import without_secrets

__all__ = ["GcsFileSystem"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
#: What a user may say about the connection; everything else is decided here.
_OPTIONS = frozenset({"access", "endpoint_url", "project", "requester_pays", "session_kwargs", "token"})
#: What a refusal of a key's signature says that was made before it began to count, or long after it has ceased to.
_CLOCK = re.compile(r"reasonable timeframe|Token used too early|Invalid JWT.*\b(?:iat|exp)\b", re.IGNORECASE)
#: Seconds without a byte of the answer after which a request is given up and repeated.
_SILENCE = 60.0
#: How often in a row a part of an upload may be sent of which the store takes nothing.
_ATTEMPTS = 3
#: The bytes that a part of an upload, but for the last, must have a multiple of; and the most parts there may be.
_UNIT = 256 << 10
_MOST_PARTS = 100_000

# These log requests and errors with their URLs, of which that of a token has the token in it.
for _name in ("gcsfs", "gcsfs.credentials", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(without_secrets)


class GcsFileSystem(GcsServerSide):
    """Objects of a bucket of Google Cloud Storage below one prefix.

    The client is gcsfs' plain one, not its default, which asks another API for the type of a bucket before it does
    anything: behind a proxy, or without permission to ask, each operation then stalls for a minute.

    Args:
        bucket: the bucket.
        prefix: names below which everything lies, without slashes at its ends; may be empty.
        options: of ``gcsfs.GCSFileSystem``: ``token`` (a service account's key file, ``google_default``, ``cloud``,
            ``anon``), ``project``, ``endpoint_url``, ``requester_pays``, ``session_kwargs``, ``access``. Without a
            token the application-default credentials are used.

    Raises:
        InvalidConfiguration: the bucket has no possible name, or an option is unknown.
    """

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidConfiguration(
                f"{bucket!r} is no name of a bucket of Google Cloud Storage.",
                hint="Write the checkpoint path as gs://bucket/directory.",
            )
        check_options("gs", options or {}, _OPTIONS)
        super().__init__(f"gs://{bucket}/{prefix}".rstrip("/"))
        self._made_of = (bucket, prefix, dict(options or {}))

    def __reduce__(self) -> tuple[type[GcsFileSystem], tuple[str, str, dict[str, Any]]]:
        return (GcsFileSystem, self._made_of)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self._made_of[2]

    def probe(self) -> None:
        self._refuse_zonal()
        super().probe()

    def _refuse_zonal(self) -> None:
        """A zonal bucket shows objects while they are written and overwrites what should be created exclusively."""
        try:
            about = self._await(partial(_about_bucket, bucket=self.bucket))
        except Exception:
            # Whoever may write objects need not be allowed to look at the bucket; what is created twice tells, too.
            return
        if about.get("locationType") == "zone" or about.get("storageClass") == "RAPID":
            raise StorageUnusable(
                f"{self.bucket} is a zonal bucket, which cannot create an object exclusively.",
                hint="Use a bucket of a region, or of several.",
            )

    def _connect(self) -> AsyncFileSystem:
        try:
            return _client(os.getpid(), json.dumps(self._made_of[2], sort_keys=True))
        except Exception as error:
            raise self._told("connect", error) from self._cause(error)

    def _size(self, path: str) -> int:
        # Not by the client's `info`, which beside each look at an object lists what is below its name.
        target = self._object(path)
        return int(self._await(lambda client: client._get_object(target))["size"])  # noqa: SLF001

    def _was_refused(self, error: BaseException) -> bool:
        return _is_refusal(error)

    def _explained(self, what: str, error: BaseException) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageUnusable(
                f"Could not {what}: there is no bucket {self.bucket!r}, or it cannot be seen.",
                hint=f"Create it (`gcloud storage buckets create gs://{self.bucket}`), or correct the checkpoint path.",
            )
        if (refused := _of_credentials(error)) is not None and _CLOCK.search(str(refused)):
            return StorageError(
                f"Could not {what}: the clock of this machine is not Google's, so that it gets no token for bucket "
                f"{self.bucket!r} ({first_line(refused)}).",
                hint=SET_THE_CLOCK,
            )
        if refused is not None:
            return StorageError(
                f"Could not {what}: the credentials for bucket {self.bucket!r} are missing or have expired "
                f"({first_line(refused)}).",
                hint="Run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or give the "
                "storage option `token`.",
            )
        if _is_forbidden(error) or _code(error) == 403:
            return StorageError(
                f"Could not {what}: permission denied on bucket {self.bucket!r} ({first_line(error)}).",
                hint="Grant the role roles/storage.objectUser on the bucket to the account that runs the job.",
            )
        if _code(error) == 429:
            return StorageError(
                f"Could not {what}: bucket {self.bucket!r} takes no more requests for now ({first_line(error)}).",
                hint="Take checkpoints less often (interval), or raise the quota.",
            )
        if isinstance(error, HttpError | aiohttp.ClientError | requests.exceptions.RequestException | OSError):
            return StorageError(
                f"Could not {what}: {first_line(error)}",
                hint=f"Bucket {self.bucket!r} was asked several times over half a minute and more. If the network "
                "is all right, the next checkpoint tries again.",
            )
        return StorageError(f"Could not {what}: {type(error).__name__}: {first_line(error)}")


async def _in_time(client: GCSFileSystem, *given: Any, **parameters: Any) -> Any:
    """A request of gcsfs, which is made once; the error of one that takes too long is one that gcsfs repeats."""
    try:
        return await GCSFileSystem._request.__wrapped__(client, *given, **parameters)  # noqa: SLF001
    except TimeoutError as error:
        if isinstance(error, aiohttp.ClientError):
            raise
        raise aiohttp.ServerTimeoutError(f"Not done after {transfers.LONGEST_REQUEST:.0f} seconds") from error


class _UploadGone(OSError):
    """An upload of several requests is not there: an earlier request completed it, or it has expired."""


class _Client(GCSFileSystem):  # type: ignore[misc]  # gcsfs publishes no types
    """gcsfs, with requests whose bodies are the bytes and nothing else, and uploads whose end can be told.

    gcsfs puts one request's bytes into a form whose lines end with LF: whoever reads it as a form of CRLFs takes a last
    CR of the content for the form's. And where an upload of several requests fails, it reports what became of
    cancelling it: of one that was completed, and only its last answer lost, that it is not there.
    """

    async def _request(self, *given: Any, **parameters: Any) -> Any:
        """As often as gcsfs asks, with a note of a refusal that answers a repeated request."""
        in_doubt = False

        async def asked() -> Any:
            nonlocal in_doubt
            try:
                return await _in_time(self, *given, **parameters)
            except Exception as error:
                if in_doubt:
                    error.add_note(REPEATED)
                in_doubt = in_doubt or not _is_refusal(error)
                raise

        return await retry_request(asked, retries=self.retries)()

    async def _pipe_file(self, path: str, value: bytes, *, mode: str) -> None:
        bucket, key, _ = self.split_path(path)
        answer = await self._call(
            "POST",
            self._uploads(bucket),
            uploadType="media",
            name=key,
            headers={"Content-Type": "application/octet-stream"},
            data=value,
            json_out=True,
            **_condition(mode),
        )
        _compare(answer, hashlib.md5(value, usedforsecurity=False).digest())

    async def _put_file(self, lpath: str, rpath: str, *, callback: Callback, chunksize: int, mode: str) -> None:
        """Upload a file in parts, one after the other, each of which is checked to have arrived."""
        bucket, key, _ = self.split_path(rpath)
        size = os.stat(lpath).st_size  # noqa: PTH116 - fsspec's callers give text
        headers, _ = await self._call(
            "POST", self._uploads(bucket), uploadType="resumable", name=key, json={"name": key}, **_condition(mode)
        )
        upload = str(headers["Location"])
        digest, sent, answer = hashlib.md5(usedforsecurity=False), 0, None
        try:
            for chunk in in_chunks(lpath, chunksize, _MOST_PARTS, unit=_UNIT):
                # Beside the request, and not on the thread on which every other upload waits, too.
                hashed = asyncio.create_task(asyncio.to_thread(digest.update, chunk))
                try:
                    answer = await self._append(upload, chunk, sent, size)
                finally:
                    await hashed
                sent += len(chunk)
                callback.relative_update(len(chunk))
        except BaseException:  # cancelled, too
            # A part that is still on its way completes nothing any more: what is there afterwards is what there is.
            with contextlib.suppress(Exception):
                await self._call("DELETE", upload.replace("&ifGenerationMatch=0", ""))
            raise
        _compare(answer, digest.digest())

    async def _append(self, upload: str, data: bytes, begin: int, size: int) -> dict[str, Any] | None:
        """Send a part; the object, if that was the last of it."""
        end, attempts = begin + len(data), 0
        while attempts < _ATTEMPTS:
            left = memoryview(data)[begin - end :]
            try:
                headers, said = await self._call(
                    "POST", upload, headers={"Content-Range": f"bytes {begin}-{end - 1}/{size}"}, data=left
                )
            except FileNotFoundError as error:
                raise _UploadGone("The upload is not there any more.") from error
            if said:
                found: dict[str, Any] = json.loads(said)
                return found
            # The store may have taken less than it was sent.
            taken = int(headers["Range"].rpartition("-")[2]) + 1 if "Range" in headers else 0
            if taken == end:
                return None
            if not begin <= taken < end:
                break
            attempts, begin = (attempts + 1 if taken == begin else 0), taken
        raise _UploadGone(f"The upload does not go on after byte {begin}.")

    def _uploads(self, bucket: str) -> str:
        return f"{self._location}/upload/storage/v1/b/{quote(bucket)}/o"


def _condition(mode: str) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if mode == "create" else {}


def _compare(answer: Mapping[str, Any] | None, digest: bytes) -> None:
    """What GCS says about the object it stored is compared with what was sent."""
    if answer is None or answer.get("md5Hash") != base64.b64encode(digest).decode():
        raise ChecksumError("What was stored is not what was sent: its MD5 is another one.")


@cache
def _client(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    return _Client(
        **{"token": None, **json.loads(options)},
        use_listings_cache=False,
        skip_instance_cache=True,
        requests_timeout=aiohttp.ClientTimeout(
            total=transfers.LONGEST_REQUEST, sock_connect=_SILENCE, sock_read=_SILENCE
        ),
    )


async def _about_bucket(client: AsyncFileSystem, bucket: str) -> dict[str, Any]:
    about: dict[str, Any] = await client._call(  # noqa: SLF001
        "GET", "b/{}", bucket, json_out=True, fields="locationType,storageClass"
    )
    return about


def _code(error: BaseException) -> int | None:
    code = getattr(error, "code", None)
    return int(code) if isinstance(error, HttpError) and code is not None else None


def _is_refusal(error: BaseException) -> bool:
    return (
        isinstance(error, FileNotFoundError | google.auth.exceptions.GoogleAuthError)
        or _is_forbidden(error)
        or _code(error) in {400, 401, 403, 404}
    )


def _of_credentials(error: BaseException) -> BaseException | None:
    """What is wrong with the credentials, ``None`` if nothing is: gcsfs says of a token it did not get only that."""
    if isinstance(error.__cause__, google.auth.exceptions.GoogleAuthError):
        return error.__cause__
    return error if isinstance(error, google.auth.exceptions.GoogleAuthError) or _code(error) == 401 else None


def _is_forbidden(error: BaseException) -> bool:
    # gcsfs raises an OSError of its own text for the status 403.
    return isinstance(error, OSError) and str(error).startswith("Forbidden")
