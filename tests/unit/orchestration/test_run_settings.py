from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import create_autospec

import dagster as dg
import pytest

from dagster_ckpt import CheckpointConfig, Configuration, RestartStrategies
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.config.restart import ExponentialDelayRestart, FixedDelayRestart, NoRestart, RestartStrategy
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.run_settings import JobSettings, config_of_run, continuing, going_on
from tests.helpers.orchestration.stored_job import StoredJob, run_id

C, R, S = "execution.checkpointing.", "execution.state-recovery.", "restart-strategy."
SECOND = timedelta(seconds=1)


def settings(
    configuration: dict[str, Any] | Configuration | None = None,
    *,
    config: CheckpointConfig | None = None,
    restart: RestartStrategy | None = None,
) -> JobSettings:
    fallback = RestartStrategies.fall_back_restart()
    return JobSettings.of(config or CheckpointConfig(), restart or fallback, configuration)


class TestOfAJob:
    def test_the_configuration_goes_over_what_is_given_in_python(self) -> None:
        job = settings(
            {f"{C}interval": "3 s", f"{S}type": "none"},
            config=CheckpointConfig(interval="1 h", num_retained=7),
            restart=FixedDelayRestart(3, SECOND),
        )
        assert job.config == CheckpointConfig(interval="3 s", num_retained=7)
        assert job.restart == NoRestart()

    @pytest.mark.parametrize(
        ("given", "configuration", "expected"),
        [
            (None, None, ExponentialDelayRestart()),
            (None, {f"{S}type": "fixed-delay"}, FixedDelayRestart(1, SECOND)),
            (FixedDelayRestart(3, SECOND), None, FixedDelayRestart(3, SECOND)),
            (FixedDelayRestart(3, SECOND), {f"{C}interval": "3 s"}, FixedDelayRestart(3, SECOND)),
            (FixedDelayRestart(3, SECOND), {f"{S}type": "none"}, NoRestart()),
        ],
    )
    def test_a_strategy_that_can_decide(
        self, given: RestartStrategy | None, configuration: dict[str, Any] | None, expected: RestartStrategy
    ) -> None:
        job = settings(configuration, restart=given)
        assert job.restart == expected
        assert job.of_run({}).restart == expected
        assert job.restart.decide([1.0]).reason

    @pytest.mark.parametrize("key", [f"{C}dir", f"{C}storage", f"{R}path"])
    def test_what_a_job_cannot_take_is_refused(self, key: str) -> None:
        file = Configuration({key: "filesystem", f"{C}interval": "3 s"})
        with pytest.raises(InvalidConfiguration, match=f"can be in the configuration of an asset: {key} belongs to"):
            settings(file)
        assert settings(file.for_job).config.interval == 3 * SECOND


class TestOfARun:
    def test_the_run_goes_over_the_job_key_by_key(self) -> None:
        job = settings({f"{C}interval": "3 s", f"{S}type": "fixed-delay", f"{S}fixed-delay.delay": "9 s"})
        run = job.of_run({"configuration": {f"{C}num-retained": 2, "restart-strategy.fixed-delay.attempts": 5}})
        assert run.config == CheckpointConfig(interval="3 s", num_retained=2)
        assert run.restart == FixedDelayRestart(5, 9 * SECOND)
        assert job.of_run({}).config.num_retained == 10, "for one run only"

    def test_its_warnings_are_those_of_both_and_of_what_they_make_together(self) -> None:
        job = settings({f"{C}unaligned.forced": "true"}, config=CheckpointConfig(unaligned=True))
        run = job.of_run({"configuration": {f"{C}mode": "at_least_once"}})
        assert [warning.partition(" ")[0] for warning in run.warnings] == [f"{C}unaligned.forced", "unaligned"]

    @pytest.mark.parametrize("op_config", [{}, {"configuration": {}}])
    def test_without_a_configuration_it_is_the_jobs(self, op_config: dict[str, Any]) -> None:
        job = settings({f"{C}interval": "3 s"})
        run = job.of_run(op_config)
        assert (run.config, run.restart, run.request.restore_from) == (job.config, job.restart, "latest")
        assert run.warnings == ()

    def test_what_it_begins_with_can_be_said_in_flinks_words(self) -> None:
        job = settings()
        assert job.of_run({"restore_from": "chk-3"}).request.restore_from == "chk-3"
        path = {f"{R}path": "/savepoints/x"}
        assert job.of_run({"restore_from": "latest", "configuration": path}).request.restore_from == "/savepoints/x"
        assert (
            job.of_run({"restore_from": "/savepoints/x", "configuration": path}).request.restore_from == "/savepoints/x"
        )
        with pytest.raises(InvalidConfiguration, match="has restore_from: chk-3, and /savepoints/x in its config"):
            job.of_run({"restore_from": "chk-3", "configuration": path})

    @pytest.mark.parametrize("mode", RecoveryClaimMode)
    def test_whose_it_becomes_too(self, mode: RecoveryClaimMode) -> None:
        job, keys = settings(), {f"{R}claim-mode": mode.value.lower()}
        assert job.of_run({"restore_from": "chk-3"}).request.claim_mode is None
        assert job.of_run({"restore_from": "chk-3", "claim_mode": mode.value}).request.claim_mode is mode
        run = job.of_run({"restore_from": "chk-3", "configuration": keys})
        assert run.request.claim_mode is mode
        assert run.warnings == ()
        (other,) = set(RecoveryClaimMode) - {mode}
        with pytest.raises(InvalidConfiguration, match=f"has claim_mode: {other}, and {mode} in its config"):
            job.of_run({"restore_from": "chk-3", "claim_mode": other.value, "configuration": keys})

    @pytest.mark.parametrize("restore_from", ["latest", "none"])
    def test_but_not_without_anything_that_is_restored(self, restore_from: str) -> None:
        run = settings().of_run({"restore_from": restore_from, "configuration": {f"{R}claim-mode": "CLAIM"}})
        assert [warning.partition(" ")[0] for warning in run.warnings] == [f"{R}claim-mode"]

    @pytest.mark.parametrize("key", [f"{C}dir", f"{C}savepoint-dir", "state.backend.type", f"{C}incremental"])
    def test_what_a_run_cannot_take_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidConfiguration, match=f"can be in the configuration of a run: {key} belongs to"):
            settings().of_run({"configuration": {key: "true" if "incremental" in key else "rocksdb"}})

    def test_what_cannot_be_used_with_the_jobs_own_is_refused(self) -> None:
        job = settings(config=CheckpointConfig(max_concurrent_checkpoints=2))
        with pytest.raises(InvalidConfiguration, match="unaligned"):
            job.of_run({"configuration": {f"{C}unaligned": "true"}})


def test_a_run_that_goes_on_has_the_configuration_but_not_what_it_began_with() -> None:
    op_config = {
        "restore_from": "latest",
        "claim_mode": "CLAIM",
        "configuration": {f"{C}interval": "3 s", "execution.savepoint.path": "/x", f"{R}claim-mode": "CLAIM"},
    }
    after = going_on(op_config)
    assert after == {"restore_from": "latest", "configuration": {f"{C}interval": "3 s"}}
    assert settings().of_run(after).request.restore_from == "latest"
    assert going_on({"restore_from": "chk-3"}) == {"restore_from": "latest"}
    assert going_on({"allow_loss": True}) == {"restore_from": "latest"}  # consent is for one start
    assert settings().of_run({"allow_loss": True}).request.allow_loss
    assert not settings().of_run({}).request.allow_loss
    assert len(op_config["configuration"]) == 3, "what Dagster knows of the run is left alone"


def test_falling_back_is_asked_for_by_the_asset_or_the_run_and_outlives_a_restart() -> None:
    job = settings(config=CheckpointConfig(fallback_to_older=True, num_retained=3))
    assert job.of_run({}).config == CheckpointConfig(fallback_to_older=True, num_retained=3)
    assert job.of_run({"fallback_to_older": None}).config.fallback_to_older
    assert not job.of_run({"fallback_to_older": False}).config.fallback_to_older
    op_config = {"restore_from": "latest", "fallback_to_older": True}
    assert not settings().config.fallback_to_older
    assert settings().of_run(op_config).config.fallback_to_older
    assert settings().of_run(going_on(op_config)).config.fallback_to_older


def test_a_fork_is_for_the_first_launch_and_stands_alone() -> None:
    op_config = {"restore_from": "latest", "fork_from": "/ckpt/other/chk-3"}
    assert settings().of_run(op_config).request.fork_from == "/ckpt/other/chk-3"
    assert settings().of_run(going_on(op_config)).request.fork_from is None
    assert settings().of_run({**op_config, "replay_to": "latest"}).request.replay_to == "latest"
    for more in ({"restore_from": "none"}, {"restore_from": "chk-2"}, {"claim_mode": "CLAIM"}):
        with pytest.raises(InvalidConfiguration, match="fork_from") as caught:
            settings().of_run({**op_config, **more})
        assert "leave the others out" in caught.value.hint


class TestOfARenamedAsset:
    CONFIG: ClassVar[dict[str, Any]] = {"configuration": {f"{S}type": "none"}, "fallback_to_older": True, "shops": 7}

    @pytest.mark.parametrize(
        "of_one",
        [
            {"job_name": "turnover_job", "tags": {names.JOB_TAG: "turnover"}},
            {"job_name": "turnover_standby", "tags": {names.JOB_TAG: "turnover"}},
            {"job_name": "__ASSET_JOB", "asset_selection": frozenset({dg.AssetKey("turnover")})},
        ],
        ids=["its job", "its standby", "the asset page"],
    )
    def test_a_resumed_run_has_what_the_run_before_was_given(self, of_one: dict[str, Any]) -> None:
        given = {**self.CONFIG, "restore_from": "chk-5"}
        run = dg.DagsterRun(run_config={"ops": {"turnover": {"config": given}}}, **of_one)
        expected = {"ops": {"sales": {"config": {**self.CONFIG, "restore_from": "latest"}}}}
        assert continuing(run, "sales") == expected

    def test_what_another_asset_was_given_is_not_the_streams(self) -> None:
        both = frozenset({dg.AssetKey("sales"), dg.AssetKey("report")})
        config = {"ops": {"report": {"config": {"day": "Monday"}}}}
        run = dg.DagsterRun("__ASSET_JOB", run_config=config, asset_selection=both, tags={names.JOB_TAG: "sales"})
        assert continuing(run, "sales") == {"ops": {"sales": {"config": {"restore_from": "latest"}}}}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_resumed_run_says_that_the_run_before_was_deleted(tmp_path: Path, is_known: bool) -> None:
    context = create_autospec(dg.AssetExecutionContext, instance=True)
    with dg.DagsterInstance.ephemeral() as instance:
        before = instance.add_run(dg.DagsterRun("orders_job", run_id=run_id())).run_id if is_known else run_id()
        context.instance, context.op_execution_context.op_config = instance, {}
        context.run.tags = {names.PARENT_RUN_TAG: before, names.RESUMES_TAG: before}
        config_of_run(context, StoredJob(tmp_path).catalog)
    lines = [str(call) for call in context.log.mock_calls]
    assert any(f"does not know run {before}" in line for line in lines) is not is_known
