"""What a job goes on from, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["LATEST", "NONE", "RecoveryClaimMode", "RestoreRequest"]

LATEST = "latest"
NONE = "none"


class RecoveryClaimMode(StrEnum):
    """Whose a restored checkpoint or savepoint is, as in Flink.

    With ``CLAIM`` the job goes on in the lineage it is of, and it becomes the job's own: it counts as a retained
    checkpoint and is deleted when it is subsumed. With ``NO_CLAIM`` a new lineage begins, and it is never touched.
    """

    CLAIM = "CLAIM"
    NO_CLAIM = "NO_CLAIM"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What a run was asked to begin with.

    Attributes:
        restore_from: ``latest``, ``none``, or a pointer.
        claim_mode: whose a checkpoint or savepoint becomes that is pointed to; ``None`` claims checkpoints of the
            job's own storage and leaves savepoints to the user.
        replay_to: the last batch to be run again with the boundaries it had: ``latest``, ``none``, or its number.
            ``None`` stands for all of them when going on from the latest checkpoint, and for none of them when going
            back to one that is pointed to.
        allow_loss: go on although rows would be lost or doubled; the next checkpoints keep a note of what was accepted.
        fork_from: the path of a checkpoint or savepoint of any job, to begin a job with that has no checkpoint of its
            own; ``None`` to go on. Neither what it points to nor its job is touched.
    """

    restore_from: str = LATEST
    claim_mode: RecoveryClaimMode | None = None
    replay_to: str | int | None = None
    allow_loss: bool = False
    fork_from: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked by itself.

        Raises:
            InvalidConfiguration: ``replay_to`` is neither a batch nor one of the words, or a fork is asked for together
                with what only a job that goes on can do.
        """
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

    def last_replayed(self, *, can_roll_back: bool) -> float | None:
        """The last batch to be replayed, ``inf`` for all that are known, ``None`` for none.

        Args:
            can_roll_back: whether the sink can be put back. One that cannot must see the same batches again.
        """
        if isinstance(self.replay_to, int):
            return self.replay_to
        asked = self.replay_to or (LATEST if self.restore_from == LATEST or not can_roll_back else NONE)
        return float("inf") if asked == LATEST else None
