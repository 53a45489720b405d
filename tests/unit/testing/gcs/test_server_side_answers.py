"""What both servers answer to copies, moves, composed objects, batches and partial responses.

As in ``test_answers.py``: each line says what Google documents, and what fake-gcs-server (1.56) answers instead.
It turned out that there

* preconditions of copies and composed objects are ignored, and so are the generations of their sources;
* a copy is always made in one request, and what is missing among the sources of a composed object is a status 500;
* objects are not moved, and ``fields`` is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
import requests

from tests.servers.gcs import BUCKET
from tests.unit.testing.gcs.conversation import (
    OBJECTS,
    UPLOAD,
    Conversation,
    Instead,
    Told,
    an_object,
    content,
    failure,
    media,
    multipart,
    of,
    page,
    reason,
    resource,
)

_MIB = 1 << 20
_IGNORED = "Preconditions of copies and composed objects are documented, and ignored."
_NO_MOVE = Instead(Told(400), "Moves are documented; there is no such route.")


def copied(source: str, target: str, how: str = "rewriteTo", bucket: str = BUCKET) -> str:
    return f"{of(source)}/{how}/b/{bucket}/o/{quote(target, safe='')}"


def whole(data: bytes) -> Told:
    return Told(200, (data, None))


def rewritten(answer: requests.Response) -> object:
    told = answer.json()
    assert told["kind"] == "storage#rewriteResponse"
    about = told["resource"]
    return told["done"], int(told["totalBytesRewritten"]), int(told["objectSize"]), about["name"], about["md5Hash"]


def described(answer: requests.Response) -> object:
    about = answer.json()
    return about.get("contentType"), about.get("contentEncoding"), about.get("metadata")


def copying(told: Conversation) -> None:
    ask = told.ask
    ask("create", "POST", UPLOAD, Told(200), params=media("c/f"), data=b"data")
    refused = failure(412, "conditionNotMet")
    ignored = Instead(Told(200), _IGNORED)
    md5 = an_object("", b"data")["md5Hash"]
    done = Told(200, (True, 4, 4, "c/new name", md5))
    ask("rewrite", "POST", copied("c/f", "c/new name"), done, look=rewritten)
    ask("read the copy", "GET", of("c/new name"), whole(b"data"), look=content, params={"alt": "media"})
    ask("the original stays", "GET", of("c/f"), whole(b"data"), look=content, params={"alt": "media"})
    about = Told(200, an_object("c/g", b"data"))
    ask("copy", "POST", copied("c/f", "c/g", "copyTo"), about, look=resource)
    for how in ("rewriteTo", "copyTo"):
        for line, params in {
            "if there is none": {"ifGenerationMatch": "0"},
            "if it is": {"ifGenerationMatch": "7"},
            "if its description is": {"ifMetagenerationMatch": "7"},
            "if the original is": {"ifSourceGenerationMatch": "7"},
            "if the original's description is": {"ifSourceMetagenerationMatch": "7"},
        }.items():
            ask(f"{how} {line}", "POST", copied("c/f", "c/g", how), refused, ignored, look=reason, params=params)
        where = copied("c/f", "c/unmade", how)
        params = {"sourceGeneration": "7"}
        ask(f"{how} of another generation", "POST", where, failure(404, "notFound"), look=reason, params=params)
        ask(f"{how} of nothing", "POST", copied("c/none", "c/h", how), failure(404, "notFound"), look=reason)
        where = copied("c/f", "c/h", how, bucket="no-such-bucket")
        ask(f"{how} to nowhere", "POST", where, failure(404, "notFound"), look=reason)
        ask("nothing was made", "GET", of("c/unmade"), failure(404, "notFound"), look=reason)
    now = ask("which", "GET", of("c/f"), Told(200)).json()["generation"]
    params = {"ifSourceGenerationMatch": now, "ifGenerationMatch": "0", "sourceGeneration": now}
    ask("as it is", "POST", copied("c/f", "c/i"), Told(200), params=params)
    said = {"contentType": "text/plain", "metadata": {"a": "b"}}
    ask("described", "POST", copied("c/f", "c/j"), Told(200), json=said)
    ask("as described", "GET", of("c/j"), Told(200, ("text/plain", None, {"a": "b"})), look=described)
    ask("copy of it", "POST", copied("c/j", "c/k"), Told(200))
    ask("also described", "GET", of("c/k"), Told(200, ("text/plain", None, {"a": "b"})), look=described)


def copying_in_steps(told: Conversation) -> None:
    ask = told.ask
    data = bytes(range(256)) * (5 * _MIB // 2 // 256)
    ask("create", "POST", UPLOAD, Told(200), params=media("large"), data=data)

    def step(answer: requests.Response) -> object:
        so_far = answer.json()
        return (
            so_far["done"],
            int(so_far["totalBytesRewritten"]),
            bool(so_far.get("rewriteToken")),
            "resource" in so_far,
        )

    one = "A copy in steps is documented for copies between locations, where there is none; here each is one step."
    at_once = Instead(Told(200, (True, len(data), False, True)), one)
    asked = {"maxBytesRewrittenPerCall": str(_MIB)}
    first = Told(200, (False, _MIB, True, False))
    answer = ask("first step", "POST", copied("large", "copy"), first, at_once, look=step, params=asked)
    if not told.is_ours:
        return
    ask("it is not there", "GET", of("copy"), failure(404, "notFound"), look=reason)
    token = answer.json()["rewriteToken"]
    bad = failure(400, "invalid")
    ask("of something else", "POST", copied("large", "other"), bad, look=reason, params={"rewriteToken": token})
    answer = ask("once more", "POST", copied("large", "copy"), first, look=step, params=asked)
    asked["rewriteToken"] = answer.json()["rewriteToken"]
    second = Told(200, (False, 2 * _MIB, True, False))
    answer = ask("second step", "POST", copied("large", "copy"), second, look=step, params=asked)
    ask("a token twice", "POST", copied("large", "copy"), bad, look=reason, params=asked)
    asked["rewriteToken"] = answer.json()["rewriteToken"]
    ask(
        "last step", "POST", copied("large", "copy"), Told(200, (True, len(data), False, True)), look=step, params=asked
    )
    ask("whole", "GET", of("copy"), whole(data), look=content, params={"alt": "media"})
    asked = {"maxBytesRewrittenPerCall": "1000"}
    ask("not a MiB", "POST", copied("large", "other"), bad, look=reason, params=asked)
    asked = {"maxBytesRewrittenPerCall": str(_MIB)}
    token = ask("first step", "POST", copied("large", "other"), first, look=step, params=asked).json()["rewriteToken"]
    ask("another original", "POST", UPLOAD, Told(200), params=media("large"), data=b"new")
    ask("of the old one", "POST", copied("large", "other"), bad, look=reason, params={"rewriteToken": token})


def moving(told: Conversation) -> None:
    ask = told.ask
    made = ask("create", "POST", UPLOAD, Told(200), params=media("m/old"), data=b"data").json()["generation"]
    ask("create another", "POST", UPLOAD, Told(200), params=media("m/there"), data=b"there")
    there = f"{of('m/old')}/moveTo/o/m%2Fthere"
    refused = failure(412, "conditionNotMet")
    ask("not over it", "POST", there, refused, _NO_MOVE, look=reason, params={"ifGenerationMatch": "0"})
    ask("not another", "POST", there, refused, _NO_MOVE, look=reason, params={"ifSourceGenerationMatch": "7"})
    ask("onto itself", "POST", f"{of('m/old')}/moveTo/o/m%2Fold", failure(400, "invalid"), look=reason)
    ask("it stays", "GET", of("m/there"), whole(b"there"), look=content, params={"alt": "media"})
    moved = Told(200, an_object("m/there", b"data"))
    params = {"ifSourceGenerationMatch": made}
    ask("move", "POST", there, moved, _NO_MOVE, look=resource, params=params)
    gone = Instead(Told(200), "It was not moved.")
    ask("the old name", "GET", of("m/old"), failure(404, "notFound"), gone, look=reason)
    ask("nothing", "POST", f"{of('m/none')}/moveTo/o/x", failure(404, "notFound"), _NO_MOVE, look=reason)


def composing(told: Conversation) -> None:
    ask = told.ask
    for name in ("1", "2", "3"):
        ask("create", "POST", UPLOAD, Told(200), params=media(f"p/{name}"), data=name.encode() * 3)

    def of_parts(*names: str, **more: object) -> dict[str, object]:
        return {"sourceObjects": [{"name": f"p/{name}"} for name in names], **more}

    def composed(answer: requests.Response) -> object:
        about = answer.json()
        return about["name"], about["size"], about["crc32c"], about.get("md5Hash"), about.get("componentCount")

    data = b"111333222"
    about = an_object("p/whole", data)
    described_parts = of_parts("1", "3", "2", destination={"contentType": "text/plain", "metadata": {"a": "b"}})
    where = f"{of('p/whole')}/compose"
    expected = ("p/whole", "9", about["crc32c"], None, 3)
    proven = Instead(
        Told(200, ("p/whole", "9", about["crc32c"], about["md5Hash"], None)),
        "A composed object is documented to have a count of components and no MD5; here it is like any other.",
    )
    ask("compose", "POST", where, Told(200, expected), proven, look=composed, json=described_parts)
    ask("whole", "GET", of("p/whole"), whole(data), look=content, params={"alt": "media"})
    ask("as described", "GET", of("p/whole"), Told(200, ("text/plain", None, {"a": "b"})), look=described)
    ask("the parts stay", "GET", of("p/3"), whole(b"333"), look=content, params={"alt": "media"})
    ignored = Instead(Told(200), _IGNORED)
    refused = failure(412, "conditionNotMet")
    params = {"ifGenerationMatch": "0"}
    ask("not over it", "POST", where, refused, ignored, look=reason, params=params, json=of_parts("1"))
    other = {"sourceObjects": [{"name": "p/1", "objectPreconditions": {"ifGenerationMatch": "7"}}]}
    ask("another part", "POST", where, refused, ignored, look=reason, json=other)
    other = {"sourceObjects": [{"name": "p/1", "generation": "7"}]}
    ask("a part of old", "POST", where, failure(404, "notFound"), ignored, look=reason, json=other)
    internal = Instead(Told(500), "A source that is not there is documented to be 404.")
    ask("no such part", "POST", where, failure(404, "notFound"), internal, look=reason, json=of_parts("1", "9"))
    many = of_parts(*["1"] * 33)
    ask("too many", "POST", where, failure(400, "invalid"), look=reason, json=many)
    ask("into itself", "POST", where, Told(200), json=of_parts("whole", "1") if told.is_ours else of_parts("1"))
    if told.is_ours:
        counted = ask("counted", "GET", of("p/whole"), Told(200)).json()
        assert (counted["componentCount"], counted["size"]) == (4, "12")


def describing(told: Conversation) -> None:
    ask = told.ask
    said = {"name": "s/f", "contentType": "text/x-line", "metadata": {"key": "dmFsdWU="}}
    headers = {"Content-Type": 'multipart/related; boundary="==0=="'}
    params = {"uploadType": "multipart"}
    expected = Told(200, ("text/x-line", None, {"key": "dmFsdWU="}))
    body = multipart(said, b"text", b"\r\n")
    part = Instead(
        Told(200, ("application/octet-stream", None, {"key": "dmFsdWU="})),
        "The description has a type, and so has the part with the data. Which one counts is not documented; here it is"
        " the part's.",
    )
    ask("multipart", "POST", UPLOAD, expected, part, look=described, params=params, data=body, headers=headers)
    kept = ask("stat", "GET", of("s/f"), expected, part, look=described).json()
    read = ask("read", "GET", of("s/f"), whole(b"text"), look=content, params={"alt": "media"})
    if read.headers["Content-Type"] != kept["contentType"]:
        told.differences.append(f"type of what is read: {read.headers}")
    # As rclone sends it: without headers before the data, which look like anything.
    data = b"\r\n\n\xf2\r\n\r\n: \xcc\n"
    lines = [
        b"--==0==",
        b"Content-Type: application/json",
        b"",
        b'{"name": "s/i"}',
        b"--==0==",
        b"",
        data,
        b"--==0==--",
    ]
    params = {"uploadType": "multipart"}
    about = Told(200, an_object("s/i", data))
    body = b"\r\n".join(lines)
    ask("without headers", "POST", UPLOAD, about, look=resource, params=params, data=body, headers=headers)
    params = {"uploadType": "resumable", "name": "s/g"}
    kind = {"X-Upload-Content-Type": "text/x-line"}
    where = ask("begin", "POST", UPLOAD, Told(200), params=params, json=said | {"name": "s/g"}, headers=kind)
    headers = {"Content-Range": "bytes 0-3/4"}
    ask("resumable", "PUT", where.headers["Location"], expected, look=described, data=b"text", headers=headers)
    params = {"uploadType": "media", "name": "s/h"}
    headers = {"Content-Type": "text/x-line"}
    expected = Told(200, ("text/x-line", None, None))
    ask("media", "POST", UPLOAD, expected, look=described, params=params, data=b"text", headers=headers)

    def names(answer: requests.Response) -> object:
        about = answer.json()
        first = about.get("items", [{}])[0]
        return sorted(about), sorted(first), first.get("metadata")

    def all_of(line: str, where: str, fields: str, keys: list[str], of_items: list[str], metadata: object) -> None:
        expected = Told(200, (keys, of_items, metadata))
        if told.is_ours:
            ask(line, "GET", where, expected, look=names, params={"fields": fields, "maxResults": "1"})

    all_of("two", of("s/f"), "name,size", ["name", "size"], [], None)
    all_of(
        "of items",
        OBJECTS,
        "items(name,generation),nextPageToken",
        ["items", "nextPageToken"],
        ["generation", "name"],
        None,
    )
    all_of("paths", OBJECTS, "items/name,items/size,prefixes", ["items"], ["name", "size"], None)
    all_of("inner", OBJECTS, "items(metadata/key)", ["items"], ["metadata"], {"key": "dmFsdWU="})
    whole_items = ask("all", "GET", OBJECTS, Told(200), params={"maxResults": "1"}).json()["items"][0]
    all_of("everything", OBJECTS, "items(*)", ["items"], sorted(whole_items), {"key": "dmFsdWU="})
    flat = Told(200, ([], ["s/"], False))
    params = {"delimiter": "/", "includeFoldersAsPrefixes": "true"}
    ask("folders", "GET", OBJECTS, flat, look=page, params=params)
    if told.is_ours:
        unknown = failure(501, "not implemented: matchGlob")
        ask("patterns", "GET", OBJECTS, unknown, look=reason, params={"matchGlob": "**"})


def batching(told: Conversation) -> None:
    ask = told.ask
    for name in ("b/1", "b/2", "b/kept"):
        ask("create", "POST", UPLOAD, Told(200), params=media(name), data=b"")

    def batch(*calls: str, end: str = "\r\n", body: dict[str, str] | None = None) -> bytes:
        lines = []
        for number, call in enumerate(calls):
            lines += ["--==7==", "Content-Type: application/http", f"Content-ID: <call+{number}>", ""]
            lines += [f"{call} HTTP/1.1", "Content-Type: application/json", "accept: application/json", ""]
            lines += [json.dumps(body)] if body is not None else []
            lines += [""]
        return end.join([*lines, "--==7==--", ""]).encode()

    def statuses(answer: requests.Response) -> object:
        mark = answer.headers["Content-Type"].partition("boundary=")[2].strip('"')
        parts = answer.text.split(f"--{mark}")[1:-1]
        return [int(part.partition("HTTP/1.1 ")[2][:3]) for part in parts]

    where = "/batch/storage/v1"
    headers = {"Content-Type": 'multipart/mixed; boundary="==7=="'}
    body = batch(f"DELETE {of('b/1')}", f"DELETE {of('b/none')}", f"GET {of('b/kept')}")
    done = Instead(Told(200, [200, 404, 200]), "A deletion is documented to answer 204.")
    ask("three calls", "POST", where, Told(200, [204, 404, 200]), done, look=statuses, data=body, headers=headers)
    ask("it is gone", "GET", of("b/1"), failure(404, "notFound"), look=reason)
    ask("it is there", "GET", of("b/kept"), Told(200))
    if not told.is_ours:
        return
    body = batch(f"DELETE {told.url}{of('b/2')}?ifGenerationMatch=7", "GET /storage/v1/nothing", end="\n")
    answer = ask("as gcsfs does", "POST", where, Told(200, [412, 501]), look=statuses, data=body, headers=headers)
    assert "Content-ID: <response-call+1>" in answer.text
    body = batch(f"POST {copied('b/2', 'b/3')}", body={"contentType": "text/plain"})
    ask("with a body", "POST", where, Told(200, [200]), look=statuses, data=body, headers=headers)
    ask("described", "GET", of("b/3"), Told(200, ("text/plain", None, None)), look=described)
    body = batch(f"GET {of('b/3')}?alt=media")
    ask("content", "POST", where, Told(200, [400]), look=statuses, data=body, headers=headers)
    body = batch(*[f"GET {of('b/3')}"] * 101)
    ask("too many", "POST", where, failure(400, "invalid"), look=reason, data=body, headers=headers)


def naming_buckets(told: Conversation) -> None:
    ask = told.ask

    def listed(answer: requests.Response) -> object:
        return answer.json()["kind"], [item["name"] for item in answer.json()["items"]]

    every = Told(200, ("storage#buckets", [BUCKET]))
    ask("list", "GET", "/storage/v1/b", every, look=listed, params={"project": "p"})
    layout = f"/storage/v1/b/{BUCKET}/storageLayout"
    told_of = Told(200, ("storage#storageLayout", BUCKET, "region"))

    def flat(answer: requests.Response) -> object:
        about = answer.json()
        assert not about.get("hierarchicalNamespace", {}).get("enabled", False)
        return about["kind"], about["bucket"], about["locationType"]

    ask("layout", "GET", layout, told_of, look=flat)
    missing = "/storage/v1/b/no-such-bucket/storageLayout"
    ask("of nothing", "GET", missing, failure(404, "notFound"), look=reason)


@pytest.mark.parametrize(
    "converse", [copying, copying_in_steps, moving, composing, describing, batching, naming_buckets]
)
def test_both_servers_answer_as_documented(
    conversation: Conversation, converse: Callable[[Conversation], None]
) -> None:
    converse(conversation)
    assert conversation.differences == []
