"""Turning a materialized checkpoint into a checkpointLocation that Spark starts from."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from dagster_ckpt.errors import CheckpointFileMissing
from dagster_ckpt.paths import hadoop_path
from dagster_ckpt.spark.files.checkpoint_location import CheckpointLocation
from dagster_ckpt.spark.files.log_entries import schema_path
from dagster_ckpt.stored_json import believed, parsed

__all__ = ["prepare_location", "prepare_new_location"]


def prepare_location(checkpoint_dir: Path, becomes: str | None = None) -> None:
    """Adapt the freshly materialized ``checkpoint_dir`` to its path, present or future.

    The metadata of transformWithState names its state schemas by absolute path; the paths are changed to the copies in
    this directory. Hidden ``.crc`` files are removed, because they describe other bytes and Spark trusts them. A gap
    that asynchronous progress tracking has left in ``offsets/`` is closed. A second call changes nothing.

    Args:
        checkpoint_dir: the directory of the location.
        becomes: the URL that the location will have; by default that of ``checkpoint_dir``.

    Raises:
        CheckpointFileMissing: a state schema that the metadata names was not materialized.
        CorruptCheckpoint: the operator metadata is not as Spark writes it.
    """
    root = Path(checkpoint_dir).absolute()
    for hidden in root.rglob(".*.crc"):
        if hidden.is_file():
            hidden.unlink()
    for metadata in sorted(root.glob("state/*/_metadata/v2/*")):
        if metadata.name.isdigit() and metadata.is_file():
            _point_schemas(metadata, root, becomes or hadoop_path(root))
    _close_gap(root)


def prepare_new_location(checkpoint_dir: Path) -> None:
    """Make ``checkpoint_dir`` the location of a query that has run no batch, ready for batch plans to be laid out."""
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    (checkpoint_dir / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")


def _close_gap(root: Path) -> None:
    """Give ``offsets/`` the entry before the newest one, without which Spark starts only in the mode that left it out.

    That mode takes the nearest earlier entry, so with its copy both modes begin alike. Spark plans nothing from the
    entry if the newest batch is committed. A newest batch that is not committed would read from there, and a query with
    state never has such a gap: in both cases the gap is damage, which stays for the checks to report.
    """
    location = CheckpointLocation(root)
    newest = location.last_committed()
    if newest is None or newest != location.newest() or any(name.isdigit() for name in location.names("state")):
        return
    offsets = root / "offsets"
    earlier = location.previous_offsets(newest)
    if earlier is not None and (offsets / str(newest)).exists() and earlier < newest - 1:
        (offsets / str(newest - 1)).write_bytes((offsets / str(earlier)).read_bytes())


def _point_schemas(metadata: Path, root: Path, url: str) -> None:
    operator = metadata.parents[2]
    hint = "Restore another checkpoint; dagster-ckpt list shows them."
    with believed(f"{metadata}, operator metadata as Spark writes it,", hint):
        header, _, body = metadata.read_text(encoding="utf-8").partition("\n")
        content = parsed(body)
        for store in content["stateStoreInfo"]:
            if "stateSchemaFilePaths" in store:
                store["stateSchemaFilePaths"] = [
                    f"{url}/{_schema(path, operator, metadata).relative_to(root)}"
                    for path in store["stateSchemaFilePaths"]
                ]
        rewritten = f"{header}\n{json.dumps(content, separators=(',', ':'))}"
    temporary = metadata.with_name(f".{metadata.name}.tmp")
    temporary.write_text(rewritten, encoding="utf-8")
    temporary.replace(metadata)


def _schema(recorded: str, operator: Path, metadata: Path) -> Path:
    schema = operator / schema_path(recorded)
    if not schema.is_file():
        raise CheckpointFileMissing(
            f"{metadata} needs the state schema {recorded}, which is not in this checkpoint",
            hint="Restore another checkpoint; dagster-ckpt list shows them.",
        )
    return schema
