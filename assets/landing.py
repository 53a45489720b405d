"""The asset that lands the flights."""

# No `from __future__ import annotations`: Dagster reads the classes of `context` and `config`
# from the annotations themselves.

import dagster as dg
from pydantic import Field

from assets.settings import DataPaths

__all__ = ["LandingConfig", "landed_flights"]


class LandingConfig(dg.Config):
    """How much to land."""

    days: int | None = Field(
        default=None, ge=1, description="Land at most so many further days; all that remain when empty."
    )


@dg.asset(group_name="flights", kinds={"parquet", "file"})
def landed_flights(context: dg.AssetExecutionContext, config: LandingConfig) -> dg.MaterializeResult[None]:
    """Every flight that left New York in 2013, one file per day; about 2 % late, 0.5 % too late on purpose.

    Files appear whole and in the order of their days. What is there already stays as it is.
    """
    from assets.flights import Lateness, land  # noqa: PLC0415 - pyarrow, which only a run needs

    directory = DataPaths.from_environment().landed
    landing = land(directory, days=config.days)
    context.log.info("Landed %d files, %d remain", len(landing.files), landing.remaining)
    metadata: dict[str, dg.MetadataValue] = {
        "directory": dg.MetadataValue.path(directory),
        "files": dg.MetadataValue.int(len(landing.files)),
        "rows": dg.MetadataValue.int(landing.rows()),
        "late": dg.MetadataValue.int(landing.rows(Lateness.LATE)),
        "too_late": dg.MetadataValue.int(landing.rows(Lateness.TOO_LATE)),
        "bytes": dg.MetadataValue.int(landing.size),
        "remaining_files": dg.MetadataValue.int(landing.remaining),
    }
    if landing.files:
        metadata["first_day"] = dg.MetadataValue.text(landing.files[0].day.isoformat())
        metadata["last_day"] = dg.MetadataValue.text(landing.files[-1].day.isoformat())
    return dg.MaterializeResult(metadata=metadata)
