"""Requests to Google Cloud Storage, through gcsfs: uploads, copies, and objects pinned to generations.

A listing omits the checksums of objects that are encrypted with a customer's key; an answer about one object has them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

import aiohttp
import gcsfs.retry
import google.auth.exceptions
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback
from gcsfs.core import GCSFileSystem

from dagster_ckpt.filesystem.buckets import transfers
from dagster_ckpt.filesystem.buckets.bucket import REPEATED
from dagster_ckpt.filesystem.buckets.private_members import GCSFS
from dagster_ckpt.filesystem.buckets.transfers import in_chunks
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found, byte_range
from dagster_ckpt.filesystem.server_side import Stored
from dagster_ckpt.filesystem.values import Part
from dagster_ckpt.shown_text import without_secrets

__all__ = ["GcsClient", "client_of", "is_forbidden", "is_refusal", "of_credentials", "status_of"]

GCSFS.check()

#: Seconds without a byte of the answer after which a request is abandoned and repeated.
_SILENCE = 60.0
#: How often in a row a part of an upload may be sent without the bucket taking a byte.
_ATTEMPTS = 3
#: Each part of an upload except the last has a multiple of this many bytes; and the most parts of an upload.
_UNIT = 256 << 10
_MOST_PARTS = 100_000
#: Bytes that one request for a copy may copy; ``None``: the bucket chooses.
_MOST_AT_ONCE: int | None = None
_OBJECT = "b/{}/o/{}"
_REWRITE = "b/{}/o/{}/rewriteTo/b/{}/o/{}"

# These loggers log requests and errors with their URLs; the URL of a token contains the token.
for _name in ("gcsfs", "gcsfs.credentials", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(without_secrets)


async def _in_time(client: GCSFileSystem, *given: Any, **parameters: Any) -> Any:
    """Send one request of gcsfs once; a request that takes too long raises an error after which gcsfs repeats it."""
    try:
        return await GCSFileSystem._request.__wrapped__(client, *given, **parameters)  # noqa: SLF001
    except TimeoutError as error:
        if isinstance(error, aiohttp.ClientError):
            raise
        raise aiohttp.ServerTimeoutError(f"Not done after {transfers.LONGEST_REQUEST:.0f} seconds") from error


class _UploadGone(OSError):
    """An upload of several requests is gone: an earlier request completed it, or it has expired."""


class GcsClient(GCSFileSystem):  # type: ignore[misc]  # gcsfs publishes no types
    """gcsfs with requests whose bodies are the plain bytes, and uploads whose outcome is known.

    gcsfs puts the bytes of one request into a form whose lines end with LF: a reader that expects CRLF takes a CR at
    the end of the content for a part of the form. When an upload of several requests fails, gcsfs reports the outcome
    of cancelling the upload: for a completed upload whose last answer was lost, that the upload does not exist.
    """

    async def _request(self, *given: Any, **parameters: Any) -> Any:
        """Repeat as gcsfs does; a refusal that answers a repeated request gets a note."""
        try:
            return await _in_time(self, *given, **parameters)
        except Exception as error:
            first: list[Exception] = [error]
        in_doubt = False

        async def asked() -> Any:
            # The first request was sent above: most succeed, and what repeats a request takes long to make.
            nonlocal in_doubt
            try:
                if first:
                    raise first.pop()
                return await _in_time(self, *given, **parameters)
            except Exception as error:
                if in_doubt:
                    error.add_note(REPEATED)
                in_doubt = in_doubt or not is_refusal(error)
                raise

        return await gcsfs.retry.retry_request(asked, retries=self.retries)()

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
        """Upload a file in parts, one after the other; check that each part has arrived."""
        bucket, key, _ = self.split_path(rpath)
        size = os.stat(lpath).st_size  # noqa: PTH116 - fsspec's callers give text
        headers, _ = await self._call(
            "POST", self._uploads(bucket), uploadType="resumable", name=key, json={"name": key}, **_condition(mode)
        )
        upload = str(headers["Location"])
        digest, sent, answer = hashlib.md5(usedforsecurity=False), 0, None
        try:
            for chunk in in_chunks(lpath, chunksize, _MOST_PARTS, unit=_UNIT):
                # Hash beside the request, on another thread: every upload shares this one.
                hashed = asyncio.create_task(asyncio.to_thread(digest.update, chunk))
                try:
                    answer = await self._append(upload, chunk, sent, size)
                finally:
                    await hashed
                sent += len(chunk)
                callback.relative_update(len(chunk))
        except BaseException:  # also when cancelled
            # After the cancellation a part that is still on its way completes nothing: what is there now stays.
            with contextlib.suppress(Exception):
                await self._call("DELETE", upload.replace("&ifGenerationMatch=0", ""))
            raise
        _compare(answer, digest.digest())

    async def _append(self, upload: str, data: bytes, begin: int, size: int) -> dict[str, Any] | None:
        """Send a part; return the object after the last part."""
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
            # The bucket may have taken less than was sent.
            taken = int(headers["Range"].rpartition("-")[2]) + 1 if "Range" in headers else 0
            if taken == end:
                return None
            if not begin <= taken < end:
                break
            attempts, begin = (attempts + 1 if taken == begin else 0), taken
        raise _UploadGone(f"The upload does not go on after byte {begin}.")

    def _uploads(self, bucket: str) -> str:
        return f"{self._location}/upload/storage/v1/b/{quote(bucket)}/o"

    async def look(self, bucket: str, key: str, version: str | None = None) -> Stored:
        return _stored(await self._call("GET", _OBJECT, bucket, key, generation=version, json_out=True))

    async def read_version(self, bucket: str, key: str, version: str, part: Part | None) -> bytes:
        _, data = await self._call(
            "GET", _OBJECT, bucket, key, alt="media", generation=version, headers=byte_range(part)
        )
        return bytes(data)

    async def found_below(self, bucket: str, prefix: str) -> list[Found]:
        found: list[Found] = []
        token: str | None = None
        while True:
            page = await self._call("GET", "b/{}/o", bucket, prefix=prefix, pageToken=token, json_out=True)
            found += [
                Found(item["name"], None if item["name"].endswith("/") else _stored(item))
                for item in page.get("items", ())
            ]
            if not (token := page.get("nextPageToken")):
                return found

    async def delete_object(self, bucket: str, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # or an earlier request, now repeated, was carried out
            await self._call("DELETE", _OBJECT, bucket, key)

    async def rewrite(self, bucket: str, source: str, target: str, version: str | None) -> Stored:
        """Copy an object, or exactly one version of it, to a new name; a large object takes several requests."""
        token: str | None = None
        while True:
            answer = await self._call(
                "POST",
                _REWRITE,
                bucket,
                source,
                bucket,
                target,
                headers={"Content-Type": "application/json"},
                ifGenerationMatch=0,
                ifSourceGenerationMatch=version,
                maxBytesRewrittenPerCall=_MOST_AT_ONCE,
                rewriteToken=token,
                json_out=True,
            )
            if answer["done"]:
                return _stored(answer["resource"])
            token = answer["rewriteToken"]

    async def about_bucket(self, bucket: str) -> dict[str, Any]:
        """The location and the storage class of a bucket."""
        about: dict[str, Any] = await self._call(
            "GET", "b/{}", bucket, json_out=True, fields="locationType,storageClass"
        )
        return about


def _condition(mode: str) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if mode == "create" else {}


def _compare(answer: Mapping[str, Any] | None, digest: bytes) -> None:
    """Compare what GCS says about the stored object with what was sent."""
    if answer is None or answer.get("md5Hash") != base64.b64encode(digest).decode():
        raise gcsfs.retry.ChecksumError("What was stored is not what was sent: its MD5 is another one.")


@cache
def client_of(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: it reuses connections and tokens."""
    del process
    return GcsClient(
        **{"token": None, **json.loads(options)},
        use_listings_cache=False,
        skip_instance_cache=True,
        requests_timeout=aiohttp.ClientTimeout(
            total=transfers.LONGEST_REQUEST, sock_connect=_SILENCE, sock_read=_SILENCE
        ),
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an error."""
    code = getattr(error, "code", None)
    return int(code) if isinstance(error, gcsfs.retry.HttpError) and code is not None else None


def is_refusal(error: BaseException) -> bool:
    """Whether the bucket refused the request."""
    return (
        isinstance(error, FileNotFoundError | google.auth.exceptions.GoogleAuthError)
        or is_forbidden(error)
        or status_of(error) in {400, 401, 403, 404}
    )


def of_credentials(error: BaseException) -> BaseException | None:
    """The error of the credentials, ``None`` without one: gcsfs itself only says that it got no token."""
    if isinstance(error.__cause__, google.auth.exceptions.GoogleAuthError):
        return error.__cause__
    return error if isinstance(error, google.auth.exceptions.GoogleAuthError) or status_of(error) == 401 else None


def is_forbidden(error: BaseException) -> bool:
    """Whether permission was denied."""
    # gcsfs raises an OSError of its own text for the status 403.
    return isinstance(error, OSError) and str(error).startswith("Forbidden")


def _stored(about: Mapping[str, Any]) -> Stored:
    return Stored(int(about["size"]), str(about["generation"]), about.get("crc32c"), about.get("md5Hash"))
