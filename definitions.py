"""The code location that ``dagster dev`` opens: the example pipelines, wired."""

from __future__ import annotations

import dagster as dg

from assets.landing import landed_flights
from assets.open_windows import open_windows
from assets.report import delay_report
from assets.resources import resources
from assets.streams import daily_schedule, flight_delays, flight_delays_daily
from dagster_ckpt import build_checkpoint_definitions, build_job_report, build_restore_drill

defs = dg.Definitions.merge(
    build_checkpoint_definitions([flight_delays, flight_delays_daily], resources=resources()),
    build_job_report(flight_delays),
    build_restore_drill(flight_delays),
    dg.Definitions(assets=[landed_flights, open_windows, delay_report], schedules=[daily_schedule]),
)
