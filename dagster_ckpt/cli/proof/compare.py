"""``dagster-ckpt compare``: whether a fork has written the same rows as the job that it was forked from."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from dagster_ckpt.cli.places import JSON, OpenedStorage, not_empty, pairs, require_job, storage_at, storage_path
from dagster_ckpt.cli.printing import say, say_json
from dagster_ckpt.cli.proof.state import QUIET
from dagster_ckpt.spark import compare_rows, find_common, start_session

__all__ = ["compare"]

_DIFFERENT = 3


@click.command()
@click.argument("blue")
@click.argument("green")
@storage_path
@click.option("--green-path", callback=not_empty, help="The storage of GREEN, if it is another one.")
@click.option("--column", "columns", multiple=True, help="Compare this column only. May be repeated.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, callback=pairs, help="A setting of Spark. May be repeated.")
@JSON
def compare(
    blue: str,
    green: str,
    path: str,
    green_path: str | None,
    columns: tuple[str, ...],
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Tell whether GREEN, a fork of BLUE that runs its batches again, has written the same rows.

    GREEN was launched with fork_from and replay_to: latest. The rows of the batches that both have run are compared, up
    to the newest checkpoints, by a local Spark; both jobs may be running, and are not touched.

    Exits with 0 for the same rows, and with 3 for other ones.
    """
    storage, beside = storage_at(path), storage_at(green_path or path)
    for job, filesystem in ((blue, storage), (green, beside)):
        require_job(job, filesystem)
    find_common(OpenedStorage(storage), blue, green, OpenedStorage(beside))  # before Spark is started
    spark = start_session("dagster-ckpt compare", "local[*]", {**QUIET, **conf}, class_archive=True)
    spark.sparkContext.setLogLevel("OFF")
    found = compare_rows(
        spark, OpenedStorage(storage), blue, green, green_storage=OpenedStorage(beside), columns=columns or None
    )
    if as_json:
        say_json({**asdict(found), "same": found.is_same})
    else:
        say(str(found))
        for example in found.examples:
            say(example)
    sys.exit(0 if found.is_same else _DIFFERENT)
