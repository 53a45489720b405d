"""Jobs that write to Iceberg tables: only where Iceberg is for the running release of Spark."""

from __future__ import annotations

from tests.helpers.local_spark import iceberg_conf

collect_ignore_glob = [] if iceberg_conf() else ["test_*.py"]
