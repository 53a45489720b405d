"""Servers that take messages: an incoming webhook, and a mail server."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

__all__ = ["MailServer", "Webhook"]

_HOST = "127.0.0.1"


class Webhook:
    """Takes what is posted.

    Attributes:
        heard: the JSON of each request.
        status: of the answers.
    """

    def __init__(self) -> None:
        self.heard: list[dict[str, str]] = []
        self.status = 200
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                webhook.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(webhook.status)
                self.end_headers()

        self._server = HTTPServer((_HOST, 0), Handler)
        self.url = f"http://{_HOST}:{self._server.server_port}/services/T0/secret-part"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _OnAnyPort(Controller):
    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


class MailServer:
    """Takes mails from whoever logs in as ``dagster`` with the password ``opens``.

    Args:
        tls: the certificate and its key, in one file.
        security: as of ``to_email``; without TLS nobody can log in.

    Attributes:
        mails: the mails that were taken.
        logins: how often somebody has logged in.
        refused: recipients that are refused.
    """

    def __init__(self, tls: Path, security: str) -> None:
        self.mails: list[Message] = []
        self.logins = 0
        self.refused: set[str] = set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        settings: dict[str, Any] = {
            "starttls": {"tls_context": context, "require_starttls": True},
            "tls": {"ssl_context": context, "auth_require_tls": False},  # aiosmtpd takes only STARTTLS for TLS
            "none": {},
        }[security]
        if security != "none":
            settings["authenticator"] = self._is_known
        self._controller = _OnAnyPort(self, hostname=_HOST, port=0, **settings)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._controller.port)

    def _is_known(self, *given: Any) -> AuthResult:
        login = given[-1]
        assert isinstance(login, LoginPassword)
        known = (login.login, login.password) == (b"dagster", b"opens")
        self.logins += known
        return AuthResult(success=known, handled=False)

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Take a recipient."""
        if address in self.refused:
            return "550 nobody of that name"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Take a mail."""
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._controller.stop()
