"""What a checkpoint costs in a bucket: this library against gcsfs and rclone, over the same files.

    python benchmarks/object_store.py --output object_store.json

A server of the JSON API runs in a process of its own, once as it is and once with 30 ms more for each request. Into it
go, in turns and each by a new process, whose greatest memory is told:

* ``ours``: one checkpoint through the store: data files, packs of small ones, and ``_metadata``, fenced;
* ``put recursive``: ``gcsfs.GCSFileSystem.put(directory, recursive=True)``, which keeps no promise at all;
* ``put_file loop``: one file after the other;
* ``rclone``: ``rclone copy``, where it is installed, with as many transfers at once as ours makes.

Afterwards the bucket of each must hold every byte. All but the loop then bring the files back, each into an empty
directory by another new process: ours finds the newest checkpoint, reads it and verifies each file against the
manifest, and does so once more after it has fetched the checkpoint ahead, as a standby does; gcsfs gets with
``recursive``. What came must be what went up. And the newest checkpoint of ``--retained`` is looked up, as a restore
does: listed, read and verified.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

OURS, RECURSIVE, LOOP, RCLONE = "ours", "put recursive", "put_file loop", "rclone"
#: The same restore after a standby has fetched the checkpoint.
AHEAD = "ours, fetched ahead"
BUCKET = "checkpoints"
_RCLONES = f":gcs:{BUCKET}/rclone"
SETS = {"1,000 x 10 KiB": (1_000, 10 << 10), "10,000 x 10 KiB": (10_000, 10 << 10)}
SETS |= {"10,000 x 105 KiB": (10_000, 105 << 10), "1 x 1 GiB": (1, 1 << 30)}
#: To see that it works.
TINY = {"20 x 10 KiB": (20, 10 << 10), "1 x 20 MiB": (1, 20 << 20)}


def main() -> int:
    """Run the benchmark, or, with ``--upload`` or ``--restore``, one process of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=[*SETS, *TINY])
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.03], help="seconds a request")
    parser.add_argument("--retained", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--upload", nargs=3, metavar=("HOW", "URL", "DIRECTORY"), help=argparse.SUPPRESS)
    parser.add_argument("--restore", nargs=3, metavar=("HOW", "URL", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upload or options.restore:
        print(json.dumps(_upload(*options.upload) if options.upload else _restore(*options.restore)))
        return 0
    records = [record for latency in options.latencies for record in _measure(options, latency)]
    if options.output:
        options.output.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    print(_table(records))
    return 0


def _measure(options: argparse.Namespace, latency: float) -> Iterator[dict[str, Any]]:
    ways = [OURS, RECURSIVE, LOOP, *([RCLONE] if shutil.which("rclone") else [])]
    for name in options.sets:
        count, size = (SETS | TINY)[name]
        with tempfile.TemporaryDirectory(prefix="object-store-") as home:
            for number in range(count):
                with (Path(home) / f"{number}.delta").open("wb") as file:
                    for _ in range(max(1, size >> 20)):  # a child's memory begins with its parent's greatest
                        file.write(os.urandom(min(size, 1 << 20)))
            went = _contents(home)
            for turn in range(options.rounds):
                for how in ways if turn % 2 == 0 else reversed(ways):
                    if how == LOOP and count * latency > 60:
                        continue
                    with serving(latency) as url:
                        case = {"set": name, "latency": latency, "how": how}
                        record = {**case, "what": "upload", **_in_a_process("--upload", how, url, home)}
                        if record["bytes"] < count * size:
                            raise RuntimeError(f"Not every byte arrived: {record}")
                        print(record, file=sys.stderr, flush=True)
                        yield record
                        if how == LOOP:
                            continue
                        for way in (OURS, AHEAD) if how == OURS else (how,):
                            with tempfile.TemporaryDirectory(prefix="object-store-") as back:
                                told = _in_a_process("--restore", way, url, f"{back}/files")
                                if _contents(f"{back}/files") != went:
                                    raise RuntimeError(f"What came back by {way} is not what went up")
                            record = {**case, "what": "restore", "how": way, **told}
                            print(record, file=sys.stderr, flush=True)
                            yield record
    with serving(latency) as url:
        found = _look_up(url, options.retained)
        yield {"set": f"newest of {options.retained:,}", "latency": latency, "what": "look", **found}


def _contents(directory: str) -> dict[str, str]:
    """The digest of each file below a directory, by its name."""
    files = (file for file in Path(directory).rglob("*") if file.is_file())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _in_a_process(what: str, how: str, url: str, directory: str) -> dict[str, Any]:
    command = [sys.executable, __file__, what, how, url, directory]
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return told


def _upload(how: str, url: str, directory: str) -> dict[str, Any]:
    if how == RCLONE:
        return _measured(url, lambda: _rclone(url, directory, _RCLONES), resource.RUSAGE_CHILDREN)
    storage = storage_at(url)
    storage.create("connected", b"")
    if how == OURS:
        return _measured(url, _checkpoint(storage, directory))
    client = _client(url)

    def run() -> None:
        if how == RECURSIVE:
            client.put(directory, f"{BUCKET}/{how}", recursive=True)
        else:
            for file in sorted(Path(directory).iterdir()):
                client.put_file(str(file), f"{BUCKET}/{how}/{file.name}")

    return _measured(url, run)


def _restore(how: str, url: str, directory: str) -> dict[str, Any]:
    if how == RCLONE:
        return _measured(url, lambda: _rclone(url, _RCLONES, directory), resource.RUSAGE_CHILDREN)
    if how == RECURSIVE:
        client = _client(url)
        return _measured(url, lambda: client.get(f"{BUCKET}/{how}", directory, recursive=True))
    from dagster_ckpt.checkpoint import (  # noqa: PLC0415 - of the child alone
        CheckpointCatalog,
        FetchedAhead,
        find_newest,
        materialize_checkpoint,
    )

    storage = storage_at(url)
    storage.create("connected", b"")
    catalog = CheckpointCatalog(storage, "benchmark")
    ahead = FetchedAhead(catalog, Path(directory).parent / "working", None)
    if how == AHEAD and (newest := find_newest(catalog).metadata) is not None:
        ahead.fetch(newest.reference)
        ahead.wait()

    def run() -> None:
        found = find_newest(catalog).metadata
        assert found is not None
        materialize_checkpoint(catalog, found, Path(directory), take=ahead.take)

    return _measured(url, run)


def _client(url: str) -> Any:
    import gcsfs.core  # noqa: PLC0415 - of the child alone

    client = gcsfs.core.GCSFileSystem(token="anon", project="p", endpoint_url=url, use_listings_cache=False)
    client.ls(BUCKET)
    return client


def _measured(url: str, run: Callable[[], object], whose: int = resource.RUSAGE_SELF) -> dict[str, Any]:
    """What an upload or a restore takes; memory is what this process needs more for it, or all that its child needs."""
    memory = resource.getrusage(whose).ru_maxrss
    before = asked(url)
    begun = time.monotonic()
    run()
    seconds = time.monotonic() - begun
    after = asked(url)
    return {
        "seconds": seconds,
        "requests": after["requests"] - before["requests"],
        "bytes": after["bytes"] - before["bytes"],
        "memory_mib": (resource.getrusage(whose).ru_maxrss - memory) / 1024,
    }


def _rclone(url: str, source: str, target: str) -> None:
    subprocess.run(
        [
            *("rclone", "--config", os.devnull, "copy", source, target),
            *("--gcs-anonymous", "--gcs-no-check-bucket", "--gcs-endpoint", f"{url}/storage/v1/"),
            # Without lists of who may do what for each object: the server has none.
            *("--gcs-bucket-policy-only", "--transfers", "32", "--checkers", "32", "--retries", "1"),
        ],
        check=True,
    )


def storage_at(url: str) -> Any:
    """The library's storage in the bucket of a server."""
    from dagster_ckpt.filesystem import GcsFileSystem  # noqa: PLC0415 - of the child alone

    return GcsFileSystem(BUCKET, "base", {"endpoint_url": url, "token": "anon", "project": "p"})


def _checkpoint(storage: Any, directory: str) -> Any:
    from dagster_ckpt.checkpoint.format.facts import Facts  # noqa: PLC0415 - of the child alone
    from dagster_ckpt.checkpoint.format.snapshot import PinnedFile, Snapshot  # noqa: PLC0415 - of the child alone

    store = _store(storage)
    files = tuple(
        PinnedFile(f"checkpoint/state/0/0/{file.name}", str(file), file.stat().st_size, recurs=True)
        for file in sorted(Path(directory).iterdir())
    )
    snapshot = Snapshot(0, files, Facts(), None, lambda: None)
    return lambda: store.write(store.begin(), snapshot)


def _store(storage: Any) -> Any:
    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: PLC0415 - of the child alone
    from dagster_ckpt.checkpoint.control.epochs import Choice  # noqa: PLC0415
    from dagster_ckpt.checkpoint.taking.store import CompletedCheckpointStore  # noqa: PLC0415
    from dagster_ckpt.clock import SystemClock  # noqa: PLC0415

    catalog = CheckpointCatalog(storage, "benchmark")
    claim = catalog.records.epochs.claim(token="t", series=None, run_id="r", host="h", pid=1, now="now")
    catalog.records.epochs.record_choice(claim.epoch, Choice("a" * 32, None, 1, 0, "/live", "h", None, "benchmark"))
    return CompletedCheckpointStore(
        catalog, claim, job_id="a" * 32, first_id=1, restored_from=None, mode="EXACTLY_ONCE", clock=SystemClock()
    )


def _look_up(url: str, retained: int) -> dict[str, Any]:
    from dagster_ckpt.checkpoint.format.facts import Facts  # noqa: PLC0415 - not of the children
    from dagster_ckpt.checkpoint.format.snapshot import Snapshot  # noqa: PLC0415 - not of the children

    storage = storage_at(url)
    store = _store(storage)
    first = store.write(store.begin(), Snapshot(0, (), Facts(), None, lambda: None))
    # The others are there by name: what is looked at must be the newest only.
    others = [replace(first, checkpoint_id=number, batch=number) for number in range(2, retained + 1)]
    storage.write_many(
        [(f"benchmark/{'a' * 32}/chk-{other.checkpoint_id}/_metadata", other.encode()) for other in others],
        lambda: False,
    )
    looks = [_measured(url, lambda: _newest(storage, retained)) for _ in range(5)]
    return {**looks[-1], "how": OURS, "seconds": statistics.median(look["seconds"] for look in looks)}


def _newest(storage: Any, retained: int) -> None:
    from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog  # noqa: PLC0415 - not of the children
    from dagster_ckpt.checkpoint.catalog.newest import find_newest  # noqa: PLC0415

    found = find_newest(CheckpointCatalog(storage, "benchmark")).metadata
    assert found is not None
    assert found.checkpoint_id == retained


@contextmanager
def serving(latency: float) -> Iterator[str]:
    """A server with an empty bucket in a process of its own; where it is."""
    command = [sys.executable, "-m", "dagster_ckpt.testing.gcs.server", "--bucket", BUCKET, "--latency", str(latency)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()  # a caller may have its children ignore SIGTERM
        process.wait()


def asked(url: str) -> dict[str, int]:
    """What a server was asked so far: requests, and the bytes of their bodies."""
    with urllib.request.urlopen(url) as answer:
        told: dict[str, int] = json.load(answer)
    return told


def _table(records: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, float, str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["set"], record["latency"], record["what"], record["how"]), []).append(record)
    lines = [
        "| files | latency, ms | what | how | seconds (median) | requests | MB sent | MiB of memory (greatest) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, latency, what, how), group in groups.items():
        seconds = statistics.median(record["seconds"] for record in group)
        requests = statistics.median(record["requests"] for record in group)
        sent = statistics.median(record["bytes"] for record in group) / 1e6
        memory = max(record["memory_mib"] for record in group)
        lines.append(
            f"| {name} | {latency * 1000:.0f} | {what} | {how} | {seconds:.2f} | {requests:.0f} | {sent:.2f} "
            f"| {memory:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
