"""What both sides of an adoption know."""

from __future__ import annotations

import contextlib
import os
import select
import struct

__all__ = ["CREDENTIALS", "EARLY", "PATIENCE", "TAKEN", "UNADOPTED", "UNASKED", "WAIT", "pump"]

#: Seconds that a standby outlives the driver that wanted it, if no run adopts it.
UNADOPTED = 600.0
#: Seconds after which a JVM that has begun to start with the launch of a run waits no longer for that run.
EARLY = 60.0
#: Seconds for which that run waits for the JVM: what it takes to start one on a busy machine.
WAIT = 30.0
#: How the program ends that has kept such a JVM for so long, and no run has come.
UNASKED = 3
#: Seconds that one side of an adoption waits for the other.
PATIENCE = 10.0
#: What a run says when the JVM is its own.
TAKEN = b"taken"
#: What Linux tells of the process at the other end of a socket: pid, user, group.
CREDENTIALS = struct.Struct("3i")


def pump(source: int, enough: int | None = None) -> None:
    """Pass on what a JVM says to this process's error output.

    Args:
        source: what the JVM's output can be read from.
        enough: readable when no more is to be read.
    """
    waiting = select.poll()
    for descriptor in (source, enough):
        if descriptor is not None:
            waiting.register(descriptor, select.POLLIN)
    while enough not in (ready := [descriptor for descriptor, _ in waiting.poll()]) and source in ready:
        if not (data := os.read(source, 65536)):
            return
        with contextlib.suppress(OSError):  # the JVM must not wait for a full disk
            os.write(2, data)
