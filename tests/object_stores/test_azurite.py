"""The contract of a storage, and what large files, markers and errors come to, in Azure's emulator."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from dagster_ckpt.errors import StorageError, StorageUnusable
from dagster_ckpt.filesystem import Entry, FileSystem, Stopped, object_store
from dagster_ckpt.filesystem.azure import AzureBlobFileSystem
from dagster_ckpt.filesystem.object_store import CHUNK
from dagster_ckpt.testing.filesystem_contract import FileSystemContract
from tests.azurite import Azurite, container_of, install
from tests.object_stores.life import live

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    program = install(tmp_path_factory.mktemp("npm"))
    with Azurite(program, tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture
def container(azurite: Azurite) -> str:
    return azurite.container()


@pytest.fixture
def storage(azurite: Azurite, container: str) -> AzureBlobFileSystem:
    return container_of(azurite, container)


class TestAzure(FileSystemContract):
    @pytest.fixture
    def storage(self, azurite: Azurite, container: str) -> FileSystem:
        return container_of(azurite, container)


class TestAzureWithoutPrefix(FileSystemContract):
    @pytest.fixture
    def storage(self, azurite: Azurite, container: str) -> FileSystem:
        return container_of(azurite, container, "")


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "f"
    path.write_bytes((b"content!" * (CHUNK // 4 + 1))[: 2 * CHUNK + 1])
    return path


def test_a_large_file_comes_back(storage: AzureBlobFileSystem, large: Path, tmp_path: Path) -> None:
    written = storage.write("shared/f", large, never)
    assert written.size == 2 * CHUNK + 1
    assert storage.write("shared/f", large, never) == written, "it has its own name already"
    assert storage.fetch("shared/f", tmp_path / "back") == written


def test_of_many_that_upload_one_large_file_one_wins(
    storage: AzureBlobFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "CHUNK", 1 << 16)
    at_once = Barrier(8)

    def write(number: int) -> str:
        source = tmp_path / str(number)
        source.write_bytes(bytes([number]) * ((1 << 16) + 1))
        at_once.wait()
        try:
            storage.write("shared/f", source, never)
        except StorageError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(write, range(8)))
    assert told.count("") == 1
    assert sum("exists already and holds something else" in message for message in told) == 7
    assert storage.read("shared/f") == bytes([told.index("")]) * ((1 << 16) + 1)


def test_a_stopped_upload_leaves_nothing(
    azurite: Azurite, storage: AzureBlobFileSystem, container: str, large: Path
) -> None:
    asked = iter([False, True])
    with pytest.raises(Stopped):
        storage.write("shared/f", large, lambda: next(asked))
    assert azurite.names(container) == set()
    assert storage.list("shared") == []


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


def test_many_names_that_begin_alike(storage: AzureBlobFileSystem) -> None:
    storage.write_many([(f"job/chk-{number}/_metadata", b"") for number in range(120)], never)
    assert {entry.name for entry in storage.list("job")} == {f"chk-{number}" for number in range(120)}
    assert storage.list("job/chk-1") == [Entry("_metadata", is_directory=False)]


def _in_a_child(storage: AzureBlobFileSystem) -> None:
    assert storage.read("f") == b"from the parent"
    storage.create("from the child", b"1")


def test_it_goes_through_a_fork(storage: AzureBlobFileSystem) -> None:
    storage.create("f", b"from the parent")
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(storage,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.read("from the child") == b"1"


def test_a_job_takes_subsumes_and_goes_on(azurite: Azurite, container: str, tmp_path: Path) -> None:
    live(lambda: container_of(azurite, container), tmp_path)
    assert {name.split("/")[0] for name in azurite.names(container)} == {"base"}


def test_a_container_that_is_not_there(azurite: Azurite, large: Path) -> None:
    storage = container_of(azurite, "no-such-container")
    for write in (storage.probe, lambda: storage.write("f", b"x", never), lambda: storage.write("f", large, never)):
        with pytest.raises(StorageUnusable, match="there is no container 'no-such-container'") as raised:
            write()
        assert "az storage container create" in raised.value.hint
    assert storage.list("job") == []


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
