"""Every kind of object store alike, on the wire: what a job sees of it, what is behind it, and what goes wrong.

Requests and faults have one name here for all. What only one of them does is tested with its own server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar

import pytest

from dagster_ckpt.filesystem import AzureBlobFileSystem, GcsFileSystem, ObjectFileSystem, S3FileSystem
from dagster_ckpt.filesystem.buckets import bucket as object_store
from dagster_ckpt.testing.gcs import server as gcs_server
from tests.servers import azure_front, gcs, s3
from tests.servers.azurite import Azurite, options_at
from tests.servers.versitygw import VersityServer


class Trouble(Enum):
    """What a request may meet."""

    RESET = auto()
    LOST = auto()
    """It is carried out, and the connection breaks."""
    BUSY = auto()
    BUSY_AFTER = auto()
    """It is carried out, and the store says that it is busy."""
    LIMITED = auto()
    REFUSED = auto()
    EXPIRED = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        kind: ``put``, ``begin``, ``part``, ``complete`` and ``cancel`` of an upload of several requests, ``read``,
            ``stat``, ``delete``, ``list`` or what only one store has.
        name: the object, or what is listed.
        size: bytes of its body.
    """

    kind: str
    name: str
    size: int


Plan = Callable[[Asked], Trouble | None]


def nothing(asked: Asked) -> None:
    """All goes well."""


class Store(ABC):
    """A store with one bucket.

    Attributes:
        called: what the bucket is called by this store's people.
        creates: how a bucket is made, as it is told to whoever has none.
        told: what is said of a trouble that does not pass, and what of the way on.
    """

    called = "bucket"
    creates = ""
    told: ClassVar[Mapping[Trouble, tuple[str, str]]] = {}

    bucket: str = gcs.BUCKET

    @abstractmethod
    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        """What a job sees."""

    @abstractmethod
    def objects(self) -> dict[str, bytes]:
        """What the bucket holds, by name."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Store an object behind everybody's back."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Remove an object behind everybody's back."""


class DisturbedStore(Store):
    """One that can be told what goes wrong, and remembers what it was asked.

    Args:
        patch: undone at the end of the test.
    """

    _kinds: ClassVar[Mapping[str, str]] = {}
    _faults: ClassVar[Mapping[Trouble, Any]] = {}

    def __init__(self, server: Any, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.patch = patch

    def plan(self, plan: Plan) -> None:
        """Say what goes wrong from now on."""

        def answer(request: Any) -> Any:
            trouble = plan(self._asked(request))
            return None if trouble is None else self._faults[trouble]

        self.server.plan = answer

    @property
    def log(self) -> list[Asked]:
        """What it was asked."""
        return [self._asked(request) for request in self.server.log]

    @property
    @abstractmethod
    def unfinished_uploads(self) -> int:
        """Uploads of several requests that were begun, and neither completed nor cancelled."""

    def objects(self) -> dict[str, bytes]:
        found: dict[str, bytes] = self.server.objects(self.bucket)
        return found

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self.bucket, name, data)

    def discard(self, name: str) -> None:
        self.server.discard(self.bucket, name)

    def hold(self, objects: Mapping[str, bytes]) -> None:
        """Hold these objects, and no others."""
        for name in set(self.objects()) - objects.keys():
            self.discard(name)
        for name, data in objects.items():
            self.put(name, data)

    @abstractmethod
    def hurry(self) -> None:
        """Let clients ask again at once: how long they wait is not what is tested."""

    def _asked(self, request: Any) -> Asked:
        return Asked(self._kinds.get(request.kind, request.kind), request.name, request.size)


class GoogleStore(DisturbedStore):
    """Our own server of gs://."""

    creates = "gcloud storage buckets create gs://no-such-bucket"
    told: ClassVar = {
        Trouble.REFUSED: ("permission denied on bucket 'checkpoints'", "roles/storage.objectUser"),
        Trouble.EXPIRED: ("credentials for bucket 'checkpoints'", "gcloud auth"),
        Trouble.LIMITED: ("bucket 'checkpoints' takes no more requests", "interval"),
        Trouble.BUSY: ("backendError", "next checkpoint tries again"),
    }
    _kinds: ClassVar = {"insert": "put", "append": "part"}
    _faults: ClassVar = {
        Trouble.RESET: gcs_server.Reset(),
        Trouble.LOST: gcs_server.Reset(after=True),
        Trouble.BUSY: gcs_server.Answer(503, message="backendError"),
        Trouble.BUSY_AFTER: gcs_server.Answer(503, after=True),
        Trouble.LIMITED: gcs_server.Answer(429),
        Trouble.REFUSED: gcs_server.Answer(403),
        Trouble.EXPIRED: gcs_server.Answer(401, message="Invalid Credentials"),
    }

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return GcsFileSystem(bucket or self.bucket, prefix, gcs.bucket_of(self.server).storage_options)

    @property
    def unfinished_uploads(self) -> int:
        return int(self.server.unfinished_uploads)

    def hurry(self) -> None:
        gcs.answering_at_once(self.patch)


class AmazonStore(DisturbedStore):
    """moto's server of s3://."""

    creates = "aws s3 mb s3://no-such-bucket"
    told: ClassVar = {
        Trouble.REFUSED: ("permission denied on bucket 'checkpoints'", "arn:aws:s3:::checkpoints/base/*"),
        Trouble.EXPIRED: ("credentials for bucket 'checkpoints'", "aws sso login"),
        Trouble.LIMITED: ("bucket 'checkpoints' takes no more requests", "interval"),
        Trouble.BUSY: ("bucket 'checkpoints' takes no more requests", "interval"),
    }
    _kinds: ClassVar = {"abort": "cancel"}
    _faults: ClassVar = {
        Trouble.RESET: gcs_server.Reset(),
        Trouble.LOST: gcs_server.Reset(after=True),
        Trouble.BUSY: s3.Answer(503, "SlowDown"),
        Trouble.BUSY_AFTER: s3.Answer(503, "SlowDown", after=True),
        Trouble.LIMITED: s3.Answer(429, "TooManyRequests"),
        Trouble.REFUSED: s3.Answer(403, "AccessDenied"),
        Trouble.EXPIRED: s3.Answer(400, "ExpiredToken"),
    }

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return S3FileSystem(bucket or self.bucket, prefix, s3.connection(self.server.url))

    @property
    def unfinished_uploads(self) -> int:
        return int(self.server.unfinished_uploads(self.bucket))

    def hurry(self) -> None:
        s3.answering_at_once(self.patch)


class ForeignGoogleStore(Store):
    """fake-gcs-server."""

    creates = GoogleStore.creates

    def __init__(self, server: gcs.BucketServer) -> None:
        self.server = server

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return GcsFileSystem(bucket or self.bucket, prefix, gcs.bucket_of(self.server).storage_options)

    def objects(self) -> dict[str, bytes]:
        return self.server.objects(self.bucket)

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self.bucket, name, data)

    def discard(self, name: str) -> None:
        self.server.discard(self.bucket, name)


class ForeignAmazonStore(Store):
    """versitygw."""

    creates = AmazonStore.creates

    def __init__(self, server: VersityServer, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self._patch = patch

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return S3FileSystem(bucket or self.bucket, prefix, s3.connection(self.server.url))

    def objects(self) -> dict[str, bytes]:
        return self.server.objects(self.bucket)

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self.bucket, name, data)

    def discard(self, name: str) -> None:
        self.server.discard(self.bucket, name)

    def take_whole(self) -> None:
        """Be sent in one request what would be parts too small for it."""
        self._patch.setattr(object_store, "CHUNK", 5 << 20)


class AzureStore(Store):
    """Azurite, with a container of its own."""

    called = "container"
    creates = "az storage container create --name no-such-bucket"

    def __init__(self, azurite: Azurite) -> None:
        self._azurite = azurite
        self.bucket = azurite.container()

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return AzureBlobFileSystem(bucket or self.bucket, prefix, self._azurite.options())

    def objects(self) -> dict[str, bytes]:
        return self._azurite.objects(self.bucket)

    def put(self, name: str, data: bytes) -> None:
        with self._azurite.service() as service, service.get_container_client(self.bucket) as client:
            client.upload_blob(name, data, overwrite=True).close()

    def discard(self, name: str) -> None:
        with self._azurite.service() as service, service.get_container_client(self.bucket) as client:
            client.delete_blob(name)


class DisturbedAzureStore(DisturbedStore):
    """Azurite, behind what lets things go wrong."""

    called, creates = AzureStore.called, AzureStore.creates
    told: ClassVar = {
        Trouble.REFUSED: ("permission denied on container", "Storage Blob Data Contributor"),
        Trouble.LIMITED: ("takes no more requests", "interval"),
    }
    _faults: ClassVar = {
        Trouble.RESET: azure_front.Reset(),
        Trouble.LOST: azure_front.Reset(after=True),
        Trouble.BUSY: azure_front.Answer(503, "ServerBusy"),
        Trouble.BUSY_AFTER: azure_front.Answer(503, "ServerBusy", after=True),
        Trouble.LIMITED: azure_front.Answer(429, "TooManyRequests"),
        Trouble.REFUSED: azure_front.Answer(403, "AuthorizationPermissionMismatch"),
    }

    def __init__(self, azurite: Azurite, front: azure_front.AzureFront, patch: pytest.MonkeyPatch) -> None:
        super().__init__(front, patch)
        self._azurite = azurite
        self.store = AzureStore(azurite)
        self.bucket = self.store.bucket

    def storage(self, prefix: str = "base", bucket: str | None = None) -> ObjectFileSystem:
        return AzureBlobFileSystem(bucket or self.bucket, prefix, options_at(self.server.host))

    @property
    def unfinished_uploads(self) -> int:
        with self._azurite.service() as service, service.get_container_client(self.bucket) as client:
            begun = {blob.name for blob in client.list_blobs(include=["uncommittedblobs"])}
        return len(begun - self._azurite.names(self.bucket))

    def objects(self) -> dict[str, bytes]:
        return self.store.objects()

    def put(self, name: str, data: bytes) -> None:
        self.store.put(name, data)

    def discard(self, name: str) -> None:
        self.store.discard(name)

    def hurry(self) -> None:
        azure_front.answering_at_once(self.patch)


def opened(kind: str, request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of a kind with an empty bucket, until the test is over."""
    match kind:
        case "gs":
            yield GoogleStore(request.getfixturevalue("server"), patch)
        case "gs-customer-keys":
            server = request.getfixturevalue("server")
            server.lists_checksums = False
            yield GoogleStore(server, patch)
        case "s3":
            yield AmazonStore(request.getfixturevalue("s3"), patch)
        case "fake-gcs-server":
            other = request.getfixturevalue("fake_gcs_server")
            other.empty()
            other.create_bucket(gcs.BUCKET)
            yield ForeignGoogleStore(other)
        case "versitygw":
            other = request.getfixturevalue("versitygw")
            other.empty()
            other.create_bucket(s3.BUCKET)
            yield ForeignAmazonStore(other, patch)
        case "disturbed-azurite":
            azurite = request.getfixturevalue("azurite")
            with azure_front.AzureFront(azurite.host) as front:
                yield DisturbedAzureStore(azurite, front, patch)
        case _:
            yield AzureStore(request.getfixturevalue("azurite"))
