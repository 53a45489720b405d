"""Checkpoints in Azure Blob Storage and Data Lake Storage, through adlfs."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

import adlfs
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobPrefix
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback

from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem.buckets.azure_answers import error_code, is_marker, status_of
from dagster_ckpt.filesystem.buckets.azure_copies import AzureServerSide
from dagster_ckpt.filesystem.buckets.bucket import PASSING, REPEATED, SET_THE_CLOCK, check_options, first_line
from dagster_ckpt.filesystem.buckets.transfers import in_chunks
from dagster_ckpt.shown_text import redacted

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
#: What the environment may have that is for one account only.
_OF_AN_ACCOUNT = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")
#: What is told of a request that is dated otherwise than the account's clock says.
_CLOCK = re.compile(r"date header (?:is )?(?:too old|too new|in the future)", re.IGNORECASE)
#: The most blocks that a blob may have.
_MOST_BLOCKS = 50_000
#: What is answered when the name of a blob is taken, by the request that finds it so.
_TAKEN = frozenset({"BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList"})
_TOO_MUCH = frozenset({"OperationTimedOut", "ServerBusy"})


class AzureBlobFileSystem(AzureServerSide):
    """Blobs of a container of an Azure storage account below one prefix, with or without a hierarchical namespace.

    Every request is compared with its MD5 by the store. Blocks of an upload that is broken off are invisible, cannot be
    deleted, and are removed by Azure after a week.

    Args:
        container: the container.
        prefix: names below which everything lies, without slashes at its ends; may be empty.
        options: of ``adlfs.AzureBlobFileSystem``: ``account_name``, with ``account_key``, ``sas_token``, or
            ``tenant_id``, ``client_id`` and ``client_secret``, or ``anon``; or a ``connection_string``; and
            ``account_host`` in a cloud of its own. Without credentials those are used that the Azure libraries find.
        host: the account's host as it stands in an ``abfs://`` URL, where the options do not name the account.

    Raises:
        InvalidConfiguration: the container has no possible name, the host is none, it and the options name two
            accounts, or an option is unknown.
    """

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
        super().__init__(f"abfs://{place}/{prefix}".rstrip("/"), f"{container}/{prefix}".rstrip("/"))
        self._made_of = (container, prefix, merged, host)

    def __reduce__(self) -> tuple[type[AzureBlobFileSystem], tuple[str, str, dict[str, Any], str]]:
        return (AzureBlobFileSystem, self._made_of)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        return self._made_of[2]

    @property
    def hadoop_url(self) -> str:
        """Hadoop has to be told the account's host, and knows none but those of accounts."""
        if self._made_of[3]:
            return self.url
        service = self._client().service_client
        host = _HOST.fullmatch(service.primary_hostname)
        cloud = _PUBLIC_CLOUD if host is None else host["cloud"]
        container, prefix, *_ = self._made_of
        return f"abfs://{container}@{service.account_name}.dfs.{cloud}/{prefix}".rstrip("/")

    def remove_directory(self, path: str) -> None:
        """Where directories exist, with a hierarchical namespace, an empty one stays when its last blob goes."""
        target = self._object(path)
        with self._errors(f"delete {self._shown(path)}"):
            self._await(lambda client: client.remove_marker(target))

    def _connect(self) -> AsyncFileSystem:
        try:
            client = _client(os.getpid(), json.dumps(self.storage_options, sort_keys=True))
        except ValueError as error:  # adlfs was told of no account, or of an impossible one
            raise StorageUnusable(
                f"Could not connect to container {self.bucket!r}: {redacted(first_line(error), self._secrets())}",
                hint="Name the account in the path (abfs://container@account.dfs.core.windows.net/directory), or give "
                "the storage option `account_name` or `connection_string`.",
            ) from self._cause(error)
        except Exception as error:
            raise self._told("connect", error) from self._cause(error)
        # A connection string of the environment goes before everything else that names an account.
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

    def _explained(self, what: str, error: BaseException) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return StorageUnusable(
                f"Could not {what}: there is no container {self.bucket!r}.",
                hint=f"Create it (`az storage container create --name {self.bucket}`), or correct the checkpoint path.",
            )
        if _CLOCK.search(str(error)):
            return StorageError(
                f"Could not {what}: the clock of this machine is not that of the account of container {self.bucket!r} "
                f"({first_line(error)}).",
                hint=SET_THE_CLOCK,
            )
        if (
            isinstance(error, ClientAuthenticationError)
            or status_of(error) == 401
            or "failed to authenticate" in str(error)  # with the status 403, where a key is not the account's
        ):
            return StorageError(
                f"Could not {what}: the credentials for container {self.bucket!r} are missing or are not accepted "
                f"({first_line(error)}).",
                hint="Run `az login`, give the machine an identity, or give the storage options `account_key`, "
                "`sas_token`, or `tenant_id`, `client_id` and `client_secret`.",
            )
        if status_of(error) == 403:
            return StorageError(
                f"Could not {what}: permission denied on container {self.bucket!r} ({first_line(error)}).",
                hint="Grant the role Storage Blob Data Contributor on the container to who runs the job, and let the "
                "account's network rules admit its host.",
            )
        if error_code(error) in _TOO_MUCH or status_of(error) == 429:
            return StorageError(
                f"Could not {what}: the account of container {self.bucket!r} takes no more requests for now "
                f"({first_line(error)}).",
                hint="Take checkpoints less often (interval).",
            )
        if isinstance(error, ServiceRequestError):
            return StorageError(
                f"Could not {what}: {first_line(error)}",
                hint=f"Container {self.bucket!r} was asked several times. Check the account's name and the network; "
                "the next checkpoint tries again.",
            )
        if isinstance(error, AzureError | OSError):
            return StorageError(
                f"Could not {what}: {first_line(error)}",
                hint=f"Container {self.bucket!r} was asked several times. The next checkpoint tries again.",
            )
        return StorageError(f"Could not {what}: {type(error).__name__}: {first_line(error)}")


class _Client(adlfs.AzureBlobFileSystem):  # type: ignore[misc]  # adlfs publishes no types
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
        try:
            async with self.service_client.get_container_client(container) as client:
                async for item in client.walk_blobs(
                    name_starts_with=f"{directory}/" if directory else None, include=["metadata"], delimiter="/"
                ):
                    name = item.name.rstrip("/")
                    is_directory = isinstance(item, BlobPrefix) or is_marker(item)
                    # A directory may show twice: as what names have in common, and as itself.
                    found[name] = found.get(name, False) or is_directory
        except ResourceNotFoundError as error:
            raise FileNotFoundError(path) from error
        return [
            {"name": f"{container}/{name}", "type": "directory" if kind else "file"} for name, kind in found.items()
        ]

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


@cache
def _client(process: int, options: str) -> AsyncFileSystem:
    """The client of a process for these options: connections and tokens are used again."""
    del process
    return _Client(
        **json.loads(options),
        use_listings_cache=False,
        skip_instance_cache=True,
        # Requests side by side are those of several blobs.
        max_concurrency=1,
    )


def is_entrusted(host: str, own: str | None, options: Mapping[str, Any]) -> bool:
    """Whether the credentials of a storage may go to this host, which a record or a request names.

    Others may find those of the environment there: an identity within the same cloud, a key or a signature only for the
    account that the environment names.

    Args:
        host: the account's host in the URL; none where the options name it.
        own: that in the URL of the storage, ``None`` if that is no storage of Azure.
        options: of the storage.

    Raises:
        InvalidConfiguration: the host is none, it is of another cloud, or what the environment has need not be for it.
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
    """Account and cloud that the options name."""
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
