from __future__ import annotations

import dagster as dg

from assets.landing import landed_flights
from assets.open_windows import open_windows
from assets.report import delay_report
from assets.streams import daily_schedule, flight_delays, flight_delays_daily
from definitions import defs


def test_the_code_location_loads() -> None:
    dg.Definitions.validate_loadable(defs)


def test_lineage_goes_from_landing_over_the_streams_to_the_report() -> None:
    graph = defs.resolve_asset_graph()
    assert graph.get(flight_delays.key).parent_keys == {landed_flights.key}
    assert graph.get(flight_delays_daily.key).parent_keys == {landed_flights.key}
    assert graph.get(delay_report.key).parent_keys == {flight_delays.key}
    assert graph.get(open_windows.key).parent_keys == {flight_delays.checkpoints_key}


def test_schedule_lands_a_week_and_counts_it() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        tick = daily_schedule.evaluate_tick(
            dg.build_schedule_context(instance=instance, repository_def=defs.get_repository_def())
        )
    (request,) = tick.run_requests or ()
    assert request.run_config == {"ops": {"landed_flights": {"config": {"days": 7}}}}
    job = defs.resolve_job_def("flight_delays_daily_tick")
    assert set(job.asset_layer.selected_asset_keys) == {landed_flights.key, flight_delays_daily.key}
    # The resume sensor finds runs by this tag.
    assert job.tags["dagster_ckpt/job"] == flight_delays_daily.name
    assert job.executor_def.name == "in_process"
    assert dg.validate_run_config(job, request.run_config)
