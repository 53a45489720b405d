"""A way to a server on which the first large request comes to a stand in the middle of its body."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["StallingWay"]

#: Who has sent so much over one connection sends something large.
_LARGE = 1 << 20
_PIECE = 64 << 10


class StallingWay:
    """Passes on what comes to a server, and back; a context manager.

    The first connection over which something large comes is not read any further, and stays open.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._server = (where.hostname, where.port)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        # Or the machine takes many megabytes that nobody reads.
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._has_stalled = False

    @property
    def url(self) -> str:
        """Where it begins."""
        host, port = self._listening.getsockname()
        return f"http://{host}:{port}"

    @property
    def has_stalled(self) -> bool:
        """Whether a request has come to a stand."""
        return self._has_stalled

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, may_stall: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):  # who asked, or who answers, has gone
            while data := source.recv(_PIECE):
                passed += len(data)
                if may_stall and passed >= _LARGE and self._stalls():
                    self._over.wait()
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):  # the thread of the other direction was first
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _stalls(self) -> bool:
        with self._lock:
            stalls, self._has_stalled = not self._has_stalled, True
        return stalls
