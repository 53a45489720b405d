"""A query of plain Spark that comes to a batch which does not end: ``python -m tests.jobs.plain.driver ROOT``.

It reads two files, and then of the third only some rows: a task of that batch waits for a day. Whoever started the
process kills it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.local_spark import small_spark
from tests.jobs.harness import NEW_PER_FILE, Bench
from tests.jobs.plain.plain import BACKENDS, Plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LAST_ID = 2 * NEW_PER_FILE + 7


def stuck_at_the_end(bench: Bench, session: SparkSession) -> DataStreamWriter:
    """Deduplicates, until it comes to the last id of the third file."""
    wait = f"CASE WHEN id = {_LAST_ID} THEN java_method('java.lang.Thread', 'sleep', 86400000L) END IS NULL"
    return bench.write(bench.read(session).dropDuplicates(["id"]).where(wait).select("id", "v"))


def main() -> None:
    """Run the query until it is killed."""
    root = Path(sys.argv[1])
    bench = Bench(small_spark(root / "spark", cores=2), root, query=stuck_at_the_end, until_done=False)
    bench.land(2)
    query = Plain(bench, BACKENDS["rocksdb"], root / "plain").begin()
    query.processAllAvailable()
    bench.land(1)
    query.awaitTermination()


if __name__ == "__main__":
    main()
