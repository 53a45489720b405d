"""The verdict on a restore before anything is touched: exact, with lost or doubled rows, or impossible.

Pure: findings go in; the verdict, its text and the resulting error come out. The checks that make findings are in
:mod:`dagster_ckpt.spark.preflight.start_checks`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_ckpt.config import CheckpointingMode
from dagster_ckpt.errors import CheckpointError, RestoreRefused, RestoreWithLoss
from dagster_ckpt.stored_json import Json

__all__ = ["Finding", "Preflight", "Verdict"]


class Verdict(StrEnum):
    """How a restore will turn out, the best first.

    ``RESTORABLE``: exact, as far as was checked. ``WITH_LOSS``: rows would be lost or doubled. ``NOT_RESTORABLE``: the
    restore is impossible.
    """

    RESTORABLE = "RESTORABLE"
    WITH_LOSS = "WITH_LOSS"
    NOT_RESTORABLE = "NOT_RESTORABLE"

    @property
    def severity(self) -> int:
        """0, 1 or 2, where 2 is the worst; also the exit status of the command line."""
        return list(Verdict).index(self)


def _severity(verdict: Verdict) -> int:
    return verdict.severity


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, good or bad.

    Attributes:
        check: what was checked, a few words.
        verdict: the check's verdict on the restore.
        reason: what was found, with files and batches, or why something could not be checked.
        hint: what to do next; empty for nothing.
        only_doubles: for ``WITH_LOSS``: rows would be doubled, and none lost.
        stays: for ``WITH_LOSS``: parts of the reason that tell what is lost, and stay the same at the next start while
            other parts may change. A loss is accepted already if a user has accepted one with all these parts. Empty
            for the whole reason.
        error: for ``NOT_RESTORABLE``: the error that a restore raises.
    """

    check: str
    verdict: Verdict
    reason: str
    hint: str = ""
    only_doubles: bool = False
    stays: tuple[str, ...] = ()
    error: CheckpointError | None = field(default=None, compare=False)

    @classmethod
    def fine(cls, check: str, reason: str) -> Finding:
        """A check that found nothing wrong."""
        return cls(check, Verdict.RESTORABLE, reason)

    def is_accepted(self, accepted: str) -> bool:
        """Whether an accepted loss, told as ``{check}: {reason}``, is this one."""
        head = f"{self.check}: "
        if not self.stays:
            return accepted == head + self.reason
        return accepted.startswith(head) and all(part in accepted for part in self.stays)

    @classmethod
    def of_error(cls, check: str, error: CheckpointError) -> Finding:
        """A check that found the restore impossible."""
        return cls(check, Verdict.NOT_RESTORABLE, error.message, error.hint, error=error)


@dataclass(frozen=True, slots=True)
class Preflight:
    """All checks that were made before one restore.

    Attributes:
        subject: the checkpoint to restore, for example ``{job id}/chk-N``; ``nothing`` for a start from nothing.
        findings: one per check, in the order of the checks.
    """

    subject: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return max((item.verdict for item in self.findings), key=_severity, default=Verdict.RESTORABLE)

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The findings that are not fine, the worst first."""
        found = [item for item in self.findings if item.verdict is not Verdict.RESTORABLE]
        return tuple(sorted(found, key=lambda item: -item.verdict.severity))

    @property
    def losses(self) -> tuple[Finding, ...]:
        """The findings of lost or doubled rows."""
        return tuple(item for item in self.findings if item.verdict is Verdict.WITH_LOSS)

    def refusal(self, mode: CheckpointingMode, accepted: Collection[str] | None = ()) -> CheckpointError | None:
        """The error that refuses the restore, ``None`` when the restore may proceed.

        A restore that would lose rows is refused in both modes, one that would double rows under ``EXACTLY_ONCE`` only.

        Args:
            mode: the guarantee that the job asks for.
            accepted: reasons of the losses that the user has accepted; ``None`` accepts every loss. An impossible
                restore cannot be accepted.
        """
        if not self.bad:
            return None
        worst = self.bad[0]
        if worst.verdict is Verdict.NOT_RESTORABLE:
            return self._with_the_others(worst.error or RestoreRefused(worst.reason, hint=worst.hint), worst)
        refused = [
            item
            for item in self.losses
            if accepted is not None
            and item.reason not in accepted
            and not (item.only_doubles and mode is CheckpointingMode.AT_LEAST_ONCE)
        ]
        if not refused:
            return None
        what = "double rows" if all(item.only_doubles for item in refused) else "lose rows"
        return RestoreWithLoss(
            f"A restore of {self.subject} would {what}. {' '.join(f'{item.check}: {item.reason}' for item in refused)}",
            hint=" ".join(
                [
                    *dict.fromkeys(item.hint for item in refused if item.hint),
                    "To go on nevertheless, launch with allow_loss: true; the next checkpoints keep a note of it.",
                ]
            ),
        )

    def _with_the_others(self, error: CheckpointError, worst: Finding) -> CheckpointError:
        others = [item for item in self.bad if item is not worst]
        if not others:
            return error
        told = " ".join(f"{item.check}: {item.verdict}, {item.reason}" for item in others)
        every = type(error)(f"{error.message} Also found: {told}", hint=error.hint)
        every.__cause__ = error.__cause__
        return every

    def lines(self) -> list[str]:
        """A line for each check, then the verdict."""
        width = max((len(item.check) for item in self.findings), default=0)
        told = []
        for item in self.findings:
            told.append(f"{item.check:<{width}}  {item.verdict:<14}  {item.reason}")
            if item in self.bad and item.hint:
                told.append(f"{'':<{width}}  -> {item.hint}")
        return [*told, f"{self.subject}: {self.verdict}"]

    def to_json(self) -> dict[str, Json]:
        """The same as JSON, for programs."""
        return {
            "checkpoint": self.subject,
            "verdict": self.verdict.value,
            "findings": [
                {"check": item.check, "verdict": item.verdict.value, "reason": item.reason, "hint": item.hint}
                for item in self.findings
            ],
        }
