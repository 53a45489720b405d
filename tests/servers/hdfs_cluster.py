"""A real NameNode and a real DataNode in a JVM of their own, from Hadoop's artifact for tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

from dagster_ckpt.testing.maven import classpath, hadoop_version, spark_jars

#: Who the cluster belongs to: to others permissions apply.
_SUPERUSER = "hdfs"
_NAMESERVICE = "minidfs-ha"


class MiniDfs:
    """A cluster; files below ``/open`` are anybody's, those below ``/closed`` its superuser's.

    Args:
        jvm: the packages of its JVM.
        home: a directory for its files.
        pair: two NameNodes, of which the second is on standby, instead of one.
    """

    def __init__(self, jvm: Any, home: Path, *, pair: bool = False) -> None:
        self._jvm = jvm
        configuration = jvm.org.apache.hadoop.hdfs.HdfsConfiguration()
        for key, value in {
            "hdfs.minidfs.basedir": str(home),
            # A restarted one waits for its DataNode no longer than for it to report.
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
        }.items():
            configuration.set(key, value)
        builder = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(configuration).numDataNodes(1)
        if pair:
            builder = builder.nnTopology(jvm.org.apache.hadoop.hdfs.MiniDFSNNTopology.simpleHATopology())
        self._cluster = builder.build()
        if pair:
            self._cluster.transitionToActive(0)
        self._cluster.waitActive()
        self._superuser = self._cluster.getFileSystem(0)
        self._stopped: Any = None
        for directory, mode in {"/open": "777", "/closed": "755"}.items():
            self._superuser.mkdirs(self._path(directory))
            self._superuser.setPermission(self._path(directory), jvm.org.apache.hadoop.fs.permission.FsPermission(mode))

    def authority(self, namenode: int = 0) -> str:
        return str(self._cluster.getURI(namenode).getAuthority())

    @property
    def as_nameservice(self) -> tuple[str, Mapping[str, str]]:
        """Its name, and the configuration of a client that knows both NameNodes."""
        provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        return _NAMESERVICE, {
            "dfs.nameservices": _NAMESERVICE,
            f"dfs.ha.namenodes.{_NAMESERVICE}": "nn0,nn1",
            f"dfs.namenode.rpc-address.{_NAMESERVICE}.nn0": self.authority(0),
            f"dfs.namenode.rpc-address.{_NAMESERVICE}.nn1": self.authority(1),
            f"dfs.client.failover.proxy.provider.{_NAMESERVICE}": provider,
        }

    def fail_over(self) -> None:
        self._cluster.shutdownNameNode(0)
        self._cluster.transitionToActive(1)

    def stop_namenode(self) -> None:
        self._cluster.shutdownNameNode(0)

    def start_namenode(self) -> None:
        self._cluster.restartNameNode(0)
        self._superuser = self._cluster.getFileSystem(0)

    def stop_datanode(self) -> None:
        self._stopped = self._cluster.stopDataNode(0)
        # Until the NameNode knows it, it would send writers there.
        self._cluster.setDataNodeDead(self._stopped.getDatanode().getDatanodeId())

    def start_datanode(self) -> None:
        self._cluster.restartDataNode(self._stopped, True)
        self._cluster.waitActive()

    def safe_mode(self, action: str) -> None:
        self._superuser.setSafeMode(self._jvm.org.apache.hadoop.fs.SafeModeAction.valueOf(action))

    def set_space_quota(self, directory: str, size: int) -> None:
        self._superuser.mkdirs(self._path(directory))
        self._superuser.setPermission(
            self._path(directory), self._jvm.org.apache.hadoop.fs.permission.FsPermission("777")
        )
        constants = self._jvm.org.apache.hadoop.hdfs.protocol.HdfsConstants
        self._superuser.setQuota(self._path(directory), constants.QUOTA_DONT_SET, size)

    def names(self, directory: str) -> list[str]:
        """What is in a directory, temporary files and all."""
        return sorted(status.getPath().getName() for status in self._superuser.listStatus(self._path(directory)))

    def put(self, file: str, data: bytes) -> None:
        """Another client's file."""
        stream = self._superuser.create(self._path(file), True)
        stream.write(data)
        stream.close()

    @property
    def syncs(self) -> int:
        """How often a DataNode brought something to its disk because a client asked for it."""
        # Asked of the metrics themselves: what is served of them is up to ten seconds old.
        name = self._cluster.getDataNodes().get(0).getMetrics().name()
        collector = self._jvm.org.apache.hadoop.metrics2.impl.MetricsCollectorImpl()
        source = self._jvm.org.apache.hadoop.metrics2.lib.DefaultMetricsSystem.instance().getSource(name)
        source.getMetrics(collector, True)
        (count,) = re.findall(r"name=FsyncCount, [^}]*\}, value=(\d+)", str(collector.getRecords().toString()))
        return int(count)

    def close(self) -> None:
        self._cluster.shutdown()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


@contextmanager
def cluster_jvm(scratch: Path, beside: Sequence[str] = (), options: Sequence[str] = ()) -> Iterator[Any]:
    """A JVM for clusters, of the version of Spark's own Hadoop; it ends with this process.

    Args:
        scratch: a directory for its files.
        beside: class paths of what Hadoop's artifact lacks.
        options: of the JVM.
    """
    (py4j,) = spark_jars().glob("py4j-*.jar")
    with (scratch / "log").open("w", encoding="utf-8") as log:
        gateway = JavaGateway.launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(
                [classpath(scratch, "org.apache.hadoop", "hadoop-client-minicluster", hadoop_version()), *beside]
            ),
            javaopts=[
                *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-DHADOOP_USER_NAME={_SUPERUSER}"),
                *options,
            ],
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            enable_auth=True,
        )
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            gateway.java_process.stdin.close()
            gateway.java_process.wait()
