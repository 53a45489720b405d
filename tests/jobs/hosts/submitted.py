"""The job of the hosts, whose driver a standalone cluster or YARN starts on one. Hosts share the bucket alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dagster_ckpt import (
    FileSystemCheckpointStorage,
    LiveLocationPlace,
    SparkSubmitResource,
    build_checkpoint_definitions,
)
from tests.helpers.local_spark import JVM_OPTIONS
from tests.jobs.hosts.jobs import BUCKET_URL, WORK, counted
from tests.jobs.hosts.yarn import CLASSPATH, MASTER, YARN, settings_on_yarn
from tests.servers.s3 import BUCKET, connection
from tests.servers.s3a_connector import s3a_conf

if TYPE_CHECKING:
    import dagster as dg


def definitions() -> dg.Definitions:
    url, classpath = os.environ[BUCKET_URL], os.environ[CLASSPATH]
    storage = FileSystemCheckpointStorage(
        checkpoint_path=f"s3://{BUCKET}/of-all",
        storage_options=connection(url),
        live_location=LiveLocationPlace.STORAGE,
        working_directory=os.environ[WORK],
    )
    spark = SparkSubmitResource(
        definitions="tests.jobs.hosts.submitted:defs",
        master=os.environ[MASTER],
        deploy_mode="cluster",
        conf={
            **s3a_conf(url, classpath),
            "spark.executor.extraClassPath": classpath,
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.cores.max": "1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "480m",
            "spark.sql.shuffle.partitions": "1",
            "spark.ui.enabled": "false",
            **(settings_on_yarn(BUCKET) if os.environ[MASTER] == YARN else {}),
        },
    )
    return build_checkpoint_definitions([counted], resources={"checkpoint_storage": storage, "spark": spark})


if MASTER in os.environ:
    defs = definitions()
