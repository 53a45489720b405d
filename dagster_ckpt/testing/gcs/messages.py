"""The pieces of requests and answers of Google's JSON API: parts, partial responses, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from aiohttp import web
from multidict import CIMultiDict

__all__ = ["Call", "batched", "calls_of", "error", "only", "parts_of", "two_parts"]

#: The name of a status in the body of an error.
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
_Mask: TypeAlias = dict[str, "_Mask"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request, by itself or as a part of a batch.

    Attributes:
        method: such as ``GET``.
        path: as sent, quoted.
        query: the parameters.
        headers: with case-insensitive names.
        body: the bytes of the body.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as JSON; empty without a body."""
        told: dict[str, Any] = json.loads(self.body) if self.body.strip() else {}
        return told


def error(status: int, message: str) -> web.Response:
    """An error in the API's form."""
    if status == web.HTTPNotModified.status_code:
        return web.Response(status=status)
    reason = {"message": message, "domain": "global", "reason": _REASONS.get(status, message)}
    return web.json_response({"error": {"code": status, "message": message, "errors": [reason]}}, status=status)


def only(fields: str | None, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of an answer that ``fields`` selects, such as ``items(name,size),nextPageToken``."""
    if not fields:
        return content
    left: dict[str, Any] = _masked(_mask(re.findall(r"[^,()/\s]+|[,()/]", fields)), content)
    return left


def _mask(tokens: list[str]) -> _Mask:
    """Take tokens from the left, up to the closing bracket of this level."""
    mask: _Mask = {}
    while tokens and tokens[0] != ")":
        name = tokens.pop(0)
        if name == ",":
            continue
        inner = mask.setdefault(name, {})
        while tokens and tokens[0] == "/":
            tokens.pop(0)
            inner = inner.setdefault(tokens.pop(0), {})
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            inner.update(_mask(tokens))
            tokens.pop(0)
    return mask


def _masked(mask: _Mask, content: Any) -> Any:
    if not mask or "*" in mask:
        return content
    if isinstance(content, list):
        return [_masked(mask, item) for item in content]
    if not isinstance(content, Mapping):
        return content
    return {key: _masked(mask[key], value) for key, value in content.items() if key in mask}


def parts_of(content_type: str, body: bytes) -> list[tuple[Mapping[str, str], bytes]]:
    """Headers and content of the parts of a message; lines may end with LF, as gcsfs sends them.

    Lines end as the line of the first mark does: a CR before an LF that ends a line belongs to the content.
    """
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    assert boundary is not None
    mark = b"--" + boundary[1].encode()
    inner = body[body.index(mark) + len(mark) : body.rindex(mark + b"--")]
    line_break = b"\r\n" if inner.startswith(b"\r\n") else b"\n"
    parts = []
    # The line break before a mark belongs to the mark.
    for part in inner.removesuffix(line_break).split(line_break + mark):
        # One line break ends the mark; a second line break right after it means that there are no headers.
        head, content = _head_and_content(part.removeprefix(line_break))
        parts.append((_headers(head), content))
    return parts


def two_parts(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The description and the data of an upload in one request; the type of the data is part of the description."""
    (_, about), (headers, data) = parts_of(content_type, body)
    kind = {"contentType": headers["Content-Type"]} if "Content-Type" in headers else {}
    return {**kind, **json.loads(about)}, data


def calls_of(content_type: str, body: bytes) -> Iterator[tuple[str, Call]]:
    """The calls in a batch, each with its id."""
    for headers, content in parts_of(content_type, body):
        head, inner = _head_and_content(content.lstrip(b"\r\n"))
        line, _, rest = head.partition(b"\n")
        method, where, *_ = line.decode().split()
        path, _, asked = re.sub(r"\Ahttps?://[^/]*", "", where).partition("?")
        query = dict(parse_qsl(asked, keep_blank_values=True))
        yield headers.get("Content-ID", ""), Call(method, path, query, _headers(rest), inner)


def batched(answers: list[tuple[str, web.Response]]) -> web.Response:
    """One answer that contains the answers to the calls of a batch."""
    mark, lines = "batch_of_answers", []
    for name, answer in answers:
        body = answer.body if isinstance(answer.body, bytes) else b""
        head = [f"HTTP/1.1 {answer.status} {answer.reason}", f"Content-Length: {len(body)}"]
        head += [f"{key}: {value}" for key, value in answer.headers.items() if key.lower() != "content-length"]
        named = [f"Content-ID: <response-{name.strip('<>')}>"] if name else []
        before = "\r\n".join([f"--{mark}", "Content-Type: application/http", *named, "", *head, "", ""])
        lines.append(before.encode() + body)
    content = b"\r\n".join([*lines, f"--{mark}--".encode(), b""])
    return web.Response(body=content, headers={"Content-Type": f"multipart/mixed; boundary={mark}"})


def _head_and_content(message: bytes) -> tuple[bytes, bytes]:
    """The text before and after the first empty line."""
    if (empty := re.search(rb"(?:\A|\r?\n)\r?\n", message)) is None:
        return message.strip(), b""
    return message[: empty.start()], message[empty.end() :]


def _headers(head: bytes) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in head.decode().splitlines())
    return CIMultiDict((name.strip(), value.strip()) for name, colon, value in pairs if colon)
