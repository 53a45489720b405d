"""The command line on checkpoints in a bucket."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.cli import main
from tests.helpers.checkpoint.driver import JOB, Ledger, Pins, Run, state
from tests.servers import s3 as amazon
from tests.servers.gcs import BUCKET, BucketServer, bucket_of


@pytest.fixture
def run(any_server: BucketServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Run:
    options = {"endpoint_url": any_server.url, "token": "anon", "project": "tests"}
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", json.dumps(options))
    monkeypatch.setenv("DAGSTER_CKPT_PATH", f"gs://{BUCKET}/base")
    started = Run(bucket_of(any_server), Ledger(), Pins(tmp_path_factory.mktemp("pins"))).start()
    started.checkpoint(state(1), 1)
    started.checkpoint(state(50), 2)
    return started


def command(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_what_is_retained_is_listed_and_verified(run: Run) -> None:
    listed = json.loads(command("list", JOB, "--json"))
    assert "chk-2" in json.dumps(listed)
    assert command("verify", JOB).count("verified") == 2


def test_a_savepoint_is_made_in_the_bucket_and_disposed_of(run: Run, any_server: BucketServer) -> None:
    command("savepoint", JOB, "--to", f"gs://{BUCKET}/saved")
    (directory,) = {name.rpartition("/")[0] for name in any_server.objects(BUCKET) if name.startswith("saved/")}
    pointer = f"gs://{BUCKET}/{directory}"
    saved = CheckpointCatalog(bucket_of(any_server), JOB).resolve(pointer)
    assert saved.batch == run.store.retained[-1].batch
    command("dispose", f"{pointer}/_metadata")
    assert not [name for name in any_server.objects(BUCKET) if name.startswith("saved/")]


def test_options_that_are_no_json_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", "token=secret")
    said = command("list", JOB, exit_code=1)
    assert "DAGSTER_CKPT_STORAGE_OPTIONS is no JSON object" in said
    assert "secret" not in said


def test_a_bucket_of_s3_is_as_good(
    s3: amazon.S3Server, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", json.dumps(amazon.connection(s3.url)))
    monkeypatch.setenv("DAGSTER_CKPT_PATH", f"s3a://{amazon.BUCKET}/base")
    started = Run(amazon.bucket_of(s3), Ledger(), Pins(tmp_path_factory.mktemp("pins"))).start()
    started.checkpoint(state(1), 1)
    started.checkpoint(state(50), 2)
    assert command("verify", JOB).count("verified") == 2
    command("savepoint", JOB, "--to", f"s3://{amazon.BUCKET}/saved")
    (directory,) = {name.rpartition("/")[0] for name in s3.objects(amazon.BUCKET) if name.startswith("saved/")}
    command("dispose", f"s3://{amazon.BUCKET}/{directory}")
    assert not [name for name in s3.objects(amazon.BUCKET) if name.startswith("saved/")]
    assert "secret-of-mine" not in b"".join(s3.objects(amazon.BUCKET).values()).decode("latin-1")
