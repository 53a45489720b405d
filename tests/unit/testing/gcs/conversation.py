"""Requests to our server of Google Cloud Storage's API and to fake-gcs-server, and what of the answers is compared."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import google_crc32c
import requests

from tests.servers.gcs import BUCKET


@dataclass(frozen=True, slots=True)
class Told:
    """What of an answer somebody relies on."""

    status: int
    content: object = None


@dataclass(frozen=True, slots=True)
class Instead:
    """What fake-gcs-server answers otherwise, and why that says nothing about ours."""

    told: Told
    reason: str


Look = Callable[[requests.Response], object]


@dataclass
class Conversation:
    """Requests to one server, and where its answers were not the expected ones."""

    url: str
    is_ours: bool
    differences: list[str] = field(default_factory=list)
    session: requests.Session = field(default_factory=requests.Session)

    def ask(
        self,
        line: str,
        method: str,
        where: str,
        documented: Told,
        instead: Instead | None = None,
        *,
        look: Look = lambda answer: None,
        **request: Any,
    ) -> requests.Response:
        """Send a request and compare the answer."""
        url = where if where.startswith("http") else self.url + where
        answer = self.session.request(method, url, timeout=60, **request)
        told = Told(answer.status_code, look(answer) if answer.status_code == documented.status else None)
        expected = documented if self.is_ours or instead is None else instead.told
        if told != expected:
            self.differences.append(f"{line}: {told}, expected {expected}")
        return answer


def resource(answer: requests.Response) -> object:
    """What names and proves an object."""
    about = answer.json()
    assert int(about["generation"]) > 0
    assert about["updated"]
    return {key: about.get(key) for key in ("kind", "name", "bucket", "size", "md5Hash", "crc32c", "metageneration")}


def an_object(name: str, data: bytes) -> dict[str, object]:
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": BUCKET,
        "size": str(len(data)),
        "md5Hash": md5(data),
        "crc32c": base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode(),
        "metageneration": "1",
    }


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def page(answer: requests.Response) -> object:
    """Names, common prefixes, and whether there is more; what is empty is left out."""
    told = answer.json()
    assert told["kind"] == "storage#objects"
    assert [] not in (told.get("items"), told.get("prefixes"))
    return [item["name"] for item in told.get("items", [])], told.get("prefixes", []), "nextPageToken" in told


def content(answer: requests.Response) -> object:
    return answer.content, answer.headers.get("Content-Range")


def reason(answer: requests.Response) -> object:
    error = answer.json()["error"]
    return error["code"], error["errors"][0]["reason"]


def received(answer: requests.Response) -> object:
    return answer.headers.get("Range")


def override(answer: requests.Response) -> object:
    return answer.headers.get("X-HTTP-Status-Code-Override"), received(answer)


def failure(status: int, why: str) -> Told:
    return Told(status, (status, why))


def of(name: str) -> str:
    return f"/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}"


OBJECTS = f"/storage/v1/b/{BUCKET}/o"
UPLOAD = f"/upload/storage/v1/b/{BUCKET}/o"


def media(name: str, **more: str) -> dict[str, str]:
    return {"uploadType": "media", "name": name, **more}


def multipart(about: Mapping[str, object], data: bytes, end: bytes) -> bytes:
    lines = [
        *(b"--==0==", b"Content-Type: application/json; charset=UTF-8", b"", json.dumps(about).encode()),
        *(b"--==0==", b"Content-Type: application/octet-stream", b"", data, b"--==0==--"),
    ]
    return end.join(lines)
