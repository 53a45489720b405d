import ast
import inspect
import re
import sys
from types import ModuleType

import adlfs
import aiohttp
import pytest
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from gcsfs.core import GCSFileSystem
from s3fs import core

from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.filesystem.buckets import (
    azure,
    azure_client,
    bucket,
    gcs,
    gcs_client,
    s3,
    s3_client,
)
from dagster_ckpt.filesystem.buckets.private_members import (
    ADLFS,
    AIOBOTOCORE,
    AIOHTTP,
    GCSFS,
    S3FS,
    PrivateMembers,
)

LIBRARIES = [ADLFS, AIOBOTOCORE, GCSFS, S3FS]
MEMBERS = [
    pytest.param(library, name, id=f"{library.library}-{name.partition(':')[2]}")
    for library in LIBRARIES
    for name in library.signatures
]


@pytest.mark.parametrize(("library", "name"), MEMBERS)
def test_the_installed_release_has_what_is_called(library: PrivateMembers, name: str) -> None:
    PrivateMembers(library.library, library.tested, {name: library.signatures[name]}).check()


@pytest.mark.parametrize(
    ("library", "client", "storage"),
    [
        (ADLFS, azure_client.AzureClient, azure),
        (AIOBOTOCORE, s3_client._Session, s3),
        (GCSFS, gcs_client.GcsClient, gcs),
        (S3FS, s3_client.S3Client, s3),
    ],
)
def test_what_is_called_or_overridden_is_compared(library: PrivateMembers, client: type, storage: ModuleType) -> None:
    sources = {inspect.getmodule(client): ["self", "super()"], storage: ["client"], bucket: ["client"]}
    called = {
        node.attr
        for module, owners in sources.items()
        for node in ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners
    }
    overridden = {name for name, member in vars(client).items() if inspect.isfunction(member)}
    theirs = {name for base in client.__mro__[1:-1] for name in vars(base) if re.match("_[a-z]", name)}
    listed = {name.removesuffix(".__wrapped__").rpartition(".")[2] for name in library.signatures}
    assert (called | overridden) & theirs - listed == set()


@pytest.mark.parametrize(
    ("library", "owner", "member"),
    [
        (ADLFS, adlfs.AzureBlobFileSystem, "split_path"),
        (AIOBOTOCORE, AIOHTTPSession, "_get_session"),
        (GCSFS, GCSFileSystem, "_get_object"),
        (S3FS, core, "_error_wrapper"),
    ],
)
def test_a_release_without_a_member_is_refused_and_the_tested_ones_are_named(
    library: PrivateMembers, owner: object, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, member)
    with pytest.raises(InvalidConfiguration, match=rf"{library.library} .*: (\w+\.)?{member}\.") as raised:
        library.check()
    assert f'pip install "{library.library}{library.tested}"' in raised.value.hint


@pytest.mark.parametrize(
    ("storage", "url"),
    [("s3", "s3://bucket/a"), ("azure", "abfs://container@account.dfs.core.windows.net/a")],
)
def test_an_aiohttp_that_cannot_be_told_to_send_once_is_refused(
    storage: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 3.10: it would take the attribute, and repeat a PUT all the same."""

    async def request(self: aiohttp.ClientSession, method: str) -> None:
        del self, method

    for package in ("dagster_ckpt.filesystem", "dagster_ckpt.filesystem.buckets"):
        for name in ("S3FileSystem", "AzureBlobFileSystem"):
            monkeypatch.delattr(f"{package}.{name}", raising=False)
    for name in (storage, f"{storage}_client"):
        monkeypatch.delitem(sys.modules, f"dagster_ckpt.filesystem.buckets.{name}", raising=False)
    AIOHTTP.check()
    monkeypatch.setattr(aiohttp.ClientSession, "_request", request)
    with pytest.raises(InvalidConfiguration, match=r"aiohttp .* ClientSession\._request: _retry_connection") as raised:
        open_filesystem(url)
    assert 'pip install "aiohttp>=3.11' in raised.value.hint


def test_a_storage_is_not_opened_with_such_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("dagster_ckpt.filesystem", "dagster_ckpt.filesystem.buckets"):
        monkeypatch.delattr(f"{package}.S3FileSystem", raising=False)
    for module in ("s3", "s3_client"):
        monkeypatch.delitem(sys.modules, f"dagster_ckpt.filesystem.buckets.{module}", raising=False)
    monkeypatch.delattr(core, "_error_wrapper")
    with pytest.raises(InvalidConfiguration, match=r"s3fs .* _error_wrapper"):
        open_filesystem("s3://bucket/a")


def test_a_parameter_that_nobody_fills_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GCSFileSystem, "_get_object", lambda self, path, more: (self, path, more))
    with pytest.raises(InvalidConfiguration, match=r"GCSFileSystem\._get_object"):
        GCSFS.check()


def test_a_parameter_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pipe_file(self: object, path: str, data: bytes, **kwargs: object) -> None:
        """What would take `mode` and ignore it."""

    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", pipe_file)
    with pytest.raises(InvalidConfiguration, match=r"S3FileSystem\._pipe_file"):
        S3FS.check()


def test_a_parameter_with_a_default_value_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GCSFileSystem, "_get_object", lambda self, path, version=None, *, more=1: (self, path, version, more)
    )
    GCSFS.check()
