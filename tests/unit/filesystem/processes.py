# ruff: noqa: T201 - what a process prints is how it answers
"""Processes that race and that are killed. Run in an interpreter of its own, which has no threads and can fork."""

from __future__ import annotations

import os
import random
import resource
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.errors import PublishConflict, StorageError
from dagster_ckpt.filesystem import PosixFileSystem


def race(root: Path, processes: int, rounds: int) -> None:
    """In each round all processes create one name with different bytes; print the number of winners per round."""
    for number in range(rounds):
        gate_read, gate_write = os.pipe()
        children = []
        for process in range(processes):
            child = os.fork()
            if child == 0:
                storage = PosixFileSystem(root)
                os.close(gate_write)
                os.read(gate_read, 1)  # returns for all of them when the parent closes the gate
                try:
                    storage.create(f"round-{number}/_metadata", f"process {process}".encode() * 1000)
                except PublishConflict:
                    os._exit(1)
                os._exit(0)
            children.append(child)
        os.close(gate_read)
        os.close(gate_write)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        winner = PosixFileSystem(root).read(f"round-{number}/_metadata").decode()
        assert set(codes) <= {0, 1}, codes
        assert winner == f"process {codes.index(0)}" * 1000, winner[:20]
        print(codes.count(0))


def pattern(number: int) -> bytes:
    return f"{number:08}".encode() * 8_000


def publish_until_killed(root: Path, seed: int) -> None:
    """Fork a process that publishes without end, and kill it at a random moment within a few of its publishes."""
    rng = random.Random(seed)
    begun_read, begun_write = os.pipe()
    child = os.fork()
    if child == 0:
        storage = PosixFileSystem(root)
        for number in range(1_000_000):
            os.write(begun_write, b".")
            storage.create(f"{seed}/{number}", pattern(number))
        os._exit(0)
    begun = 0
    while begun < 1 + seed % 4:
        begun += len(os.read(begun_read, 1))
    select.select([], [], [], rng.uniform(0.0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun_read)
    os.close(begun_write)


def limited_file_size(root: Path) -> None:
    """The storage accepts no more than the first bytes of a file; print what comes of it."""
    storage = PosixFileSystem(root)
    storage.create("before", b"safe")
    with tempfile.NamedTemporaryFile() as source:
        source.write(b"x" * 100_000)
        source.flush()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        attempts: list[Callable[[], object]] = [
            lambda: storage.create("d/f", b"x" * 100_000),
            lambda: storage.replace("d/f", b"x" * 100_000),
            lambda: storage.write("d/f", Path(source.name), lambda: False),
        ]
        for attempt in attempts:
            try:
                attempt()
            except StorageError as error:
                print(type(error).__name__, storage.list("d"), error.__cause__)


def _leave_root() -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def list_as_another_user(root: Path) -> None:
    """Print what is there, and whether it is a directory."""
    _leave_root()
    for entry in sorted(PosixFileSystem(root).list(""), key=lambda entry: entry.name):
        print(entry.name, entry.is_directory)


def read_only(root: Path) -> None:
    """As a user who may not write there: print what comes of it."""
    storage = PosixFileSystem(root)
    _leave_root()
    attempts: list[Callable[[], object]] = [
        lambda: storage.create("f", b"x"),
        lambda: storage.replace("f", b"x"),
        storage.probe,
    ]
    for attempt in attempts:
        try:
            attempt()
        except StorageError as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "))


def probe_as_another_user(root: Path) -> None:
    """Print what comes of a probe."""
    storage = PosixFileSystem(root)
    _leave_root()
    try:
        storage.probe()
    except StorageError as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "))
    else:
        print("well")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["race", directory, count, times]:
            race(Path(directory), int(count), int(times))
        case ["kill", directory, times]:
            for each in range(int(times)):
                publish_until_killed(Path(directory), each)
        case ["limited", directory]:
            limited_file_size(Path(directory))
        case ["list", directory]:
            list_as_another_user(Path(directory))
        case ["probe", directory]:
            probe_as_another_user(Path(directory))
        case ["read-only", directory]:
            read_only(Path(directory))
