"""What becomes of a table, of any format, whose drivers die or are taken for dead."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable

from tests.helpers.driving import ELSEWHERE, driving
from tests.jobs.harness import Bench, Row, eventually, remove_tree

__all__ = ["a_zombie_wakes_in_its_commit", "drivers_are_killed_at_random_moments"]

_Seen = Callable[[Bench], Counter[Row]]
_DRIVER = "tests.jobs.tables.driver"


def a_zombie_wakes_in_its_commit(
    bench: Bench, table: str, step: str, newest: Callable[[Bench], object], seen: _Seen, *words: str
) -> None:
    """Check that a driver which is stopped in a step of its commit, and woken after another's end, changes nothing.

    Args:
        bench: the job.
        table: the format of the table, as the driver takes it.
        step: the step, as the driver takes it.
        newest: the newest commit of the table.
        seen: the rows of the table, by a reader without Spark.
        words: more of them for the other driver.
    """
    assert shutil.which("unshare"), "unshare (package util-linux) is needed to drive as if from another host"
    bench.land(1)
    with driving(_DRIVER, table, str(bench.root), f"hold={step}", "lease=3", "unwatched") as zombie:
        zombie.await_("a checkpoint", lambda: bool(zombie.of("Completed")))
        (bench.root / "hold").touch()
        bench.land(1)
        zombie.await_("it is in its commit", (bench.root / "held").exists)
        zombie.pause()
        bench.land(1)
        with driving(_DRIVER, table, str(bench.root), "end", "live=elsewhere", *words, **ELSEWHERE) as driver:
            assert driver.ended() == "FINISHED"
        at_the_end = newest(bench)
        assert seen(bench) == bench.expected()
        (bench.root / "hold").unlink()
        zombie.wake()
        eventually("the zombie ends", lambda: zombie.process.poll() is not None)
    assert newest(bench) == at_the_end
    assert seen(bench) == bench.expected()


def drivers_are_killed_at_random_moments(bench: Bench, table: str, seen: _Seen) -> None:
    """Check that a table is exact after kills, after which the live location is lost now and then."""
    moments = random.Random(14)
    pause = threading.Event()
    for kill in range(5):
        bench.land(2)
        with driving(_DRIVER, table, str(bench.root)) as driver:
            driver.await_("it starts", lambda driver=driver: bool(driver.of("Started")))
            pause.wait(moments.uniform(0, 4))
            driver.kill()
        if kill % 2:
            remove_tree(bench.root / "live")
    with driving(_DRIVER, table, str(bench.root), "end") as driver:
        assert driver.ended() == "FINISHED"
    assert seen(bench) == bench.expected()
