"""``CheckpointedStreamComponent``: what its YAML may say, and the definitions that come of it."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._utils.pydantic_yaml import enrich_validation_errors_with_source_position
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.yaml_utils import parse_yaml_with_source_position
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import ValidationError

from dagster_ckpt import (
    CheckpointedStreamComponent,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    RestartStrategies,
    SparkSessionResource,
    build_checkpoint_definitions,
    build_job_report,
    build_restore_drill,
    build_savepoint_schedule,
    checkpointed_streaming_asset,
)
from dagster_ckpt.config import CheckpointConfig
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration.component import attributes
from dagster_ckpt.orchestration.component.scaffolder import CheckpointedStreamScaffolder


def turnover(context: dg.AssetExecutionContext, spark: Any) -> Any:
    raise AssertionError("no test runs this query")


@dg.success_hook
def told(context: dg.HookContext) -> None:
    pass


FUNCTION = f"{__name__}:turnover"
_CONDITION, _FRESHNESS = dg.AutomationCondition.on_missing(), dg.FreshnessPolicy.time_window(timedelta(hours=1))
_IMPORTED = {
    FUNCTION: turnover,
    "a:list": [],
    "a:old": turnover,
    "a:told": told,
    "a:condition": _CONDITION,
    "a:freshness": _FRESHNESS,
    "a:page": print,
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module by its name, which pytest's way of importing does not leave to others."""
    monkeypatch.setattr(attributes, "load_object", lambda path, _: _IMPORTED[path])


def load(**given: Any) -> CheckpointedStreamComponent:
    context = dg.ComponentTree.for_test().load_context
    made: CheckpointedStreamComponent = CheckpointedStreamComponent.from_attributes_dict(
        attributes={"function": FUNCTION, **given}, context=context
    )
    return made


def defined(**given: Any) -> dg.Definitions:
    return load(**given).build_defs(dg.ComponentTree.for_test().load_context)


@pytest.mark.parametrize(
    ("of_yaml", "real"),
    [
        (attributes.StorageAttributes, set(FileSystemCheckpointStorage.model_fields)),
        (attributes.CheckpointAttributes, set(CheckpointConfig.model_fields)),
        (attributes.DrillAttributes, set(inspect.signature(build_restore_drill).parameters) - {"asset", "spark"}),
        (attributes.ReportAttributes, set(inspect.signature(build_job_report).parameters) - {"asset"}),
        (attributes.SparkAttributes, set(SparkSessionResource.model_fields)),
        (
            attributes.SavepointScheduleAttributes,
            set(inspect.signature(build_savepoint_schedule).parameters) - {"asset"},
        ),
        (
            attributes.RestartAttributes,
            {"type"}
            | set(inspect.signature(RestartStrategies.fixed_delay_restart).parameters)
            | set(inspect.signature(RestartStrategies.failure_rate_restart).parameters)
            | set(inspect.signature(RestartStrategies.exponential_delay_restart).parameters),
        ),
    ],
)
def test_the_yaml_sets_everything_that_python_sets(of_yaml: type[dg.Model], real: set[str]) -> None:
    assert set(of_yaml.model_fields) == real


def test_what_the_decorator_takes_is_set_by_the_yaml() -> None:
    decorator = set(inspect.signature(checkpointed_streaming_asset).parameters)
    other_words = {"config": "checkpoint", "state_backend": "configuration"}
    given = {other_words.get(name, name) for name in decorator}
    given |= set(inspect.signature(build_checkpoint_definitions).parameters) - {"assets", "resources"}
    assert given <= set(CheckpointedStreamComponent.model_fields)
    assert load(job_name="sums", most_restarts_per_hour=None).job_name == "sums"


def test_what_any_asset_has_arrives_at_the_asset() -> None:
    definitions = defined(
        kinds=["spark", "parquet"],
        metadata={"runbook": "https://wiki/turnover", "rows_a_day": 4_000},
        code_version="1.10",
        pool="spark",
        op_tags={"team": "sales", "dagster-k8s/config": {"container_config": {"resources": {"limits": {"cpu": "2"}}}}},
        storage={"checkpoint_path": "/d"},
        spark={},
    )
    dg.Definitions.validate_loadable(definitions)
    node = definitions.resolve_asset_graph().get(dg.AssetKey(["turnover"]))
    assert (node.kinds, node.code_version, node.pools) == ({"spark", "parquet"}, "1.10", {"spark"})
    assert node.metadata["runbook"] == "https://wiki/turnover"
    assert node.metadata["rows_a_day"] == 4_000
    op = node.assets_def.op
    assert op.tags["team"] == "sales"
    assert '"cpu": ' in op.tags["dagster-k8s/config"]


def test_text_that_looks_like_a_number_stays_text() -> None:
    tags = {"year": "2026", "exact": "1.10", "rendered": "{{ 1 + 1 }}", "plain": 3, "beta": True}
    component = load(tags=tags, run_tags={"dagster/priority": "3"}, code_version=7)
    assert component.tags == {"year": "2026", "exact": "1.10", "rendered": "2", "plain": "3", "beta": "true"}
    assert (component.run_tags, component.code_version) == ({"dagster/priority": "3"}, "7")


def test_what_is_given_arrives() -> None:
    component = load(
        storage={"checkpoint_path": "/data/{{ 'check' }}points", "live_location": "local"},
        checkpoint={"interval": "30 s", "num_retained": 20, "mode": "AT_LEAST_ONCE"},
        restart={"type": "fixed_delay", "restart_attempts": 3, "delay_between_attempts": "10 s"},
        spark={"master": "local[2]", "conf": {"a": 4, "b": True, "c": "4g"}},
    )
    assert component.storage.checkpoint_path == "/data/checkpoints"
    assert component.checkpoint == CheckpointConfig(interval="30 s", num_retained=20, mode="AT_LEAST_ONCE")
    assert component.restart == RestartStrategies.fixed_delay_restart(3, timedelta(seconds=10))
    assert component.spark.conf == {"a": "4", "b": "true", "c": "4g"}


def test_without_more_than_a_function_it_is_as_the_decorator() -> None:
    component = load()
    assert (component.checkpoint, component.restart) == (None, None)
    resources = {
        "checkpoint_storage": FileSystemCheckpointStorage(checkpoint_path="/d"),
        "spark": SparkSessionResource(),
    }
    definitions = dg.Definitions.merge(defined(), dg.Definitions(resources=resources))
    dg.Definitions.validate_loadable(definitions)


def test_components_beside_one_another_have_storages_of_their_own() -> None:
    both = [
        defined(name=name, storage={"checkpoint_path": f"/data/{name}"}, spark={"master": f"local[{number}]"})
        for number, name in enumerate(("one", "two"), start=1)
    ]
    definitions = dg.Definitions.merge(*both)
    dg.Definitions.validate_loadable(definitions)
    assert set(definitions.resources or {}) == {f"{name}_{part}" for name in ("one", "two") for part in _OWN}


_OWN = ("checkpoint_storage", "spark")
_REPORTS = "sales__turnover_report_job_schedule"


@pytest.mark.parametrize("status", [{}, {"default_status": "STOPPED"}, {"default_status": "RUNNING"}], ids=str)
def test_schedules_keys_and_deps(status: dict[str, str]) -> None:
    definitions = defined(
        key_prefix=["sales"],
        deps=["raw/orders"],
        group_name="sales",
        savepoints=[{"cron_schedule": "0 3 * * *", "name": "nightly", "keep": 3, **status}],
        report={"cron_schedule": "{{ '0 6 * * *' }}"},
        sensor_name="resume_turnover",
        storage={"checkpoint_path": "/d"},
        spark={},
    )
    dg.Definitions.validate_loadable(definitions)
    node = definitions.resolve_asset_graph().get(dg.AssetKey(["sales", "turnover"]))
    assert (node.parent_keys, node.group_name) == ({dg.AssetKey(["raw", "orders"])}, "sales")
    repository = definitions.get_repository_def()
    schedules = {schedule.name: schedule for schedule in repository.schedule_defs}
    nightly, report = (schedules.pop(name) for name in ("sales__turnover_nightly_savepoints", _REPORTS))
    assert not schedules
    assert nightly.default_status.value == status.get("default_status", "RUNNING")
    assert (report.cron_schedule, report.job_name) == ("0 6 * * *", "sales__turnover_report_job")
    assert dg.AssetKey(["sales", "turnover_report"]) in definitions.resolve_asset_graph().get_all_asset_keys()
    assert [sensor.name for sensor in repository.sensor_defs] == ["resume_turnover"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"checkpoint": {"interval": "soon"}}, "'soon' is not a duration"),
        ({"restart": {"type": "fixed_delay", "max_backoff": "1 s"}}, "unexpected keyword argument 'max_backoff'"),
        ({"restart": {"type": "fixed_delay"}}, "missing 2 required positional arguments"),
        ({"function": "a:list"}, "is a list, and no function"),
    ],
)
def test_what_cannot_be_used_is_told(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ResolutionException, match=reason):
        load(**given)


_AT = """\
type: dagster_ckpt.CheckpointedStreamComponent
attributes:
  function: {function}
  storage:
    checkpoint_path: /d
    {storage}
  checkpoint:
    num_retained: 3
    {checkpoint}
  restart:
    type: fixed_delay
    {restart}
    delay_between_attempts: 1 s
  drill:
    cron_schedule: 0 4 * * *
    {drill}
  report:
    {report}
"""
_GOOD = {
    "function": FUNCTION,
    "storage": "savepoint_path: /s",
    "checkpoint": "interval: 1 min",
    "restart": "restart_attempts: 3",
    "drill": "max_age: 7 d",
    "report": "cron_schedule: 0 6 * * *",
}


def test_yaml_without_a_mistake_loads(tmp_path: Path) -> None:
    assert _of_yaml(_AT.format(**_GOOD), tmp_path).checkpoint.num_retained == 3


@pytest.mark.parametrize(
    ("block", "mistake", "told"),
    [
        ("checkpoint", "interval: soon", "'soon' is not a duration"),
        ("checkpoint", "timeout: 5 ms", "must be larger than or equal to 10 ms"),
        ("checkpoint", "heartbeat_timeout: 2 h", "heartbeat_timeout"),
        ("checkpoint", "intervall: 1 min", "intervall"),
        ("checkpoint", "interval: 30", "interval"),
        ("restart", "max_backoff: 1 s", "unexpected keyword argument 'max_backoff'"),
        ("restart", "restart_attempts: -3", "restart attempts|restart_attempts"),
        ("storage", "savepoint_path: foo://x", "has the scheme 'foo'"),
        ("storage", "live_location: somewhere", "live_location"),
        ("drill", "max_age: tomorrow", "'tomorrow' is not a duration"),
        ("drill", "max_agee: 7 d", "max_agee"),
        ("report", "cron: 0 6 * * *", "cron"),
    ],
)
def test_an_error_points_at_the_line_of_the_option(block: str, mistake: str, told: str, tmp_path: Path) -> None:
    text = _AT.format(**{**_GOOD, block: mistake})
    line = 1 + text[: text.index(mistake)].count("\n")
    with pytest.raises((ResolutionException, ValidationError), match=told) as caught:
        _of_yaml(text, tmp_path)
    assert f"defs.yaml:{line}" in str(caught.value)


def _of_yaml(text: str, directory: Path) -> CheckpointedStreamComponent:
    """A component as ``dg check defs`` loads it."""
    made: CheckpointedStreamComponent
    (directory / "defs.yaml").write_text(text)
    parsed = parse_yaml_with_source_position(text, str(directory / "defs.yaml"))
    tree = parsed.source_position_tree
    with enrich_validation_errors_with_source_position(tree.children["attributes"], ["attributes"]):
        context = dg.ComponentTree.for_test().load_context.with_source_position_tree(tree)
        made = CheckpointedStreamComponent.from_attributes_dict(attributes=parsed.value["attributes"], context=context)
    return made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"checkpoint": {"intervall": "1 min"}}, "Additional properties are not allowed ('intervall' was unexpected)"),
        ({"checkpoint": {"interval": "soon"}}, "'soon' does not match"),
        ({"checkpoint": {"interval": 30}}, "30 is not of type 'string', 'null'"),
        ({"restart": {"type": "none", "typ": "none"}}, "('typ' was unexpected)"),
        ({"spark": {"masterr": "local"}}, "('masterr' was unexpected)"),
        ({"storage": {"checkpoint_path": "/d", "live_location": 3}}, "3 is not "),
        ({"checkpoint": {"interval": "1 min 30 s", "timeout": "{{ env.T }}", "retain_for": None}}, ""),
    ],
)
def test_the_schema_names_the_option_that_is_wrong(given: dict[str, Any], told: str) -> None:
    """What ``dg check yaml`` says."""
    validator = Draft202012Validator(CheckpointedStreamComponent.model().model_json_schema())
    found = [error.message for error in validator.iter_errors({"function": FUNCTION, **given})]
    assert [told in message for message in found] == ([True] if told else [])


def test_what_python_makes_is_named_by_its_import_path() -> None:
    component = load(
        code_version="2",
        previous={"1": "a:old"},
        green={"3": "a:old"},
        automation_condition="a:condition",
        freshness_policy="a:freshness",
        hooks=["a:told"],
        report_interval="3 s",
        upgrade_timeout="1 h",
        alert="a:page",
        drill={"cron_schedule": "0 4 * * *", "max_age": "2 d", "timeout": "{{ '5 min' }}"},
        storage={"checkpoint_path": "/d"},
        spark={},
    )
    definitions = component.build_defs(dg.ComponentTree.for_test().load_context)
    dg.Definitions.validate_loadable(definitions)
    (stream,) = [item for item in definitions.assets or () if isinstance(item, CheckpointedStreamingAsset)]
    spec = stream.get_asset_spec()
    assert (spec.automation_condition, spec.freshness_policy) == (_CONDITION, _FRESHNESS)
    assert stream.hook_defs == {told}
    assert set(stream.versions.others) == {"1", "3"}
    repository = definitions.get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} >= {"turnover_failed_sensor"}
    (schedule,) = repository.schedule_defs
    assert schedule.job_name == "turnover_drill_job"


@pytest.mark.parametrize("name", ["2026", "a.b", "class"])
def test_a_name_that_no_function_can_have_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    target = tmp_path / "src" / "shop" / "defs" / name
    request = dg.ScaffoldRequest[Any]("t", target, "yaml", tmp_path, None, append=False)
    with pytest.raises(InvalidConfiguration, match="cannot be the name of a function"):
        CheckpointedStreamScaffolder().scaffold(request)
    assert not target.exists()


def test_a_secret_is_looked_up_where_it_is_used() -> None:
    component = load(storage={"checkpoint_path": "gs://bucket/c", "storage_options": {"token": {"env": "KEY_FILE"}}})
    assert component.storage.storage_options == {"token": {"env": "KEY_FILE"}}, "kept as a name"
