"""The routes of Google Cloud Storage's JSON API that :mod:`~dagster_ckpt.testing.gcs.server` answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from aiohttp import web

from dagster_ckpt.testing.disturbed_server import Action
from dagster_ckpt.testing.gcs.messages import Call, batched, calls_of, error, only, two_parts
from dagster_ckpt.testing.gcs.objects import MADE, Buckets, Refused, StoredObject

__all__ = ["GcsApi", "Routed"]

#: The kind of a call, in a word; the name that the call is about; the action that carries it out.
Routed: TypeAlias = tuple[str, str, Action]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")
_UPLOADS = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o")
_OBJECTS = re.compile(r"/storage/v1/b/([^/]+)/o")
_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(copyTo|rewriteTo)/b/([^/]+)/o/([^/]+)")
_MOVE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)")
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)(/storageLayout)?")
_BUCKETS = "/storage/v1/b"
_BATCH = re.compile(r"/batch(?:/storage/v1)?")
_MOST_CALLS = 100
_CHECKSUMS = frozenset({"crc32c", "md5Hash"})
#: Parameters that would change the meaning of a call, and are not known here.
_UNKNOWN = frozenset(
    {
        "deleteSourceObjects",
        "destinationPredefinedAcl",
        "filter",
        "matchGlob",
        "predefinedAcl",
        "restoreToken",
        "softDeleted",
        "versions",
    }
)


class GcsApi:
    """Finds out what a call asks for, without carrying it out.

    Args:
        buckets: the buckets that the actions change.
        status: what ``GET /`` answers.
    """

    def __init__(self, buckets: Buckets, status: Callable[[], Mapping[str, Any]]) -> None:
        #: Whether a listing contains the checksums of objects.
        self.lists_checksums = True
        self._buckets = buckets
        self._status = status

    def route(self, call: Call) -> Routed:
        """What a call asks for."""
        kind, name, action = self._route(call)
        if unknown := _UNKNOWN & call.query.keys():
            return "unknown", call.path, lambda: error(501, f"not implemented: {', '.join(sorted(unknown))}")

        def answer() -> web.Response:
            try:
                return action()
            except Refused as refused:
                return error(refused.status, str(refused))

        return kind, name, answer

    def _route(self, call: Call) -> Routed:
        if found := _UPLOADS.fullmatch(call.path):
            return self._route_upload(call, unquote(found[1]))
        if found := _OBJECT.fullmatch(call.path):
            return self._route_object(call, unquote(found[1]), unquote(found[2]))
        if call.method == "GET":
            return self._route_question(call)
        if call.method == "POST":
            return self._route_change(call)
        return _unknown(call)

    def _route_object(self, call: Call, bucket: str, name: str) -> Routed:
        match call.method:
            case "GET" if call.query.get("alt") == "media":
                return "read", name, lambda: self._read(bucket, name, call)
            case "GET":
                return "stat", name, lambda: _about(call, bucket, name, self._buckets.find(bucket, name, call.query))
            case "DELETE":
                return "delete", name, lambda: self._delete(bucket, name, call)
        return _unknown(call)

    def _route_question(self, call: Call) -> Routed:
        if found := _OBJECTS.fullmatch(call.path):
            bucket = unquote(found[1])
            return "list", call.query.get("prefix", ""), lambda: self._list(bucket, call)
        if found := _BUCKET.fullmatch(call.path):
            bucket, layout = unquote(found[1]), found[2] is not None
            return "bucket", bucket, lambda: self._about_bucket(bucket, call, layout)
        if call.path == _BUCKETS:
            return "bucket", "", lambda: self._list_buckets(call)
        if call.path == "/":
            return "status", "", lambda: web.json_response(self._status())
        return _unknown(call)

    def _route_change(self, call: Call) -> Routed:
        query = call.query
        if found := _COPY.fullmatch(call.path):
            source, target = (unquote(found[1]), unquote(found[2])), (unquote(found[4]), unquote(found[5]))
            if found[3] == "rewriteTo":
                return "copy", target[1], lambda: self._rewrite(source, target, call)
            return (
                "copy",
                target[1],
                lambda: _about(call, *target, self._buckets.copy(source, target, query, call.json)),
            )
        if found := _MOVE.fullmatch(call.path):
            bucket, old, new = (unquote(part) for part in found.groups())
            return "move", new, lambda: _about(call, bucket, new, self._buckets.move(bucket, old, new, query))
        if found := _COMPOSE.fullmatch(call.path):
            bucket, name = unquote(found[1]), unquote(found[2])
            return "compose", name, lambda: self._compose(bucket, name, call)
        if _BATCH.fullmatch(call.path):
            return "batch", "", lambda: self._batch(call)
        if call.path == _BUCKETS:
            bucket = str(call.json["name"])
            return "bucket", bucket, lambda: self._make(bucket, call)
        return _unknown(call)

    def _route_upload(self, call: Call, bucket: str) -> Routed:
        query = call.query
        if (token := query.get("upload_id")) is not None:
            upload = self._buckets.uploads.get(token)
            name = "" if upload is None else upload.name
            if call.method == "DELETE":
                return "cancel", name, lambda: self._cancel(token)
            return "append", name, lambda: self._append(token, call)
        match query.get("uploadType"):
            case "media":
                about = {"contentType": call.headers.get("Content-Type", "")}
                return "insert", query["name"], lambda: self._store(bucket, query["name"], call, call.body, about)
            case "multipart":
                about, data = two_parts(call.headers["Content-Type"], call.body)
                name = query.get("name") or str(about["name"])
                return "insert", name, lambda: self._store(bucket, name, call, data, about)
            case "resumable":
                kind = {"contentType": call.headers.get("X-Upload-Content-Type", "")}
                about = {**kind, **call.json}
                name = query.get("name") or str(about["name"])
                return "begin", name, lambda: self._begin(bucket, name, call, about)
        return "unknown", call.path, lambda: error(400, "invalid uploadType")

    def _about_bucket(self, bucket: str, call: Call, layout: bool = False) -> web.Response:
        self._buckets.of(bucket)
        if layout:
            where = {"location": "EUROPE-WEST1", "locationType": "region"}
            return _answer(call, {"kind": "storage#storageLayout", "bucket": bucket, **where})
        return _answer(call, _bucket(bucket))

    def _list_buckets(self, call: Call) -> web.Response:
        items = [_bucket(bucket) for bucket in self._buckets.names()]
        return _answer(call, {"kind": "storage#buckets", **({"items": items} if items else {})})

    def _make(self, bucket: str, call: Call) -> web.Response:
        self._buckets.make(bucket)
        return self._about_bucket(bucket, call)

    def _list(self, bucket: str, call: Call) -> web.Response:
        page = self._buckets.page(bucket, call.query)
        objects = self._buckets.of(bucket)
        items = [_described(call, bucket, name, objects[name]) for name in page.names]
        if not self.lists_checksums:
            items = [{key: value for key, value in item.items() if key not in _CHECKSUMS} for item in items]
        parts = {"items": items, "prefixes": page.prefixes, "nextPageToken": page.token}
        return _answer(call, {"kind": "storage#objects", **{key: value for key, value in parts.items() if value}})

    def _read(self, bucket: str, name: str, call: Call) -> web.Response:
        found = self._buckets.find(bucket, name, call.query)
        data, asked = found.data, call.headers.get("Range")
        headers = {
            "Content-Type": found.content_type,
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Metageneration": "1",
            "X-Goog-Stored-Content-Length": str(len(data)),
            "X-Goog-Stored-Content-Encoding": str(found.said.get("contentEncoding", "identity")),
        }
        limits = _RANGE.fullmatch(asked.strip()) if asked else None
        reversed_limits = limits is not None and limits[1] and limits[2] and int(limits[2]) < int(limits[1])
        if limits is None or reversed_limits or not (limits[1] or limits[2]):
            proof = f"crc32c={found.crc32c}" + ("" if found.components else f",md5={found.md5}")
            return web.Response(body=data, headers={**headers, "X-Goog-Hash": proof})
        begin = int(limits[1]) if limits[1] else max(0, len(data) - int(limits[2]))
        end = min(len(data), int(limits[2]) + 1) if limits[1] and limits[2] else len(data)
        if begin >= len(data):
            return error(416, "The requested range cannot be satisfied.")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return web.Response(body=data[begin:end], status=206, headers=headers)

    def _delete(self, bucket: str, name: str, call: Call) -> web.Response:
        self._buckets.delete(bucket, name, call.query)
        return web.Response(status=204)

    def _store(self, bucket: str, name: str, call: Call, data: bytes, about: Mapping[str, Any]) -> web.Response:
        return _about(call, bucket, name, self._buckets.store(bucket, name, data, call.query, about))

    def _begin(self, bucket: str, name: str, call: Call, about: Mapping[str, Any]) -> web.Response:
        token = self._buckets.begin(bucket, name, call.query, about)
        kept = "&ifGenerationMatch=0" if call.query.get("ifGenerationMatch") == "0" else ""
        server = f"http://{call.headers['Host']}"
        where = f"{server}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={quote(name, safe='')}"
        return web.Response(headers={"Location": f"{where}&upload_id={token}{kept}"})

    def _append(self, token: str, call: Call) -> web.Response:
        limits = _CONTENT_RANGE.fullmatch(call.headers.get("Content-Range", "").strip())
        if limits is None:
            upload, stored = self._buckets.append(token, call.body)
        else:
            begin = None if limits[1] is None else int(limits[1])
            total = None if limits[3] == "*" else int(limits[3])
            upload, stored = self._buckets.append_at(token, begin, total, call.body)
        if stored is not None:
            return _about(call, upload.bucket, upload.name, stored)
        headers = {"Range": f"bytes=0-{len(upload.received) - 1}"} if upload.received else {}
        if call.headers.get("X-GUploader-No-308") == "yes":  # for clients that treat 308 as a redirect
            return web.Response(headers={**headers, "X-HTTP-Status-Code-Override": "308"})
        return web.Response(status=308, headers=headers)

    def _cancel(self, token: str) -> web.Response:
        return web.Response(status=404 if self._buckets.uploads.pop(token, None) is None else 499)

    def _rewrite(self, source: tuple[str, str], target: tuple[str, str], call: Call) -> web.Response:
        copied, total, left = self._buckets.rewrite(source, target, call.query, call.json)
        told: dict[str, Any] = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(copied),
            "objectSize": str(total),
            "done": isinstance(left, StoredObject),
        }
        if isinstance(left, StoredObject):
            return _answer(call, {**told, "resource": _described(call, *target, left)})
        return _answer(call, {**told, "rewriteToken": left})

    def _compose(self, bucket: str, name: str, call: Call) -> web.Response:
        asked = call.json
        sources, about = asked.get("sourceObjects", []), asked.get("destination", {})
        return _about(call, bucket, name, self._buckets.compose(bucket, name, sources, call.query, about))

    def _batch(self, call: Call) -> web.Response:
        calls = list(calls_of(call.headers["Content-Type"], call.body))
        if len(calls) > _MOST_CALLS:
            return error(400, f"The batch has more than {_MOST_CALLS} calls.")
        answers = []
        for name, part in calls:
            kind, _, action = self.route(part)
            if kind in {"insert", "begin", "append", "read", "batch"}:
                answers.append((name, error(400, "Neither content nor another batch can be part of a batch.")))
            else:
                answers.append((name, action()))
        return batched(answers)


def _unknown(call: Call) -> Routed:
    return "unknown", call.path, lambda: error(501, f"not implemented: {call.method} {call.path}")


def _answer(call: Call, content: Mapping[str, Any]) -> web.Response:
    body = json.dumps(only(call.query.get("fields"), content)).encode()
    return web.Response(body=body, headers={"Content-Type": "application/json; charset=UTF-8"})


def _about(call: Call, bucket: str, name: str, item: StoredObject) -> web.Response:
    return _answer(call, _described(call, bucket, name, item))


def _described(call: Call, bucket: str, name: str, item: StoredObject) -> dict[str, Any]:
    """The description of an object, with the link by which some clients read the object."""
    about = item.resource(bucket, name)
    if (host := call.headers.get("Host")) is None:  # a part of a batch
        return about
    where = f"http://{host}/storage/v1/b/{quote(bucket)}/o/{quote(name, safe='')}"
    return {**about, "mediaLink": f"{where}?generation={item.generation}&alt=media"}


def _bucket(name: str) -> dict[str, Any]:
    where = {"location": "EUROPE-WEST1", "locationType": "region", "storageClass": "STANDARD"}
    return {"kind": "storage#bucket", "id": name, "name": name, **where, "timeCreated": MADE, "updated": MADE}
