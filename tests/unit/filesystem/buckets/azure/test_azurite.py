"""What is peculiar to Azure, in its emulator; `test_stores.py` has what all stores give a job alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_ckpt.errors import PublishUnknown, StorageError
from dagster_ckpt.filesystem import AzureBlobFileSystem, Entry, Stopped
from dagster_ckpt.filesystem.buckets.bucket import CHUNK
from tests.servers.azure_front import Answer, AzureFront, Fault, Reset
from tests.servers.azurite import Azurite, container_of, options_at

pytestmark = pytest.mark.integration


@pytest.fixture
def container(azurite: Azurite) -> str:
    return azurite.container()


@pytest.fixture
def storage(azurite: Azurite, container: str) -> AzureBlobFileSystem:
    return container_of(azurite, container)


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "f"
    path.write_bytes((b"content!" * (CHUNK // 4 + 1))[: 2 * CHUNK + 1])
    return path


def test_a_stopped_upload_leaves_nothing(
    azurite: Azurite, storage: AzureBlobFileSystem, container: str, large: Path
) -> None:
    asked = iter([False, True])
    with pytest.raises(Stopped):
        storage.write("shared/f", large, lambda: next(asked))
    assert azurite.names(container) == set()
    assert storage.list("shared") == []


def test_a_refusal_says_nothing_of_a_request_before_whose_connection_broke(azurite: Azurite, container: str) -> None:
    with AzureFront(azurite.host) as front:
        storage = AzureBlobFileSystem(container, "base", options_at(front.host))
        storage.list("")  # over a connection that is kept
        faults: Iterator[Fault] = iter([Reset(), Answer(403, "AuthorizationPermissionMismatch")])
        front.plan = lambda request: next(faults, None) if request.kind == "put" else None
        with pytest.raises(PublishUnknown):
            storage.create("f", b"mine")


def test_a_directory_of_a_hierarchical_namespace(
    azurite: Azurite, storage: AzureBlobFileSystem, container: str
) -> None:
    """There an empty directory is an object of its own. Azurite has no such namespace; this is what one would show."""
    with azurite.service() as service, service.get_container_client(container) as client:
        client.upload_blob("base/job", b"", metadata={"hdi_isfolder": "true"}).close()
    storage.create("job/f", b"1")
    storage.create("file", b"1")
    assert set(storage.list("")) == {Entry("job", is_directory=True), Entry("file", is_directory=False)}
    with pytest.raises(FileNotFoundError):
        storage.size("job")
    storage.remove("job/f")
    storage.remove_directory("job")
    storage.remove_directory("file")
    assert azurite.names(container) == {"base/file"}


def test_a_key_that_is_not_accepted(azurite: Azurite, container: str) -> None:
    storage = AzureBlobFileSystem(container, "base", azurite.options(key="bm90LW1pbmU="))
    for operation in (
        lambda: storage.write("f", b"x", never),
        lambda: storage.read("f"),
        lambda: storage.list("job"),
        lambda: storage.remove("f"),
        lambda: storage.replace("f", b"x"),
        lambda: storage.remove_directory("job"),
        storage.probe,
    ):
        with pytest.raises(StorageError, match="credentials for container") as raised:
            operation()
        assert "az login" in raised.value.hint
        assert "bm90LW1pbmU=" not in str(raised.value)
