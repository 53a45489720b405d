"""What a store of S3's protocol answers to the requests for copies: ours, and versitygw, which others wrote.

Each line says what Amazon documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from dagster_ckpt.filesystem import crc32c_of
from tests.servers.s3 import BUCKET, KEY, SECRET
from tests.unit.filesystem.buckets.stores import opened

DATA, OTHER = b"the bytes of an object", b"of another"
ETAG = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
CRC32C = crc32c_of(DATA)
GONE, ANOTHER = (404, "NoSuchKey"), (412, "PreconditionFailed")


class Asking:
    """Requests to one store, and what it told."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.told: dict[str, object] = {}

    def ask(self, line: str, method: str, look: Callable[[Any], object], **parameters: Any) -> None:
        """Send a request; what of the answer somebody relies on."""
        try:
            self.told[line] = look(getattr(self.client, method)(Bucket=BUCKET, **parameters))
        except ClientError as error:
            answer: Any = error.response
            self.told[line] = (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"])


@pytest.fixture(params=["s3", pytest.param("versitygw", marks=pytest.mark.integration)])
def asking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    for store in opened(request.param, request, monkeypatch):
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=store.storage().storage_options["endpoint_url"],
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )
        yield Asking(client)
        client.close()


def _status(answer: Any) -> object:
    return answer["ResponseMetadata"]["HTTPStatusCode"]


def _copied(answer: Any) -> object:
    made = answer["CopyObjectResult"]
    return made["ETag"], made.get("ChecksumCRC32C"), made.get("ChecksumType", "FULL_OBJECT")


def _seen(answer: Any) -> object:
    return answer["ETag"], answer["ContentLength"], answer.get("ChecksumCRC32C")


def _read(answer: Any) -> object:
    return answer["Body"].read()


def _page(answer: Any) -> object:
    found = [(item["Key"], item["ETag"], item["Size"]) for item in answer.get("Contents", ())]
    return found, answer["IsTruncated"], "NextContinuationToken" in answer


def test_both_servers_answer_as_documented(asking: Asking) -> None:
    ask = asking.ask
    quoted = f'"{ETAG}"'
    source = {"Bucket": BUCKET, "Key": "a b/ä+c"}
    ask("create", "put_object", lambda answer: answer["ETag"], Key="a b/ä+c", Body=DATA)
    pinned = {"CopySource": source, "ChecksumAlgorithm": "CRC32C", "CopySourceIfMatch": quoted}
    ask("copy what is pinned", "copy_object", _copied, Key="copy", **pinned)
    ask("copy it again, over the first", "copy_object", _copied, Key="copy", **pinned)
    ask("look at it", "head_object", _seen, Key="copy", ChecksumMode="ENABLED")
    ask("read it", "get_object", _read, Key="copy")
    ask("copy whatever is there", "copy_object", _copied, Key="free", CopySource=source, ChecksumAlgorithm="CRC32C")
    ask("read what is pinned", "get_object", _read, Key="a b/ä+c", IfMatch=quoted)
    ask("read a part of it", "get_object", _read, Key="a b/ä+c", IfMatch=quoted, Range="bytes=4-8")

    ask("list", "list_objects_v2", _page, Prefix="a b/")
    ask("list a page", "list_objects_v2", _page, Prefix="", MaxKeys=2)
    ask("list nothing", "list_objects_v2", _page, Prefix="c/")

    ask("put another in its place", "put_object", _status, Key="a b/ä+c", Body=OTHER)
    ask("copy what was pinned", "copy_object", _copied, Key="late", **pinned)
    ask("read what was pinned", "get_object", _read, Key="a b/ä+c", IfMatch=quoted)
    ask("read a part of what was pinned", "get_object", _read, Key="a b/ä+c", IfMatch=quoted, Range="bytes=4-8")
    ask("delete it", "delete_object", _status, Key="a b/ä+c")
    ask("delete it again", "delete_object", _status, Key="a b/ä+c")
    ask("copy what is gone", "copy_object", _copied, Key="late", **pinned)
    ask("copy what is gone, unpinned", "copy_object", _copied, Key="late", CopySource=source)
    ask("read what is gone", "get_object", _read, Key="a b/ä+c", IfMatch=quoted)
    ask("look at what was not made", "head_object", _seen, Key="late", ChecksumMode="ENABLED")

    copied = (quoted, CRC32C, "FULL_OBJECT")
    assert asking.told == {
        "create": quoted,
        "copy what is pinned": copied,
        "copy it again, over the first": copied,
        "look at it": (quoted, len(DATA), CRC32C),
        "read it": DATA,
        "copy whatever is there": copied,
        "read what is pinned": DATA,
        "read a part of it": DATA[4:9],
        "list": ([("a b/ä+c", quoted, len(DATA))], False, False),
        "list a page": ([("a b/ä+c", quoted, len(DATA)), ("copy", quoted, len(DATA))], True, True),
        "list nothing": ([], False, False),
        "put another in its place": 200,
        "copy what was pinned": ANOTHER,
        "read what was pinned": ANOTHER,
        "read a part of what was pinned": ANOTHER,
        "delete it": 204,
        "delete it again": 204,
        "copy what is gone": GONE,
        "copy what is gone, unpinned": GONE,
        "read what is gone": GONE,
        "look at what was not made": (404, "404"),
    }


def test_a_copy_of_what_came_in_parts_has_a_checksum_of_all_bytes(asking: Asking) -> None:
    """As Hadoop uploads what is large: the ETag is no MD5, and a checksum may be one of the parts' checksums."""
    parts = [bytes(5 << 20), DATA]
    client = asking.client
    upload = {"Bucket": BUCKET, "Key": "parts"}
    upload["UploadId"] = client.create_multipart_upload(**upload, ChecksumAlgorithm="CRC32C")["UploadId"]
    done = []
    for number, data in enumerate(parts, 1):
        checksum = crc32c_of(data)
        answer = client.upload_part(**upload, PartNumber=number, Body=data, ChecksumCRC32C=checksum)
        done.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})
    etag = client.list_objects_v2(Bucket=BUCKET)["Contents"][0]["ETag"]
    assert etag.endswith('-2"')
    source = {"Bucket": BUCKET, "Key": "parts"}
    pinned = {"CopySource": source, "ChecksumAlgorithm": "CRC32C", "CopySourceIfMatch": etag}
    asking.ask("copy", "copy_object", _copied, Key="copy", **pinned)
    asking.ask("look", "head_object", _seen, Key="copy", ChecksumMode="ENABLED")
    whole = b"".join(parts)
    quoted = f'"{hashlib.md5(whole, usedforsecurity=False).hexdigest()}"'
    assert asking.told == {
        "copy": (quoted, crc32c_of(whole), "FULL_OBJECT"),
        "look": (quoted, len(whole), crc32c_of(whole)),
    }
