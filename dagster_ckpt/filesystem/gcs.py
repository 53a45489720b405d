"""Checkpoints in Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import aiohttp
import google.auth.exceptions
import requests.exceptions
from fsspec.asyn import AsyncFileSystem
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.object_store import ObjectFileSystem, check_options, first_line

__all__ = ["GcsFileSystem"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
#: What a user may say about the connection; everything else is decided here.
_OPTIONS = frozenset({"access", "endpoint_url", "project", "requester_pays", "session_kwargs", "token"})
#: Seconds without a byte after which a request is given up and repeated.
_SILENCE = 60.0


class GcsFileSystem(ObjectFileSystem):
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
            raise self._explained("connect", error) from error

    def _size(self, path: str) -> int:
        # Not by the client's `info`, which beside each look at an object lists what is below its name.
        target = self._object(path)
        return int(self._await(lambda client: client._get_object(target))["size"])  # noqa: SLF001

    def _was_refused(self, error: BaseException) -> bool:
        return (
            isinstance(error, FileNotFoundError | google.auth.exceptions.GoogleAuthError)
            or _is_forbidden(error)
            or (isinstance(error, HttpError) and _code(error) in {400, 401, 403, 404, 429})
        )

    def _explained(self, what: str, error: BaseException) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageUnusable(
                f"Could not {what}: there is no bucket {self.bucket!r}, or it cannot be seen.",
                hint=f"Create it (`gcloud storage buckets create gs://{self.bucket}`), or correct the checkpoint path.",
            )
        if isinstance(error, google.auth.exceptions.GoogleAuthError) or _code(error) == 401:
            return StorageError(
                f"Could not {what}: the credentials for bucket {self.bucket!r} are missing or have expired ({error}).",
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


@cache
def _client(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    return GCSFileSystem(
        **{"token": None, **json.loads(options)},
        use_listings_cache=False,
        skip_instance_cache=True,
        # What GCS says about the object it stored is compared with what was sent.
        consistency="md5",
        requests_timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE),
    )


async def _about_bucket(client: AsyncFileSystem, bucket: str) -> dict[str, Any]:
    about: dict[str, Any] = await client._call(  # noqa: SLF001
        "GET", "b/{}", bucket, json_out=True, fields="locationType,storageClass"
    )
    return about


def _code(error: BaseException) -> int | None:
    code = getattr(error, "code", None)
    return int(code) if isinstance(error, HttpError) and code is not None else None


def _is_forbidden(error: BaseException) -> bool:
    # gcsfs raises an OSError of its own text for the status 403.
    return isinstance(error, OSError) and str(error).startswith("Forbidden")
