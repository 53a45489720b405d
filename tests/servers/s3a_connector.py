"""S3A, by which Hadoop and Spark themselves write to S3, pointed at a server on this machine.

It is Hadoop's ``hadoop-aws``, and all that it needs of Amazon's SDK comes in one jar of 600 MB. The modules of the SDK
that it uses are 12 MB. What they need of others is in Spark, in newer releases than they name; those must stay.
"""

from __future__ import annotations

from pathlib import Path

from dagster_ckpt.testing.maven import classpath_of, hadoop_version
from tests.servers.s3 import KEY, SECRET

__all__ = ["s3a_classpath", "s3a_conf"]

#: Of Amazon's SDK and of its accelerator of reads, that hadoop-aws 3.5.0 is made with.
_SDK, _READS = "2.35.4", "1.3.1"
_NEEDED = f"""
<ivy-module version="2.0">
  <info organisation="tests" module="s3a"/>
  <dependencies>
    <dependency org="org.apache.hadoop" name="hadoop-aws" rev="{{hadoop}}" transitive="false" conf="default"/>
    <dependency org="software.amazon.awssdk" name="s3" rev="{_SDK}" conf="default"/>
    <dependency org="software.amazon.awssdk" name="s3-transfer-manager" rev="{_SDK}" conf="default"/>
    <dependency org="software.amazon.awssdk" name="sts" rev="{_SDK}" conf="default"/>
    <dependency org="software.amazon.s3.analyticsaccelerator" name="analyticsaccelerator-s3" rev="{_READS}"
                transitive="false" conf="default"/>
    <exclude org="commons-codec"/>
    <exclude org="commons-logging"/>
    <exclude org="io.netty"/>
    <exclude org="org.apache.httpcomponents"/>
    <exclude org="org.slf4j"/>
  </dependencies>
</ivy-module>
"""


def s3a_classpath(scratch: Path) -> str:
    """The jars, which are fetched once.

    Args:
        scratch: a directory for what Ivy is told and tells.
    """
    return classpath_of(scratch, "s3a", _NEEDED.format(hadoop=hadoop_version()))


def s3a_conf(url: str, classpath: str) -> dict[str, str]:
    """What a Spark session needs to reach a server as the one whose key it is.

    Args:
        url: where the server is.
        classpath: of the connector.
    """
    hadoop = {
        "endpoint": url,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": KEY,
        "secret.key": SECRET,
    }
    # The class loader of `spark.jars` comes too late for what the JVM loads at its start.
    return {
        "spark.driver.extraClassPath": classpath,
        **{f"spark.hadoop.fs.s3a.{key}": value for key, value in hadoop.items()},
    }
