"""What is known of a container in Azure before anybody is asked: its place, its account, its options."""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError

from dagster_ckpt.errors import InvalidConfiguration, StorageUnusable
from dagster_ckpt.filesystem import AzureBlobFileSystem, open_filesystem
from dagster_ckpt.filesystem.buckets import azure_client, is_entrusted

KEY = "c2VjcmV0LW9mLW1pbmU="


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "CLIENT_ID", "ANON"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.mark.parametrize(
    "location",
    [
        "abfs://data@mine.dfs.core.windows.net/a/b",
        "abfss://data@mine.dfs.core.windows.net//a/b/",
        "az://data@mine.blob.core.windows.net/a//b",
    ],
)
def test_one_place_has_one_name(location: str) -> None:
    storage = open_filesystem(location)
    assert storage.url == "abfs://data@mine.dfs.core.windows.net/a/b"
    assert storage.storage_options == {"account_name": "mine"}
    assert open_filesystem(storage.url).url == storage.url


def test_the_account_may_be_an_option() -> None:
    storage = open_filesystem("abfs://data/a/b", storage_options={"account_name": "mine", "account_key": KEY})
    assert isinstance(storage, AzureBlobFileSystem)
    assert storage.url == "abfs://data/a/b"
    assert storage.bucket == "data"
    assert storage._client().service_client.url == "https://mine.blob.core.windows.net/"


def test_another_cloud_has_another_host() -> None:
    storage = AzureBlobFileSystem("data", "a", {"account_key": KEY}, "mine.dfs.core.chinacloudapi.cn")
    assert storage._client().service_client.url == "https://mine.blob.core.chinacloudapi.cn/"


@pytest.mark.parametrize(
    ("container", "options", "host", "hadoop"),
    [
        ("data", {}, "mine.dfs.core.windows.net", "data@mine.dfs.core.windows.net"),
        ("data", {"account_key": KEY}, "mine.blob.core.chinacloudapi.cn", "data@mine.dfs.core.chinacloudapi.cn"),
        ("data", {"account_name": "mine", "account_key": KEY}, "", "data@mine.dfs.core.windows.net"),
        (
            "data",
            {"account_name": "mine", "account_key": KEY, "account_host": "mine.blob.core.chinacloudapi.cn"},
            "",
            "data@mine.dfs.core.chinacloudapi.cn",
        ),
        (
            "data",
            {"connection_string": f"AccountName=mine;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"},
            "",
            "data@mine.dfs.core.chinacloudapi.cn",
        ),
        (
            "data",
            {"connection_string": f"BlobEndpoint=http://127.0.0.1:10000/mine;AccountName=mine;AccountKey={KEY}"},
            "",
            "data@mine.dfs.core.windows.net",
        ),
    ],
)
def test_hadoop_is_told_the_host_of_the_account(
    container: str, options: dict[str, str], host: str, hadoop: str
) -> None:
    storage = AzureBlobFileSystem(container, "a/b", options, host)
    assert storage.hadoop_url == f"abfs://{hadoop}/a/b"
    assert KEY not in storage.hadoop_url
    assert open_filesystem(storage.hadoop_url).url == storage.hadoop_url


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("abfs://", "no name of a container"),
        ("abfs://UPPER/x", "no name of a container"),
        ("abfs://a--b@mine.dfs.core.windows.net/x", "no name of a container"),
        ("abfs://data@mine.example.com/x", "no host of an Azure storage account"),
        ("abfs://data@mine.dfs.core.windows.net/a?sig=hidden", "more in it than a bucket"),
        ("abfs://data@mine.dfs.core.windows.net/a#b", "more in it than a bucket"),
        ("abfs://data:hidden@mine.dfs.core.windows.net/a", "more in it than a bucket"),
        ("abfs://hidden@data@mine.dfs.core.windows.net/a", "more in it than a bucket"),
        ("abfs://data@mine.dfs.core.windows.net/a/../b", "takes for other names"),
        ("simplecache::abfs://data@mine.dfs.core.windows.net/a", "chain of file systems"),
    ],
)
def test_a_path_that_is_not_what_it_seems(location: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as raised:
        open_filesystem(location)
    assert raised.value.hint
    assert "hidden" not in str(raised.value)


def test_options_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="version_aware") as raised:
        open_filesystem("az://data/a", storage_options={"version_aware": True})
    assert "account_name" in raised.value.hint


def test_two_accounts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfiguration, match="'mine' and 'other'"):
        open_filesystem("abfs://data@mine.dfs.core.windows.net/a", storage_options={"account_name": "other"})
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=other;AccountKey={KEY}")
    storage = open_filesystem("abfs://data@mine.dfs.core.windows.net/a")
    with pytest.raises(StorageUnusable, match="'mine' and 'other'") as raised:
        storage.probe()
    assert "AZURE_STORAGE_" in raised.value.hint


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [({}, "", False), ({"anon": True}, "", True), ({}, "true", None), ({"anon": False}, "true", False)],
)
def test_credentials_are_looked_for_whatever_the_release_of_adlfs_does_by_default(
    options: dict[str, bool], variable: str, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ANON", variable)
    monkeypatch.setattr(azure_client, "AzureClient", dict)
    asked: Any = azure_client.client_of.__wrapped__(os.getpid(), json.dumps({"account_name": "mine", **options}))
    assert asked.get("anon") is expected


def test_no_account_is_refused() -> None:
    with pytest.raises(StorageUnusable, match="Could not connect to container 'data'") as raised:
        open_filesystem("abfs://data/a", storage_options={"anon": True}).probe()
    assert "account_name" in raised.value.hint


def test_a_clock_that_is_wrong_is_named() -> None:
    """Azurite does not look at the date. This is how the library tells what Azure says."""
    storage = AzureBlobFileSystem("data", "a", {"account_name": "mine", "account_key": KEY})
    said = "AuthenticationErrorDetail:Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT'"
    told = storage._explained("read f", ClientAuthenticationError(f"Server failed to authenticate.\n{said}"))
    assert "clock of this machine" in told.message
    assert "container 'data'" in told.message
    assert "timedatectl" in told.hint


def test_options_go_to_containers_of_the_same_account_only() -> None:
    mine = open_filesystem("abfs://data@mine.dfs.core.windows.net/a", storage_options={"account_key": KEY})
    for same in ("az://saved/b", "abfs://saved@mine.dfs.core.windows.net/b"):
        assert open_filesystem(same, like=mine).storage_options == {"account_key": KEY, "account_name": "mine"}
    other = open_filesystem("abfs://saved@other.dfs.core.windows.net/b", like=mine)
    assert other.storage_options == {"account_name": "other"}


@pytest.mark.parametrize(
    "options",
    [
        {"account_name": "mine", "account_key": KEY},
        {"connection_string": f"AccountName=mine;AccountKey={KEY}"},
        {"account_host": "mine.blob.core.windows.net", "account_name": "mine"},
    ],
    ids=["its name", "a connection string", "its host"],
)
def test_the_options_name_the_account_that_they_are_for(options: dict[str, str]) -> None:
    assert is_entrusted("mine.dfs.core.windows.net", "", options)
    assert not is_entrusted("other.dfs.core.windows.net", "", options)
    with pytest.raises(InvalidConfiguration, match=r"of another cloud than 'core\.windows\.net'"):
        is_entrusted("mine.dfs.core.chinacloudapi.cn", "", options)


def test_the_options_name_the_cloud_that_they_are_for() -> None:
    chinese = "core.chinacloudapi.cn"
    for options in (
        {"connection_string": f"AccountName=mine;EndpointSuffix={chinese}"},
        {"account_host": f"mine.blob.{chinese}", "account_name": "mine"},
    ):
        assert is_entrusted(f"mine.dfs.{chinese}", "", options)
        with pytest.raises(InvalidConfiguration, match=f"of another cloud than '{chinese}'"):
            is_entrusted("mine.dfs.core.windows.net", "", options)


def test_it_can_be_sent_to_another_process() -> None:
    storage = open_filesystem("abfs://data@mine.dfs.core.windows.net/a", storage_options={"account_key": KEY})
    copied = pickle.loads(pickle.dumps(storage))
    assert copied.url == storage.url
    assert copied.storage_options == storage.storage_options


def test_secrets_are_not_shown() -> None:
    storage = open_filesystem("abfs://data@mine.dfs.core.windows.net/a", storage_options={"account_key": KEY})
    assert KEY not in f"{storage!r}{storage}{storage.url}"


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("dagster_ckpt.filesystem", "dagster_ckpt.filesystem.buckets"):
        monkeypatch.delattr(f"{package}.AzureBlobFileSystem", raising=False)
    for module in ("azure", "azure_client"):
        monkeypatch.delitem(sys.modules, f"dagster_ckpt.filesystem.buckets.{module}")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(InvalidConfiguration, match="Azure Blob Storage need the module 'adlfs'") as raised:
        open_filesystem("abfs://data/a")
    assert 'pip install "dagster-ckpt[azure]"' in raised.value.hint
