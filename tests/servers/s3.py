"""A bucket of the tests: moto's server, which can be told to answer as a store does on a bad day.

What moto does not know of copies is done here, and compared with a server that others wrote
(``tests/unit/filesystem/buckets/s3/test_s3_answers.py``): a copy is refused when its source is not the one
that was pinned.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self, TypeAlias
from urllib.parse import parse_qs, unquote

import aiobotocore.endpoint
import google_crc32c
import moto.s3.models
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import S3Backend, s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

from dagster_ckpt.filesystem import S3FileSystem
from dagster_ckpt.testing.gcs.server import Reset

BUCKET = "checkpoints"
KEY, SECRET = "key-of-mine", "secret-of-mine"
# moto takes another sum for a CRC32C where it has not this module, which is not among ours.
_crc32c = ModuleType("crc32c")
vars(_crc32c)["crc32c"] = google_crc32c.value
sys.modules.setdefault("crc32c", _crc32c)


class Server(Protocol):
    """Ours, or one that others wrote."""

    @property
    def url(self) -> str:
        """Where it listens."""


_Begin: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        kind: ``put``, ``begin`` (of an upload in parts), ``part``, ``complete``, ``abort``, ``copy``, ``read``,
            ``stat``, ``delete``, ``list`` or ``other``.
        name: the object, or the bucket.
        size: bytes of the request's body.
    """

    kind: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this error; ``after`` the request was carried out, or without."""

    status: int
    code: str
    after: bool = False
    message: str = "injected"


@dataclass(frozen=True, slots=True)
class Spoil:
    """Let another byte arrive than was sent."""


@dataclass(frozen=True, slots=True)
class BreakOff:
    """Break the connection in the middle of the answer's body."""


Fault: TypeAlias = Answer | BreakOff | Reset | Spoil


class S3Server:
    """moto's S3 in a thread, behind a plan of what goes wrong; a context manager that starts and stops it."""

    def __init__(self) -> None:
        self.plan: Callable[[Request], Fault | None] = lambda request: None
        self.log: deque[Request] = deque()
        #: Whether a copy is of what was pinned, or of anything.
        self.heeds_pins = True
        #: Of what is uploaded below this name only the first byte is kept.
        self.forget: str | None = None
        # moto looks whether a name is free and then stores, in two steps.
        self._one_at_a_time = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3 server", daemon=True)

    def __enter__(self) -> Self:
        self.reset()  # moto has one state for the process: another server may have left buckets in it
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.reset()

    def reset(self) -> None:
        """Forget everything, plan and log too."""
        self.plan = lambda request: None
        self.forget = None
        self.heeds_pins = True
        self.log.clear()
        _backend().reset()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        _backend().create_bucket(name, "us-east-1")

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""
        with self._one_at_a_time:
            return {name: key.value for name, key in _backend().buckets[bucket].keys.items()}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""
        _backend().put_object(bucket, name, data)

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""
        _backend().delete_object(bucket, name)

    def unfinished_uploads(self, bucket: str) -> int:
        """Uploads in parts that were begun and neither completed nor aborted."""
        return len(_backend().list_multipart_uploads(bucket))

    def _answer(self, environment: dict[str, Any], begin: _Begin) -> Iterable[bytes]:
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        request = Request(_kind(environment), environment["PATH_INFO"].lstrip("/").partition("/")[2], len(body))
        self.log.append(request)
        fault = self.plan(request)
        if isinstance(fault, Spoil):
            body = body.replace(b"content", b"contend")
        if self.forget is not None and request.kind in {"put", "part"} and request.name.startswith(self.forget):
            body = body[:1]
            environment["CONTENT_LENGTH"] = str(len(body))
        carried_out = None
        if not isinstance(fault, Answer | Reset) or fault.after:
            carried_out = self._carried_out(environment, body)
        if isinstance(fault, Reset):
            environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        if isinstance(fault, Answer):
            said = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>".encode()
            begin(f"{fault.status} injected", [("Content-Type", "application/xml"), ("Content-Length", str(len(said)))])
            return [] if environment["REQUEST_METHOD"] == "HEAD" else [said]
        assert carried_out is not None
        status, headers, answer = carried_out
        begin(status, headers)
        if isinstance(fault, BreakOff):
            return self._half(answer, environment["werkzeug.socket"])
        return [answer]

    def _half(self, answer: bytes, connection: socket.socket) -> Iterator[bytes]:
        yield answer[: len(answer) // 2]
        connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def _carried_out(self, environment: dict[str, Any], body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        heads: list[tuple[str, list[tuple[str, str]]]] = []

        def begin(status: str, headers: list[tuple[str, str]], *error: object) -> None:
            heads.append((status, headers))

        with self._one_at_a_time:
            if self.heeds_pins and _is_copy_of_another(environment):
                said = "<Error><Code>PreconditionFailed</Code><Condition>x-amz-copy-source-If-Match</Condition></Error>"
                return "412 Precondition Failed", [("Content-Type", "application/xml")], said.encode()
            answer = b"".join(self._moto({**environment, "wsgi.input": _Body(body)}, begin))
        status, headers = heads[-1]
        return status, headers, answer


class _Body:
    """What werkzeug reads a request's body from."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._left) if size is None or size < 0 else size
        found, self._left = self._left[:end], self._left[end:]
        return found

    def readline(self, size: int = -1) -> bytes:
        line, newline, _ = self._left.partition(b"\n")
        return self.read(len(line) + len(newline))


class _Silent(WSGIRequestHandler):
    """Says nothing of each request, nor of a connection that was broken on purpose."""

    def log(self, type: str, message: str, *given: Any) -> None:  # noqa: A002 - werkzeug's name
        del type, message, given


def _backend() -> S3Backend:
    backend: S3Backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    return backend


def _is_copy_of_another(environment: Mapping[str, Any]) -> bool:
    """Whether a copy is asked for of an object that is not the one that was pinned."""
    pinned = environment.get("HTTP_X_AMZ_COPY_SOURCE_IF_MATCH")
    if pinned is None:
        return False
    bucket, _, name = unquote(environment["HTTP_X_AMZ_COPY_SOURCE"]).lstrip("/").partition("/")
    source = _backend().buckets[bucket].keys.get(name)
    return source is not None and source.etag.strip('"') != pinned.strip('"')


def _kind(environment: dict[str, Any]) -> str:
    query = parse_qs(environment.get("QUERY_STRING", ""), keep_blank_values=True)
    match environment["REQUEST_METHOD"], "uploadId" in query:
        case "PUT", False if "HTTP_X_AMZ_COPY_SOURCE" in environment:
            return "copy"
        case "PUT", in_parts:
            return "part" if in_parts else "put"
        case "POST", True:
            return "complete"
        case "POST", False:
            return "begin" if "uploads" in query else "other"
        case "DELETE", in_parts:
            return "abort" if in_parts else "delete"
        case "HEAD", _:
            return "stat"
        case "GET", _:
            return "list" if "list-type" in query else "read"
    return "other"


def bucket_of(server: Server, prefix: str = "base", **options: Any) -> S3FileSystem:
    """What a job sees of the server's bucket."""
    return S3FileSystem(BUCKET, prefix, {**connection(server.url), **options})


def answering_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let the library ask again at once, and take parts of any size for parts: moto is slow."""
    wait = asyncio.sleep

    async def at_once(seconds: float) -> None:
        del seconds
        await wait(0)

    patch.setattr(aiobotocore.endpoint.asyncio, "sleep", at_once)
    patch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def connection(url: str) -> dict[str, Any]:
    """The storage options for a server, by where it is."""
    return {"endpoint_url": url, "key": KEY, "secret": SECRET}
