"""The stores in which Spark itself keeps a live location here, by the scheme of their URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from dagster_ckpt.filesystem import AzureBlobFileSystem, FileSystem, GcsFileSystem, HdfsFileSystem, S3FileSystem
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers import gcs, s3, versitygw
from tests.servers.abfs_connector import HOST, abfs_classpath, abfs_conf
from tests.servers.azure_front import AzureFront
from tests.servers.azurite import Azurite, options_at
from tests.servers.gcs_connector import connector_conf, connector_jar
from tests.servers.hdfs_cluster import MiniDfs, cluster_jvm
from tests.servers.s3a_connector import s3a_classpath, s3a_conf

__all__ = ["KINDS", "Kind", "Server"]

_PREFIX = "of all"


class Server(Protocol):
    """What holds the bucket."""

    @property
    def url(self) -> str:
        """Where it listens."""

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""


@dataclass(frozen=True)
class Kind:
    """A store.

    Attributes:
        storage: of the job's checkpoints, for where the server is.
        serving: starts a server that keeps what it has in a directory, if it has to keep it anywhere.
        classpath: of the connector by which Spark reaches it; Ivy has a directory for what it is told and tells.
        conf: what a session needs for that, for where the server is and the class path.
        scheme: of its URLs, as Spark has it.
        connector: the class.
    """

    storage: Callable[[str], FileSystem]
    serving: Callable[[Path], AbstractContextManager[Server]]
    classpath: Callable[[Path], str]
    conf: Callable[[str, str], dict[str, str]]
    scheme: str
    connector: str


@contextmanager
def _ours_of_google(home: Path) -> Iterator[Server]:
    del home
    with GcsServer() as server:
        server.create_bucket(gcs.BUCKET)
        yield server


@contextmanager
def _moto(home: Path) -> Iterator[Server]:
    del home
    with s3.S3Server() as server:
        server.create_bucket(s3.BUCKET)
        yield server


@contextmanager
def _versitygw(home: Path) -> Iterator[Server]:
    with versitygw.running(home) as server:
        server.create_bucket(s3.BUCKET)
        yield server


class _Account(AzureFront):
    """Azurite, as Spark and we reach it."""

    def __init__(self, azurite: Azurite) -> None:
        super().__init__(azurite.host)
        self._azurite = azurite

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def objects(self, bucket: str) -> dict[str, bytes]:
        return self._azurite.objects(bucket)


@contextmanager
def _azurite(home: Path) -> Iterator[Server]:
    home.mkdir()
    with Azurite(home) as azurite, _Account(azurite) as server:
        azurite.create(gcs.BUCKET)
        yield server


class _Cluster:
    """A NameNode and its DataNode."""

    def __init__(self, dfs: MiniDfs) -> None:
        self._dfs = dfs

    @property
    def url(self) -> str:
        return self._dfs.authority()

    def objects(self, bucket: str) -> dict[str, bytes]:
        storage = HdfsFileSystem(self.url, f"/open/{bucket}")
        return {f"{bucket}/{path}": b"" for path in storage.copies.stored_below("")}


@contextmanager
def _hdfs(home: Path) -> Iterator[Server]:
    home.mkdir()
    with cluster_jvm(home) as jvm:
        dfs = MiniDfs(jvm, home / "dfs")
        yield _Cluster(dfs)
        dfs.close()


def _in_hdfs(url: str) -> FileSystem:
    return HdfsFileSystem(url, f"/open/{gcs.BUCKET}/{_PREFIX}")


def _in_google(url: str) -> FileSystem:
    return GcsFileSystem(gcs.BUCKET, _PREFIX, {"endpoint_url": url, "token": "anon", "project": "tests"})


def _in_amazon(url: str) -> FileSystem:
    return S3FileSystem(s3.BUCKET, _PREFIX, s3.connection(url))


def _amazon(serving: Callable[[Path], AbstractContextManager[Server]]) -> Kind:
    connector = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    return Kind(_in_amazon, serving, s3a_classpath, s3a_conf, "s3a", connector)


def _in_azure(url: str) -> FileSystem:
    return AzureBlobFileSystem(gcs.BUCKET, _PREFIX, options_at(urlsplit(url).netloc), HOST)


KINDS = {
    "gs": Kind(
        _in_google,
        _ours_of_google,
        lambda scratch: str(connector_jar(scratch)),
        lambda url, classpath: connector_conf(url, Path(classpath)),
        "gs",
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    ),
    "s3": _amazon(_moto),
    "versitygw": _amazon(_versitygw),
    "hdfs": Kind(
        _in_hdfs,
        _hdfs,
        lambda _: "",
        lambda *_: {},
        "hdfs",
        "org.apache.hadoop.hdfs.DistributedFileSystem",
    ),
    "abfs": Kind(
        _in_azure, _azurite, abfs_classpath, abfs_conf, "abfs", "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
    ),
}
