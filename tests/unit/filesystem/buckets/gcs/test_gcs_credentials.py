"""What a user has to show a bucket: a service account's key, application-default credentials, through Dagster too.

The key is real and signs; whoever asks for a token with it is checked as Google does. The bucket lets nobody in without
the token that was given out last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import dagster as dg
import google.auth.jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dagster_ckpt import FileSystemCheckpointStorage
from dagster_ckpt.errors import InvalidConfiguration, StorageError, StorageUnusable
from dagster_ckpt.filesystem import open_filesystem
from dagster_ckpt.testing.gcs.server import GcsServer
from tests.servers.gcs import BUCKET

ACCOUNT = "jobs@project.iam.gserviceaccount.com"
TOKEN = "ya29.given-out"


class TokenServer:
    """Gives a token to whoever signs with the key of the account."""

    def __init__(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.private_key = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        self.refusal = ""
        self.asked = 0
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                told.asked += 1
                status, answer = told.answer(body["assertion"][0], public.decode())
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, assertion: str, public_key: str) -> tuple[int, dict[str, Any]]:
        """What a request with this signed assertion is answered with."""
        try:
            claims = google.auth.jwt.decode(assertion, certs={"1": public_key})  # type: ignore[no-untyped-call]
        except ValueError:
            claims = None
        if self.refusal or claims is None:
            return 400, {"error": "invalid_grant", "error_description": self.refusal or "Invalid JWT Signature."}
        assert claims["iss"] == ACCOUNT
        return 200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer()
    yield server
    server.close()


@pytest.fixture
def key_file(tokens: TokenServer, tmp_path: Path) -> Path:
    """A service account's key, as the console gives it out."""
    file = tmp_path / "key.json"
    about = {"type": "service_account", "project_id": "project", "private_key_id": "1", "client_email": ACCOUNT}
    file.write_text(json.dumps({**about, "private_key": tokens.private_key, "token_uri": tokens.url}))
    return file


@pytest.fixture
def guarded() -> Iterator[GcsServer]:
    with GcsServer(token=TOKEN) as running:
        running.create_bucket(BUCKET)
        yield running


def test_the_key_file_of_a_service_account(guarded: GcsServer, tokens: TokenServer, key_file: Path) -> None:
    options = {"endpoint_url": guarded.url, "token": str(key_file), "project": "project"}
    storage = open_filesystem(f"gs://{BUCKET}/base", storage_options=options)
    storage.probe()
    storage.create("a", b"1")
    assert guarded.objects(BUCKET) == {"base/a": b"1"}
    assert tokens.asked == 1, "a token is asked for once and not with each request"


@pytest.mark.parametrize("options", [{}, {"token": "google_default"}], ids=["nothing said", "google_default"])
def test_application_default_credentials(
    guarded: GcsServer, key_file: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    storage = open_filesystem(f"gs://{BUCKET}/base", storage_options={"endpoint_url": guarded.url, **options})
    storage.create("a", b"1")
    assert guarded.objects(BUCKET) == {"base/a": b"1"}


@pytest.mark.usefixtures("impatient")
def test_a_key_that_was_revoked_is_named(guarded: GcsServer, tokens: TokenServer, key_file: Path) -> None:
    tokens.refusal = "Invalid JWT Signature."
    storage = open_filesystem(
        f"gs://{BUCKET}/base", storage_options={"endpoint_url": guarded.url, "token": str(key_file)}
    )
    told = "written to gs://checkpoints/base: Could not .*: the credentials for bucket 'checkpoints' are missing or"
    with pytest.raises(StorageUnusable, match=told) as refused:
        storage.probe()
    assert "gcloud auth" in refused.value.hint
    assert tokens.private_key[40:80] not in str(refused.value)


@pytest.mark.usefixtures("impatient")
def test_a_clock_that_is_wrong_is_named(guarded: GcsServer, tokens: TokenServer, key_file: Path) -> None:
    tokens.refusal = (
        "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and "
        "exp values in the JWT claim."
    )
    options = {"endpoint_url": guarded.url, "token": str(key_file)}
    storage = open_filesystem(f"gs://{BUCKET}/base", storage_options=options)
    told = "clock of this machine .* bucket 'checkpoints'"
    with pytest.raises(StorageError, match=told) as refused:
        storage.write("a", b"1", lambda: False)
    assert "timedatectl" in refused.value.hint
    with pytest.raises(StorageUnusable, match=told):
        storage.probe()
    tokens.refusal = ""
    storage.create("a", b"1")
    assert guarded.objects(BUCKET) == {"base/a": b"1"}


def test_the_options_may_come_from_the_environment_by_dagsters_config(
    guarded: GcsServer, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET_KEY", str(key_file))
    monkeypatch.setenv("BUCKET_ENDPOINT", guarded.url)

    @dg.asset
    def writes(storage: FileSystemCheckpointStorage) -> None:
        storage.filesystem().create("a", b"1")

    config = {
        "checkpoint_path": f"gs://{BUCKET}/base",
        "storage_options": {"token": {"env": "BUCKET_KEY"}, "endpoint_url": {"env": "BUCKET_ENDPOINT"}},
    }
    with dg.DagsterInstance.ephemeral() as instance:
        told = dg.materialize(
            [writes],
            resources={"storage": FileSystemCheckpointStorage.configure_at_launch()},
            instance=instance,
            run_config={"resources": {"storage": {"config": config}}},
        )
    assert told.success
    assert guarded.objects(BUCKET) == {"base/a": b"1"}


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUCKET_KEY", raising=False)
    storage = FileSystemCheckpointStorage(
        checkpoint_path=f"gs://{BUCKET}/base", storage_options={"token": dg.EnvVar("BUCKET_KEY")}
    )
    with pytest.raises(InvalidConfiguration, match="the environment variable BUCKET_KEY, which is not set"):
        storage.filesystem()


def test_the_options_may_be_environment_variables_in_code(
    guarded: GcsServer, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET_KEY", str(key_file))

    @dg.asset
    def writes(storage: FileSystemCheckpointStorage) -> None:
        storage.filesystem().create("a", b"1")

    storage = FileSystemCheckpointStorage(
        checkpoint_path=f"gs://{BUCKET}/base",
        storage_options={"token": dg.EnvVar("BUCKET_KEY"), "endpoint_url": guarded.url},
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize([writes], resources={"storage": storage}, instance=instance).success
    assert guarded.objects(BUCKET) == {"base/a": b"1"}
