"""What is peculiar to copies in Azure; `test_copies.py` has what all stores do alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.storage.blob import AccountSasPermissions, BlobBlock, ContentSettings, ResourceTypes, generate_account_sas
from click.testing import CliRunner

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.file_reader import verify_checkpoint
from dagster_ckpt.cli import main
from dagster_ckpt.errors import CheckpointFileChanged, StorageError
from dagster_ckpt.filesystem import AzureBlobFileSystem, Copy
from dagster_ckpt.filesystem.buckets import azure_client
from tests.helpers.spark.stored_starts import JOB, Promised, Start, found_in
from tests.servers.azure_front import AzureFront, Fault, Pending, Request
from tests.servers.azurite import ACCOUNT, KEY, Azurite, container_of, options_at

pytestmark = pytest.mark.integration

DATA = b"the bytes of a blob"


@pytest.fixture
def container(azurite: Azurite) -> str:
    return azurite.container()


@pytest.fixture
def storage(azurite: Azurite, container: str) -> AzureBlobFileSystem:
    return container_of(azurite, container)


@pytest.fixture
def front(azurite: Azurite) -> Iterator[AzureFront]:
    with AzureFront(azurite.host) as running:
        yield running


@pytest.fixture
def fronted(front: AzureFront, container: str, monkeypatch: pytest.MonkeyPatch) -> AzureBlobFileSystem:
    """The container where copies may take their time; how long it is waited for them is not what is tested."""
    monkeypatch.setattr(azure_client, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(azure_client, "_LONGEST_PAUSE", 0.0)
    return AzureBlobFileSystem(container, "base", options_at(front.host))


def test_what_a_writer_said_of_its_bytes_proves_nothing(
    azurite: Azurite, storage: AzureBlobFileSystem, container: str
) -> None:
    """Hadoop's driver gives a blob the MD5 of the list of its blocks; nobody compares it, and a copy has it, too."""
    said = ContentSettings(content_md5=bytearray(16))
    with azurite.service() as service, service.get_blob_client(container, "base/live/a") as blob:
        blob.stage_block("1", DATA)
        blob.commit_block_list([BlobBlock("1")], content_settings=said)
    (found,) = storage.stored_below("live").values()
    assert found == storage.stored("live/a")
    assert not found.has_checksum
    made = storage.copy(Copy("live/a", found, "copy"))
    assert not made.has_checksum
    assert storage.read_stored("copy", made.version) == DATA
    with azurite.service() as service, service.get_blob_client(container, "base/copy") as blob:
        inherited = blob.get_blob_properties().content_settings.content_md5
    assert inherited == bytearray(16)


def test_directories_are_no_files_and_go_last(
    azurite: Azurite, front: AzureFront, fronted: AzureBlobFileSystem, container: str
) -> None:
    directories = {"live", "live/x", "live/x/y", "live/z"}
    with azurite.service() as service, service.get_container_client(container) as client:
        for name in directories:
            client.upload_blob(f"base/{name}", b"", metadata={"hdi_isfolder": "true"}).close()
    for name in ("live/a", "live/x/y/b", "live2"):
        fronted.create(name, DATA)
    assert set(fronted.stored_below("live")) == {"a", "x/y/b"}
    with pytest.raises(FileNotFoundError):
        fronted.stored("live/x")
    assert fronted.remove_below("live") == 2 + len(directories)
    assert azurite.names(container) == {"base/live2"}
    gone = [request.name.removeprefix("base/") for request in front.log if request.kind == "delete"]
    assert set(gone[:2]) == {"live/a", "live/x/y/b"}
    assert gone.index("live/x/y") < gone.index("live/x") < gone.index("live")


def test_a_copy_that_takes_its_time_is_waited_for(front: AzureFront, fronted: AzureBlobFileSystem) -> None:
    fronted.create("live/a", DATA)
    left = [Pending(), Pending(), Pending()]

    def slowly(request: Request) -> Fault | None:
        return left.pop() if request.kind == "stat" and request.name == "base/copy" and left else None

    front.plan = slowly
    made = fronted.copy(Copy("live/a", fronted.stored("live/a"), "copy"))
    assert not left
    assert made == fronted.stored("copy")


def test_a_copy_that_is_still_made_is_not_there_yet(front: AzureFront, fronted: AzureBlobFileSystem) -> None:
    """Where there are no directories, Hadoop's driver renames by copies."""
    fronted.create("live/a", DATA)
    fronted.copy(Copy("live/a", None, "live/b"))
    assert set(fronted.stored_below("live")) == {"a", "b"}
    front.plan = lambda request: Pending() if request.kind == "list" or request.name == "base/live/b" else None
    assert set(fronted.stored_below("live")) == {"a"}
    with pytest.raises(FileNotFoundError):
        fronted.stored("live/b")


@pytest.mark.parametrize(
    ("became", "error"),
    [
        (Pending("failed", '404 BlobNotFound "Copy failed when reading the source."'), FileNotFoundError),
        (Pending("failed", '412 ConditionNotMet "Copy failed when reading the source."'), FileNotFoundError),
        (Pending("failed", '500 InternalError "Copy failed."'), StorageError),
        (Pending("aborted"), StorageError),
    ],
)
def test_a_copy_that_comes_to_nothing(
    front: AzureFront, fronted: AzureBlobFileSystem, became: Pending, error: type[OSError]
) -> None:
    fronted.create("live/a", DATA)
    pinned = fronted.stored("live/a")
    told = [became, Pending()]
    front.plan = lambda request: told.pop() if request.kind == "stat" and told else None
    with pytest.raises(error):
        fronted.copy(Copy("live/a", pinned, "copy"))
    assert not told


def test_a_copy_that_does_not_go_on_is_given_up(
    front: AzureFront, fronted: AzureBlobFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_client, "_MOST_LOOKS", 3)
    fronted.create("live/a", DATA)
    pinned = fronted.stored("live/a")
    front.plan = lambda request: Pending() if request.kind == "stat" else None
    with pytest.raises(StorageError, match="does not go on") as caught:
        fronted.copy(Copy("live/a", pinned, "copy"))
    assert caught.value.hint
    assert [request.kind for request in front.log].count("abort") == 1


def test_a_copy_of_what_lay_there_before_is_no_copy_of_what_lies_there(storage: AzureBlobFileSystem) -> None:
    storage.create("a", DATA)
    first = storage.stored("a")
    assert storage.copy(Copy("a", first, "copy")) == storage.copy(Copy("a", first, "copy"))
    storage.replace("a", DATA[::-1])
    for of in (None, storage.stored("a")):
        with pytest.raises(StorageError, match="holds something else"):
            storage.copy(Copy("a", of, "copy"))
    assert storage.read("copy") == DATA


def test_a_shared_access_signature_will_do(azurite: Azurite, storage: AzureBlobFileSystem, container: str) -> None:
    """Of the source, too: that of the request is for the target alone."""
    signature = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        datetime.now(UTC) + timedelta(hours=1),
    )
    where = f"BlobEndpoint=http://{azurite.host}/{ACCOUNT};SharedAccessSignature={signature}"
    signed = AzureBlobFileSystem(container, "base", {"connection_string": where})
    storage.create("live/a b", DATA)
    (found,) = signed.stored_below("live").values()
    made = signed.copy(Copy("live/a b", found, "copy"))
    assert signed.read_stored("copy", made.version) == DATA
    assert signed.remove_below("live") == 1


def test_a_job_goes_on_in_its_container_and_nowhere_else(
    azurite: Azurite,
    storage: AzureBlobFileSystem,
    container: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing but ETags tells its copied files from others, and those of another container are others."""
    promised = Promised()
    first = Start(storage, storage, promised, tmp_path / "1").start()
    first.query.run(3)
    one = first.checkpoint()
    copied = [file for file in one.files if file.stored is not None]
    assert copied
    assert not any(file.stored.has_checksum for file in copied if file.stored is not None)
    second = Start(storage, storage, promised, tmp_path / "2").start()
    assert second.restored == one
    assert found_in(storage, second) == first.query.needed(2)
    second.query.run(2)
    two = second.checkpoint()
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE_OPTIONS", json.dumps(azurite.options()))
    told = CliRunner(catch_exceptions=False).invoke(main, ["verify", JOB, "--path", storage.url])
    assert told.exit_code == 0, told.output
    assert told.stdout.count(f"verified; {len(copied)} have no checksum, and nobody has written to them since") >= 1
    elsewhere = azurite.container()
    for name, data in azurite.objects(container).items():
        with azurite.service() as service, service.get_blob_client(elsewhere, name) as blob:
            blob.upload_blob(data)
    moved = container_of(azurite, elsewhere)
    with pytest.raises(CheckpointFileChanged, match="cannot be verified: its bucket told no checksum") as caught:
        verify_checkpoint(CheckpointCatalog(moved, JOB), two)
    assert caught.value.checkpoint == two.reference
