"""A JVM that another process has started, held as if this process had started it."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import threading
import weakref
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import psutil

from dagster_ckpt.spark.standby.handover import CREDENTIALS, PATIENCE, TAKEN, pump
from dagster_ckpt.spark.standby.place import directory

__all__ = ["AdoptedJvm", "RefusedError", "adopt"]

_LONGEST = 4096
#: What is handed over beside the message: the JVM's standard input, and its output.
_HANDED = 2


#: The other ends of the standard inputs of the JVMs that this process has adopted.
_lifelines: weakref.WeakSet[FileIO] = weakref.WeakSet()


def _let_go() -> None:
    """Let no child that outlives this process keep a JVM."""
    for lifeline in _lifelines:
        lifeline.close()


os.register_at_fork(after_in_child=_let_go)


class RefusedError(Exception):
    """A standby is not what it should be."""


class AdoptedJvm:
    """The part of :class:`subprocess.Popen` that PySpark and this library use of a JVM.

    Args:
        pid: of a live process of this user.
        lifeline: the file descriptor at whose end the JVM ends: the other end of its standard input.
        parent: tells the exit code of the JVM, which only its parent learns.

    Attributes:
        returncode: the exit code once :meth:`poll` or :meth:`wait` has seen the end; ``None`` also if nobody tells it.
    """

    def __init__(self, pid: int, lifeline: int, parent: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent, self._asking = parent, threading.Lock()
        self.stdin = FileIO(lifeline, "wb")
        _lifelines.add(self.stdin)
        self._handle = os.pidfd_open(pid)
        for close in (self.stdin.close, partial(os.close, self._handle), parent.close):
            weakref.finalize(self, close).atexit = False  # what still uses the JVM then comes first

    def poll(self) -> int | None:
        """The exit code, ``None`` while the JVM runs; 0 also if nobody tells it."""
        return self._code() if self._is_over(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the JVM has ended; the exit code as of :meth:`poll`.

        Raises:
            TimeoutExpired: it runs on.
        """
        if not self._is_over(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self._code()

    def kill(self) -> None:
        """End the JVM."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _code(self) -> int:
        with self._asking, contextlib.suppress(OSError, ValueError), self._parent:  # closed: it is asked once
            self._parent.settimeout(PATIENCE)
            self.returncode = int(self._parent.recv(_LONGEST))
        return self.returncode or 0

    def _is_over(self, timeout: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._handle, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else timeout * 1000))


def adopt(name: str, patience: float | None = None) -> Any | None:
    """Adopt the standby with this name; ``None`` if no such standby waits, or if another run has adopted the standby.

    Args:
        name: of the standby.
        patience: seconds that the standby has for its answer; by default those of one that is warm.

    Returns:
        PySpark's gateway to the JVM.

    Raises:
        RefusedError: the standby is not what it should be. It is not used.
        OSError: it does not answer. It is ended if it can be.
    """
    place = directory()
    if not (place / f"{name}.sock").exists():
        return None
    if place.lstat().st_uid != os.geteuid() or stat.S_IMODE(place.lstat().st_mode) & 0o077:
        raise RefusedError(f"others can enter {place}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(patience or PATIENCE)
        opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            connection.connect(f"/proc/self/fd/{opened}/{name}.sock")
        except (ConnectionRefusedError, FileNotFoundError):
            return None  # its keeper is gone, or another run adopts it now
        finally:
            os.close(opened)
        return _take(connection)


def _take(connection: socket.socket) -> Any | None:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    keeper, user, _ = CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise RefusedError(f"process {keeper} of another user listens there")
    watched = psutil.Process(keeper)
    size = array.array("i").itemsize * _HANDED
    try:
        message, held, _, _ = connection.recvmsg(_LONGEST, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    except TimeoutError as error:
        watched.kill()  # its JVM ends with it
        seconds = connection.gettimeout()
        raise TimeoutError(f"its keeper, process {keeper}, has not answered for {seconds:.0f} s") from error
    if not message:
        return None  # another run has it
    files = array.array("i")
    for _, _, data in held:
        files.frombytes(data[: len(data) - len(data) % files.itemsize])
    try:
        gateway = _checked(message, list(files), keeper, connection)
    except BaseException:
        for file in files:
            with contextlib.suppress(OSError):
                os.close(file)
        raise
    os.set_blocking(files[1], True)
    threading.Thread(target=_pump, args=(files[1],), name="dagster-ckpt-jvm-output", daemon=True).start()
    with contextlib.suppress(OSError):  # the keeper does not wait for long
        connection.sendall(TAKEN)
    return gateway


def _pump(output: int) -> None:
    try:
        pump(output)
    finally:
        os.close(output)


def _checked(message: bytes, files: list[int], keeper: int, connection: socket.socket) -> Any:
    """The gateway to a JVM, if the JVM is what the keeper says; nothing is believed that the system can tell."""
    told = json.loads(message)
    pid, port, secret = int(told["pid"]), int(told["port"]), str(told["secret"])
    try:
        process = psutil.Process(pid)
        if process.ppid() != keeper or process.uids().effective != os.geteuid():
            raise RefusedError(f"process {pid} is no JVM of its keeper")
        lifeline = os.fstat(files[0]).st_ino if len(files) == _HANDED else None
        if lifeline != Path(f"/proc/{pid}/fd/0").stat().st_ino:
            raise RefusedError(f"process {pid} would outlive this process")
        listening = {found.laddr.port for found in process.net_connections("tcp") if found.status == psutil.CONN_LISTEN}
        if port not in listening:
            raise RefusedError(f"process {pid} does not listen on port {port}")
    except psutil.Error as error:
        raise RefusedError(f"process {pid} is gone") from error
    jvm = AdoptedJvm(pid, os.dup(files[0]), connection.dup())
    try:
        gateway = _gateway_in_time(jvm, port, secret)
        gateway.proc = jvm
        own = Path("/proc/self/oom_score_adj").read_text(encoding="ascii")
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/oom_score_adj").write_text(own, encoding="ascii")
    except BaseException:
        jvm.stdin.close()
        raise
    os.close(files[0])
    return gateway


def _gateway_in_time(jvm: AdoptedJvm, port: int, secret: str) -> Any:
    """Connect to the JVM, which proves by its answer that it is not hung; a JVM that hangs is killed."""
    found: list[Any] = []

    def connect() -> None:
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - half a second that only a driver has to pay

        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
        try:
            found.append(launch_gateway())  # type: ignore[no-untyped-call]
        except Exception as error:  # whatever py4j raises
            found.append(error)
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]

    thread = threading.Thread(target=connect, name="dagster-ckpt-adoption", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        jvm.kill()
        thread.join(PATIENCE)
        raise RefusedError(f"its JVM, process {jvm.pid}, has not answered for {PATIENCE:.0f} s")
    if isinstance(found[0], Exception):
        raise RefusedError(f"its JVM, process {jvm.pid}, refuses the connection: {found[0]}")
    return found[0]
