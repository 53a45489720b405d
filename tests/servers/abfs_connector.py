"""Hadoop's driver for ``abfs://``, by which Spark itself writes to Azure, pointed at Azurite.

The driver speaks to Data Lake Storage, which Azurite has not; told that the account has no hierarchical namespace, it
also speaks to Blob Storage. It knows an account by its host and by nothing else, so it goes through an HTTP proxy.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from dagster_ckpt.testing.maven import classpath, hadoop_version
from tests.servers.azurite import ACCOUNT, KEY

__all__ = ["HOST", "abfs_classpath", "abfs_conf"]

#: Of the account, in URLs.
HOST = f"{ACCOUNT}.dfs.core.windows.net"


def abfs_classpath(scratch: Path) -> str:
    """The driver and what it needs, which are fetched once.

    Args:
        scratch: a directory for what Ivy is told and tells.
    """
    return classpath(scratch, "org.apache.hadoop", "hadoop-azure", hadoop_version())


def abfs_conf(url: str, jars: str) -> dict[str, str]:
    """What a Spark session needs to reach the account in Azurite.

    Args:
        url: of the proxy that leads to Azurite, on this machine.
        jars: the driver's class path.
    """
    proxy = urlsplit(url)
    hadoop = {
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.fns.account.service.type": "BLOB",
        "fs.azure.always.use.https": "false",
        "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
        # It asks for the key of the host in the URL, and signs with that of the host it speaks to.
        f"fs.azure.account.key.{HOST}": KEY,
        f"fs.azure.account.key.{HOST.replace('.dfs.', '.blob.')}": KEY,
    }
    return {
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": f"-Dhttp.proxyHost={proxy.hostname} -Dhttp.proxyPort={proxy.port}",
        **{f"spark.hadoop.{key}": value for key, value in hadoop.items()},
    }
