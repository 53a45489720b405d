# No `from __future__ import annotations`: Dagster must find real types on nested asset functions.

import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from dagster_ckpt import (
    Configuration,
    CustomCheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    SparkSessionResource,
    configured_storage,
)
from dagster_ckpt import spark as spark_door
from dagster_ckpt.config import JobStatus
from dagster_ckpt.config.live_location import LiveLocationPlace
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.storages import CheckpointStorage
from dagster_ckpt.spark import CheckpointCompleted, EpochClaimed, Event, RunResult
from tests.helpers.checkpoint.manifests import MANIFEST
from tests.helpers.orchestration.vault import Vault


class Platform(dg.ConfigurableResource["Platform"]):
    """A user's resource with a storage inside."""

    storage: dg.ResourceDependency[FileSystemCheckpointStorage]


def _inside_a_run(storage: Any, run_config: Mapping[str, Any] | None = None) -> CheckpointStorage:
    """The storage as an asset is given it."""
    seen: list[CheckpointStorage] = []

    @dg.asset(required_resource_keys={"checkpoint_storage"})
    def looks(context: dg.AssetExecutionContext) -> None:
        seen.append(context.resources.checkpoint_storage)

    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize(
            [looks], resources={"checkpoint_storage": storage}, instance=instance, run_config=run_config
        ).success
    return seen[0]


def test_a_path_is_enough(tmp_path: Path) -> None:
    storage = _inside_a_run(FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / "checkpoints")))
    assert storage.filesystem().url == str(tmp_path / "checkpoints")
    assert storage.catalog("orders").job_ids() == []
    assert not (tmp_path / "checkpoints").exists(), "looking creates nothing"


def test_a_path_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_PATH", f"file://{tmp_path}/from%20environment")
    storage = _inside_a_run(FileSystemCheckpointStorage(checkpoint_path=dg.EnvVar("CHECKPOINT_PATH")))
    assert storage.filesystem().url == str(tmp_path / "from%20environment")


def test_a_path_can_be_given_in_the_launchpad(tmp_path: Path) -> None:
    config = {
        "resources": {
            "checkpoint_storage": {"config": {"checkpoint_path": str(tmp_path), "file_state_size_threshold": 0}}
        }
    }
    storage = _inside_a_run(FileSystemCheckpointStorage.configure_at_launch(), config)
    assert storage.filesystem().url == str(tmp_path)
    assert storage.inline_threshold == 0


def test_a_storage_can_be_a_part_of_another_resource(tmp_path: Path) -> None:
    seen: list[str] = []

    @dg.asset
    def looks(platform: Platform) -> None:
        seen.append(platform.storage.filesystem().url)

    storage = FileSystemCheckpointStorage.configure_at_launch()
    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize(
            [looks],
            resources={"checkpoint_storage": storage, "platform": Platform(storage=storage)},
            instance=instance,
            run_config={"resources": {"checkpoint_storage": {"config": {"checkpoint_path": str(tmp_path)}}}},
        ).success
    assert seen == [str(tmp_path)]


@pytest.mark.parametrize(("threshold", "inline"), [(-1, 20 * 1024), (0, 0), (1 << 20, 1 << 20)])
def test_threshold_within_its_limits(threshold: int, inline: int) -> None:
    storage = FileSystemCheckpointStorage(checkpoint_path="x", file_state_size_threshold=threshold)
    assert storage.inline_threshold == inline


@pytest.mark.parametrize("threshold", [-2, (1 << 20) + 1])
def test_threshold_beyond_its_limits_is_refused(threshold: int) -> None:
    with pytest.raises(ValidationError, match="must be between 0 and 1048576 bytes, or -1 for the default"):
        FileSystemCheckpointStorage(checkpoint_path="x", file_state_size_threshold=threshold)


@pytest.mark.parametrize(("path", "why"), [("", "is empty"), ("ceph://b/c", "scheme 'ceph'"), ("/", "root directory")])
def test_a_path_that_cannot_be_used_is_refused_with_the_way_on(path: str, why: str) -> None:
    storage = FileSystemCheckpointStorage(checkpoint_path=path)
    with pytest.raises(InvalidConfiguration, match=why) as caught:
        storage.filesystem()
    assert caught.value.hint


@pytest.mark.parametrize("working_directory", [None, "/ssd", "taskowned"])
def test_live_locations_of_two_storages_and_two_jobs_do_not_meet(tmp_path: Path, working_directory: str | None) -> None:
    one, two = (
        FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / name), working_directory=working_directory)
        for name in ("one", "two")
    )
    places = {storage.live_directory(job) for storage in (one, two) for job in ("orders", "payments")}
    assert len(places) == 4
    assert one.live_directory("orders") == one.live_directory("orders")


def test_live_locations_can_be_put_elsewhere_or_into_the_storage(tmp_path: Path) -> None:
    elsewhere = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), working_directory=str(tmp_path / "ssd"))
    assert tmp_path / "ssd" in elsewhere.live_directory("orders").parents
    inside = FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), working_directory="taskowned")
    assert inside.live_directory("orders") == tmp_path / "orders" / "taskowned"


def test_where_live_locations_lie_is_an_option_of_files_only(tmp_path: Path) -> None:
    place = FileSystemCheckpointStorage(checkpoint_path="gs://bucket/directory")
    assert place.live_place is LiveLocationPlace.AUTO
    named = LiveLocationPlace("storage")
    asked = FileSystemCheckpointStorage(checkpoint_path="gs://bucket/directory", live_location=named)
    assert asked.live_place is LiveLocationPlace.STORAGE
    assert pickle.loads(pickle.dumps(asked)).live_place is LiveLocationPlace.STORAGE
    assert JobManagerCheckpointStorage().live_place is LiveLocationPlace.LOCAL
    with pytest.raises(ValueError, match="live_location"):
        FileSystemCheckpointStorage(checkpoint_path=str(tmp_path), live_location="bucket")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("threshold", "buffer", "copied"),
    [(-1, -1, 20 * 1024), (0, -1, 4096), (0, 100, 100), (1 << 20, -1, 1 << 20), (-1, 1 << 21, 1 << 21)],
)
def test_the_write_buffer_is_never_smaller_than_the_threshold(threshold: int, buffer: int, copied: int) -> None:
    storage = FileSystemCheckpointStorage(
        checkpoint_path="x", file_state_size_threshold=threshold, write_buffer_size=buffer
    )
    assert storage.write_buffer == copied
    assert storage.filesystem()._write_buffer_size == copied  # type: ignore[attr-defined]


@pytest.mark.parametrize("buffer", [0, -2])
def test_no_write_buffer_is_refused(buffer: int) -> None:
    with pytest.raises(ValidationError, match="must be at least 1 byte, or -1 for the default"):
        FileSystemCheckpointStorage(checkpoint_path="x", write_buffer_size=buffer)


def test_the_job_managers_memory_is_limited_and_on_no_disk(tmp_path: Path) -> None:
    storage = JobManagerCheckpointStorage(working_directory=str(tmp_path))
    assert storage.size_limit == 5 * 1024 * 1024
    assert not storage.filesystem().is_durable
    assert storage.live_directory("orders").is_relative_to(tmp_path)
    assert storage.live_directory("orders") != storage.live_directory("payments")
    assert JobManagerCheckpointStorage(max_state_size=7).size_limit == 7


def test_with_a_path_the_job_managers_checkpoints_outlive_it(tmp_path: Path) -> None:
    storage = JobManagerCheckpointStorage(checkpoint_path=str(tmp_path))
    assert storage.filesystem().is_durable
    assert storage.filesystem().url == str(tmp_path)
    assert storage.size_limit == 5 * 1024 * 1024
    assert FileSystemCheckpointStorage(checkpoint_path="x").size_limit is None


@pytest.mark.parametrize("size", [0, -1])
def test_a_state_size_must_be_positive(size: int) -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        JobManagerCheckpointStorage(max_state_size=size)


def test_a_custom_storage_is_made_where_it_is_used(tmp_path: Path) -> None:
    storage = _inside_a_run(
        CustomCheckpointStorage(factory="tests.helpers.orchestration.vault:Vault", options={"root": str(tmp_path)})
    )
    filesystem = storage.filesystem()
    assert filesystem.url == f"vault://{tmp_path}"
    filesystem.create("f", b"x")
    assert (tmp_path / "f").read_bytes() == b"x"


def test_options_of_a_custom_storage_come_from_the_environment_at_any_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CustomCheckpointStorage(
        factory="tests.helpers.orchestration.vault:Vault",
        options={
            "root": dg.EnvVar("VAULT_ROOT"),
            "login": {"token": dg.EnvVar("VAULT_TOKEN"), "hosts": ["a", dg.EnvVar("VAULT_HOST")], "retries": 3},
        },
    )
    with pytest.raises(InvalidConfiguration, match="VAULT_ROOT, which is not set") as caught:
        _inside_a_run(made).filesystem()
    assert "Set VAULT_ROOT" in caught.value.hint
    for name, value in (("ROOT", str(tmp_path)), ("TOKEN", "hidden-token"), ("HOST", "b")):
        monkeypatch.setenv(f"VAULT_{name}", value)
    for storage in (made, _inside_a_run(made), pickle.loads(pickle.dumps(made))):
        vault = storage.filesystem()
        assert isinstance(vault, Vault)
        assert vault.url == f"vault://{tmp_path}"
        assert vault.login == {"token": "hidden-token", "hosts": ["a", "b"], "retries": 3}
        assert "hidden" not in repr(storage)


def _snapshot(storage: CheckpointStorage) -> str:
    """What Dagster keeps of a job with this storage."""

    @dg.asset(required_resource_keys={"checkpoint_storage"})
    def looks() -> None:
        """Nothing."""

    definitions = dg.Definitions([looks], resources={"checkpoint_storage": storage})
    job = definitions.resolve_implicit_global_asset_job_def()
    return dg.serialize_value(job.get_job_snapshot())


@pytest.mark.parametrize(
    ("options", "secrets"),
    [
        ({"account_name": "mine", "account_key": "hidden=="}, ["account_key"]),
        ({"sas_token": "sv=1&sig=hidden"}, ["sas_token"]),
        ({"key": "me", "secret": "hidden", "token": "hidden-too"}, ["secret", "token"]),
        ({"client_kwargs": {"aws_secret_access_key": "hidden"}}, ["client_kwargs.aws_secret_access_key"]),
    ],
)
def test_secrets_that_are_written_out_are_warned_of_with_the_way_on(
    options: dict[str, Any], secrets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileSystemCheckpointStorage(checkpoint_path="s3://bucket/a", storage_options=options)
    with pytest.warns(UserWarning, match="is written out") as warned:
        snapshot = _snapshot(storage)
    told = "\n".join(sorted({str(warning.message) for warning in warned}))
    assert [f"storage_options.{name} of FileSystemCheckpointStorage" in told for name in secrets] == [True] * len(
        secrets
    )
    assert "dg.EnvVar(" in told
    assert "hidden" not in f"{told}{storage!r}"
    assert "hidden" in snapshot, "there is something to warn of"

    def from_environment(given: dict[str, Any]) -> dict[str, Any]:
        return {
            name: from_environment(value)
            if isinstance(value, dict)
            else dg.EnvVar("HIDDEN")
            if value.startswith(("hidden", "sv="))
            else value
            for name, value in given.items()
        }

    better = FileSystemCheckpointStorage(checkpoint_path="s3://bucket/a", storage_options=from_environment(options))
    monkeypatch.setenv("HIDDEN", "what is not shown")
    snapshot = _snapshot(better)  # a warning would be an error
    assert "HIDDEN" in snapshot
    assert "what is not shown" not in snapshot


@pytest.mark.parametrize(
    "options",
    [
        {"token": "/path/of/a/key.json"},
        {"token": "google_default", "project": "p"},
        {"profile": "jobs", "endpoint_url": "https://minio.example"},
        {"key": "me", "anon": True},
    ],
)
def test_what_is_no_secret_is_not_warned_of(options: dict[str, Any]) -> None:
    assert _snapshot(FileSystemCheckpointStorage(checkpoint_path="gs://bucket/a", storage_options=options))


def test_a_field_of_the_wrong_kind_does_not_show_what_it_was_given() -> None:
    with pytest.raises(ValidationError, match="storage_options") as caught:
        FileSystemCheckpointStorage.model_validate({"checkpoint_path": "x", "storage_options": "AccountKey=hidden"})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "options", "why", "way_on"),
    [
        ("no_such_module:Vault", {}, "No module named 'no_such_module'", "package.module:name"),
        ("tests.helpers.orchestration.vault:Vaults", {}, "has no attribute 'Vaults'", "package.module:name"),
        (
            "tests.helpers.orchestration.vault:Vault",
            {"path": "x"},
            "unexpected keyword argument 'path'",
            "options given: path",
        ),
        ("builtins:dict", {}, "made a dict", "FileSystemContract"),
    ],
)
def test_a_custom_storage_that_cannot_be_made(factory: str, options: dict[str, str], why: str, way_on: str) -> None:
    storage = CustomCheckpointStorage(factory=factory, options=options)
    with pytest.raises(InvalidConfiguration, match=why) as caught:
        storage.filesystem()
    assert factory in caught.value.message
    assert way_on in caught.value.hint


def test_spark_cannot_work_in_what_is_no_directory(tmp_path: Path) -> None:
    storage = CustomCheckpointStorage(
        factory="tests.helpers.orchestration.vault:Vault",
        options={"root": str(tmp_path)},
        working_directory="taskowned",
    )
    with pytest.raises(InvalidConfiguration, match="no directory of this machine") as caught:
        storage.live_directory("orders")
    assert "working_directory" in caught.value.hint


@pytest.mark.parametrize(
    "storage",
    [
        FileSystemCheckpointStorage(checkpoint_path="x", savepoint_path="s", deployment="d"),
        JobManagerCheckpointStorage(max_state_size=7),
        CustomCheckpointStorage(factory="tests.helpers.orchestration.vault:Vault", options={"root": "r"}),
    ],
    ids=lambda storage: type(storage).__name__,
)
def test_a_storage_goes_to_other_processes_and_threads(storage: CheckpointStorage) -> None:
    copied = pickle.loads(pickle.dumps(storage))
    assert copied.filesystem().url == storage.filesystem().url
    assert copied.live_directory("orders") == storage.live_directory("orders")
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: storage.filesystem().url, range(50)))) == 1


@pytest.mark.parametrize(
    ("settings", "storage"),
    [
        ({}, JobManagerCheckpointStorage()),
        ({"state.checkpoints.dir": "/c"}, FileSystemCheckpointStorage(checkpoint_path="/c")),
        (
            {
                "execution.checkpointing.dir": "/c",
                "execution.checkpointing.savepoint-dir": "/s",
                "execution.checkpointing.data-inline-threshold": "1 kb",
                "execution.checkpointing.write-buffer-size": "64 kb",
            },
            FileSystemCheckpointStorage(
                checkpoint_path="/c", savepoint_path="/s", file_state_size_threshold=1024, write_buffer_size=65_536
            ),
        ),
        (
            {"execution.checkpointing.storage": "jobmanager", "execution.checkpointing.dir": "/c"},
            JobManagerCheckpointStorage(checkpoint_path="/c"),
        ),
        (
            {
                "execution.checkpointing.storage": "tests.helpers.orchestration.vault:Vault",
                "state.savepoints.dir": "/s",
            },
            CustomCheckpointStorage(factory="tests.helpers.orchestration.vault:Vault", savepoint_path="/s"),
        ),
    ],
)
def test_a_storage_is_chosen_as_flink_chooses(settings: dict[str, str], storage: CheckpointStorage) -> None:
    chosen = configured_storage(Configuration(settings))
    assert type(chosen) is type(storage)
    assert dict(chosen) == dict(storage)


def test_files_without_a_directory_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no directory is given") as caught:
        configured_storage(Configuration({"execution.checkpointing.storage": "filesystem"}))
    assert "execution.checkpointing.dir" in caught.value.hint


def test_a_missing_path_is_named() -> None:
    with pytest.raises(ValidationError, match="checkpoint_path"):
        FileSystemCheckpointStorage.model_validate({})


def test_a_misspelt_field_is_named() -> None:
    with pytest.raises(ValidationError, match="checkpont_path"):
        FileSystemCheckpointStorage.model_validate({"checkpoint_path": "x", "checkpont_path": "y"})


def test_spark_is_configured_in_code_and_in_the_launchpad() -> None:
    seen: list[SparkSessionResource] = []

    @dg.asset
    def looks(spark: SparkSessionResource) -> None:
        seen.append(spark)

    with dg.DagsterInstance.ephemeral() as instance:
        for spark, config in (
            (SparkSessionResource(master="local[3]", conf={"spark.ui.enabled": "false"}), {}),
            (
                SparkSessionResource.configure_at_launch(),
                {"resources": {"spark": {"config": {"master": "spark://host:7077", "conf": {"a.b": "c"}}}}},
            ),
        ):
            assert dg.materialize([looks], resources={"spark": spark}, instance=instance, run_config=config).success
    assert [(spark.master, spark.conf) for spark in seen] == [
        ("local[3]", {"spark.ui.enabled": "false"}),
        ("spark://host:7077", {"a.b": "c"}),
    ]


def test_spark_is_not_started_by_being_a_resource() -> None:
    """The sensor and every other asset of the code location are given resources too."""
    before = SparkSession._instantiatedSession
    resource = SparkSessionResource()
    assert resource.master == "local[*]"
    assert SparkSession._instantiatedSession is before


def test_the_next_start_is_helped_once_a_checkpoint_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: a job that is not under way needs the processor itself."""
    happened: list[str] = []

    def drive(start: object, on_event: Callable[[Event], None], **_: Any) -> RunResult:
        for event in (EpochClaimed(1), CheckpointCompleted(MANIFEST, ())):
            on_event(event)
        return RunResult(JobStatus.FINISHED, MANIFEST)

    monkeypatch.setattr(spark_door, "supervise", drive)
    monkeypatch.setattr(SparkSessionResource, "help_next_start", lambda _: happened.append("help"))
    told: Callable[[Event], None] = lambda event: happened.append(type(event).__name__)  # noqa: E731
    start: Any = None
    assert SparkSessionResource().supervise(start, told).newest == MANIFEST
    assert happened == ["EpochClaimed", "CheckpointCompleted", "help"]


class _Shared(SparkSessionResource):
    """A user's resource that has its own way to a session."""

    def session(self, job_name: str, required: Mapping[str, str] | None = None) -> SparkSession:
        raise AssertionError(f"{job_name} {required}")


class _Named(SparkSessionResource):
    """A user's resource with a field of its own."""

    team: str = "orders"


def test_the_jvm_starts_early_only_if_the_session_will_use_it() -> None:
    assert SparkSessionResource().starts_early
    assert _Named().starts_early
    assert not SparkSessionResource(early_jvm=False).starts_early
    assert not _Shared().starts_early
