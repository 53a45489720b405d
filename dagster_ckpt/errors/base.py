"""The base of every error, and errors of what the user has set."""

from __future__ import annotations

from dagster_ckpt.shown_text import printable, redacted

__all__ = ["CheckpointError", "InvalidConfiguration", "JavaNotFound", "UnsupportedSpark"]


class CheckpointError(Exception):
    """Base of every error of this package.

    Args:
        message: what happened, naming the path, job or checkpoint concerned.
        hint: what to do next, as a sentence or a command to copy.

    Message and hint may quote text from elsewhere. So credentials are removed from both and control characters are
    escaped, wherever the error is shown (a terminal, a log, Dagster's events).

    Attributes:
        recoverable: whether starting the job again can help, so that the restart strategy decides. ``False`` only for
            errors after which a person has to do something first.
    """

    recoverable: bool = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(redacted(message))
        self.hint = printable(redacted(hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    @property
    def in_one_line(self) -> str:
        """Message and hint in one line."""
        return f"{self.message} {self.hint}"


class InvalidConfiguration(CheckpointError, ValueError):
    """A value the user chose cannot be used.

    Such as: no directory for a savepoint; ``--stop`` of a job that does not run; ``dispose`` of a checkpoint that is
    not broken; ``pin`` of a savepoint; a key of Flink's that is unknown, cannot be honoured or belongs elsewhere; an
    interval under 10 ms; a checkpoint path of a kind that is not supported; a query that sets ``checkpointLocation`` or
    has a continuous or real-time trigger; a writer of Delta, Iceberg or Hudi, or a ``CustomSink`` around Spark's file
    sink; a function that returns something else than an unstarted ``DataStreamWriter``; a Spark Connect session.

    Way on:
        The message names the value, the hint the remedy.
    """

    recoverable = False


class UnsupportedSpark(InvalidConfiguration):
    """The running Spark is of a release that this package does not know.

    Files of an unknown release may mean something else, so no checkpoint of them is taken. Nothing was touched.

    Way on:
        Install one of the releases that the message names; or upgrade dagster-ckpt.
    """


class JavaNotFound(InvalidConfiguration):
    """No Java that PySpark can run on was found.

    There is none, or one older than 17, or a trimmed one without ``jdk.incubator.vector``. A Java that is there and
    does not run is :class:`SparkNotStarted`, and so is a ``JAVA_HOME`` without one, which may be on a mount that is
    away.

    Way on:
        Install a full Java 17 or newer; put it on the ``PATH`` or in ``JAVA_HOME``.
    """
