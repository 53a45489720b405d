"""A real ResourceManager and two real NodeManagers in a JVM of their own, from Hadoop's artifact for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from dagster_ckpt.spark.query.session import find_java
from dagster_ckpt.testing.maven import classpath, classpath_of, hadoop_version, spark_jars
from tests.servers.hdfs_cluster import cluster_jvm

#: What the ResourceManager loads, and Hadoop's artifact lacks, beside log4j.
_NEEDED = """
<ivy-module version="2.0">
  <info organisation="tests" module="yarn"/>
  <dependencies>
    <dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="5.14.3" conf="default"/>
    <dependency org="org.bouncycastle" name="bcpkix-jdk18on" rev="1.82" conf="default"/>
  </dependencies>
</ivy-module>
"""
_NODES = 2
#: A queue that nobody may submit to.
CLOSED_QUEUE = "closed"
_QUEUE = "yarn.scheduler.capacity.root"


class MiniYarn:
    """A cluster; two containers of a small driver or executor have room on each of its nodes.

    Args:
        jvm: the packages of its JVM.
        home: a directory for its files.
    """

    def __init__(self, jvm: Any, home: Path) -> None:
        configuration = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for key, value in {
            "fs.defaultFS": "file:///",
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.admin-env": f"JAVA_HOME={_java_home()}",
            "yarn.nodemanager.resource.memory-mb": "2048",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            # Logs and scripts of containers stay for whoever looks into a test that has failed.
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": "2048",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
            f"{_QUEUE}.queues": f"default,{CLOSED_QUEUE}",
            f"{_QUEUE}.default.capacity": "100",
            f"{_QUEUE}.{CLOSED_QUEUE}.capacity": "0",
            # What is allowed for a queue is allowed below it, so the root allows nothing. A space names nobody.
            "yarn.acl.enable": "true",
            "yarn.admin.acl": " ",
            **{f"{_QUEUE}.{right}": " " for right in ("acl_submit_applications", "acl_administer_queue")},
            f"{_QUEUE}.default.acl_submit_applications": "*",
        }.items():
            configuration.set(key, value)
        self._cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster(home.name, _NODES, 1, 1)
        self._cluster.init(configuration)
        self._cluster.start()
        assert self._cluster.waitForNodeManagersToConnect(60_000), f"no NodeManager registers, see {home}"
        #: For ``HADOOP_CONF_DIR``.
        self.configuration = home / "configuration"
        self.configuration.mkdir(parents=True)
        for name in ("core-site.xml", "yarn-site.xml"):
            written = jvm.java.io.FileOutputStream(str(self.configuration / name))
            self._cluster.getConfig().writeXml(written)
            written.close()

        self.process = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())
        self._home = home

    def conf(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The settings of Spark for a small driver here: with one executor, and without an upload of Spark's jars.

        Args:
            environment: of the driver.
        """
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
        return {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "480m",
            "spark.executor.instances": "1",
            "spark.yarn.jars": f"local:{spark_jars()}/*",
            "spark.yarn.stagingDir": (self._home / "staging").as_uri(),
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in own.items()},
        }

    def stop_node(self, number: int) -> None:
        """End a NodeManager, and with it the containers of the node."""
        self._cluster.getNodeManager(number).stop()

    def node_of(self, pid: int) -> int:
        """The number of the node whose container has a process."""
        directory = psutil.Process(pid).cwd()
        (number,) = (
            number
            for number in range(_NODES)
            if any(
                directory.startswith(local)
                for local in self._cluster.getNodeManager(number).getConfig().getStrings("yarn.nodemanager.local-dirs")
            )
        )
        return number

    def close(self) -> None:
        self._cluster.stop()


@contextmanager
def yarn_cluster(scratch: Path) -> Iterator[MiniYarn]:
    """A cluster of the version of Spark's own Hadoop; its JVM ends with this process."""
    with cluster_jvm(scratch, _beside(scratch), [f"-Dtest.build.data={scratch}"]) as jvm:
        running = MiniYarn(jvm, scratch / "yarn")
        try:
            yield running
        finally:
            containers = running.process.children(recursive=True)
            running.close()
            for left in containers:
                with suppress(psutil.NoSuchProcess):
                    left.kill()


def yarn_classpath(scratch: Path) -> str:
    """The class path of a ResourceManager or a NodeManager in a JVM of its own.

    Args:
        scratch: a directory for what Ivy is told and tells.
    """
    hadoop = classpath(scratch, "org.apache.hadoop", "hadoop-client-minicluster", hadoop_version())
    return os.pathsep.join([hadoop, *_beside(scratch)])


def _beside(scratch: Path) -> list[str]:
    """What Hadoop's artifact lacks."""
    return [classpath_of(scratch, "yarn", _NEEDED), *map(str, spark_jars().glob("log4j-*.jar"))]


def _java_home() -> Path:
    return Path(find_java()).resolve().parents[1]
