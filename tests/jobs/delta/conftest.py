"""Jobs that write to Delta tables: only where Delta is for the running release of Spark."""

from __future__ import annotations

from tests.helpers.local_spark import delta_conf

collect_ignore_glob = [] if delta_conf() else ["test_*.py"]
