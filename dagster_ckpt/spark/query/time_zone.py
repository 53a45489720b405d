"""The time zone in which a query tells days and hours: that of the driver's host, unless the user sets one.

Spark does not fix the time zone when a query first starts. On a host of another time zone, a restored query would count
the rows of one day as two.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TIME_ZONE_CONF", "keep_time_zone", "time_zone_of"]

_log = logging.getLogger(__name__)

TIME_ZONE_CONF = "spark.sql.session.timeZone"
_LONGEST_SHOWN = 80


def time_zone_of(session: SparkSession) -> str:
    """The time zone of a session."""
    return str(session.conf.get(TIME_ZONE_CONF))


def keep_time_zone(session: SparkSession, kept: str, *, is_chosen: bool) -> None:
    """Give the session of a restored query the time zone of its checkpoint, unless the user has chosen one.

    Args:
        session: of the query.
        kept: the time zone of the checkpoint.
        is_chosen: whether the user has set a time zone.

    Raises:
        InvalidConfiguration: Java does not know the time zone.
    """
    from pyspark.errors import IllegalArgumentException  # noqa: PLC0415 - PySpark is loaded where it runs

    here = time_zone_of(session)
    if here == kept:
        return
    if is_chosen:
        _log.warning("The time zone of the query is %s, as %s says, and was %s", here, TIME_ZONE_CONF, kept)
        return
    try:
        session.conf.set(TIME_ZONE_CONF, kept)
    except IllegalArgumentException as error:
        raise InvalidConfiguration(
            f"The checkpoint was taken in the time zone {kept[:_LONGEST_SHOWN]!r}, which this Java does not know.",
            hint=f"Set {TIME_ZONE_CONF} in the configuration of Spark to the time zone that the query is to have.",
        ) from error
    _log.info(
        "The time zone of the query stays %s, as in the checkpoint, and is not %s, that of this host. To change it, "
        "set %s",
        kept,
        here,
        TIME_ZONE_CONF,
    )
