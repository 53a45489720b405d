"""What the failures of Hadoop's client mean, and what to do about them."""

from __future__ import annotations

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import JavaFailure

__all__ = ["explained"]

_UNREACHABLE = frozenset(
    {
        "ConnectException",
        "ConnectTimeoutException",
        "EOFException",
        "NoRouteToHostException",
        "SocketException",
        "SocketTimeoutException",
        "UnknownHostException",
    }
)
_QUOTA = frozenset({"DSQuotaExceededException", "NSQuotaExceededException", "QuotaByStorageTypeExceededException"})
#: Errors of a client and a cluster with different kinds of authentication.
_NO_KERBEROS = frozenset({"KerberosAuthException", "SaslException", "LoginException"})


def explained(what: str, failure: JavaFailure) -> StorageError:
    """The user's error when ``what`` failed with ``failure``."""
    names, said = failure.names, f"Could not {what}: {failure.message}"
    if any(name.startswith("Py4J") for name in names):
        return StorageError(said, hint="The next request starts it again.")
    if names & _NO_KERBEROS or "authentication is not enabled" in failure.message:
        return StorageError(
            said,
            hint="The cluster asks who this is: run `kinit`, and set HADOOP_CONF_DIR to the cluster's configuration.",
        )
    if "AccessControlException" in names:
        return StorageError(
            said,
            hint="Give the user the directory (`hdfs dfs -chown USER DIRECTORY`), or run the job as one who may write "
            "there (`kinit`; without Kerberos, HADOOP_USER_NAME).",
        )
    if "SafeModeException" in names:
        return StorageError(
            said,
            hint="The NameNode refuses writes until it has heard of its blocks; see `hdfs dfsadmin -safemode get`. The "
            "next checkpoint tries again.",
        )
    if names & _QUOTA:
        return StorageError(said, hint="Retain fewer checkpoints, or raise the quota (`hdfs dfsadmin -setSpaceQuota`).")
    if "could only be written to 0 of the" in failure.message or "BlockMissingException" in names:
        return StorageError(
            said,
            hint="No DataNode that lives has the space, or the block: see `hdfs dfsadmin -report` and `hdfs fsck`.",
        )
    if "StandbyException" in names:
        return StorageError(
            said,
            hint="Name the nameservice instead of one of its NameNodes (hdfs://nameservice/directory), and set "
            "HADOOP_CONF_DIR to the configuration that says what it is.",
        )
    if "Incomplete HDFS URI" in failure.message:
        return StorageUnusable(
            f"Could not {what}: the default file system of Hadoop's configuration is no HDFS.",
            hint="Write the checkpoint path as hdfs://namenode:8020/directory, or set HADOOP_CONF_DIR to a "
            "configuration with fs.defaultFS.",
        )
    if names & _UNREACHABLE:
        return StorageError(
            said,
            hint="See that the NameNode and its DataNodes run, that host and port are right, and that HADOOP_CONF_DIR "
            "knows the nameservice if it is one. The next checkpoint tries again.",
        )
    return StorageError(said, hint="See the log of the NameNode. The next checkpoint tries again.")
