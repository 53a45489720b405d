"""The arguments of a run without Dagster: refused in words before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt.config import CheckpointConfig, RecoveryClaimMode
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import FileSystemCheckpointStorage, StreamingRunConfig, checkpointed_streaming_asset
from dagster_ckpt.standalone import Drive


class Shops(dg.Config):
    most: int = 10
    least: int = 1


def with_fields(context: Any, spark: Any, shops: Shops) -> Any:
    raise AssertionError("no test runs this query")


def without_fields(context: Any, spark: Any) -> Any:
    raise AssertionError("no test runs this query")


@pytest.fixture
def storage(tmp_path: Path) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(checkpoint_path=str(tmp_path / "checkpoints"))


@pytest.mark.parametrize("query", [with_fields, without_fields])
@pytest.mark.parametrize(
    "key", [*StreamingRunConfig.model_fields, "mots", "most.least", "MOST", "", "start_sources_asked_by"]
)
def test_op_config_takes_the_functions_own_fields_only(
    key: str, query: Any, storage: FileSystemCheckpointStorage
) -> None:
    with pytest.raises(InvalidConfiguration, match="is no field of the own configuration") as refused:
        Drive.of(query, storage=storage, op_config={key: "none"})
    assert repr(key) in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(("key", "named"), [("mots", "most"), ("MOST", "most"), ("leasst", "least")])
def test_the_nearest_field_is_named(key: str, named: str, storage: FileSystemCheckpointStorage) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        Drive.of(with_fields, storage=storage, op_config={key: 3})
    assert f"The nearest field is {named};" in refused.value.hint


@pytest.mark.parametrize("key", ["restore_from", "allow_loss", "state_partitions", "configuration"])
def test_what_a_run_is_asked_for_has_arguments_of_its_own(key: str, storage: FileSystemCheckpointStorage) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        Drive.of(with_fields, storage=storage, op_config={key: "none"})
    assert f"argument {key} " in refused.value.hint


def test_the_fields_and_what_is_asked_reach_the_run(storage: FileSystemCheckpointStorage) -> None:
    asked: dict[str, Any] = {"restore_from": Path("/saved/savepoint-1"), "claim_mode": "CLAIM", "allow_loss": True}
    drive = Drive.of(with_fields, storage=storage, op_config={"most": 3}, replay_to=7, **asked)
    assert drive.op_config["most"] == 3
    request = drive.asset.settings.of_run(drive.op_config).request
    assert (request.restore_from, request.claim_mode) == ("/saved/savepoint-1", RecoveryClaimMode.CLAIM)
    assert (request.allow_loss, request.replay_to) == (True, 7)


@pytest.mark.parametrize(
    "given",
    [
        {"storage": "/x"},
        {"storage": Path("/x")},
        {"spark": "local[2]"},
        {"resources": 5},
        {"resources": "jobs:defs"},
        {"resources": {"checkpoint_storage": "/x"}},
        {"resources": {"spark": {"master": "local"}}},
        {"claim_mode": "X"},
        {"claim_mode": 1},
        {"state_partitions": "a"},
        {"state_partitions": 0},
        {"state_partitions": 2**31},
        {"state_partitions": 1.5},
        {"start_sources": [1]},
        {"start_sources": {"orders": {"x": "y"}}},
        {"allow_loss": "perhaps"},
        {"restore_from": 5},
        {"fork_from": 5},
        {"replay_to": "soon"},
        {"replay_to": -1},
        {"code_version": "9"},
        {"code_version": 9},
        {"configuration": {"execution.checkpointing.intervall": "1 s"}},
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_used_is_refused_in_words(
    given: dict[str, Any], storage: FileSystemCheckpointStorage
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        Drive.of(without_fields, **{"storage": None if "resources" in given else storage, **given})
    assert refused.value.hint
    assert "\n" not in refused.value.message, "an error is printed in one line"


@pytest.mark.parametrize("query", [5, "jobs:turnover", None, dg.AssetSpec("plain")])
def test_a_query_that_is_none(query: Any, storage: FileSystemCheckpointStorage) -> None:
    with pytest.raises(InvalidConfiguration, match="no checkpointed streaming asset and no function"):
        Drive.of(query, storage=storage)


def test_another_asset_is_named_by_its_key(storage: FileSystemCheckpointStorage) -> None:
    @dg.asset
    def plain() -> None: ...

    with pytest.raises(InvalidConfiguration, match="The query is the asset plain, and no"):
        Drive.of(plain, storage=storage)  # type: ignore[arg-type]


def test_an_unknown_version_is_refused_and_a_known_one_taken(storage: FileSystemCheckpointStorage) -> None:
    asset = checkpointed_streaming_asset(
        name="shops", code_version="1", green={"2": without_fields}, config=CheckpointConfig(interval="1 s")
    )(without_fields)
    for version in ("1", "2"):
        assert Drive.of(asset, storage=storage, code_version=version).op_config["code_version"] == version
    with pytest.raises(InvalidConfiguration, match="version 3 of its code, and has 1, 2 only"):
        Drive.of(asset, storage=storage, code_version="3")
