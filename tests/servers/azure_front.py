"""What stands before Azurite: it is reached by the hosts of accounts, and lets things go wrong.

As an HTTP proxy it takes requests for ``http://account.blob.core.windows.net``, whatever that resolves to, so that
Hadoop's driver, which knows accounts by such hosts only, needs no name service and no privileged port.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from azure.storage.blob._shared.policies_async import AsyncStorageRetryPolicy

__all__ = ["Answer", "AzureFront", "Fault", "Pending", "Request", "Reset", "answering_at_once"]

#: Of the connection, not of the request: whoever passes a request on has connections of his own.
_HOP = frozenset({"connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade", "expect"})
_ERROR = '<?xml version="1.0" encoding="utf-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        kind: ``put``, ``part``, ``complete``, ``copy``, ``abort``, ``read``, ``stat``, ``delete``, ``list``, ``other``.
        name: the blob, or what is listed.
        size: bytes of its body.
    """

    kind: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks, before the request is carried out or ``after``."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An error, instead of carrying the request out or ``after``."""

    status: int
    code: str
    after: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """What is answered says of a copy that it is under way, or what became of it; Azurite's are always done at once."""

    status: str = "pending"
    why: str | None = None


Fault = Reset | Answer | Pending


def nothing(request: Request) -> None:
    """All goes well."""


class AzureFront:
    """A server of its own for one Azurite; a context manager.

    Args:
        host: of Azurite, with its port.
    """

    def __init__(self, host: str) -> None:
        self.plan: Callable[[Request], Fault | None] = nothing
        self.log: list[Request] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, TimeoutError):
                    self.close_connection = True  # who asked has gone

            def do_any(self) -> None:
                front._answer(self, host)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 - their names are http.server's

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as http.server calls it
                """Nobody reads it."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def host(self) -> str:
        """Where it listens, with the port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, asked: BaseHTTPRequestHandler, host: str) -> None:
        body = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        request = _understood(asked, len(body))
        self.log.append(request)
        fault = self.plan(request)
        if isinstance(fault, Reset | Answer) and not fault.after:
            _fail(asked, fault)
            return
        headers = {name: value for name, value in asked.headers.items() if name.lower() not in _HOP}
        where = urlsplit(asked.path)
        target = f"{where.path or '/'}?{where.query}" if where.query else where.path or "/"
        if where.netloc:
            headers["Host"] = where.netloc
        connection = http.client.HTTPConnection(host, timeout=60)
        try:
            connection.putrequest(asked.command, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if isinstance(fault, Reset | Answer):
            _fail(asked, fault)
            return
        told = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        if isinstance(fault, Pending) and answer.status < 300:
            data = data.replace(b"<CopyStatus>success<", f"<CopyStatus>{fault.status}<".encode())
            told = [(name, value) for name, value in told if not name.lower().startswith("x-ms-copy-status")]
            told.append(("x-ms-copy-status", fault.status))
            if fault.why is not None:
                told.append(("x-ms-copy-status-description", fault.why))
        _tell(asked, answer.status, told, data)


def answering_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let Azure's libraries ask their four times without a wait, which is of 15 seconds and more."""

    async def at_once(policy: object, settings: object, transport: object) -> None:
        del policy, settings, transport

    patch.setattr(AsyncStorageRetryPolicy, "sleep", at_once)


def _understood(asked: BaseHTTPRequestHandler, size: int) -> Request:
    where = urlsplit(asked.path)
    query = {name: values[0] for name, values in parse_qs(where.query).items()}
    parts = unquote(where.path).lstrip("/").split("/")
    # With a host of its own the account is none of the path.
    name = "/".join(parts[1:] if where.netloc else parts[2:])
    comp = query.get("comp", "")
    headers = asked.headers
    match asked.command:
        case "PUT" if "x-ms-copy-action" in headers:
            kind = "abort"
        case "PUT" if "x-ms-copy-source" in headers:
            kind = "copy"
        case "PUT":
            kind = {"block": "part", "blocklist": "complete", "": "put"}.get(comp, "other")
        case "GET" if comp == "list":
            kind, name = "list", query.get("prefix", "")
        case "GET" | "HEAD" | "DELETE" if not comp and "restype" not in query:
            kind = {"GET": "read", "HEAD": "stat", "DELETE": "delete"}[asked.command]
        case _:
            kind = "other"
    return Request(kind, name, size)


def _fail(asked: BaseHTTPRequestHandler, fault: Reset | Answer) -> None:
    if isinstance(fault, Answer):
        text = _ERROR.format(fault.code, f"{fault.code} says the test").encode()
        _tell(asked, fault.status, [("Content-Type", "application/xml"), ("x-ms-error-code", fault.code)], text)
        return
    asked.close_connection = True
    asked.connection.shutdown(socket.SHUT_RDWR)


def _tell(asked: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
    asked.send_response_only(status)
    has_none = asked.command == "HEAD" or status in {204, 304}
    for name, value in headers:
        if name.lower() != "transfer-encoding" and (has_none or name.lower() != "content-length"):
            asked.send_header(name, value)
    if not has_none:
        asked.send_header("Content-Length", str(len(data)))
    asked.end_headers()
    if not has_none:
        asked.wfile.write(data)
