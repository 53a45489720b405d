"""A live checkpointLocation of a query on a file source, written as Spark writes it, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class LiveLocation:
    """The logs of a query whose batch ``N`` reads ``N.json``.

    Attributes:
        path: of the location.
        interval: entries from one compaction of the source's log to the next.
    """

    path: Path
    interval: int = 10

    def run(self, batches: int) -> None:
        """Plan and commit the first so many batches."""
        for batch in range(batches):
            self.plan(batch)
            self.commit(batch)

    def plan(
        self,
        batch: int,
        *,
        files: Sequence[str] | None = None,
        at: int = 1_700_000_000_000,
        watermark: int = 0,
        partitions: int = 1,
    ) -> None:
        """Plan a batch as the next entry of the source's log."""
        names = [f"{batch}.json"] if files is None else files
        uris = [f"file://{name}" if name.startswith("/") else f"file:///in/{name}" for name in names]
        added = [json.dumps({"path": uri, "timestamp": 1, "batchId": batch}) for uri in uris]
        if self._is_compaction(batch):
            added = [*self._lines(batch - 1), *added]
        self._write(f"sources/0/{batch}{'.compact' if self._is_compaction(batch) else ''}", ["v1", *added])
        conf = {"spark.sql.shuffle.partitions": str(partitions)}
        head = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": at + batch, "conf": conf})
        self._write(f"offsets/{batch}", ["v1", head, json.dumps({"logOffset": batch})])

    def commit(self, batch: int) -> None:
        self._write(f"commits/{batch}", ["v1", json.dumps({"nextBatchWatermarkMs": 0})])

    def keep(self, names: Sequence[str]) -> None:
        """Drop all entries of the source's log but these."""
        for file in (self.path / "sources" / "0").iterdir():
            if file.name not in names:
                file.unlink()

    def entries(self) -> int:
        """How many entries the source's log has."""
        return self._last() + 1

    def read(self) -> list[str]:
        """The files of all entries, in order, found as Spark finds them."""
        return [json.loads(line)["path"] for line in self._lines(self._last())]

    def _last(self) -> int:
        return max(int(file.name.split(".")[0]) for file in (self.path / "sources" / "0").iterdir())

    def _compactions(self) -> list[int]:
        files = (self.path / "sources" / "0").glob("*.compact")
        return sorted(int(file.name.split(".")[0]) for file in files)

    def _spark_interval(self) -> int:
        """As Spark derives it (CompactibleFileStreamLog) from what is there and its setting."""
        found = self._compactions()
        if len(found) >= 2:
            return found[-1] - found[-2]
        if not found:
            return self.interval
        count = found[0] + 1
        if self.interval < count / 2:
            return next((n for n in range(self.interval, count // 2 + 1) if count % n == 0), count)
        return count

    def _is_compaction(self, entry: int) -> bool:
        return (entry + 1) % self._spark_interval() == 0

    def _lines(self, last: int) -> list[str]:
        """The lines of the entries up to ``last``: of its newest compaction, and of each entry after it."""
        interval = self._spark_interval()
        first = (last + 1) // interval * interval - 1
        names = [f"{first}.compact"] if first >= 0 else []
        names += [str(entry) for entry in range(first + 1, last + 1)]
        return [line for name in names for line in self._text(name).split("\n")[1:] if line]

    def _text(self, name: str) -> str:
        return (self.path / "sources" / "0" / name).read_text(encoding="utf-8")

    def _write(self, name: str, lines: Sequence[str]) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines), encoding="utf-8")
