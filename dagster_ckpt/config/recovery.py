"""What a job continues from, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["LATEST", "NONE", "RecoveryClaimMode", "RestoreRequest", "UpgradeMode"]

LATEST = "latest"
NONE = "none"


class RecoveryClaimMode(StrEnum):
    """Who owns a restored checkpoint or savepoint, as in Flink.

    With ``CLAIM`` the job continues the lineage of the checkpoint and owns the checkpoint: it counts as retained and is
    deleted when it is subsumed. With ``NO_CLAIM`` a new lineage begins, and the job never touches the checkpoint.
    """

    CLAIM = "CLAIM"
    NO_CLAIM = "NO_CLAIM"


class UpgradeMode(StrEnum):
    """What a job goes on from when its code has changed, in the words of Flink's Kubernetes operator.

    ``last-state``: from its newest checkpoint. ``savepoint``: from the savepoint that the version before was stopped
    with, and from nothing else. ``stateless``: from nothing.
    """

    SAVEPOINT = "savepoint"
    LAST_STATE = "last-state"
    STATELESS = "stateless"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What a run was asked to begin with.

    Attributes:
        restore_from: ``latest``, ``none``, or a pointer.
        claim_mode: who owns the checkpoint or savepoint that ``restore_from`` points to; ``None`` claims checkpoints
            of the job's own storage and leaves savepoints to the user.
        replay_to: the last batch to run again with its old boundaries: ``latest``, ``none``, or its number. ``None``
            means all batches when the run continues from the latest checkpoint, and no batch when ``restore_from`` is
            a pointer.
        allow_loss: continue although rows would be lost or doubled; the next checkpoints record what was accepted.
        fork_from: the path of a checkpoint or savepoint of any job, or of a checkpointLocation of plain Spark, to begin
            a job that has no checkpoint yet; ``None`` to continue the job. What is there stays untouched.
        state_partitions: the number of partitions that the query's state gets in the restored copy; ``None`` for the
            checkpoint's number. The batches after the checkpoint then get new boundaries.
    """

    restore_from: str = LATEST
    claim_mode: RecoveryClaimMode | None = None
    replay_to: str | int | None = None
    allow_loss: bool = False
    fork_from: str | None = None
    state_partitions: int | None = None

    def __post_init__(self) -> None:
        """Check the values without the storage.

        Raises:
            InvalidConfiguration: ``replay_to`` is neither a batch nor one of the words, or ``fork_from`` is combined
                with an option for a job that continues; or ``state_partitions`` is below 1, or is combined with what
                leaves no checkpoint to repartition.
        """
        if self.state_partitions is not None:
            self._check_partitions(self.state_partitions)
        if self.fork_from is not None:
            others = {"claim_mode": self.claim_mode, "replay_to": self.replay_to}
            given = ["restore_from"] if self.restore_from != LATEST else []
            given += [name for name, value in others.items() if value is not None]
            if given:
                raise InvalidConfiguration(
                    f"The run has fork_from: {self.fork_from} and {', '.join(given)}.",
                    hint="A fork begins with what fork_from points to: leave the others out. To go back to a "
                    "checkpoint of the job's own, use restore_from alone.",
                )
        text = str(self.replay_to)
        if self.replay_to is not None and text not in {LATEST, NONE}:
            if not text.isdecimal():
                raise InvalidConfiguration(
                    f"replay_to is {text!r}.", hint="Set it to 'latest', 'none' or the number of a batch."
                )
            object.__setattr__(self, "replay_to", int(text))

    def _check_partitions(self, number: int) -> None:
        if number < 1:
            raise InvalidConfiguration(f"state_partitions is {number}.", hint="Set it to 1 or more, or leave it out.")
        given = {"fork_from": self.fork_from, "claim_mode": self.claim_mode}
        others = [f"{name}: {value}" for name, value in given.items() if value is not None]
        others += ["restore_from: none"] if self.restore_from == NONE else []
        others += [f"replay_to: {self.replay_to}"] if self.replay_to not in {None, NONE} else []
        if others:
            raise InvalidConfiguration(
                f"The run has state_partitions: {number} and {', '.join(others)}.",
                hint="Launch first without state_partitions. When the job has a checkpoint, launch again with "
                "state_partitions alone, or with a restore_from beside it that names a checkpoint. A query that starts "
                "from nothing has as many partitions as spark.sql.shuffle.partitions of its session says.",
            )
        # The repartition takes the number of the next batch, so that no later batch can keep its number.
        object.__setattr__(self, "replay_to", NONE)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the newest checkpoint is asked for."""
        return self == RestoreRequest()

    def last_replayed(self, *, can_roll_back: bool) -> float | None:
        """The last batch to replay, ``inf`` for all known batches, ``None`` for none.

        Args:
            can_roll_back: whether the sink can be rolled back. Any other sink must see the same batches again.
        """
        if isinstance(self.replay_to, int):
            return self.replay_to
        asked = self.replay_to or (LATEST if self.restore_from == LATEST or not can_roll_back else NONE)
        return float("inf") if asked == LATEST else None
