"""What a tick does that has found nothing to do: it stays, and watches the processes that drive the jobs on this host.

Dagster evaluates a sensor every five seconds, so without this a run that dies would be noticed after half of that on
average. To watch a process asks neither the storage nor Dagster.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import dagster as dg

from dagster_ckpt.checkpoint import ProcessIdentity, Sight

__all__ = ["AFTER_NEWS", "AGAIN", "LONGEST_TICK", "STAY", "drivers_here", "may_stay", "one_has_died"]

#: Seconds from the beginning of a tick for which the tick stays. Dagster begins the next tick after five, and leaves
#: that tick out if this one has not ended; to begin and to end takes up to a second on a busy host.
STAY = 3.5
#: Seconds between two looks at the processes.
_TURN = 0.1
#: Seconds between two turns after a death, such as until Dagster has noticed the death, too.
AGAIN = 0.5
#: Seconds for which a tick stays after it has found a death: the first restart often waits for a second. The tick after
#: it may be left out for that, which costs less than to wait for that tick.
AFTER_NEWS = 2.5
#: Seconds from the beginning of a tick after which the tick looks at the jobs no more, whatever it has found: a look at
#: many jobs may take as long as a tick has.
LONGEST_TICK = 7.0
#: With more processes than this a look would cost too much of a processor, and the jobs wait for the next tick.
_MOST = 100


def may_stay(instance: dg.DagsterInstance) -> bool:
    """Whether the instance evaluates sensors side by side, so that a tick that stays takes one worker, and not all."""
    settings = instance.get_settings("sensors")
    workers = settings.get("num_workers")
    return bool(settings.get("use_threads")) and (workers is None or workers > 1)


def drivers_here(sights: Iterable[Sight]) -> list[ProcessIdentity]:
    """The processes of this host that drive jobs whose runs are alive by what a look has shown."""
    beats = [sight.heartbeat for sight in sights if sight.heartbeat is not None and sight.dead is None]
    # As for the heartbeat's readers, a run lives as long as its own process, below which a step may have ended.
    processes = [beat.worker or beat.processes[0] for beat in beats]
    return [process for process in processes if process.is_here]


def one_has_died(processes: Sequence[ProcessIdentity], until: float) -> bool:
    """Watch processes until one of them is gone; ``False`` if all live at ``until``, on the monotonic clock."""
    if not 0 < len(processes) <= _MOST:
        return False
    while time.monotonic() < until:
        time.sleep(_TURN)
        if not all(process.is_alive() for process in processes):
            return True
    return False
