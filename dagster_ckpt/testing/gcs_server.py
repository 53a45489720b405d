"""A server of Google Cloud Storage's JSON API that is strict where a store of checkpoints needs it to be.

Preconditions are honoured, listings come in pages, an object of a resumable upload appears when the last byte is there,
and generations rise. Like a real one it answers late, refuses, loses replies and hangs, when it is told to::

    with GcsServer(latency=0.03) as server:
        server.create_bucket("checkpoints")
        server.plan = lambda request: Reset(after=True) if request.kind == "insert" else None
        storage = GcsFileSystem("checkpoints", options={"endpoint_url": server.url, "token": "anon"})

It lives in a thread of the process that started it and keeps everything in memory. By itself it is a bucket on a
laptop: ``python -m dagster_ckpt.testing.gcs_server --bucket checkpoints``. What it does not know it answers with status
501, so that nothing is tested against a guess.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import quote, unquote

import google_crc32c
from aiohttp import web

__all__ = ["Alter", "Answer", "Fault", "GcsServer", "Hang", "Plan", "Request", "Reset"]

_PAGE = 1000
_MADE = "2026-01-01T00:00:00.000Z"
_UNIT = 256 << 10
_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")
_OBJECTS = re.compile(r"/(upload/)?storage/v1/b/([^/]+)/o")
_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_ABOUT_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_UNMET = "At least one of the pre-conditions you specified did not hold."
#: What a status is called in the body of an error.
_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    503: "backendError",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        sequence: its number, from 0.
        kind: ``insert``, ``begin`` (of a resumable upload), ``append``, ``cancel``, ``read``, ``stat``, ``delete``,
            ``list``, ``bucket``, ``status`` or ``unknown``.
        name: the object, or the prefix of a listing.
        size: bytes of the request's body.
    """

    sequence: int
    kind: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this status; ``after`` the request was carried out, or without."""

    status: int
    after: bool = False
    message: str = "injected"


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection; ``after`` the request was carried out, or without."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """Carry the request out after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Alter:
    """Send other bytes than are stored, with a fitting length: what ``change`` makes of them."""

    change: Callable[[bytes], bytes]


Fault: TypeAlias = Answer | Reset | Hang | Alter
Plan: TypeAlias = Callable[[Request], "Fault | None"]
_Action: TypeAlias = Callable[[], web.Response]


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    generation: int


@dataclass(slots=True)
class _Upload:
    """A resumable upload that is not at its end."""

    bucket: str
    name: str
    conditions: dict[str, str]
    declared: dict[str, Any]
    received: bytearray = field(default_factory=bytearray)


class GcsServer:
    """The server; a context manager that starts and stops it.

    Args:
        latency: seconds that each request takes longer.
        token: the bearer token that requests must carry; ``None`` for none.
        port: of this machine; 0 for any that is free.
    """

    def __init__(self, latency: float = 0.0, token: str | None = None, port: int = 0) -> None:
        self.latency = latency
        self.token = token
        self.plan: Plan = _no_fault
        #: The bytes of objects whose names begin so are not kept.
        self.forget: str | None = None
        self.log: deque[Request] = deque()
        self.url = ""
        #: The greatest number of requests that were under way at once.
        self.most_at_once = 0
        self._at_once = 0
        self._port = port
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._sequence = itertools.count()
        self._generation = itertools.count(1_700_000_000_000_000)
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="gcs server", daemon=True)

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

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._buckets[name] = {}

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What a bucket holds, by name."""
        return {name: item.data for name, item in self._buckets[bucket].items()}

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""
        self._buckets[bucket][name] = _Object(data, next(self._generation))

    def discard(self, bucket: str, name: str) -> None:
        """Remove an object behind everybody's back."""
        del self._buckets[bucket][name]

    @property
    def unfinished_uploads(self) -> int:
        """Resumable uploads that were begun and neither finished nor cancelled."""
        return len(self._uploads)

    async def _start(self) -> None:
        application = web.Application(client_max_size=1 << 34)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        # Hundreds of connections come at once when nobody limits an upload.
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _serve(self, incoming: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            body = await incoming.read()
            kind, name, action = self._route(incoming, body)
            request = Request(next(self._sequence), kind, name, len(body))
            self.log.append(request)
            if self.latency:
                await asyncio.sleep(self.latency)
            if self.token is not None and incoming.headers.get("Authorization") != f"Bearer {self.token}":
                return _error(401, "Invalid Credentials")
            return await self._act(incoming, action, self.plan(request))
        finally:
            self._at_once -= 1

    async def _act(self, incoming: web.Request, action: _Action, fault: Fault | None) -> web.StreamResponse:
        match fault:
            case Answer(status, after, message):
                if after:
                    action()
                return _error(status, message)
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

    def _route(self, request: web.Request, body: bytes) -> tuple[str, str, _Action]:
        method, path, query = request.method, request.rel_url.raw_path, dict(request.query)
        if (found := _OBJECTS.fullmatch(path)) and found[1]:
            return self._route_upload(request, unquote(found[2]), query, body)
        if found and method == "GET":
            prefix = query.get("prefix", "")
            bucket = unquote(found[2])
            return "list", prefix, lambda: self._list(bucket, query)
        if found := _OBJECT.fullmatch(path):
            bucket, name = unquote(found[1]), unquote(found[2])
            if method == "GET" and query.get("alt") == "media":
                return "read", name, lambda: self._read(bucket, name, query, request.headers.get("Range"))
            if method == "GET":
                return "stat", name, lambda: self._stat(bucket, name, query)
            if method == "DELETE":
                return "delete", name, lambda: self._delete(bucket, name, query)
        if (found := _ABOUT_BUCKET.fullmatch(path)) and method == "GET":
            bucket = unquote(found[1])
            return "bucket", bucket, lambda: self._about(bucket)
        if path == "/":
            return "status", "", self._status
        if path == "/storage/v1/b" and method == "POST":
            bucket = str(json.loads(body)["name"])
            return "bucket", bucket, lambda: self._make(bucket)
        return "unknown", path, lambda: _error(501, f"not implemented: {method} {path}")

    def _route_upload(
        self, request: web.Request, bucket: str, query: dict[str, str], body: bytes
    ) -> tuple[str, str, _Action]:
        if (token := query.get("upload_id")) is not None:
            name = self._uploads[token].name if token in self._uploads else ""
            if request.method == "DELETE":
                return "cancel", name, lambda: self._cancel(token)
            return "append", name, lambda: self._append(token, request.headers.get("Content-Range", ""), body)
        match query.get("uploadType"):
            case "media":
                return "insert", query["name"], lambda: self._store(bucket, query["name"], body, query)
            case "multipart":
                about, data = _parts(request.headers["Content-Type"], body)
                name = query.get("name") or str(about["name"])
                return "insert", name, lambda: self._store(bucket, name, data, query, about)
            case "resumable":
                about = json.loads(body) if body else {}
                name = query.get("name") or str(about["name"])
                return "begin", name, lambda: self._begin(bucket, name, query, about)
        return "unknown", request.path, lambda: _error(400, "invalid uploadType")

    def _about(self, bucket: str) -> web.Response:
        if bucket not in self._buckets:
            return _error(404, "The specified bucket does not exist.")
        about = {"kind": "storage#bucket", "name": bucket, "locationType": "region", "storageClass": "STANDARD"}
        return _answer({**about, "timeCreated": _MADE, "updated": _MADE})

    def _status(self) -> web.Response:
        """What was asked so far, itself not counted: requests, and bytes of their bodies."""
        asked = [request for request in self.log if request.kind != "status"]
        return _answer({"requests": len(asked), "bytes": sum(request.size for request in asked)})

    def _make(self, bucket: str) -> web.Response:
        if not _BUCKET.fullmatch(bucket):
            return _error(400, f"Invalid bucket name: '{bucket}'")
        if bucket in self._buckets:
            return _error(409, "Your previous request to create the named bucket succeeded and you already own it.")
        self.create_bucket(bucket)
        return self._about(bucket)

    def _list(self, bucket: str, query: Mapping[str, str]) -> web.Response:
        if bucket not in self._buckets:
            return _error(404, "The specified bucket does not exist.")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        begin, end = query.get("startOffset", ""), query.get("endOffset")
        most = min(int(query.get("maxResults", _PAGE)), _PAGE)
        after = base64.urlsafe_b64decode(query["pageToken"]).decode() if "pageToken" in query else ""
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = token = ""
        for name in sorted(self._buckets[bucket]):
            if not name.startswith(prefix) or name < begin or (end and name >= end):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            key = f"{prefix}{head}{delimiter}" if found else name
            if key == last or key <= after:
                continue
            if len(items) + len(prefixes) == most:
                token = base64.urlsafe_b64encode(last.encode()).decode()
                break
            last = key
            if found:
                prefixes.append(key)
            if not found or (name == key and query.get("includeTrailingDelimiter") == "true"):
                items.append(_about(bucket, name, self._buckets[bucket][name]))
        page = {"items": items, "prefixes": prefixes, "nextPageToken": token}
        return _answer({"kind": "storage#objects", **{key: value for key, value in page.items() if value}})

    def _find(self, bucket: str, name: str, query: Mapping[str, str], unless: int = 304) -> _Object | web.Response:
        """An object, or the answer that it is not there or not as it should be.

        ``unless`` is the status for a generation that was not wanted: for whoever reads, it is the one he has.
        """
        found = self._buckets.get(bucket, {}).get(name)
        generation = query.get("generation")
        if found is None or (generation is not None and int(generation) != found.generation):
            return _error(404, f"No such object: {bucket}/{name}")
        if query.get("ifGenerationNotMatch") == str(found.generation):
            return web.Response(status=304) if unless == 304 else _error(unless, _UNMET)
        return found if _holds(query, found) else _error(412, _UNMET)

    def _stat(self, bucket: str, name: str, query: Mapping[str, str]) -> web.Response:
        found = self._find(bucket, name, query)
        return found if isinstance(found, web.Response) else _answer(_about(bucket, name, found))

    def _read(self, bucket: str, name: str, query: Mapping[str, str], asked: str | None) -> web.Response:
        found = self._find(bucket, name, query)
        if isinstance(found, web.Response):
            return found
        data = found.data
        headers = {"X-Goog-Generation": str(found.generation)}
        limits = _RANGE.fullmatch(asked.strip()) if asked else None
        reversed_limits = limits is not None and limits[1] and limits[2] and int(limits[2]) < int(limits[1])
        if limits is None or reversed_limits or not (limits[1] or limits[2]):
            headers["X-Goog-Hash"] = f"crc32c={_crc32c(data)},md5={_md5(data)}"
            return web.Response(body=data, headers=headers)
        begin = int(limits[1]) if limits[1] else max(0, len(data) - int(limits[2]))
        end = min(len(data), int(limits[2]) + 1) if limits[1] and limits[2] else len(data)
        if begin >= len(data):
            return _error(416, "The requested range cannot be satisfied.")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return web.Response(body=data[begin:end], status=206, headers=headers)

    def _delete(self, bucket: str, name: str, query: Mapping[str, str]) -> web.Response:
        found = self._find(bucket, name, query, unless=412)
        if isinstance(found, web.Response):
            return found
        del self._buckets[bucket][name]
        return web.Response(status=204)

    def _store(
        self, bucket: str, name: str, data: bytes, query: Mapping[str, str], declared: Mapping[str, Any] | None = None
    ) -> web.Response:
        if bucket not in self._buckets:
            return _error(404, "The specified bucket does not exist.")
        if not _holds(query, self._buckets[bucket].get(name)):
            return _error(412, _UNMET)
        for key, digest in (("md5Hash", _md5), ("crc32c", _crc32c)):
            if declared and key in declared and declared[key] != digest(data):
                return _error(400, f"What came has another {key} than was announced.")
        stored = _Object(data, next(self._generation))
        kept = self.forget is None or not name.startswith(self.forget)
        self._buckets[bucket][name] = stored if kept else _Object(b"", stored.generation)
        return _answer(_about(bucket, name, stored))

    def _begin(self, bucket: str, name: str, query: dict[str, str], declared: dict[str, Any]) -> web.Response:
        if bucket not in self._buckets:
            return _error(404, "The specified bucket does not exist.")
        if not _holds(query, self._buckets[bucket].get(name)):
            return _error(412, _UNMET)
        token = f"upload-{next(self._generation)}"
        self._uploads[token] = _Upload(bucket, name, query, declared)
        kept = "&ifGenerationMatch=0" if query.get("ifGenerationMatch") == "0" else ""
        where = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={quote(name, safe='')}"
        return web.Response(headers={"Location": f"{where}&upload_id={token}{kept}"})

    def _append(self, token: str, asked: str, body: bytes) -> web.Response:
        upload, limits = self._uploads.get(token), _CONTENT_RANGE.fullmatch(asked.strip())
        if upload is None:
            return _error(404, "No such upload session.")
        total = None if limits is None or limits[3] == "*" else int(limits[3])
        if limits is not None and limits[1] is not None:
            begin, have = int(limits[1]), len(upload.received)
            if begin > have:
                return _error(503, "There is a gap before these bytes.")
            if total is None and len(body) % _UNIT:
                return _error(400, "invalid: all but the last part must be multiples of 256 KiB")
            upload.received += body[have - begin :]
        elif limits is None:
            upload.received += body
            total = len(upload.received)
        if total is not None and len(upload.received) >= total:
            del self._uploads[token]
            return self._store(upload.bucket, upload.name, bytes(upload.received), upload.conditions, upload.declared)
        headers = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
        return web.Response(status=308, headers=headers)

    def _cancel(self, token: str) -> web.Response:
        return web.Response(status=404 if self._uploads.pop(token, None) is None else 499)


def _no_fault(request: Request) -> None:
    del request


def _holds(query: Mapping[str, str], found: _Object | None) -> bool:
    """Whether the preconditions of a request hold."""
    generation = 0 if found is None else found.generation
    wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    return (wanted is None or int(wanted) == generation) and (unwanted is None or int(unwanted) != generation)


def _parts(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The description and the data of a multipart upload, whose lines gcsfs ends as Unix does."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    assert boundary is not None
    mark = b"--" + boundary[1].encode()
    inner = body[body.index(mark) + len(mark) : body.rindex(mark + b"--")]
    first, _, second = inner.lstrip(b"\r\n").partition(mark)
    _, about = re.split(rb"\r?\n\r?\n", first, maxsplit=1)
    _, data = re.split(rb"\r?\n\r?\n", second, maxsplit=1)
    return json.loads(about), data.removesuffix(b"\n").removesuffix(b"\r")


def _about(bucket: str, name: str, item: _Object) -> dict[str, Any]:
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{item.generation}",
        "name": name,
        "bucket": bucket,
        "size": str(len(item.data)),
        "generation": str(item.generation),
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "timeCreated": _MADE,
        "updated": _MADE,
        "md5Hash": _md5(item.data),
        "crc32c": _crc32c(item.data),
        "etag": f"e{item.generation}",
    }


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _answer(content: Mapping[str, Any]) -> web.Response:
    return web.json_response(content)


def _error(status: int, message: str) -> web.Response:
    reason = {"message": message, "domain": "global", "reason": _REASONS.get(status, message)}
    return web.json_response({"error": {"code": status, "message": message, "errors": [reason]}}, status=status)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one bucket until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m dagster_ckpt.testing.gcs_server", description=main.__doc__)
    parser.add_argument("--bucket", default="checkpoints", help="its name")
    parser.add_argument("--port", type=int, default=0, help="of this machine; 0 for any that is free")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes longer")
    options = parser.parse_args(arguments)
    with GcsServer(options.latency, port=options.port) as server, contextlib.suppress(KeyboardInterrupt):
        server.create_bucket(options.bucket)
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
