"""Checkpoints in Amazon S3, and in services that speak its protocol, through s3fs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from botocore import exceptions as boto

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets.bucket import PASSING, SET_THE_CLOCK
from dagster_ckpt.filesystem.buckets.s3_client import NotAsPinned, answer_of, client_of, code_of, message_of, status_of
from dagster_ckpt.filesystem.buckets.versioned_bucket import Reason, VersionedBucket, check_options
from dagster_ckpt.filesystem.server_side import Copy, Stored

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
_NO_CREDENTIALS = (
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.SSOError,
    boto.TokenRetrievalError,
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
#: Seconds by which the clock of this machine, which signs requests, may be off.
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
#: The most bytes that one request copies.
_MOST_COPIED = 5 << 30
#: A version that no object has.
_NO_VERSION = "0" * 32
_LOCAL = "Set live_location to local: the live location then lies on a disk, and its files are uploaded."


def _is_off(error: BaseException) -> bool:
    """Whether the date of a refusal shows that this machine's clock makes every signature invalid.

    The date is needed because the answer to a request for the size of an object has no body to name the reason.
    """
    date = answer_of(error).get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if status_of(error) != 403 or date is None:
        return False
    try:
        return abs(parsedate_to_datetime(date).timestamp() - time.time()) > _MOST_OFF
    except ValueError:
        return False


_REASONS = (
    Reason(
        lambda error: isinstance(error, FileNotFoundError),
        "there is no bucket {bucket!r}, or it cannot be seen.",
        "Create it (`aws s3 mb s3://{bucket}`), or correct the checkpoint path.",
        StorageUnusable,
    ),
    Reason(
        lambda error: code_of(error) in _CLOCK or _is_off(error),
        "the clock of this machine is not that of the store of bucket {bucket!r} ({said}).",
        SET_THE_CLOCK,
    ),
    Reason(
        lambda error: isinstance(error, _NO_CREDENTIALS) or code_of(error) in _BAD_CREDENTIALS,
        "the credentials for bucket {bucket!r} are missing or are not accepted ({said}).",
        "Run `aws sso login` or `aws configure`, give the machine a role, or give the storage options `key` and "
        "`secret` (with `token` if they are temporary), or `profile`.",
    ),
    Reason(
        lambda error: isinstance(error, PermissionError),
        "permission denied on bucket {bucket!r} ({said}).",
        "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on arn:aws:s3:::{root}/*, and "
        "s3:ListBucket on arn:aws:s3:::{bucket}.",
    ),
    Reason(
        lambda error: code_of(error) in _ELSEWHERE,
        "bucket {bucket!r} is in another region ({said}).",
        "Set AWS_REGION, or the storage option client_kwargs={{'region_name': ...}}.",
    ),
    Reason(
        lambda error: code_of(error) == "NotImplemented",
        "the store of bucket {bucket!r} cannot do that ({said}).",
        "It must honour If-None-Match: * for PutObject and CompleteMultipartUpload.",
        StorageUnusable,
    ),
    Reason(
        lambda error: code_of(error) in _TOO_MUCH,
        "bucket {bucket!r} takes no more requests for now ({said}).",
        "Take checkpoints less often (interval), or give jobs prefixes of their own.",
    ),
    Reason(
        lambda error: isinstance(error, OSError | boto.BotoCoreError | boto.ClientError),
        "{said}",
        "Bucket {bucket!r} was asked several times. If the network is all right, the next checkpoint tries again.",
    ),
)


class S3FileSystem(VersionedBucket):
    """Objects of a bucket of Amazon S3 below one prefix.

    A service that speaks S3's protocol works if it honours ``If-None-Match: *`` for single requests, which a job checks
    when it starts, and accepts it for uploads in parts, which are not tried before the first large file. The bucket
    compares every upload with its CRC32, unless the user's ``config_kwargs`` switch that off.

    An interrupted upload in parts is aborted. If the process cannot abort it, because the process was killed or has no
    connection, the parts are invisible and are paid for until a lifecycle rule of the bucket removes them.

    Args:
        bucket: the bucket, or an access point's alias.
        prefix: the path below which everything lies, without slashes at its ends; may be empty.
        options: of ``s3fs.S3FileSystem``: ``key``, ``secret`` and ``token``, or ``profile``, or ``anon``;
            ``endpoint_url``, ``requester_pays``, ``client_kwargs`` (``region_name``, ``verify``), ``config_kwargs`` (of
            botocore's ``Config``), ``s3_additional_kwargs`` (``ServerSideEncryption``, ``SSEKMSKeyId``). By
            default the credentials that the AWS libraries find are used.

    Raises:
        InvalidConfiguration: the bucket's name is impossible, an option is unknown, or the endpoint is invalid.
    """

    reasons = _REASONS
    _client_of = staticmethod(client_of)

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, Any] | None = None) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidConfiguration(
                f"{bucket!r} is no name of a bucket of S3.",
                hint="Write the checkpoint path as s3://bucket/directory; an access point is named by its alias.",
            )
        check_options("s3", options or {}, _OPTIONS, "; a region is client_kwargs={'region_name': ...}")
        _check_endpoint((options or {}).get("endpoint_url"))
        super().__init__(f"s3://{bucket}/{prefix}".rstrip("/"), (bucket, prefix, dict(options or {})))
        self._heeding = threading.Lock()
        self._heeds_pins = False

    @property
    def hadoop_url(self) -> str:
        # Hadoop's client for s3:// is long gone; today's client has the scheme s3a.
        return f"s3a{self.url.removeprefix('s3')}"

    def _was_refused(self, error: BaseException) -> bool:
        status = status_of(error)
        # 501: the service does not know the header that makes a create exclusive. Missing credentials are no refusal: a
        # repeated request is signed anew, and botocore does not tell that an earlier one was sent.
        return (400 <= status < 500 and status not in PASSING) or status == 501

    def _said(self, error: BaseException) -> str:
        return message_of(error)

    def _copied(self, copy: Copy) -> Stored:
        if copy.of is None:
            return self._copied_as(copy, None)
        if copy.of.size > _MOST_COPIED:
            raise StorageError(
                f"Could not {self._copy_of(copy)}: it has {copy.of.size} bytes, and S3 copies at most "
                f"{_MOST_COPIED} in one request.",
                hint=_LOCAL,
            )
        self._prove_pins(copy)
        return self._copied_as(copy, copy.of.version)

    def _copied_as(self, copy: Copy, version: str | None) -> Stored:
        source, target = self._key(copy.source), self._key(copy.target)
        made: Stored = self._await(lambda client: client.copy_object(self.bucket, source, target, copy.of, version))
        return made

    def _prove_pins(self, copy: Copy) -> None:
        """Check once that the service honours the pins of a copy: otherwise it could copy other bytes."""
        with self._heeding:
            if self._heeds_pins:
                return
            try:
                self._copied_as(copy, _NO_VERSION)
            except NotAsPinned:
                self._heeds_pins = True
                return
            target = self._key(copy.target)
            self._ask(lambda client: client.delete_object(self.bucket, target))
            raise StorageUnusable(
                f"The store of bucket {self.bucket!r} copies an object that is not the one it was asked to copy.",
                hint=f"It must honour x-amz-copy-source-if-match for CopyObject. {_LOCAL}",
            )

    def _proved(self, copy: Copy, made: Stored) -> Stored:
        if made.crc32c is None:
            raise StorageUnusable(
                f"Could not {self._copy_of(copy)}: the store of bucket {self.bucket!r} does not tell the CRC32C of its "
                "copy, without which nobody can prove it.",
                hint=f"It must honour x-amz-checksum-algorithm: CRC32C for CopyObject. {_LOCAL}",
            )
        return super()._proved(copy, made)


def _check_endpoint(endpoint: object) -> None:
    if endpoint is None:
        return
    parts = urlsplit(str(endpoint))
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or parts.query:
        raise InvalidConfiguration(
            "The storage option endpoint_url is not the URL of a server.",
            hint="Write it as https://host or https://host:port; credentials belong in `key` and `secret`.",
        )
