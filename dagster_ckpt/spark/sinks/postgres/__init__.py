"""A table of PostgreSQL as a sink: rows and bookkeeping in one transaction, so that the database refuses a zombie."""

from dagster_ckpt.spark.sinks.postgres.postgres_sink import PostgresSink

__all__ = ["PostgresSink"]
