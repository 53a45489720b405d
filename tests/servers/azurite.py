"""Azurite, the emulator of Azure Storage, for the tests, with an account of their own."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from azure.storage.blob import BlobServiceClient

from dagster_ckpt.filesystem import AzureBlobFileSystem
from tests.servers.programs import azurite

ACCOUNT = "accountofmine"
KEY = base64.b64encode(b"key-of-mine").decode()
_LISTENS = re.compile(r"listens on http://127\.0\.0\.1:(\d+)")


class Azurite:
    """The server in a process of its own, which keeps everything in memory; a context manager.

    Args:
        home: the directory that it runs in.
    """

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [
                str(azurite()),
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                "0",
                "--inMemoryPersistence",
                "--skipApiVersionCheck",
                "--disableTelemetry",
            ],
            cwd=home,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._url = ""

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        said = []
        try:
            for line in self._process.stdout:
                said.append(line)
                if found := _LISTENS.search(line):
                    self._url = f"http://127.0.0.1:{found[1]}/{ACCOUNT}"
                    return self
            raise AssertionError(f"azurite did not start:\n{''.join(said)}")
        except BaseException:  # interrupted, too: nobody leaves a context that was not entered
            self._process.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def host(self) -> str:
        """Where it listens, with the port."""
        return self._url.split("/")[2]

    def options(self, key: str = KEY) -> dict[str, Any]:
        """The storage options for it."""
        return options_at(self.host, key)

    def container(self) -> str:
        """A new, empty container."""
        name = f"checkpoints-{uuid.uuid4().hex[:8]}"
        self.create(name)
        return name

    def create(self, container: str) -> None:
        """Make an empty container."""
        with self.service() as service:
            service.create_container(container).close()

    def service(self) -> BlobServiceClient:
        """A client that is none of the library's."""
        return BlobServiceClient.from_connection_string(self.options()["connection_string"])

    def objects(self, container: str) -> dict[str, bytes]:
        """What a container holds, by name."""
        with self.service() as service, service.get_container_client(container) as client:
            return {name: client.download_blob(name).readall() for name in client.list_blob_names()}

    def names(self, container: str) -> set[str]:
        """What a container holds."""
        with self.service() as service, service.get_container_client(container) as client:
            return set(client.list_blob_names())


def options_at(host: str, key: str = KEY) -> dict[str, Any]:
    """The storage options for an Azurite, or what stands before one.

    Args:
        host: where it listens, with the port.
        key: of the account.
    """
    endpoint = f"BlobEndpoint=http://{host}/{ACCOUNT}"
    return {"connection_string": f"{endpoint};AccountName={ACCOUNT};AccountKey={key}"}


def container_of(azurite: Azurite, container: str, prefix: str = "base") -> AzureBlobFileSystem:
    """What a job sees of a container."""
    return AzureBlobFileSystem(container, prefix, azurite.options())
