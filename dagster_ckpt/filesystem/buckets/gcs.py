"""Checkpoints in Google Cloud Storage, through gcsfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import aiohttp
import gcsfs.retry
import requests.exceptions

from dagster_ckpt.errors import InvalidConfiguration, StorageUnusable
from dagster_ckpt.filesystem.buckets.bucket import SET_THE_CLOCK
from dagster_ckpt.filesystem.buckets.gcs_client import client_of, is_forbidden, is_refusal, of_credentials, status_of
from dagster_ckpt.filesystem.buckets.versioned_bucket import Reason, VersionedBucket, check_options
from dagster_ckpt.filesystem.server_side import Copy, Stored
from dagster_ckpt.shown_text import first_line

__all__ = ["GcsFileSystem"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
#: What a user may say about the connection; everything else is decided here.
_OPTIONS = frozenset({"access", "endpoint_url", "project", "requester_pays", "session_kwargs", "token"})
#: The refusal of a key's signature that was made before its time of validity, or long after it.
_CLOCK = re.compile(r"reasonable timeframe|Token used too early|Invalid JWT.*\b(?:iat|exp)\b", re.IGNORECASE)


def _has_wrong_clock(error: BaseException) -> bool:
    refused = of_credentials(error)
    return refused is not None and _CLOCK.search(str(refused)) is not None


def _is_of_network(error: BaseException) -> bool:
    known = (gcsfs.retry.HttpError, aiohttp.ClientError, requests.exceptions.RequestException, OSError)
    return isinstance(error, known)


_REASONS = (
    Reason(
        lambda error: isinstance(error, FileNotFoundError),
        "there is no bucket {bucket!r}, or it cannot be seen.",
        "Create it (`gcloud storage buckets create gs://{bucket}`), or correct the checkpoint path.",
        StorageUnusable,
    ),
    Reason(
        _has_wrong_clock,
        "the clock of this machine is not Google's, so that it gets no token for bucket {bucket!r} ({said}).",
        SET_THE_CLOCK,
    ),
    Reason(
        lambda error: of_credentials(error) is not None,
        "the credentials for bucket {bucket!r} are missing or have expired ({said}).",
        "Run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or give the storage option "
        "`token`.",
    ),
    Reason(
        lambda error: is_forbidden(error) or status_of(error) == 403,
        "permission denied on bucket {bucket!r} ({said}).",
        "Grant the role roles/storage.objectUser on the bucket to the account that runs the job.",
    ),
    Reason(
        lambda error: status_of(error) == 429,
        "bucket {bucket!r} takes no more requests for now ({said}).",
        "Take checkpoints less often (interval), or raise the quota.",
    ),
    Reason(
        _is_of_network,
        "{said}",
        "Bucket {bucket!r} was asked several times over half a minute and more. If the network is all right, the next "
        "checkpoint tries again.",
    ),
)


class GcsFileSystem(VersionedBucket):
    """Objects of a bucket of Google Cloud Storage below one prefix.

    The client is gcsfs' plain client. gcsfs' default client first asks another API for the type of a bucket: behind a
    proxy, or without permission for that API, each operation then stalls for a minute.

    Args:
        bucket: the bucket.
        prefix: the path below which everything lies, without slashes at its ends; may be empty.
        options: of ``gcsfs.GCSFileSystem``: ``token`` (a service account's key file, ``google_default``, ``cloud``,
            ``anon``), ``project``, ``endpoint_url``, ``requester_pays``, ``session_kwargs``, ``access``. Without a
            token the application-default credentials are used.

    Raises:
        InvalidConfiguration: the bucket's name is impossible, or an option is unknown.
    """

    reasons = _REASONS
    _client_of = staticmethod(client_of)

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidConfiguration(
                f"{bucket!r} is no name of a bucket of Google Cloud Storage.",
                hint="Write the checkpoint path as gs://bucket/directory.",
            )
        check_options("gs", options or {}, _OPTIONS)
        super().__init__(f"gs://{bucket}/{prefix}".rstrip("/"), (bucket, prefix, dict(options or {})))

    def probe(self) -> None:
        self._refuse_zonal()
        super().probe()

    def _refuse_zonal(self) -> None:
        """Refuse a zonal bucket: it shows unfinished objects, and an exclusive create there overwrites."""
        try:
            about = self._await(lambda client: client.about_bucket(self.bucket))
        except Exception:
            # A user who may write objects may lack permission to look at the bucket; the probe's second create tells.
            return
        if about.get("locationType") == "zone" or about.get("storageClass") == "RAPID":
            raise StorageUnusable(
                f"{self.bucket} is a zonal bucket, which cannot create an object exclusively.",
                hint="Use a bucket of a region, or of several.",
            )

    def _size(self, path: str) -> int:
        # The client's `info` would also list everything below the object's name.
        target = self._object(path)
        return int(self._await(lambda client: client._get_object(target))["size"])  # noqa: SLF001

    def _was_refused(self, error: BaseException) -> bool:
        return is_refusal(error)

    def _said(self, error: BaseException) -> str:
        return first_line(of_credentials(error) or error)

    def _copied(self, copy: Copy) -> Stored:
        source, target = self._key(copy.source), self._key(copy.target)
        version = None if copy.of is None else copy.of.version
        made: Stored = self._await(lambda client: client.rewrite(self.bucket, source, target, version))
        return made

    def _is_copy(self, made: Stored, copy: Copy) -> bool:
        of = copy.of
        if of is None or not of.has_checksum:
            # Only the original can prove its copy; without the original nothing can.
            key, version = self._key(copy.source), None if of is None else of.version
            of = self._await(lambda client: client.look(self.bucket, key, version))
        return made.is_same_content(of)
