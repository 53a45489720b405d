"""No secret is shown: not by an error, not by what is behind it, not in a log, not in Dagster's events."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest
import requests
from azure.core.exceptions import HttpResponseError, ServiceRequestError
from botocore.exceptions import ClientError, EndpointConnectionError
from fsspec.asyn import AsyncFileSystem
from gcsfs.retry import HttpError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_ckpt import FileSystemCheckpointStorage
from dagster_ckpt.checkpoint.catalog.pointers import resolve_checkpoint_pointer
from dagster_ckpt.errors import CheckpointError, InvalidConfiguration, StorageError
from dagster_ckpt.filesystem import AzureBlobFileSystem, GcsFileSystem, ObjectFileSystem, S3FileSystem
from dagster_ckpt.shown_text import in_one_line, printable, redacted, secrets_of

#: Where a secret stands, each with ``{}`` in its place.
PLACES = [
    "https://user:{}@host.example/x",
    "https://{}@host.example/x",
    "https://{}:@host.example:8443/x",
    "abfs://data:{}@mine.dfs.core.windows.net/x",
    "abfs://{}@data@mine.dfs.core.windows.net/x",
    "//user:{}@host.example/x",
    "netloc 'user:{}@host' contains invalid characters under NFKC normalization",
    "https://a.blob.core.windows.net/c/b?sv=2024-01-01&se=2026&sr=c&sp=r&sig={}",
    "https://a.blob.core.windows.net/c/b?sig={}&sv=2024-01-01",
    "sv=2024-01-01&sig={}",
    "?%73ig={}",
    "/tokeninfo?access_token={}",
    "https://h.example/#access_token={}&x=1",
    "https://h.example/x?x=1;token={}",
    "https://h.example/x?X-Amz-Credential={}&X-Amz-Date=1",
    "https://h.example/x?X-Amz-Signature={}",
    "https://h.example/x?x-amz-security-token={}",
    "https://h.example/x?X-Goog-Signature={}",
    "https://h.example/x?X-Goog-Credential={}",
    "https://h.example/x?key={}&alt=json",
    "https://h.example/x?password={}",
    "https://h.example/x?uploadType=resumable&upload_id={}",
    "Authorization: Bearer {}",
    "authorization: SharedKey mine:{}",
    "Authorization: AWS4-HMAC-SHA256 Credential=me/2026/s3, SignedHeaders=host;x, Signature={}",
    "{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}",
    "sent with Bearer {}",
    "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey={};EndpointSuffix=core.windows.net",
    "SharedAccessSignature={}",
    '{{"client_secret": "{}", "x": 1}}',
    "{{'account_key': '{}'}}",
    "aws_secret_access_key = {}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
    "-----BEGIN RSA PRIVATE KEY-----\n{}",
]
#: Secrets as they are written in URLs and headers; with a mark that nothing else has.
SECRETS = st.text("ABCXYZabcxyz0189-._~%", min_size=0, max_size=30).map(lambda text: f"q7Zsecret{text}q7Z")
BEFORE = st.sampled_from(["", "Could not read (", "<", '"', "'", "GET ", "\n", "failed: ", "a=1 b=2 ", "\u202e"])
AFTER = st.sampled_from(["", ")", ">.", '"', "'", " ", "\n", ", retried", "\x00"])
TEXTS = st.builds(
    lambda place, secret, before, after: (f"{before}{place.format(secret)}{after}", secret),
    st.sampled_from(PLACES),
    SECRETS,
    BEFORE,
    AFTER,
)


@settings(max_examples=500, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), between=st.sampled_from([" ", "\n", ", ", " and "]))
def test_no_secret_is_left_in_a_text(texts: list[tuple[str, str]], between: str) -> None:
    whole = between.join(text for text, _ in texts)
    for shown in (redacted(whole), str(StorageError(whole)), str(InvalidConfiguration("x", hint=whole))):
        assert not any(secret in shown for _, secret in texts)
    assert str(StorageError(whole)).replace("\n", "").isprintable()


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_can_be_shown(text: str) -> None:
    redacted(text)
    assert in_one_line(text).isprintable()
    assert printable(text).count("\n") == text.count("\n")
    in_one_line(text).encode()


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/checkpoints/job/chk-1/_metadata is gone.",
        "abfs://data@mine.dfs.core.windows.net/a@b/c",
        "s3://bucket/year=2026/author=Tolkien/key=5/a b?c",
        "/data/landing/token_type=x/part-0.parquet",
        "file:///D/cp#1 and file:///D/cp%20#2",
        'Write it as {"token": "/path/of/a/key/file"}, or leave it out.',
        "give the storage options `key` and `secret` (with `token` if they are temporary), or `profile`.",
        "or `tenant_id`, `client_id` and `client_secret`.",
        "client_kwargs={'region_name': ...}",
        "`dagster-ckpt list job --path s3://bucket/a`",
        "serviceAccount:jobs@project.iam.gserviceaccount.com does not have storage.objects.get access",
        "Server failed to authenticate the request. Make sure the value of Authorization header is right.",
        "Überraschung 日本語 🎉",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text
    assert str(StorageError(text)) == text


def _shown_of(error: BaseException) -> str:
    """All that a traceback, and so Dagster, tells of an error."""
    return "".join(traceback.format_exception(error, limit=0)) + str(error)


class _Failing(AsyncFileSystem):  # type: ignore[misc]  # fsspec publishes no types
    """A client whose every request fails with one error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(skip_instance_cache=True)
        self._error = error

    def __getattribute__(self, name: str) -> Any:
        if name in {"_pipe_file", "_put_file", "_cat_file", "_info", "_ls", "_rm_file", "_get_object"}:
            return self._fails
        return super().__getattribute__(name)

    async def _fails(self, *_: object, **__: object) -> Any:
        logging.getLogger("gcsfs").error("_request non-retriable exception: %s", self._error)
        raise self._error


def _client_error(text: str) -> ClientError:
    return ClientError({"Error": {"Code": "InternalError", "Message": text}}, "GetObject")


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


ERRORS: Mapping[str, Any] = {
    "requests": lambda text: requests.exceptions.HTTPError(f"401 Client Error: Unauthorized for url: {text}"),
    "value": ValueError,
    "os": OSError,
    "missing": FileNotFoundError,
    "gs": lambda text: HttpError({"code": 401, "message": text}),
    "botocore": _client_error,
    "endpoint": lambda text: EndpointConnectionError(endpoint_url=text),
    "azure": lambda text: HttpResponseError(message=text),
    "azure network": lambda text: ServiceRequestError(message=text),
}
KNOWN = "q7ZknownToTheOptions"
STORAGES: Mapping[str, Callable[[], ObjectFileSystem]] = {
    "gs": lambda: GcsFileSystem("bucket", "a", {"token": KNOWN}),
    "s3": lambda: S3FileSystem("bucket", "a", {"key": "me", "secret": KNOWN}),
    "abfs": lambda: AzureBlobFileSystem("data", "a", {"account_name": "mine", "account_key": KNOWN}),
}


@settings(max_examples=150, deadline=None)
@given(
    told=TEXTS,
    kind=st.sampled_from(sorted(ERRORS)),
    storage=st.sampled_from(sorted(STORAGES)),
    behind=st.booleans(),
    noted=st.booleans(),
)
@example(
    told=("https://oauth2.googleapis.com/tokeninfo?access_token=q7Zq7Z", "q7Zq7Z"),
    kind="requests",
    storage="gs",
    behind=False,
    noted=False,
)
def test_no_error_of_a_client_shows_a_secret(
    told: tuple[str, str], kind: str, storage: str, behind: bool, noted: bool
) -> None:
    text, secret = told
    error = ERRORS[kind](f"{text} {KNOWN}")
    if behind:
        error = OSError("the connection is gone")
        error.__cause__ = ERRORS[kind](f"{text} {KNOWN}")
    if noted:
        error.add_note(text)
    bucket = STORAGES[storage]()
    client = _Failing(error)
    bucket._client = lambda: client  # type: ignore[method-assign]
    handler = _Kept()
    logging.getLogger("gcsfs").addHandler(handler)
    try:
        for operation in (
            lambda: bucket.create("f", b"x"),
            lambda: bucket.replace("f", b"x"),
            lambda: bucket.write("f", b"x", lambda: False),
            lambda: bucket.read("f"),
            lambda: bucket.size("f"),
        ):
            with pytest.raises(OSError) as raised:  # noqa: PT011 - a missing file is told by Python's own error
                operation()
            shown = _shown_of(raised.value)
            assert secret not in shown
            assert KNOWN not in shown
    finally:
        logging.getLogger("gcsfs").removeHandler(handler)
    assert handler.records
    assert not any(secret in record.getMessage() for record in handler.records)


@settings(max_examples=100, deadline=None)
@given(secret=SECRETS, place=st.sampled_from([place for place in PLACES if "://" in place]))
@example(secret="q7Zq7Z", place="file://user:{}@host/x")
@example(secret="q7Zq7Z", place="https://user:{}@\u2102.example/x")
@example(secret="q7Zq7Z", place="https://user:{}@[x")
def test_a_pointer_is_told_without_its_credentials(secret: str, place: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        resolve_checkpoint_pointer(place.format(secret))
    assert secret not in _shown_of(raised.value)


def test_dagsters_events_of_a_run_that_failed_have_no_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "q7Z-ya29.raw-token"
    monkeypatch.setenv("BUCKET_TOKEN", secret)

    def asked(url: str, params: Mapping[str, str], **_: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.reason = 401, "Unauthorized"
        answer.url = f"{url}?access_token={quote(params['access_token'])}"
        return answer

    # Google is asked about a token that is given as it is; here it does not know the token.
    monkeypatch.setattr(requests, "get", asked)
    monkeypatch.delenv("FETCH_RAW_TOKEN_EXPIRY", raising=False)

    @dg.asset
    def writes(storage: FileSystemCheckpointStorage) -> None:
        storage.filesystem().read("f")

    storage = FileSystemCheckpointStorage(
        checkpoint_path="gs://bucket/a", storage_options={"token": dg.EnvVar("BUCKET_TOKEN")}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([writes], resources={"storage": storage}, instance=instance, raise_on_error=False)
        assert not result.success
        told = "".join(dg.serialize_value(record) for record in instance.all_logs(result.run_id))
        told += dg.serialize_value(result.dagster_run)
    assert "tokeninfo" in told, "the error is told, with its cause"
    assert secret not in told
    assert secret not in caplog.text


def test_what_is_a_secret_among_options() -> None:
    options = {
        "sas_token": "?sv=1&sig=a",
        "token": "/path/of/a/key.json",
        "connection_string": "AccountName=a;AccountKey=b",
        "endpoint_url": "https://host.example",
        "client_kwargs": {"region_name": "eu-west-1", "aws_session_token": "abcdefgh"},
        "fs.azure.account.key.mine.dfs.core.windows.net": "abcdefgh",
        "hadoop.security.credential.provider.path": "jceks://hdfs/path",
        "dfs.block.access.token.enable": "true",
    }
    assert [name for name, _ in secrets_of(options)] == [
        "sas_token",
        "connection_string",
        "client_kwargs.aws_session_token",
        "fs.azure.account.key.mine.dfs.core.windows.net",
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "part",
    [
        *(
            "x",
            "x1",
            "/a",
            "a:",
            "=a",
            "//",
            "//a",
            "?",
            "&a=",
            "a=b&",
            "token=",
            "?key=)",
            ")",
            ".",
            "@",
            "a@",
            "://",
            "+",
        ),
        *(
            "netloc ",
            'netloc "a',
            "Bearer ",
            "authorization ",
            "password",
            'password="',
            "\\",
            "'",
            '"',
            " ",
            "\n",
            "-",
        ),
        *("?a=", "#a=", ";a=", "?key=)))", "-----BEGIN ", "-----BEGIN A", "\x1b", "é"),
    ],
)
def test_a_long_text_takes_time_by_its_length(part: str) -> None:
    """An error may quote a value of a megabyte, which took minutes: in them no thread ran, nor did a heart beat."""
    assert "hunter2" not in redacted(f"{part * (1_000_000 // len(part))} //user:hunter2@host")
