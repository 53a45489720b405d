"""Making a materialized checkpoint a checkpointLocation that Spark starts from."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from dagster_ckpt.errors import CheckpointFileMissing
from dagster_ckpt.spark.files.log_entries import schema_path
from dagster_ckpt.stored_json import believed, parsed

__all__ = ["prepare_location", "prepare_new_location"]


def prepare_location(checkpoint_dir: Path, becomes: str | None = None) -> None:
    """Adapt the freshly materialized ``checkpoint_dir`` to the path it now has, or is going to have.

    The metadata of transformWithState names its state schemas by absolute path; they are pointed at the
    copies in this directory. Hidden ``.crc`` files are removed: they describe other bytes, and Spark
    believes them. Doing it again changes nothing.

    Args:
        checkpoint_dir: of the location.
        becomes: the URL it is going to have; by default it stays where it is.

    Raises:
        CheckpointFileMissing: a state schema that the metadata names was not materialized.
        CorruptCheckpoint: operator metadata that is not what Spark writes.
    """
    root = Path(checkpoint_dir).absolute()
    for hidden in root.rglob(".*.crc"):
        if hidden.is_file():
            hidden.unlink()
    for metadata in sorted(root.glob("state/*/_metadata/v2/*")):
        if metadata.name.isdigit() and metadata.is_file():
            # As Hadoop writes a path: a scheme, and nothing escaped.
            _point_schemas(metadata, root, becomes or f"file:{root}")


def prepare_new_location(checkpoint_dir: Path) -> None:
    """Make ``checkpoint_dir`` the location of a query that has run no batch, so that plans can be laid out in it."""
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    (checkpoint_dir / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")


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
