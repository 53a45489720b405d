"""What Spark does in a live location that lies in a store, with RocksDB's files, without Spark."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from random import Random

from dagster_ckpt.config.state_backend import ROCKSDB_PROVIDER

Put = Callable[[str, bytes], object]
#: More than what is kept in a manifest, or packed.
SST_SIZE = 3000


class StoredQuery:
    """A query that counts by key: RocksDB without changelogs, in state format 1.

    Batch ``N`` reads entry ``N`` of its source's log, adds a table to each of its stores and drops the one from four
    batches before.

    Args:
        put: stores an object, below the live location.
        partitions: of the state.
        seed: of what it writes.
    """

    def __init__(self, put: Put, partitions: int = 2, seed: int = 0) -> None:
        self.put = put
        self.partitions = partitions
        #: Everything it has ever written, by path.
        self.written: dict[str, bytes] = {}
        self.next = 0
        self._random = Random(seed)
        self._tables: list[dict[str, int]] = [{} for _ in range(partitions)]

    def begin(self) -> None:
        """What Spark writes before the first batch."""
        self._write("metadata", json.dumps({"id": "2f2bba4c-0f7d-4f35-98ca-5894486d6b34"}).encode())

    def run(self, batches: int) -> int:
        """Plan and commit so many batches; the last one."""
        for _ in range(batches):
            self.plan()
            self.commit()
        return self.next - 1

    def plan(self) -> None:
        """Plan the next batch."""
        batch = self.next
        entry = json.dumps({"path": f"file:///in/{batch}.json", "timestamp": 1, "batchId": batch})
        self._write(f"sources/0/{batch}", f"v1\n{entry}".encode())
        conf = {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB_PROVIDER,
        }
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": conf})
        self._write(f"offsets/{batch}", "\n".join(["v1", head, json.dumps({"logOffset": batch})]).encode())

    def commit(self) -> None:
        """Store the state of the planned batch and commit it."""
        batch, version = self.next, self.next + 1
        if batch == 0:
            stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}]
            operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
            self._write("state/0/_metadata/metadata", f"v1\n{json.dumps(operator)}".encode())
        for partition in range(self.partitions):
            store = f"state/0/{partition}"
            tables = self._tables[partition]
            name = f"{batch:06}-{self._random.getrandbits(64):016x}.sst"
            tables[name] = SST_SIZE
            self._write(f"{store}/SSTs/{name}", self._random.randbytes(SST_SIZE))
            for old in [old for old in tables if int(old[:6]) <= batch - 4]:
                del tables[old]
            self._write(f"{store}/{version}.zip", _zip(tables))
        self._write(f"commits/{batch}", f"v1\n{json.dumps({'nextBatchWatermarkMs': 0})}".encode())
        self.next += 1

    def needed(self, batch: int) -> dict[str, bytes]:
        """What a restart after a committed batch reads, by path."""
        paths = {"metadata", f"commits/{batch}", f"offsets/{batch}", "state/0/_metadata/metadata"}
        paths |= {f"sources/0/{entry}" for entry in range(batch + 1)}
        if batch:
            paths.add(f"offsets/{batch - 1}")
        for partition in range(self.partitions):
            store = f"state/0/{partition}"
            archive = f"{store}/{batch + 1}.zip"
            paths |= {archive, *(f"{store}/SSTs/{name}" for name in _tables(self.written[archive]))}
        return {path: self.written[path] for path in paths}

    def goes_on(self, put: Put, batch: int) -> StoredQuery:
        """The query as it is restarted after a batch, in another location."""
        other = StoredQuery(put, self.partitions, seed=1000 + self._random.getrandbits(32))
        other.written = dict(self.needed(batch))
        other.next = batch + 1
        for partition in range(self.partitions):
            names = _tables(self.written[f"state/0/{partition}/{batch + 1}.zip"])
            other._tables[partition] = dict.fromkeys(names, SST_SIZE)
        return other

    def _write(self, path: str, data: bytes) -> None:
        self.written[path] = data
        self.put(path, data)


def _zip(tables: dict[str, int]) -> bytes:
    files = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": size} for name, size in tables.items()]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("metadata", f"v1\n{json.dumps({'sstFiles': files, 'logFiles': [], 'numKeys': 1})}")
    return archive.getvalue()


def _tables(archive: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        content = json.loads(opened.read("metadata").decode().partition("\n")[2])
    return [item["dfsSstFileName"] for item in content["sstFiles"]]
