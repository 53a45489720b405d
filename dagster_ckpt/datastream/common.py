"""What ``pyflink.common`` has: ``Configuration``, ``Duration`` and ``ExecutionConfig``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from datetime import timedelta
from typing import Any, TypeVar

from dagster_ckpt import config
from dagster_ckpt.datastream.enums import warn
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["Configuration", "Duration", "ExecutionConfig"]

_UNSET = -1
_MOST = (1 << 15) - 1
_BOOLEANS = {"true": True, "false": False}
_T = TypeVar("_T")


class Configuration(config.Configuration):
    """Settings by Flink's string keys, which can be set one by one, as in PyFlink.

    Every key and value is looked at when it is set. Everything that takes a ``dagster_ckpt.config.Configuration`` takes
    this one, as it is at that moment.

    Args:
        settings: settings to begin with, or a configuration to copy.

    Raises:
        InvalidConfiguration: a key is not known, cannot be honoured, or its value cannot be read.
    """

    def __init__(self, settings: Mapping[str, Any] | config.Configuration | None = None) -> None:
        super().__init__(settings.settings if isinstance(settings, config.Configuration) else settings or {})

    def set_string(self, key: str, value: str) -> Configuration:
        """Set a key, in any of its spellings, over every earlier value of it.

        Raises:
            InvalidConfiguration: as for :class:`Configuration`; the settings are as before.
        """
        return self.add_all(config.Configuration({key: value}))

    def set_integer(self, key: str, value: int) -> Configuration:
        """As :meth:`set_string`, with a whole number: milliseconds of a duration, bytes of a size."""
        return self.set_string(key, str(value))

    def set_float(self, key: str, value: float) -> Configuration:
        """As :meth:`set_string`, with a number."""
        return self.set_string(key, str(float(value)))

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """As :meth:`set_string`, with true or false."""
        return self.set_string(key, str(value).lower())

    def get_string(self, key: str, default_value: str) -> str:
        """The text of a key, or of another spelling of it; ``default_value`` if it is not set."""
        return self.text_of(key) or default_value

    def get_integer(self, key: str, default_value: int) -> int:
        """The whole number that a key is set to, ``default_value`` if it is not set.

        Raises:
            InvalidConfiguration: the key is set to something else.
        """
        return self._read(key, default_value, int, "a whole number")

    def get_float(self, key: str, default_value: float) -> float:
        """The number that a key is set to, ``default_value`` if it is not set.

        Raises:
            InvalidConfiguration: the key is set to something else.
        """
        return self._read(key, float(default_value), float, "a number")

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Whether a key is set to true, ``default_value`` if it is not set.

        Raises:
            InvalidConfiguration: the key is set to something else.
        """
        return self._read(key, default_value, _BOOLEANS.__getitem__, "true or false")

    def contains_key(self, key: str) -> bool:
        """Whether a key is set, in any of its spellings."""
        return self.text_of(key) is not None

    def key_set(self) -> set[str]:
        """The keys that are set, as they were spelled."""
        return set(self.settings)

    def to_dict(self) -> dict[str, str]:
        """The settings, as text."""
        return dict(self.settings)

    def add_all_to_dict(self, target_dict: MutableMapping[str, str]) -> None:
        """Add the settings to a dictionary, as text."""
        target_dict.update(self.settings)

    def add_all(self, other: config.Configuration, prefix: str | None = None) -> Configuration:
        """Take over all settings of another configuration, with ``prefix`` before each of its keys.

        Raises:
            InvalidConfiguration: the settings cannot be used together, and are as before.
        """
        added = {f"{prefix or ''}{key}": text for key, text in other.settings.items()}
        super().__init__(self.updated(config.Configuration(added)).settings)
        return self

    def remove_config(self, key: str) -> bool:
        """Remove a key as it was spelled; ``False`` if it was not set."""
        kept = {other: text for other, text in self.settings.items() if other != key}
        found = len(kept) < len(self.settings)
        super().__init__(kept)
        return found

    def _read(self, key: str, default: _T, read: Callable[[str], _T], what: str) -> _T:
        text = self.text_of(key)
        if text is None:
            return default
        try:
            return read(text.strip().lower())
        except (KeyError, ValueError):
            raise InvalidConfiguration(f"{key} = {text!r} is not {what}.") from None


class Duration(timedelta):
    """A length of time. A ``timedelta``, so that every setter of a time takes one, and both compare as equal."""

    @staticmethod
    def of_days(days: int) -> Duration:
        """So many days."""
        return _duration(days=days)

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """So many hours."""
        return _duration(hours=hours)

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """So many minutes."""
        return _duration(minutes=minutes)

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """So many seconds."""
        return _duration(seconds=seconds)

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """So many milliseconds."""
        return _duration(milliseconds=millis)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """So many nanoseconds, which must be whole microseconds.

        Raises:
            InvalidConfiguration: ``nanos`` is not a multiple of 1000.
        """
        if nanos % 1000:
            raise InvalidConfiguration(f"A Duration has whole microseconds, not {nanos} ns.")
        return _duration(microseconds=nanos // 1000)


def _duration(**given: int) -> Duration:
    try:
        return Duration(**given)
    except OverflowError:
        ((unit, number),) = given.items()
        raise InvalidConfiguration(f"{number} {unit} are longer than any duration.") from None


class ExecutionConfig:
    """How many partitions the queries of an environment have.

    Spark has one number where Flink has two: a query shuffles into as many partitions as its state has, and both are
    fixed when the query first starts. In Flink the max parallelism is fixed, so it wins where it is set.
    """

    def __init__(self) -> None:
        self._parallelism = _UNSET
        self._max_parallelism = _UNSET
        self._auto_watermark_interval = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    @property
    def partitions(self) -> int | None:
        """Partitions of a query and of its state; ``None`` for Spark's configuration.

        Raises:
            InvalidConfiguration: the parallelism is greater than the max parallelism.
        """
        if _UNSET in {self._parallelism, self._max_parallelism}:
            return None if self._parallelism == self._max_parallelism else max(self._parallelism, self._max_parallelism)
        if self._parallelism > self._max_parallelism:
            raise InvalidConfiguration(
                f"The parallelism of {self._parallelism} is greater than the max parallelism of "
                f"{self._max_parallelism}.",
                hint="Leave set_parallelism out: Spark has one number for both.",
            )
        return self._max_parallelism

    def get_parallelism(self) -> int:
        """The value given to :meth:`set_parallelism`; by default -1: Spark's ``spark.sql.shuffle.partitions``."""
        return self._parallelism

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set how many partitions a query and its state have, unless the max parallelism is set.

        Raises:
            InvalidConfiguration: ``parallelism`` is no number of partitions, nor -1, which unsets it.
        """
        if not 1 <= parallelism <= config.GREATEST_INT and parallelism != _UNSET:
            raise InvalidConfiguration(
                f"The parallelism must be from 1 to {config.GREATEST_INT}, or -1 for Spark's own, not {parallelism}."
            )
        self._parallelism = parallelism
        self._warn_of_two()
        return self

    def get_max_parallelism(self) -> int:
        """The value given to :meth:`set_max_parallelism`; by default -1."""
        return self._max_parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set how many partitions a query and its state have: Flink's key groups.

        Raises:
            InvalidConfiguration: ``max_parallelism`` is not between 1 and 32767.
        """
        if not 0 < max_parallelism <= _MOST:
            raise InvalidConfiguration(f"The max parallelism must be between 1 and {_MOST}, not {max_parallelism}.")
        self._max_parallelism = max_parallelism
        self._warn_of_two()
        return self

    def get_auto_watermark_interval(self) -> int:
        """The milliseconds given to :meth:`set_auto_watermark_interval`; by default 0."""
        return self._auto_watermark_interval

    def set_auto_watermark_interval(self, interval: int) -> ExecutionConfig:
        """Has no effect on a query, and warns."""
        warn(
            "set_auto_watermark_interval changes nothing: Spark moves the watermark on once a batch. The time between "
            "two batches is set by set_buffer_timeout, or by the query's trigger."
        )
        self._auto_watermark_interval = interval
        return self

    def _warn_of_two(self) -> None:
        if _UNSET not in {self._parallelism, self._max_parallelism} and self._parallelism < self._max_parallelism:
            warn(
                f"The parallelism of {self._parallelism} has no effect beside the max parallelism of "
                f"{self._max_parallelism}: Spark has one number for both, and works on as many of the partitions at "
                "once as it has cores."
            )
