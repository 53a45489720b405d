"""Checkpoints in Azure Blob Storage and Data Lake Storage, through adlfs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError
from fsspec.asyn import AsyncFileSystem

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets.azure_client import client_of, error_code, status_of, stored_of
from dagster_ckpt.filesystem.buckets.bucket import PASSING, SET_THE_CLOCK
from dagster_ckpt.filesystem.buckets.versioned_bucket import Found, Reason, VersionedBucket, check_options
from dagster_ckpt.filesystem.server_side import Copy, Stored
from dagster_ckpt.shown_text import first_line, redacted

__all__ = ["AzureBlobFileSystem", "is_entrusted"]

_CONTAINER = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(?:dfs|blob)\.(?P<cloud>core\.[a-z0-9.-]+)")
_PUBLIC_CLOUD = "core.windows.net"
#: What a user may say about the connection; everything else is decided here.
_OPTIONS = frozenset(
    {
        "account_host",
        "account_key",
        "account_name",
        "anon",
        "client_id",
        "client_secret",
        "connection_string",
        "sas_token",
        "tenant_id",
    }
)
#: Variables of the environment that are for one account only.
_OF_AN_ACCOUNT = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")
#: The refusal of a request whose date differs from the account's clock.
_CLOCK = re.compile(r"date header (?:is )?(?:too old|too new|in the future)", re.IGNORECASE)
_TOO_MUCH = frozenset({"OperationTimedOut", "ServerBusy"})


def _is_of_credentials(error: BaseException) -> bool:
    # Azure reports a key of another account with the status 403.
    failed = "failed to authenticate" in str(error)
    return failed or isinstance(error, ClientAuthenticationError) or status_of(error) == 401


_REASONS = (
    Reason(
        lambda error: isinstance(error, FileNotFoundError),
        "there is no container {bucket!r}.",
        "Create it (`az storage container create --name {bucket}`), or correct the checkpoint path.",
        StorageUnusable,
    ),
    Reason(
        lambda error: _CLOCK.search(str(error)) is not None,
        "the clock of this machine is not that of the account of container {bucket!r} ({said}).",
        SET_THE_CLOCK,
    ),
    Reason(
        _is_of_credentials,
        "the credentials for container {bucket!r} are missing or are not accepted ({said}).",
        "Run `az login`, give the machine an identity, or give the storage options `account_key`, `sas_token`, or "
        "`tenant_id`, `client_id` and `client_secret`.",
    ),
    Reason(
        lambda error: status_of(error) == 403,
        "permission denied on container {bucket!r} ({said}).",
        "Grant the role Storage Blob Data Contributor on the container to who runs the job, and let the account's "
        "network rules admit its host.",
    ),
    Reason(
        lambda error: error_code(error) in _TOO_MUCH or status_of(error) == 429,
        "the account of container {bucket!r} takes no more requests for now ({said}).",
        "Take checkpoints less often (interval).",
    ),
    Reason(
        lambda error: isinstance(error, ServiceRequestError),
        "{said}",
        "Container {bucket!r} was asked several times. Check the account's name and the network; the next checkpoint "
        "tries again.",
    ),
    Reason(
        lambda error: isinstance(error, AzureError | OSError),
        "{said}",
        "Container {bucket!r} was asked several times. The next checkpoint tries again.",
    ),
)


class AzureBlobFileSystem(VersionedBucket):
    """Blobs of a container of an Azure storage account below one prefix, with or without a hierarchical namespace.

    Azure compares every request with its MD5. Blocks of an interrupted upload are invisible, cannot be deleted, and are
    removed by Azure after a week.

    Args:
        container: the container.
        prefix: the path below which everything lies, without slashes at its ends; may be empty.
        options: of ``adlfs.AzureBlobFileSystem``: ``account_name``, with ``account_key``, ``sas_token``, or
            ``tenant_id``, ``client_id`` and ``client_secret``, or ``anon``; or a ``connection_string``; and
            ``account_host`` in a cloud of its own. By default the credentials that the Azure libraries find are used.
        host: the account's host as in an ``abfs://`` URL, where the options do not name the account.

    Raises:
        InvalidConfiguration: the container's name is impossible, the host is invalid, the host and the options name
            two accounts, or an option is unknown.
    """

    tells_checksums = False
    reasons = _REASONS
    _client_of = staticmethod(client_of)

    def __init__(
        self, container: str, prefix: str = "", options: Mapping[str, Any] | None = None, host: str = ""
    ) -> None:
        if not _CONTAINER.fullmatch(container):
            raise InvalidConfiguration(
                f"{container!r} is no name of a container of Azure Blob Storage.",
                hint="Write the checkpoint path as abfs://container@account.dfs.core.windows.net/directory.",
            )
        check_options("abfs", options or {}, _OPTIONS)
        merged = dict(options or {})
        place = container
        if host:
            account, cloud = _parsed(host)
            _check_account(account, merged.get("account_name"))
            merged["account_name"] = account
            if cloud != _PUBLIC_CLOUD:
                merged.setdefault("account_host", f"{account}.blob.{cloud}")
            place = f"{container}@{account}.dfs.{cloud}"
        super().__init__(
            f"abfs://{place}/{prefix}".rstrip("/"),
            (container, prefix, merged, host),
            f"{container}/{prefix}".rstrip("/"),
        )

    @property
    def hadoop_url(self) -> str:
        """The root with the account's host, which Hadoop needs; Hadoop accepts no other host."""
        if self._made_of[3]:
            return self.url
        service = self._client().service_client
        host = _HOST.fullmatch(service.primary_hostname)
        cloud = _PUBLIC_CLOUD if host is None else host["cloud"]
        container, prefix, *_ = self._made_of
        return f"abfs://{container}@{service.account_name}.dfs.{cloud}/{prefix}".rstrip("/")

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory: in a hierarchical namespace a directory stays when its last blob goes."""
        target = self._object(path)
        with self._errors(f"delete {self._shown(path)}"):
            self._await(lambda client: client.remove_marker(target))

    def _connect(self) -> AsyncFileSystem:
        try:
            client = client_of(os.getpid(), json.dumps(self.storage_options, sort_keys=True))
        except ValueError as error:  # the options name no account, or an impossible one
            raise StorageUnusable(
                f"Could not connect to container {self.bucket!r}: {redacted(first_line(error), self._secrets())}",
                hint="Name the account in the path (abfs://container@account.dfs.core.windows.net/directory), or give "
                "the storage option `account_name` or `connection_string`.",
            ) from self._cause(error)
        except Exception as error:
            raise self._told("connect", error) from self._cause(error)
        # A connection string of the environment would win over everything else that names an account.
        if named := self.storage_options.get("account_name"):
            try:
                _check_account(named, client.service_client.account_name)
            except InvalidConfiguration as error:
                raise StorageUnusable(error.message, hint=error.hint) from None
        return client

    def _was_refused(self, error: BaseException) -> bool:
        status = status_of(error)
        if isinstance(error, FileNotFoundError | ClientAuthenticationError):
            return True
        return 400 <= status < 500 and status not in PASSING

    def _copied(self, copy: Copy) -> Stored:
        source, target = self._key(copy.source), self._key(copy.target)
        of = copy.of or self._look(copy.source)
        about = self._await(lambda client: client.copy_blob(self.bucket, source, of, target))
        if about.copy.status != "success":
            why = about.copy.status_description or about.copy.status
            if str(why).startswith(("404", "412")):
                raise FileNotFoundError(copy.source)
            raise StorageError(f"Could not {self._copy_of(copy)}: {why}.", hint="The next checkpoint tries again.")
        if about.size != of.size:
            raise StorageError(
                f"Could not {self._copy_of(copy)}: it came out with {about.size} bytes instead of {of.size}."
            )
        return stored_of(about)

    def _settled(self, copy: Copy, error: OSError) -> Stored:
        """Always raises: the client has already checked the target, where each copy records its source."""
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(self._shown(copy.source)) from error
        raise StorageError(f"{self._shown(copy.target)} exists already and holds something else.") from error

    def _own_markers(self, path: str) -> list[Found]:
        key = self._key(path)
        found: list[Found] = self._await(lambda client: client.marker_of(self.bucket, key))
        return found


def is_entrusted(host: str, own: str | None, options: Mapping[str, Any]) -> bool:
    """Whether the credentials of a storage may go to this host, which a record or a request names.

    Another host may only get credentials of the environment: an identity within the same cloud; a key or a signature
    only for the account that the environment names.

    Args:
        host: the account's host in the URL; empty where the options name the account.
        own: the host in the URL of the storage, ``None`` if the storage is not Azure's.
        options: of the storage.

    Raises:
        InvalidConfiguration: the host is invalid or of another cloud, or the environment's credentials may not be for
            the host.
    """
    if not host:
        return True
    account, cloud = _parsed(host)
    own_account, own_cloud = _parsed(own) if own else _place_of(options)
    if own is not None and (account, cloud) == (own_account, own_cloud):
        return True
    if cloud != own_cloud:
        raise InvalidConfiguration(
            f"The host {host!r} is of another cloud than {own_cloud!r}: no credentials are sent there.",
            hint="If it can be trusted, name it in the checkpoint path itself (for a command: --path), with "
            "storage_options; or copy what is there into the storage of the job.",
        )
    given = [name for name in _OF_AN_ACCOUNT if os.environ.get(name)]
    if given and os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") != account:
        raise InvalidConfiguration(
            f"{' and '.join(given)} of the environment need not be for the account {account!r}, which is not that of "
            "the checkpoint path: no credentials are sent there.",
            hint=f"If it is, set AZURE_STORAGE_ACCOUNT_NAME={account}; else give those of the checkpoint path as "
            "storage_options instead.",
        )
    return False


def _place_of(options: Mapping[str, Any]) -> tuple[str | None, str]:
    """The account and the cloud that the options name."""
    said = dict(part.partition("=")[::2] for part in str(options.get("connection_string", "")).split(";"))
    host = _HOST.fullmatch(str(options.get("account_host", "")))
    cloud = said.get("EndpointSuffix", _PUBLIC_CLOUD) if host is None else host["cloud"]
    return options.get("account_name") or said.get("AccountName"), cloud


def _parsed(host: str) -> tuple[str, str]:
    match = _HOST.fullmatch(host)
    if match is None:
        raise InvalidConfiguration(
            f"{host!r} is no host of an Azure storage account.",
            hint="Write the checkpoint path as abfs://container@account.dfs.core.windows.net/directory.",
        )
    return match["account"], match["cloud"]


def _check_account(named: str, other: str | None) -> None:
    if other is not None and other != named:
        raise InvalidConfiguration(
            f"Two storage accounts are named: {named!r} and {other!r}.",
            hint="Name one, in the checkpoint path or in storage_options, and see to the AZURE_STORAGE_ variables of "
            "the environment.",
        )
