"""The daily report: what the stream has committed so far, as a table and a picture."""

# No `from __future__ import annotations`: Dagster reads the class of `context` from the annotation itself.

import base64
import os

import dagster as dg

from assets.settings import DataPaths
from assets.streams import flight_delays

__all__ = ["delay_report"]

_WORST_DAYS = 10


@dg.asset(
    deps=[flight_delays.key],
    group_name="flights",
    kinds={"pandas", "parquet"},
    description="Flights, cancellations and mean delays per day, from the windows the stream has closed.",
)
def delay_report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Flights, cancellations and mean delays per day, from the windows the stream has closed.

    Only files that the sink's log lists are read: what a killed batch left behind is not there for a reader.

    Raises:
        dagster.Failure: the stream has not closed a window yet.
    """
    # matplotlib and pandas take a second to load, which only this asset's own run has to pay.
    from assets.batch_answer import read_delays  # noqa: PLC0415
    from assets.daily_report import daily_report, picture, table_records  # noqa: PLC0415
    from dagster_ckpt.spark.sinks.spark_sink_log import FileSink  # noqa: PLC0415

    paths = DataPaths.from_environment()
    delays = read_delays(FileSink(paths.delays).committed_files())
    if delays.empty:
        raise dg.Failure(
            f"{paths.delays} holds no closed window yet.",
            metadata={"next": "Materialize flight_delays and let it commit a few batches."},
            allow_retries=False,
        )
    report = daily_report(delays)
    temporary = paths.report.with_name(f".{paths.report.name}.tmp")
    report.to_parquet(temporary, index=False)
    temporary.replace(paths.report)
    context.log.info("Reported %d days from %d windows", len(report), len(delays))
    image = base64.b64encode(picture(report)).decode("ascii")
    worst = report.nlargest(_WORST_DAYS, "mean_departure_delay")
    return dg.MaterializeResult(
        metadata={
            "picture": dg.MetadataValue.md(f"![Delays per day](data:image/png;base64,{image})"),
            "worst_days": dg.MetadataValue.table(table_records(worst)),
            "dagster/row_count": dg.MetadataValue.int(len(report)),
            "flights": dg.MetadataValue.int(int(report["flights"].sum())),
            "cancelled": dg.MetadataValue.int(int(report["cancelled"].sum())),
            "path": dg.MetadataValue.path(os.fspath(paths.report)),
        }
    )
