"""``dagster-ckpt state``: what a query keeps in its state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.checkpoint import CheckpointCatalog, CheckpointMetadata
from dagster_ckpt.cli.places import COUNT, JSON, OpenedStorage, find_checkpoint, pairs, storage_at, storage_path
from dagster_ckpt.cli.printing import for_people, progress, say, say_json, say_table
from dagster_ckpt.config import LATEST
from dagster_ckpt.errors import InvalidConfiguration
from dagster_ckpt.shown_text import counted, first_line
from dagster_ckpt.spark import read_state, start_session, state_operator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUIET", "state"]

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@click.command()
@click.argument("job")
@click.argument("checkpoint", default=LATEST)
@storage_path
@click.option("--operator", type=click.IntRange(0), help="The id of a stateful operator, whose state is printed.")
@click.option("--store", help="The state store, for an operator with several.")
@click.option("--where", metavar="SQL", help="Print the rows for which this holds, such as 'value.count > 100'.")
@click.option("--limit", type=COUNT, default=20, show_default=True, help="Print at most so many rows.")
@click.option(
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs,
    help="Of Spark's statestore reader, such as joinSide=left or stateVarName=count. May be repeated.",
)
@click.option("--conf", metavar="KEY=VALUE", multiple=True, callback=pairs, help="A setting of Spark. May be repeated.")
@JSON
def state(
    job: str,
    checkpoint: str,
    path: str,
    operator: int | None,
    store: str | None,
    where: str | None,
    limit: int,
    options: dict[str, str],
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Tell what JOB keeps in its state at CHECKPOINT: its stateful operators, or with --operator the rows of one.

    CHECKPOINT is 'latest', chk-N, a job id with /chk-N, savepoint:NAME, or a path. The rows are read by a local Spark
    from a copy of the checkpoint; the job may be running, and is not touched.
    """
    if operator is None and (where is not None or store is not None or options or conf):
        raise click.UsageError(
            "--where, --store, --option and --conf are for the rows of one operator: add --operator."
        )
    catalog = CheckpointCatalog(storage_at(path), job)
    metadata = find_checkpoint(catalog, checkpoint)
    if operator is None:
        _say_operators(metadata, as_json=as_json)
        return
    state_operator(metadata, str(operator))  # before Spark is started
    spark = start_session("dagster-ckpt state", "local[*]", {**QUIET, **conf}, class_archive=True)
    spark.sparkContext.setLogLevel("OFF")
    rows = list(_rows(spark, catalog, metadata, checkpoint, operator, store, options, where, limit))
    if as_json:
        say_json(rows)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["key", "value"]
    say_table(columns, ([for_people("", row.get(name)) for name in columns] for row in rows), whole="")
    say(f"{counted(len(rows), 'row')} of operator {operator}{_more(len(rows), limit)}.")


def _rows(
    spark: SparkSession,
    catalog: CheckpointCatalog,
    metadata: CheckpointMetadata,
    checkpoint: str,
    operator: int,
    store: str | None,
    options: dict[str, str],
    where: str | None,
    limit: int,
) -> Iterator[dict[str, Any]]:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - not for a command without Spark
    from pyspark.sql import functions  # noqa: PLC0415

    with read_state(
        spark,
        OpenedStorage(catalog.filesystem),
        catalog.job_name,
        checkpoint,
        operator=operator,
        store=store,
        options=options,
        bar=progress,
    ) as found:
        try:
            chosen = found if where is None else found.where(where)
            as_text = functions.to_json(functions.struct("*"), {"ignoreNullFields": "false"})
            for row in chosen.select(as_text).limit(limit).collect():
                yield json.loads(row[0])
        except PySparkException as error:
            said = first_line(error)
            raise InvalidConfiguration(
                f"Spark does not read the state of operator {operator} of {metadata.reference}: {said}",
                hint=f"The columns are: {found.schema.simpleString()}.",
            ) from error


def _say_operators(metadata: CheckpointMetadata, *, as_json: bool) -> None:
    rows = [
        {
            "operator": item.id,
            "name": item.name,
            "partitions": item.partitions,
            "keys": metadata.facts.progress.get(f"operator_{item.id}_keys"),
            "bytes": sum(file.size for file in metadata.files if file.path.startswith(f"checkpoint/state/{item.id}/")),
            "stores": item.stores,
        }
        for item in metadata.facts.operators
    ]
    if as_json:
        say_json(rows)
        return
    if not rows:
        say(f"The query of job {metadata.job_name} has no state in {metadata.reference}.")
        return
    say_table(list(rows[0]), ([for_people(*cell) for cell in row.items()] for row in rows), whole="name")


def _more(count: int, limit: int) -> str:
    return "; there may be more: see --limit and --where" if count == limit else ""
