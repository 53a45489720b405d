"""Another number of partitions for the state of a restored query."""

from dagster_ckpt.spark.rescale.checks import RESCALE_CHECK, Rescale, rescale_finding, still_asked
from dagster_ckpt.spark.rescale.repartition import rescale, with_partitions

__all__ = ["RESCALE_CHECK", "Rescale", "rescale", "rescale_finding", "still_asked", "with_partitions"]
