"""How a job goes on from what it is restored from."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["RecoveryClaimMode"]


class RecoveryClaimMode(StrEnum):
    """Whose a restored checkpoint or savepoint is, as in Flink.

    With ``CLAIM`` the job goes on in the lineage it is of, and it becomes the job's own: it counts as a retained
    checkpoint and is deleted when it is subsumed. With ``NO_CLAIM`` a new lineage begins, and it is never touched.
    """

    CLAIM = "CLAIM"
    NO_CLAIM = "NO_CLAIM"
