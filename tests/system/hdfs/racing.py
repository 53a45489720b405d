"""Writers in processes of their own, each with two threads, that want the same names."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from dagster_ckpt.errors import PublishConflict
from dagster_ckpt.filesystem import HdfsFileSystem

TURNS = 10


def content(writer: int) -> bytes:
    return f"{writer}".encode() * 1000


def race(storage: HdfsFileSystem, writers: Sequence[int], at_once: Barrier, won: Queue[tuple[int, int]]) -> None:
    storage.list("")  # the JVM is there before the first turn

    def run(writer: int) -> None:
        for turn in range(TURNS):
            at_once.wait(300)
            try:
                storage.create(f"claims/{turn}", content(writer))
            except PublishConflict:
                continue
            won.put((turn, writer))

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(run, writers))
