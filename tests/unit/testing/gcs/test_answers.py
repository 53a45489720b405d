"""What two servers of Google Cloud Storage's API answer to the same requests, line by line.

Each line says what Google documents (or, where the reference is silent, what its clients are written for). Our own
server must answer so, and fake-gcs-server must too, unless the line says what it answers instead, and why that is no
reason to change ours. A deviation that is gone fails as well.

What fake-gcs-server (1.56) turned out to do:

* Preconditions of writes are kept, also of resumable uploads, where they are looked at when the last byte is there and
  not when the upload begins. Preconditions of reads and deletions are ignored.
* ``maxResults`` counts objects only: common prefixes come all at once, again with each page of objects, and without
  ``maxResults`` there is one page of any length. So that a listing of checkpoints is paged is tested with ours alone.
* A resumable upload takes bytes as they come: bytes sent again are there twice, a question for the status ends the
  upload, and one that was cancelled goes on. So lost replies are tested with ours alone.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests

from tests.servers.gcs import BUCKET
from tests.unit.testing.gcs.conversation import (
    OBJECTS,
    UPLOAD,
    Conversation,
    Instead,
    Look,
    Told,
    an_object,
    content,
    failure,
    md5,
    media,
    multipart,
    of,
    override,
    page,
    reason,
    received,
    resource,
)

_UNIT = 256 << 10

# --- the lines ------------------------------------------------------------------------------------------------------


def creating(told: Conversation) -> None:
    ask = told.ask
    first = Told(200, an_object("a/f", b"1"))
    ask("create", "POST", UPLOAD, first, look=resource, params=media("a/f", ifGenerationMatch="0"), data=b"1")
    refused = failure(412, "conditionNotMet")
    ask("again", "POST", UPLOAD, refused, look=reason, params=media("a/f", ifGenerationMatch="0"), data=b"2")
    ask("it stays", "GET", of("a/f"), Told(200, (b"1", None)), look=content, params={"alt": "media"})
    before = ask("which", "GET", of("a/f"), first, look=resource).json()["generation"]
    second = Told(200, an_object("a/f", b"22"))
    ask("swap", "POST", UPLOAD, second, look=resource, params=media("a/f", ifGenerationMatch=before), data=b"22")
    ask("late swap", "POST", UPLOAD, refused, look=reason, params=media("a/f", ifGenerationMatch=before), data=b"3")
    after = ask("plain overwrite", "POST", UPLOAD, second, look=resource, params=media("a/f"), data=b"22").json()
    if int(after["generation"]) <= int(before):
        told.differences.append("generations do not rise")
    headers = {"Content-Type": 'multipart/related; boundary="==0=="'}
    for end in (b"\n", b"\r\n"):
        name = f"a/{len(end)}"
        body = multipart({"name": name, "md5Hash": md5(b"x\ny\n")}, b"x\ny\n", end)
        created = Told(200, an_object(name, b"x\ny\n"))
        params = {"uploadType": "multipart", "ifGenerationMatch": "0"}
        ask(f"multipart {end!r}", "POST", UPLOAD, created, look=resource, params=params, data=body, headers=headers)
        ask(f"again {end!r}", "POST", UPLOAD, refused, look=reason, params=params, data=body, headers=headers)
    body = multipart({"name": "a/damaged", "md5Hash": md5(b"sent")}, b"came", b"\r\n")
    params = {"uploadType": "multipart"}
    bad = failure(400, "invalid")
    ask("damaged", "POST", UPLOAD, bad, look=reason, params=params, data=body, headers=headers)
    ask("it is not there", "GET", of("a/damaged"), failure(404, "notFound"), look=reason)


def reading(told: Conversation) -> None:
    ask = told.ask
    data = bytes(range(100))
    made = ask("create", "POST", UPLOAD, Told(200), params=media("d/f"), data=data).json()["generation"]
    ask("create an empty one", "POST", UPLOAD, Told(200), params=media("d/empty"), data=b"")
    everything = Told(200, (data, None))

    def some(begin: int, end: int) -> Told:
        return Told(206, (data[begin:end], f"bytes {begin}-{end - 1}/100"))

    for asked, expected in {
        "bytes=0-0": some(0, 1),
        "bytes=10-19": some(10, 20),
        "bytes=90-": some(90, 100),
        "bytes=90-1000": some(90, 100),
        "bytes=-5": some(95, 100),
        "bytes=-500": some(0, 100),
        "bytes=100-": Told(416),
        "bytes=20-10": everything,
    }.items():
        headers = {"Range": asked}
        look = content if expected.content else lambda answer: None
        ask(asked, "GET", of("d/f"), expected, look=look, params={"alt": "media"}, headers=headers)
        where = "/download" + of("d/f")
        ask(f"download {asked}", "GET", where, expected, look=look, params={"alt": "media"}, headers=headers)
    ask("of nothing", "GET", of("d/empty"), Told(416), params={"alt": "media"}, headers={"Range": "bytes=0-"})
    ask("nothing", "GET", of("d/empty"), Told(200, (b"", None)), look=content, params={"alt": "media"})
    whole = ask("whole", "GET", of("d/f"), everything, look=content, params={"alt": "media"})
    if (whole.headers["X-Goog-Generation"], md5(data) in whole.headers["X-Goog-Hash"]) != (made, True):
        told.differences.append(f"headers of a read: {whole.headers}")
    ask("stat", "GET", of("d/f"), Told(200, an_object("d/f", data)), look=resource)
    for name in ("d", "d/", "d/g"):
        ask(f"stat {name}", "GET", of(name), failure(404, "notFound"), look=reason)
        ask(f"read {name}", "GET", of(name), Told(404), params={"alt": "media"})
    ask("a generation", "GET", of("d/f"), everything, look=content, params={"alt": "media", "generation": made})
    ask("another generation", "GET", of("d/f"), Told(404), params={"alt": "media", "generation": "7"})
    ignored = "Preconditions of reads are documented, and ignored: the object is read whatever its generation."
    params = {"alt": "media", "ifGenerationMatch": "7"}
    ask("if it is", "GET", of("d/f"), Told(412), Instead(Told(200), ignored), params=params)
    params = {"alt": "media", "ifGenerationNotMatch": made}
    ask("if it is not", "GET", of("d/f"), Told(304), Instead(Told(200), ignored), params=params)


def deleting(told: Conversation) -> None:
    ask = told.ask
    done = Instead(Told(200), "A deletion is documented to answer with an empty body; the body here is `null`.")
    for name in ("f", "g"):
        ask("create", "POST", UPLOAD, Told(200), params=media(name), data=b"1")
    ask("delete", "DELETE", of("f"), Told(204), done)
    ask("read it", "GET", of("f"), Told(404), params={"alt": "media"})
    ask("again", "DELETE", of("f"), failure(404, "notFound"), look=reason)
    ask("another generation", "DELETE", of("g"), failure(404, "notFound"), look=reason, params={"generation": "7"})
    ask("it is there", "GET", of("g"), Told(200))
    ignored = "Preconditions of deletions are documented, and ignored: the object is deleted."
    ask("if it is", "DELETE", of("g"), Told(412), Instead(Told(200), ignored), params={"ifGenerationMatch": "7"})
    ask("what became of it", "GET", of("g"), Told(200), Instead(Told(404), ignored))


def listing(told: Conversation) -> None:
    ask = told.ask
    for name in ("b/1", "b/2", "a", "b", "b/c/d", "b/c/e", "b/c10/d", "c/"):
        ask("create", "POST", UPLOAD, Told(200), params=media(name), data=b"")

    def lists(line: str, names: list[str], prefixes: list[str], instead: Instead | None = None, **params: str) -> None:
        ask(line, "GET", OBJECTS, Told(200, (names, prefixes, False)), instead, look=page, params=params)

    lists("all", ["a", "b", "b/1", "b/2", "b/c/d", "b/c/e", "b/c10/d", "c/"], [])
    lists("the root", ["a", "b"], ["b/", "c/"], delimiter="/")
    lists("a directory", ["b/1", "b/2"], ["b/c/", "b/c10/"], prefix="b/", delimiter="/")
    lists("names that begin so", [], ["b/c/", "b/c10/"], prefix="b/c", delimiter="/")
    lists("a marker", ["a", "b", "c/"], ["b/", "c/"], delimiter="/", includeTrailingDelimiter="true")
    lists("a part", ["b/2", "b/c/d"], [], startOffset="b/2", endOffset="b/c/e")
    lists("nothing", [], [], prefix="x/", delimiter="/")
    lists("nothing at all", [], [], prefix="x/")

    first = Told(200, (["a", "b", "b/1"], [], True))
    answer = ask("objects by three", "GET", OBJECTS, first, look=page, params={"maxResults": "3"})
    params = {"maxResults": "3", "pageToken": answer.json()["nextPageToken"]}
    more = Told(200, (["b/2", "b/c/d", "b/c/e"], [], True))
    answer = ask("the next three", "GET", OBJECTS, more, look=page, params=params)
    params = {"maxResults": "3", "pageToken": answer.json()["nextPageToken"]}
    ask("the rest", "GET", OBJECTS, Told(200, (["b/c10/d", "c/"], [], False)), look=page, params=params)

    counted = "maxResults is documented to count items and prefixes; prefixes are not counted, and never paged."
    params = {"maxResults": "1", "prefix": "b/c", "delimiter": "/"}
    documented = Told(200, ([], ["b/c/"], True))
    instead = Instead(Told(200, ([], ["b/c/", "b/c10/"], False)), counted)
    answer = ask("prefixes one by one", "GET", OBJECTS, documented, instead, look=page, params=params)
    if told.is_ours:
        params["pageToken"] = answer.json()["nextPageToken"]
        ask("the last", "GET", OBJECTS, Told(200, ([], ["b/c10/"], False)), look=page, params=params)


def long_listings(told: Conversation) -> None:
    names = [f"n/{number:04}" for number in range(1001)]
    for name in names:
        told.ask("create", "POST", UPLOAD, Told(200), params=media(name), data=b"")
    unlimited = "A page is documented to have 1,000 entries at most; here it has all there are, or maxResults of them."
    instead = Instead(Told(200, (names, [], False)), unlimited)
    for params in ({}, {"maxResults": "5000"}):
        documented = Told(200, (names[:1000], [], True))
        told.ask(f"{params}", "GET", OBJECTS, documented, instead, look=page, params=params)


def resuming(told: Conversation) -> None:
    ask = told.ask
    data = bytes(range(256)) * (3 * _UNIT // 256)
    total = len(data)

    def begin(line: str, name: str, **params: str) -> str:
        asked = {"uploadType": "resumable", "name": name, **params}
        return ask(line, "POST", UPLOAD, Told(200), params=asked, json={"name": name}).headers["Location"]

    def send(line: str, where: str, first: int, end: int, expected: Told, instead: Instead | None = None) -> None:
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{total}"}
        look: Look = received if expected.status == 308 else resource if expected.status == 200 else reason
        ask(line, "PUT", where, expected, instead, look=look, data=data[first:end], headers=headers)

    def so_far(end: int) -> Told:
        return Told(308, f"bytes=0-{end - 1}")

    where = begin("begin", "r/f", ifGenerationMatch="0")
    send("first part", where, 0, _UNIT, so_far(_UNIT))
    ask("not there yet", "GET", of("r/f"), failure(404, "notFound"), look=reason)
    send("second part", where, _UNIT, 2 * _UNIT, so_far(2 * _UNIT))
    send("last part", where, 2 * _UNIT, total, Told(200, an_object("r/f", data)))
    ask("whole", "GET", of("r/f"), Told(200, (data, None)), look=content, params={"alt": "media"})

    # gcsfs sends its parts with POST.
    where = begin("begin again", "r/posted")
    headers = {"Content-Range": f"bytes 0-{total - 1}/{total}"}
    posted = Told(200, an_object("r/posted", data))
    ask("all at once", "POST", where, posted, look=resource, data=data, headers=headers)

    # Go's client has no use for a redirect without an address.
    where = begin("begin without redirects", "r/go")
    headers = {"X-GUploader-No-308": "yes", "Content-Range": f"bytes 0-{_UNIT - 1}/*"}
    overridden = Told(200, ("308", f"bytes=0-{_UNIT - 1}"))
    ask("a part", "POST", where, overridden, look=override, data=data[:_UNIT], headers=headers)
    headers["Content-Range"] = f"bytes {_UNIT}-{total - 1}/{total}"
    posted = Told(200, an_object("r/go", data))
    ask("the rest", "POST", where, posted, look=resource, data=data[_UNIT:], headers=headers)

    # Somebody else is first while the upload is under way.
    where = begin("begin a race", "r/race", ifGenerationMatch="0")
    send("a part", where, 0, _UNIT, so_far(_UNIT))
    ask("another is first", "POST", UPLOAD, Told(200), params=media("r/race", ifGenerationMatch="0"), data=b"first")
    send("too late", where, _UNIT, total, failure(412, "conditionNotMet"))
    ask("it stays", "GET", of("r/race"), Told(200, (b"first", None)), look=content, params={"alt": "media"})

    late = "When a session's precondition is looked at is not documented: here with the last byte only."
    params = {"uploadType": "resumable", "name": "r/race", "ifGenerationMatch": "0"}
    ask("begin too late", "POST", UPLOAD, Told(412), Instead(Told(200), late), params=params, json={})

    where = begin("begin once more", "r/asked")
    send("a part", where, 0, _UNIT, so_far(_UNIT))
    status = Instead(Told(200), "An empty request with `bytes */total` is documented to ask; here it ends the upload.")
    headers = {"Content-Range": f"bytes */{total}"}
    ask("how far", "PUT", where, so_far(_UNIT), status, look=received, headers=headers)

    where = begin("begin a repeated one", "r/again")
    send("a part", where, 0, 2 * _UNIT, so_far(2 * _UNIT))
    send("sent again, and more", where, _UNIT, total, Told(200, an_object("r/again", data)), _twice(data))

    where = begin("begin a cancelled one", "r/cancelled")
    send("a part", where, 0, _UNIT, so_far(_UNIT))
    ask("cancel", "DELETE", where, Told(499))
    forgotten = Instead(Told(308), "A cancelled session is documented to be gone (4xx); here it goes on.")
    send("go on", where, _UNIT, 2 * _UNIT, failure(404, "notFound"), forgotten)
    unknown = f"{UPLOAD}?uploadType=resumable&upload_id=none"
    send("no session", unknown, 0, total, failure(404, "notFound"))


def _twice(data: bytes) -> Instead:
    held = data[: 2 * _UNIT] + data[_UNIT:]
    return Instead(
        Told(200, an_object("r/again", held)),
        "Bytes that are there already are documented to be ignored; here they are there twice.",
    )


def buckets(told: Conversation) -> None:
    ask = told.ask
    missing = "/storage/v1/b/no-such-bucket"
    gone = failure(404, "notFound")
    ask("its object", "GET", f"{missing}/o/f", gone, look=reason)
    ask("its content", "GET", f"{missing}/o/f", Told(404), params={"alt": "media"})
    ask("its listing", "GET", f"{missing}/o", gone, look=reason)
    ask("a deletion", "DELETE", f"{missing}/o/f", gone, look=reason)
    ask("about it", "GET", missing, gone, look=reason)
    ask("a create", "POST", f"/upload{missing}/o", gone, look=reason, params=media("f"), data=b"1")
    params = {"uploadType": "resumable", "name": "f"}
    ask("a begin", "POST", f"/upload{missing}/o", gone, look=reason, params=params, json={})
    ask("make it", "POST", "/storage/v1/b", Told(200), params={"project": "p"}, json={"name": "no-such-bucket"})
    conflict = failure(409, "conflict")
    ask("again", "POST", "/storage/v1/b", conflict, look=reason, params={"project": "p"}, json={"name": BUCKET})
    bad = failure(400, "invalid")
    ask("no name", "POST", "/storage/v1/b", bad, look=reason, params={"project": "p"}, json={"name": "UPPER"})

    def told_of(answer: requests.Response) -> object:
        about = answer.json()
        return about["kind"], about["name"], about["storageClass"], bool(about["timeCreated"])

    ask("about", "GET", missing, Told(200, ("storage#bucket", "no-such-bucket", "STANDARD", True)), look=told_of)


CONVERSATIONS = [creating, reading, deleting, listing, long_listings, resuming, buckets]


@pytest.mark.parametrize("converse", CONVERSATIONS)
def test_both_servers_answer_as_documented(
    conversation: Conversation, converse: Callable[[Conversation], None]
) -> None:
    converse(conversation)
    assert conversation.differences == []
