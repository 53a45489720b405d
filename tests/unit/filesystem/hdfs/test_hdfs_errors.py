"""What a failure of Hadoop's client means to a user, told without a cluster."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem.hdfs.hadoop_jvm import JavaFailure
from dagster_ckpt.filesystem.hdfs.hdfs_errors import explained


def test_a_failure_is_told_in_the_first_line_of_its_first_message() -> None:
    failure = JavaFailure("with its stack", [("Outer", ""), ("Inner", " it broke\nat a.b.C "), ("Last", "no matter")])
    assert failure.names == {"Outer", "Inner", "Last"}
    assert failure.message == "it broke"
    assert JavaFailure("with its stack", [("Outer", ""), ("Inner", "")]).message == "Outer"
    assert str(failure) == "with its stack"


@pytest.mark.parametrize(
    ("name", "message", "advice"),
    [
        ("Py4JNetworkException", "", "starts it again"),
        ("KerberosAuthException", "", "run `kinit`"),
        ("SaslException", "", "run `kinit`"),
        ("LoginException", "", "run `kinit`"),
        ("IOException", "SIMPLE authentication is not enabled", "run `kinit`"),
        ("AccessControlException", "", "hdfs dfs -chown"),
        ("SafeModeException", "", "-safemode get"),
        ("DSQuotaExceededException", "", "-setSpaceQuota"),
        ("NSQuotaExceededException", "", "-setSpaceQuota"),
        ("QuotaByStorageTypeExceededException", "", "-setSpaceQuota"),
        ("IOException", "could only be written to 0 of the 1 minReplication nodes", "hdfs fsck"),
        ("BlockMissingException", "", "hdfs fsck"),
        ("StandbyException", "", "Name the nameservice"),
        ("ConnectException", "", "host and port are right"),
        ("UnknownHostException", "", "host and port are right"),
        ("EOFException", "", "host and port are right"),
        ("IOException", "something else", "the log of the NameNode"),
    ],
)
def test_each_failure_has_its_advice(name: str, message: str, advice: str) -> None:
    error = explained("create /a", JavaFailure("text", [("RemoteException", message), (name, "")]))
    assert type(error) is StorageError
    assert error.message == f"Could not create /a: {message or 'RemoteException'}"
    assert advice in error.hint


def test_a_default_file_system_that_is_no_hdfs_is_unusable() -> None:
    error = explained("create /a", JavaFailure("text", [("IOException", "Incomplete HDFS URI, no host")]))
    assert type(error) is StorageUnusable
    assert "the default file system of Hadoop's configuration is no HDFS" in error.message
    assert "HADOOP_CONF_DIR" in error.hint
