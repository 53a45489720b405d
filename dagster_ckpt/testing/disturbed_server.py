"""A server in a thread that answers late, refuses, loses replies, hangs and alters its answers, as a plan says.

A subclass serves the content. The server records each request and asks the plan about it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from aiohttp import web

__all__ = ["Action", "Alter", "Answer", "DisturbedServer", "Fault", "Hang", "Plan", "Request", "Reset"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        sequence: the request's number, from 0.
        kind: the server's word for the kind of request.
        name: the object, or other name, that the request is about.
        size: bytes of its body.
    """

    sequence: int
    kind: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this status; ``after``: only after carrying the request out, else without."""

    status: int
    after: bool = False
    message: str = "injected"


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection; ``after``: only after carrying the request out, else without."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """Carry the request out after this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Alter:
    """Send the stored bytes as altered by ``change``, with the fitting length."""

    change: Callable[[bytes], bytes]


Fault: TypeAlias = Answer | Reset | Hang | Alter
Plan: TypeAlias = Callable[[Request], "Fault | None"]
#: Carries a request out. All actions run in one thread, one after the other.
Action: TypeAlias = Callable[[], web.Response]


class DisturbedServer(ABC):
    """The server; a context manager that starts and stops it.

    Args:
        latency: seconds added to each request.
        token: the bearer token that requests must carry; ``None`` for none.
        port: of this machine; 0 for any free port.
    """

    def __init__(self, latency: float = 0.0, token: str | None = None, port: int = 0) -> None:
        self.latency = latency
        self.token = token
        self.plan: Plan = _no_fault
        self.log: deque[Request] = deque()
        self.url = ""
        #: The most requests that were under way at once.
        self.most_at_once = 0
        self._at_once = 0
        self._port = port
        self._sequence = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)

    @abstractmethod
    def route(self, incoming: web.Request, body: bytes) -> tuple[str, str, Action]:
        """The kind of a request, the name it is about, and the action that carries it out."""

    @abstractmethod
    def refuse(self, status: int, message: str) -> web.Response:
        """An error in this server's form."""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        runner = self._runner
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        application = web.Application(client_max_size=1 << 34)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        # An upload without a limit opens hundreds of connections at once.
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _serve(self, incoming: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            body = await incoming.read()
            kind, name, action = self.route(incoming, body)
            request = Request(next(self._sequence), kind, name, len(body))
            self.log.append(request)
            if self.latency:
                await asyncio.sleep(self.latency)
            if self.token is not None and incoming.headers.get("Authorization") != f"Bearer {self.token}":
                return self.refuse(401, "Invalid Credentials")
            return await self._act(incoming, action, self.plan(request))
        finally:
            self._at_once -= 1

    async def _act(self, incoming: web.Request, action: Action, fault: Fault | None) -> web.StreamResponse:
        match fault:
            case Answer(status, after, message):
                if after:
                    action()
                return self.refuse(status, message)
            case Reset(after):
                if after:
                    action()
                if incoming.transport is not None:
                    incoming.transport.abort()
                return web.Response()
            case Hang(seconds):
                await asyncio.sleep(seconds)
                return action()
            case Alter(change):
                answer = action()
                if isinstance(answer.body, bytes):
                    return web.Response(body=change(answer.body), status=answer.status)
                return answer
            case None:
                return action()


def _no_fault(request: Request) -> None:
    del request
