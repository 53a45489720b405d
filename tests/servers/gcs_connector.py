"""Google's connector, by which Hadoop and Spark themselves write to ``gs://``, pointed at a server on this machine.

Hadoop 3.5 has a connector of its own, ``hadoop-gcp``. Its client asks Google's own host and nobody else, no setting
changes that, so it cannot be tested without Google. Google's ``gcs-connector``, from which that one was made and which
Dataproc runs, can be told where the store is. Of its releases, 3.1.21 and 4.0.9 are not on Maven Central as one jar
with everything in it, 2.2.26 is.
"""

from __future__ import annotations

from pathlib import Path

from dagster_ckpt.testing.maven import classpath

__all__ = ["connector_conf", "connector_jar"]

_RELEASE = "hadoop3-2.2.26"
_PACKAGE = "com.google.cloud.hadoop.fs.gcs"
#: Hadoop's defaults for its own connector have the names of Google's, but with units, which Google's does not read.
_SIZES = {
    "fs.gs.block.size": 64 << 20,
    "fs.gs.inputstream.inplace.seek.limit": 8 << 20,
    "fs.gs.inputstream.min.range.request.size": 2 << 20,
    "fs.gs.outputstream.buffer.size": 8 << 20,
}


def connector_jar(scratch: Path) -> Path:
    """The jar, which is fetched once.

    Args:
        scratch: a directory for what Ivy is told and tells.
    """
    return Path(classpath(scratch, "com.google.cloud.bigdataoss", "gcs-connector", _RELEASE, shaded=True))


def connector_conf(url: str, jar: Path) -> dict[str, str]:
    """What a Spark session needs to reach a server without credentials.

    Args:
        url: where the server is.
        jar: the connector.
    """
    hadoop = {
        **{key: str(value) for key, value in _SIZES.items()},
        # Hadoop's own defaults name the classes of hadoop-gcp.
        "fs.gs.impl": f"{_PACKAGE}.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": f"{_PACKAGE}.GoogleHadoopFS",
        "fs.gs.storage.root.url": f"{url}/",
        "fs.gs.project.id": "tests",
        "fs.gs.auth.service.account.enable": "false",
        "fs.gs.auth.null.enable": "true",
    }
    # The class loader of `spark.jars` comes too late for what the JVM loads at its start.
    return {
        "spark.driver.extraClassPath": str(jar),
        **{f"spark.hadoop.{key}": value for key, value in hadoop.items()},
    }
