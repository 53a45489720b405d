"""``dagster_ckpt.run`` in this process, and Dagster's runs of the same job before and after."""

from __future__ import annotations

import _thread
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from dagster_ckpt import (
    CheckpointConfig,
    CheckpointedStreamingAsset,
    FileSystemCheckpointStorage,
    SparkSessionResource,
    checkpointed_streaming_asset,
    run,
)
from dagster_ckpt.cli import main
from dagster_ckpt.config.checkpoint_config import JobStatus
from dagster_ckpt.errors import InvalidConfiguration, JobAlreadyRunning, QueryNotBuilt, RestoreWithLoss
from dagster_ckpt.standalone.job_drive import Drive
from tests.jobs.harness import Bench, deduplicated, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Shops(dg.Config):
    """Configuration of a job's own."""

    most: int


ONLY_AT_THE_END = CheckpointConfig(interval="1 h", min_pause="1 h", num_retained=10)


def storage_of(bench: Bench) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(checkpoint_path=str(bench.storage), working_directory=str(bench.working))


def asset_of(bench: Bench) -> CheckpointedStreamingAsset:
    @checkpointed_streaming_asset(name=bench.name, config=ONLY_AT_THE_END)
    def stream(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        context.log.info("The query is built.")
        return deduplicated(bench, spark)

    return stream


def under_dagster(bench: Bench, **config: Any) -> None:
    """A run of the asset's own job, in this process."""
    asset = asset_of(bench)
    resources = {"checkpoint_storage": storage_of(bench), "spark": SparkSessionResource()}
    job = dg.Definitions([asset], jobs=[asset.job], resources=resources).resolve_job_def(asset.job_name)
    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process({"ops": {asset.op_name: {"config": config}}}, instance=instance)


def test_a_job_goes_from_one_to_the_other_and_back(bench: Bench) -> None:
    references = []
    for step in (run_here, under_dagster, run_here):
        bench.land(2)
        step(bench)
        bench.assert_exact()
        references.append(bench.checkpoints()[-1])
    assert [metadata.batch for metadata in references] == [1, 3, 5]
    assert len({metadata.job_id for metadata in references}) == 1, "a lineage was not gone on with"


def run_here(bench: Bench) -> None:
    ended = run(asset_of(bench), storage=storage_of(bench))
    assert ended.status is JobStatus.FINISHED
    assert ended.newest == bench.checkpoints()[-1]


def test_while_one_lives_the_other_is_refused(bench: Bench) -> None:
    bench.land(1)
    held, go_on = threading.Event(), threading.Event()

    def held_up(bench: Bench, session: SparkSession) -> DataStreamWriter:
        held.set()
        assert go_on.wait(240)
        return deduplicated(bench, session)

    launch = bench.launch(bench.job(query=held_up, deployment="default"))
    assert held.wait(240)
    try:
        with pytest.raises(JobAlreadyRunning, match=launch.run_id):
            run(asset_of(bench), storage=storage_of(bench))
    finally:
        go_on.set()
    launch.result()
    bench.assert_exact()


@pytest.mark.exhaustive
def test_what_would_lose_rows_is_refused_until_the_loss_is_allowed(bench: Bench) -> None:
    for _ in range(2):
        bench.land(2)
        run_here(bench)
    first = bench.checkpoints()[0].name
    (bench.source / "0002.json").unlink()
    asset, storage = asset_of(bench), storage_of(bench)
    with pytest.raises(RestoreWithLoss):
        run(asset, storage=storage, restore_from=first)
    bench.assert_exact()
    assert run(asset, storage=storage, restore_from=first, allow_loss=True).status is JobStatus.FINISHED
    assert bench.in_sink_log() != bench.expected()


def test_an_interrupt_is_no_end_and_counts_for_nothing(bench: Bench) -> None:
    bench.land(2)
    first = threading.Event()

    def query(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        if not first.is_set():
            first.set()
            _thread.interrupt_main()  # as Ctrl-C does
        return deduplicated(bench, spark)

    with pytest.raises(KeyboardInterrupt):
        run(query, name=bench.name, storage=storage_of(bench), config=ONLY_AT_THE_END)
    records = bench.catalog.records
    claim = records.epochs.read_claim(records.epochs.highest())
    assert claim is not None
    assert records.epochs.read_end(claim.epoch) is None
    assert run(query, name=bench.name, storage=storage_of(bench), config=ONLY_AT_THE_END).newest is not None
    bench.assert_exact()
    after = records.epochs.read_claim(records.epochs.highest())
    assert after is not None
    assert after.series == claim.series
    assert not records.failures.of(claim.series)


def test_somebody_else_cancels_the_job(bench: Bench) -> None:
    bench.land(1)
    bench.until_done = False
    told: list[Result] = []

    def ask() -> None:
        eventually("the file is read", lambda: bench.catalog.choice() is not None and bench.in_sink_log() != Counter())
        told.append(CliRunner().invoke(main, ["cancel", bench.name, "--path", str(bench.storage)]))

    asking = threading.Thread(target=ask)
    asking.start()
    ended = run(asset_of(bench), storage=storage_of(bench))
    asking.join()
    assert ended.status is JobStatus.CANCELED
    assert told[0].exit_code == 0, told[0].output
    assert told[0].stdout == "tiny: CANCELED, canceled\n"


def test_a_failing_query_is_restarted_within_the_run_and_its_function_is_one_of_dagster(bench: Bench) -> None:
    bench.land(2)
    built: list[int] = []

    def query(context: Any, spark: SparkSession, feed: str, *, shops: Shops) -> DataStreamWriter:
        built.append(shops.most)
        if len(built) == 1:
            raise ConnectionError("the feed is down")
        assert (feed, context.resources.feed) == ("http://feed", "http://feed")
        return deduplicated(bench, spark)

    settings = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 ms"}
    given: dict[str, Any] = {"storage": storage_of(bench), "name": bench.name, "configuration": settings}
    with pytest.raises(InvalidConfiguration, match="needs the resource feed"):
        run(query, **given)
    with pytest.raises(InvalidConfiguration, match="does not fit Shops"):
        run(query, **given, resources={"feed": "http://feed"})
    run(query, **given, resources={"feed": "http://feed"}, op_config={"most": 3})
    assert built == [3, 3]
    bench.assert_exact()


@pytest.mark.exhaustive
def test_a_job_that_is_not_restarted_has_failed_and_the_next_run_begins_anew(bench: Bench) -> None:
    bench.land(1)
    mended = threading.Event()

    def query(context: dg.AssetExecutionContext, spark: SparkSession) -> DataStreamWriter:
        if not mended.is_set():
            raise ConnectionError("the feed is down")
        return deduplicated(bench, spark)

    given: dict[str, Any] = {"storage": storage_of(bench), "name": bench.name}
    drive = Drive.of(query, **given, configuration={"restart-strategy.type": "none"})
    with pytest.raises(QueryNotBuilt) as failed:
        drive.run()
    assert drive.has_failed(failed.value)
    other = Drive.of(query, **given)
    assert not other.has_failed(failed.value), "it was not its own run"
    mended.set()
    assert other.run().status is JobStatus.FINISHED
    bench.assert_exact()
    assert not drive.has_failed(failed.value)


def test_an_asset_keeps_its_own_settings(bench: Bench) -> None:
    with pytest.raises(InvalidConfiguration, match="tiny is an asset and has its own config"):
        run(asset_of(bench), storage=storage_of(bench), config=ONLY_AT_THE_END)
