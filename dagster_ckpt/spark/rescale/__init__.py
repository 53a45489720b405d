"""Another number of partitions for the state of a restored query."""

from dagster_ckpt.spark.rescale.checks import RESCALE_CHECK, Rescale, is_rescaled, rescale_finding
from dagster_ckpt.spark.rescale.repartition import rescale, with_partitions

__all__ = ["RESCALE_CHECK", "Rescale", "is_rescaled", "rescale", "rescale_finding", "with_partitions"]
