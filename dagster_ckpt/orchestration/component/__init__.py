"""``CheckpointedStreamComponent``: a checkpointed stream from YAML, for ``dg``."""

from dagster_ckpt.orchestration.component.stream_component import CheckpointedStreamComponent

__all__ = ["CheckpointedStreamComponent"]
