"""A warm JVM of Spark beside a running job, which the job's next run on this host adopts instead of starting one."""

from dagster_ckpt.spark.standby.adopting import adopt_standby, end_standby, keep_standby

__all__ = ["adopt_standby", "end_standby", "keep_standby"]
