"""Credentials go to the endpoint that they were configured for, whatever a record or a request names."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import aiohttp.connector
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.pointers import resolve_checkpoint_pointer, savepoint_storage
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration, StorageUnusable
from dagster_ckpt.filesystem import AzureBlobFileSystem, FileSystem, open_filesystem
from dagster_ckpt.filesystem.buckets import azure_client
from tests.servers.certificate import certificate

SECRET = "c2VjcmV0LW9mLW1pbmU"
MINE = "abfs://data@mine.dfs.core.windows.net/a"


class Recorder:
    """An HTTP server that lets nobody in and keeps what it was sent: request lines, headers and bodies."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.heard: list[str] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                heard.append(f"{self.requestline}\n{self.headers}\n{body!r}")
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def has_the_secret(self) -> bool:
        return any(SECRET in request for request in self.heard)

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    azure_client.client_of.cache_clear()  # a client has what the environment had when it was made
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "CONNECTION_STRING", "SAS_TOKEN", "CLIENT_ID", "ANON"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setenv("FETCH_RAW_TOKEN_EXPIRY", "false")
    yield
    azure_client.client_of.cache_clear()


@pytest.fixture
def own() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


@pytest.fixture
def evil() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.close()


@pytest.fixture
def internet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Every host there is, with a certificate for each that is used here."""
    names = ["mine.blob.core.windows.net", "acct.blob.core.evil.example", "mine.blob.core.evil.example"]
    file = certificate(tmp_path, names)
    server = Recorder(file)

    async def resolved(*_: object, **__: object) -> list[dict[str, Any]]:
        here = {"hostname": "127.0.0.1", "host": "127.0.0.1", "port": server.port, "family": 2, "proto": 0, "flags": 0}
        return [here]

    monkeypatch.setattr(aiohttp.connector.TCPConnector, "_resolve_host", resolved)
    trusting = ssl.create_default_context(cafile=str(file))
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    yield server
    server.close()


AWAY = [
    "abfs://loot@acct.dfs.core.evil.example/x",
    "abfs://loot@mine.dfs.core.evil.example/x",
    "az://loot@mine.blob.core.evil.example/x",
    "abfss://loot@mine.dfs.core.windows.net.evil.example/x",
    "abfs://loot@mine.dfs.core.windows.net./x",
    "abfs://loot@mine.dfs.core.windows.net@mine.dfs.core.evil.example/x",
    "abfs://loot@mine.dfs.core.evil.example\\@mine.dfs.core.windows.net/x",
    "abfs://loot@MINE.dfs.core.evil.example/x",
    "abfs://loot@mine.dfs.core.evil.example:443/x",
]


@pytest.mark.parametrize("url", AWAY)
@pytest.mark.parametrize("credentials", ["options", "environment"])
def test_a_signature_does_not_go_to_a_host_that_a_request_names(
    internet: Recorder, url: str, credentials: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = f"sv=2024-01-01&sig={SECRET}"
    if credentials == "environment":
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature)
    mine = open_filesystem(MINE, storage_options={"sas_token": signature} if credentials == "options" else None)
    with pytest.raises(CheckpointError):
        mine.list("")
    assert internet.has_the_secret, "what is configured is used"
    assert {line for request in internet.heard for line in request.splitlines() if line.startswith("Host: ")} == {
        "Host: mine.blob.core.windows.net"
    }
    internet.heard.clear()
    with pytest.raises(InvalidConfiguration) as refused:
        savepoint_storage(url, None, like=mine).list("")
    assert refused.value.hint
    assert SECRET not in str(refused.value)
    with pytest.raises(CheckpointError):
        resolve_checkpoint_pointer(url, like=mine)
    assert internet.heard == []


@pytest.mark.parametrize("like", [MINE, "/data/checkpoints", "s3://bucket/checkpoints"])
def test_a_host_that_only_a_request_names_gets_nothing_of_the_environment(
    internet: Recorder, like: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2024-01-01&sig={SECRET}")
    storage = open_filesystem(like)
    with pytest.raises(InvalidConfiguration, match=r"cloud.*no credentials are sent"):
        open_filesystem("abfs://loot@acct.dfs.core.evil.example/x", like=storage).list("")
    with pytest.raises(InvalidConfiguration, match=r"SAS_TOKEN.*'acct'.*no credentials are sent") as refused:
        open_filesystem("abfs://loot@acct.dfs.core.windows.net/x", like=storage).list("")
    assert "AZURE_STORAGE_ACCOUNT_NAME=acct" in refused.value.hint
    assert internet.heard == []
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    assert open_filesystem("abfs://loot@acct.dfs.core.windows.net/x", like=storage).storage_options == {
        "account_name": "acct"
    }


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_keys_and_tokens_of_buckets_go_to_their_own_server(own: Recorder, evil: Recorder, kind: str) -> None:
    secrets: dict[str, Any] = {"token": SECRET} if kind == "gs" else {"key": "k", "secret": "s", "token": SECRET}
    options = {"endpoint_url": f"http://127.0.0.1:{own.port}", **secrets}
    like = open_filesystem(f"{kind}://bucket/a", storage_options=options)
    host = f"127.0.0.1:{evil.port}"
    names = [
        host,
        "127.0.0.1",
        f"u:p@{host}",
        f"bucket@{host}",
        f"{host}@bucket",
        f"bucket\\@{host}",
        f"bucket:{evil.port}",
        quote(f"{host}/"),
        f"//{host}",
        f"bucket/http://{host}",
        f"bucket/..//{host}",
        f"http://{host}",
        f"x?endpoint_url=http://{host}",
        "127。0。0。1",
    ]
    for name in names:
        with pytest.raises(CheckpointError) as refused:
            open_filesystem(f"{kind}://{name}/x", like=like).list("")
        assert SECRET not in str(refused.value)
    with pytest.raises(CheckpointError):
        open_filesystem(f"{kind}://another-bucket/x", like=like).list("")
    assert own.has_the_secret
    assert evil.heard == []


def test_options_of_hadoop_go_to_clusters_that_they_name() -> None:
    options = {"dfs.nameservices": "one, two", "hadoop.security.authentication": "kerberos"}
    one = open_filesystem("hdfs://one/a", storage_options=options)
    for same in ("hdfs://one/b", "hdfs://ONE/b", "hdfs://two/b", "hdfs:///b"):
        assert open_filesystem(same, like=one).storage_options == options
    for other in ("hdfs://three/b", "hdfs://one:8020/b", "hdfs://one.evil.example:8020/b"):
        assert open_filesystem(other, like=one).storage_options == {}
    default = open_filesystem("hdfs:///a", storage_options={"fs.defaultFS": "hdfs://nn:8020"})
    assert open_filesystem("hdfs://nn:8020/b", like=default).storage_options == default.storage_options
    assert open_filesystem("hdfs://other:8020/b", like=default).storage_options == {}


STORAGES = [
    open_filesystem(MINE, storage_options={"sas_token": f"sv=1&sig={SECRET}"}),
    open_filesystem(MINE, storage_options={"account_key": f"{SECRET}="}),
    open_filesystem("az://data/a", storage_options={"account_name": "mine", "account_key": f"{SECRET}="}),
    open_filesystem("az://data/a", storage_options={"connection_string": f"AccountName=mine;AccountKey={SECRET}="}),
    open_filesystem("s3://data/a", storage_options={"endpoint_url": "https://mine.example", "secret": SECRET}),
    open_filesystem("gs://data/a", storage_options={"endpoint_url": "https://mine.example", "token": SECRET}),
    open_filesystem("hdfs://mine:8020/a", storage_options={"fs.key": SECRET}),
]

_HOSTS = st.sampled_from(
    [
        "mine.dfs.core.windows.net",
        "mine.blob.core.windows.net",
        "other.dfs.core.windows.net",
        "mine.dfs.core.evil.example",
        "mine.dfs.core.chinacloudapi.cn",
        "mine.example",
        "evil.example",
        "mine:8020",
        "xn--mine-0qa.dfs.core.windows.net",
        "mine。dfs.core.windows.net",
        "míne.dfs.core.windows.net",
        "127.0.0.1",
        "[::1]",
        "",
    ]
)
_BETWEEN = st.sampled_from(
    [
        "",
        "data@",
        "u:p@",
        "@",
        "@@",
        "\\",
        "\\@",
        "/",
        "//",
        "%40",
        "%2f",
        "%00",
        ":",
        ":443",
        ":443@",
        ".",
        "?",
        "#",
        " ",
    ]
)
_AUTHORITIES = st.lists(st.one_of(_HOSTS, _BETWEEN, st.text(max_size=2)), min_size=1, max_size=6).map("".join)
_SCHEMES = st.sampled_from(["abfs", "abfss", "az", "ABFS", "s3", "s3a", "gs", "gcs", "hdfs", "HDFS", "file", "https"])


def _endpoint(storage: FileSystem) -> str:
    """Who is asked, as the client that would ask has it."""
    if isinstance(storage, AzureBlobFileSystem):
        return str(storage._client().service_client.primary_hostname)
    return str(storage.storage_options.get("endpoint_url") or storage.url.split("/")[2].lower())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(like=st.sampled_from(STORAGES), scheme=_SCHEMES, authority=_AUTHORITIES, upper=st.booleans())
@example(like=STORAGES[4], scheme="abfs", authority="000", upper=False)
@example(like=STORAGES[0], scheme="abfs", authority="loot@mine.dfs.core.evil.example", upper=False)
@example(like=STORAGES[1], scheme="abfss", authority="loot@mine.blob.core.windows.net", upper=False)
def test_no_credential_is_handed_to_a_client_of_another_host(
    like: FileSystem, scheme: str, authority: str, upper: bool
) -> None:
    url = f"{scheme}://{authority.upper() if upper else authority}/x"
    try:
        opened = open_filesystem(url, like=like)
    except CheckpointError:
        return
    except ValueError:  # of what is no URL at all
        assert not url.isascii() or "[" in url
        return
    assert SECRET not in opened.url
    if SECRET in str(dict(opened.storage_options)):
        assert type(opened) is type(like)
        # Without a host, Hadoop's configuration names it, which is the user's.
        assert _endpoint(opened) in {_endpoint(like), ""}
    elif isinstance(opened, AzureBlobFileSystem):
        with contextlib.suppress(StorageUnusable):  # without an account there is no client
            assert _endpoint(opened).endswith(".core.windows.net")
            assert SECRET not in str(opened._client().service_client.url)
