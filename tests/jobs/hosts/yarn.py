"""YARN on hosts: ``python -m tests.jobs.hosts.yarn ResourceManager`` or ``NodeManager``, on the host's own disk.

The hosts share no disk, so what Spark stages for a container lies in the bucket, from which the NodeManager reads it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from dagster_ckpt.spark.query.session import find_java
from dagster_ckpt.testing.maven import spark_jars
from tests.jobs.hosts.jobs import BUCKET_URL, DATABASE, LEASE_SECONDS, WORK
from tests.servers.s3a_connector import s3a_conf

__all__ = ["CLASSPATH", "MASTER", "MASTER_HOST", "YARN", "YARN_CLASSPATH", "configured", "settings_on_yarn"]

#: The master of Spark and its host, and the class paths of S3A and of YARN, which are on each host.
MASTER, MASTER_HOST = "HOSTS_MASTER", "HOSTS_MASTER_HOST"
CLASSPATH, YARN_CLASSPATH = "HOSTS_CLASSPATH", "HOSTS_YARN_CLASSPATH"
YARN = "yarn"
_DAEMONS = {
    "ResourceManager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "NodeManager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
#: What a container has from the environment of its host.
_OF_HOST = (
    *(BUCKET_URL, DATABASE, LEASE_SECONDS, WORK, MASTER, CLASSPATH),
    *("JAVA_HOME", "PATH", "PYTHONPATH", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "TMPDIR"),
)
_MEMORY = "2048"
#: Milliseconds of silence after which a node is taken for lost; by default 10 minutes.
_SILENCE = "20000"


def configured(directory: Path) -> Path:
    """Write the files of ``HADOOP_CONF_DIR`` for this host, and return their directory."""
    home = directory / "hadoop"
    home.mkdir(exist_ok=True)
    bucket = {
        key.removeprefix("spark.hadoop."): value
        for key, value in s3a_conf(os.environ[BUCKET_URL], "").items()
        if key.startswith("spark.hadoop.")
    }
    _write(home / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(directory / "tmp"), **bucket})
    yarn = {
        "resourcemanager.hostname": os.environ[MASTER_HOST],
        "nm.liveness-monitor.expiry-interval-ms": _SILENCE,
        "resourcemanager.nm.liveness-monitor.interval-ms": "1000",
        "nodemanager.log-dirs": str(directory / "logs"),
        "nodemanager.hostname": os.environ["SPARK_LOCAL_HOSTNAME"],
        "nodemanager.env-whitelist": ",".join(_OF_HOST),
        "nodemanager.resource.memory-mb": _MEMORY,
        "nodemanager.vmem-check-enabled": "false",
        "nodemanager.pmem-check-enabled": "false",
        "nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "scheduler.minimum-allocation-mb": "128",
        "scheduler.maximum-allocation-mb": _MEMORY,
    }
    _write(home / "yarn-site.xml", {f"yarn.{key}": value for key, value in yarn.items()})
    scheduler = {"maximum-am-resource-percent": "1.0", "root.queues": "default", "root.default.capacity": "100"}
    _write(home / "capacity-scheduler.xml", {f"yarn.scheduler.capacity.{key}": v for key, v in scheduler.items()})
    return home


def settings_on_yarn(bucket: str) -> dict[str, str]:
    """The settings of Spark for a driver here: no upload of Spark's jars, and one executor."""
    return {
        "spark.executor.instances": "1",
        "spark.yarn.jars": f"local:{spark_jars()}/*",
        "spark.yarn.stagingDir": f"s3a://{bucket}/staging",
    }


def _write(file: Path, settings: dict[str, str]) -> None:
    root = ET.Element("configuration")
    for key, value in settings.items():
        entry = ET.SubElement(root, "property")
        ET.SubElement(entry, "name").text = key
        ET.SubElement(entry, "value").text = value
    ET.ElementTree(root).write(file, encoding="unicode")


def _main(daemon: str) -> None:
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.resolve().parents[1])  # the script of a container asks for it
    classpath = os.pathsep.join([str(configured(Path.cwd())), os.environ[YARN_CLASSPATH]])
    small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    os.execv(java, [str(java), *small, "-cp", classpath, _DAEMONS[daemon]])


if __name__ == "__main__":
    _main(sys.argv[1])
