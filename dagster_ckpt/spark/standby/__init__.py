"""A warm JVM of Spark beside a running job, which the job's next run on this host adopts instead of starting one.

And what a whole run that waits beside a job holds: a session of Spark that is warm.
"""

from dagster_ckpt.spark.standby.adopting import adopt_standby, end_standby, keep_standby, launch_early
from dagster_ckpt.spark.standby.warm_session import WarmSession

__all__ = ["WarmSession", "adopt_standby", "end_standby", "keep_standby", "launch_early"]
