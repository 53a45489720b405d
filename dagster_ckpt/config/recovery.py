"""What a job continues from, and how."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias

from dagster_ckpt.config.quantities import GREATEST_INT
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["EARLIEST", "LATEST", "NONE", "NOW", "RecoveryClaimMode", "RestoreRequest", "StartSources", "UpgradeMode"]

LATEST = "latest"
NONE = "none"
EARLIEST = "earliest"
#: Of a rollback: the savepoint that the running job is stopped with.
NOW = "now"

#: By topic, or by source and topic as in ``1/orders``: offsets by partition, a time in ISO 8601, or an end.
StartSources: TypeAlias = "Mapping[str, Mapping[str, int] | str]"

_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
_SOURCE = re.compile(r"(?:[A-Za-z0-9_-]+/)?[A-Za-z0-9._-]{1,249}")


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
            a pointer; and no batch of the other job when the run forks.
        allow_loss: continue although rows would be lost or doubled; the next checkpoints record what was accepted.
        fork_from: the path of a checkpoint or savepoint of any job, or of a checkpointLocation of plain Spark, to begin
            a job that has no checkpoint yet; ``None`` to continue the job. What is there stays untouched.
        state_partitions: the number of partitions that the query's state gets in the restored copy; ``None`` for the
            checkpoint's number. The batches after the checkpoint then get new boundaries.
        start_sources: where topics of Kafka are read from, in the restored copy; ``None`` for where the checkpoint is.
            The batches after the checkpoint then get new boundaries.
        asked_by: the run that was launched with ``start_sources``, which its re-executions tell, too; empty where runs
            have no memory, and the words alone tell a request from another.
        asked_as: the move that a user asked for, if an upgrade has sent the start to another checkpoint.
        code_version: the version of the code that runs from now on, of those that the asset has; ``None`` for the one
            that is deployed or was cut over to.
    """

    restore_from: str = LATEST
    claim_mode: RecoveryClaimMode | None = None
    replay_to: str | int | None = None
    allow_loss: bool = False
    fork_from: str | None = None
    state_partitions: int | None = None
    start_sources: StartSources | None = None
    asked_by: str = ""
    asked_as: str | None = None
    code_version: str | None = None

    def __post_init__(self) -> None:
        """Check the values without the storage.

        Raises:
            InvalidConfiguration: ``replay_to`` is neither a batch nor one of the words, or ``fork_from`` is combined
                with an option for a job that continues; or ``state_partitions`` is no number of partitions, or
                ``start_sources`` names no place in a topic; or one of the two is combined with what leaves no
                checkpoint to change, or with the other.
        """
        if self.state_partitions is not None:
            self._check_partitions(self.state_partitions)
        if self.start_sources is not None:
            object.__setattr__(self, "start_sources", _start_sources(self.start_sources))
            self._check_alone(
                "start_sources",
                f"for {', '.join(self.start_sources)}",
                "A query that starts from nothing begins where startingOffsets of its source says.",
            )
        if self.fork_from is not None:
            given = ["restore_from"] if self.restore_from != LATEST else []
            given += ["claim_mode"] if self.claim_mode is not None else []
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
        if not 1 <= number <= GREATEST_INT:
            raise InvalidConfiguration(
                f"state_partitions is {number}.", hint=f"Set it to a number from 1 to {GREATEST_INT}, or leave it out."
            )
        self._check_alone(
            "state_partitions",
            str(number),
            "A query that starts from nothing has as many partitions as spark.sql.shuffle.partitions of its session "
            "says.",
        )

    def _check_alone(self, name: str, value: str, from_nothing: str) -> None:
        """Refuse beside a change of the restored copy what leaves no copy to change, and another change."""
        given = {"fork_from": self.fork_from, "claim_mode": self.claim_mode}
        others = [f"{name}: {value}" for name, value in given.items() if value is not None]
        others += ["restore_from: none"] if self.restore_from == NONE else []
        others += [f"replay_to: {self.replay_to}"] if self.replay_to not in {None, NONE} else []
        both = self.state_partitions is not None and self.start_sources is not None
        others += ["start_sources"] if both and name == "state_partitions" else []
        if others:
            raise InvalidConfiguration(
                f"The run has {name}: {value} and {', '.join(others)}.",
                hint=f"Launch first without {name}. When the job has a checkpoint, launch again with {name} alone, or "
                f"with a restore_from beside it that names a checkpoint. {from_nothing}",
            )
        # No later batch can keep its boundaries: a repartition takes the number of the next one, a move its rows.
        object.__setattr__(self, "replay_to", NONE)

    @property
    def move(self) -> str | None:
        """What tells this move of sources from another, ``None`` if no source is to be moved."""
        if self.start_sources is None:
            return None
        asked: dict[str, object] = {"restore_from": self.restore_from, "start_sources": self.start_sources}
        return self.asked_as or json.dumps(asked | ({"run": self.asked_by} if self.asked_by else {}), sort_keys=True)

    def sent_to(self, checkpoint: str) -> RestoreRequest:
        """The same request for a start that an upgrade sends to another checkpoint, or to nothing."""
        return self if checkpoint == self.restore_from else replace(self, restore_from=checkpoint, asked_as=self.move)

    @property
    def changes_copy(self) -> bool:
        """Whether the restored copy is changed before the query starts."""
        return self.state_partitions is not None or self.start_sources is not None

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


def _start_sources(given: object) -> dict[str, dict[str, int] | str]:
    """The places, with partitions as text and times in UTC.

    Raises:
        InvalidConfiguration: one is no place in a topic.
    """
    if not isinstance(given, Mapping) or not given:
        raise _no_place("start_sources", given, "a mapping of topics to places")
    places: dict[str, dict[str, int] | str] = {}
    for topic, place in given.items():
        if not isinstance(topic, str) or _SOURCE.fullmatch(topic) is None:
            raise _no_place("A key of start_sources", topic, "the name of a topic, or a source and a topic: 1/orders")
        if isinstance(place, Mapping):
            places[topic] = _offsets(topic, place)
        elif place in (EARLIEST, LATEST):
            places[topic] = str(place)
        else:
            places[topic] = _moment(topic, place)
    return places


def _offsets(topic: str, given: Mapping[object, object]) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition, offset in given.items():
        number = str(partition)
        if isinstance(partition, bool) or _PARTITION.fullmatch(number) is None or number in found:
            raise _no_place(f"A partition of {topic} in start_sources", partition, "the number of a partition, once")
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
            raise _no_place(f"start_sources of partition {number} of {topic}", offset, "an offset: 0 or more")
        found[number] = offset
    if not found:
        raise _no_place(f"start_sources of {topic}", given, "offsets by partition")
    return found


def _moment(topic: str, given: object) -> str:
    wanted = "a time in ISO 8601 with its zone, 'earliest', 'latest', or offsets by partition"
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
        if moment.tzinfo is None or moment.timestamp() < 0:
            raise ValueError
        return moment.astimezone(UTC).isoformat()
    except (ArithmeticError, ValueError):
        raise _no_place(f"start_sources of {topic}", given, wanted) from None


def _no_place(what: str, given: object, wanted: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{what} is {given!r}.",
        hint=f'Set it to {wanted}, as in {{"orders": {{"0": 17, "1": 4}}}} or '
        '{"orders": "2026-11-01T00:00:00+00:00"}.',
    )
