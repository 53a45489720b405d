"""``Configuration``: settings by Flink's string keys, turned into the objects of this package."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dagster_ckpt.config.checkpoint_config import UNLIMITED, CheckpointConfig
from dagster_ckpt.config.option_types import ConfigurationOption, Handling, Place
from dagster_ckpt.config.options import CONFIGURATION_OPTIONS
from dagster_ckpt.config.quantities import TooLong, format_duration
from dagster_ckpt.config.recovery import RecoveryClaimMode
from dagster_ckpt.config.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["CONFIGURATION_OPTIONS", "Configuration"]

_T = TypeVar("_T")

_BY_SPELLING = {spelling: option for option in CONFIGURATION_OPTIONS for spelling in (option.key, *option.old)}
_OWNED = ("execution.checkpointing.", "execution.state-recovery.", "restart-strategy.", "state.")
_STRATEGY = "restart-strategy.type"
_OF_A_JOB = frozenset({Place.JOB, Place.STATE})
_STRATEGIES: Mapping[str, Callable[..., RestartStrategy]] = {
    "none": NoRestart,
    "fixed-delay": FixedDelayRestart,
    "failure-rate": FailureRateRestart,
    "exponential-delay": ExponentialDelayRestart,
}
_HINT = (
    "CONFIGURATION_OPTIONS in dagster_ckpt.config says what each key does here; Spark's own settings are "
    "`conf` of SparkSessionResource."
)


@dataclass(frozen=True, slots=True)
class _Given:
    """A key that is set: its spelling, its text, and its value."""

    spelling: str
    text: str
    value: Any

    def __str__(self) -> str:
        return f"{self.spelling} = {self.text!r}"


@dataclass(frozen=True, eq=False)
class Configuration:
    """Settings by Flink's keys, read as Flink reads them: a bare number is milliseconds, or bytes.

    .. code-block:: python

        flink = Configuration.from_yaml("flink.yaml")
        flink = Configuration({"execution.checkpointing.interval": "10 s", "restart-strategy.type": "fixed-delay"})

    Args:
        settings: key to value: text, a number, a boolean or a ``timedelta``. Keys may be nested
            (``{"execution": {"checkpointing": ...}}``) and spelled as in older releases of Flink.

    Attributes:
        settings: the same settings, flat, with the values as text.
        warnings: for each key without an effect, a sentence that says why.

    Raises:
        InvalidConfiguration: a key is not known, cannot be honoured, or its value cannot be read.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(init=False, repr=False)
    _given: Mapping[str, _Given] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings = _as_text(_flat(self.settings))
        given, warnings = _read_all(settings)
        object.__setattr__(self, "settings", MappingProxyType(settings))
        object.__setattr__(self, "_given", given)
        object.__setattr__(self, "warnings", (*warnings, *self._parameters_of_other_strategies()))
        self.restart_strategy()

    def __eq__(self, other: object) -> bool:
        return self.settings == other.settings if isinstance(other, Configuration) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.settings.items()))

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, Any]]]:
        # Copies and pickles are made of the settings, because a mappingproxy can be neither copied nor pickled.
        return type(self), (dict(self.settings),)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Configuration:
        """The settings in a YAML file, such as Flink's own ``config.yaml``.

        Raises:
            InvalidConfiguration: as for :class:`Configuration`, or the file cannot be read.
        """
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"The configuration {path} cannot be read: {error}.", hint=_HINT) from error
        return cls.from_yaml_text(text)

    @classmethod
    def from_yaml_text(cls, text: str) -> Configuration:
        """The settings in YAML: keys in one line with dots, nested, or both.

        Raises:
            InvalidConfiguration: as for :class:`Configuration`, or ``text`` is not YAML of this form.
        """
        try:
            # Read the values as text: loading would turn off into false, and keep the last of two equal keys.
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            pairs = [] if node is None else list(_scalars(node))
        except (yaml.YAMLError, ValueError) as error:
            raise InvalidConfiguration(
                f"The configuration is not YAML of keys and values: {error}", hint=_HINT
            ) from error
        return cls(_as_text(pairs))

    def text_of(self, key: str) -> str | None:
        """The text that a key is set to, in any of its spellings; ``None`` if it is not set."""
        option = _BY_SPELLING.get(key)
        given = None if option is None else self._given.get(option.key)
        return None if given is None else given.text

    def updated(self, other: Configuration) -> Configuration:
        """These settings, overridden by ``other``, whatever the spelling of the keys.

        Raises:
            InvalidConfiguration: the settings cannot be used together.
        """
        own = {
            spelling: text for spelling, text in self.settings.items() if _BY_SPELLING[spelling].key not in other._given
        }
        return Configuration({**own, **other.settings})

    @property
    def for_job(self) -> Configuration:
        """The settings of a job, without those that the storage and the Spark session take."""
        return Configuration(
            {spelling: text for spelling, text in self.settings.items() if _BY_SPELLING[spelling].place in _OF_A_JOB}
        )

    def require(self, places: Iterable[Place], where: str) -> None:
        """Check that every key has an effect where the configuration is given.

        Args:
            places: the places whose keys have an effect.
            where: for people, such as ``the configuration of a run``.

        Raises:
            InvalidConfiguration: a key belongs elsewhere.
        """
        accepted = set(places)
        problems = [
            f"{given.spelling} belongs to {option.place.value}. {option.effect}"
            for option in CONFIGURATION_OPTIONS
            if (given := self._given.get(option.key)) is not None and option.place not in accepted
        ]
        if problems:
            raise InvalidConfiguration(
                f"Not all of it can be in {where}: {' '.join(problems)}",
                hint="Set it there and leave it out here; `Configuration(...).for_job` leaves such keys out.",
            )

    def checkpoint_config(self, base: CheckpointConfig) -> CheckpointConfig:
        """``base``, overridden by these settings.

        Raises:
            InvalidConfiguration: a value is out of range, or two values exclude each other.
        """
        fields = {
            option.sets: given
            for option, given in self._taken()
            if option.sets is not None and _strategy_of(option) is None
        }
        try:
            return CheckpointConfig(**{**dict(base), **{name: given.value for name, given in fields.items()}})
        except InvalidConfiguration as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            problems = []
            for problem in error.__cause__.errors():
                # A problem without a place concerns two values together.
                places: list[object] = [fields.get(str(name), name) for name in problem["loc"]]
                concerned = places or list(fields.values())
                problems.append(f"{', '.join(map(str, concerned))}: {problem['msg'].removeprefix('Value error, ')}.")
            raise InvalidConfiguration(f"The configuration cannot be used: {' '.join(problems)}", hint=_HINT) from error

    def restart_strategy(self) -> RestartStrategy | None:
        """The restart strategy, with Flink's defaults for unset parameters; ``None`` when no type is set.

        Raises:
            InvalidConfiguration: a parameter is out of range.
        """
        name = self._value(_STRATEGY, str)
        if name is None:
            return None
        own = [(option, given) for option, given in self._taken() if _strategy_of(option) == name]
        parameters = {str(option.sets): given.value for option, given in own}
        if parameters.get("attempts_before_reset_backoff") == UNLIMITED:
            parameters["attempts_before_reset_backoff"] = None
        try:
            return _STRATEGIES[name](**parameters)
        except InvalidConfiguration as error:
            written = ", ".join(str(given) for _, given in own)
            raise InvalidConfiguration(f"{error.message} It has {written}.", hint=_HINT) from error

    @property
    def checkpoints_directory(self) -> str | None:
        """Where checkpoints go: ``checkpoint_path`` of a storage."""
        return self._value("execution.checkpointing.dir", str)

    @property
    def savepoints_directory(self) -> str | None:
        """Where savepoints go by default: ``savepoint_path`` of a storage."""
        return self._value("execution.checkpointing.savepoint-dir", str)

    @property
    def checkpoint_storage(self) -> str | None:
        """``jobmanager``, ``filesystem``, or the import path of a storage."""
        return self._value("execution.checkpointing.storage", str)

    @property
    def inline_threshold(self) -> int | None:
        """Bytes up to which a file is kept in ``_metadata``."""
        return self._value("execution.checkpointing.data-inline-threshold", int)

    @property
    def write_buffer_size(self) -> int | None:
        """Bytes written at a time; Flink never uses less than the inline threshold."""
        return self._value("execution.checkpointing.write-buffer-size", int)

    @property
    def incremental(self) -> bool | None:
        """Whether the state store writes only changes."""
        return self._value("execution.checkpointing.incremental", bool)

    @property
    def num_retained(self) -> int | None:
        """Completed checkpoints kept, at least 1."""
        return self._value("execution.checkpointing.num-retained", int)

    @property
    def state_backend(self) -> str | None:
        """``hashmap``, ``rocksdb``, or the import path of a state backend."""
        return self._value("state.backend.type", str)

    @property
    def restore_path(self) -> str | None:
        """The checkpoint or savepoint that a run begins with."""
        return self._value("execution.state-recovery.path", str)

    @property
    def claim_mode(self) -> RecoveryClaimMode | None:
        """Who owns the restored checkpoint or savepoint."""
        return self._value("execution.state-recovery.claim-mode", RecoveryClaimMode)

    @property
    def parallelism(self) -> int | None:
        """How many partitions a query and its state have, unless ``max_parallelism`` is set."""
        return self._value("parallelism.default", int)

    @property
    def max_parallelism(self) -> int | None:
        """How many partitions a query and its state have."""
        return self._value("pipeline.max-parallelism", int)

    @property
    def buffer_timeout(self) -> int | None:
        """Milliseconds between the starts of two batches; -1 for the query's own trigger."""
        if self._value("execution.buffer-timeout.enabled", bool) is False:
            return -1
        interval = self._value("execution.buffer-timeout.interval", timedelta)
        return None if interval is None else interval // timedelta(milliseconds=1)

    @property
    def operator_chaining(self) -> bool | None:
        """Whether Spark generates common code for the operators of a stage."""
        return self._value("pipeline.operator-chaining.enabled", bool)

    def _value(self, key: str, kind: type[_T]) -> _T | None:
        given = self._given.get(key)
        return given.value if given is not None and isinstance(given.value, kind) else None

    def _taken(self) -> Iterator[tuple[ConfigurationOption, _Given]]:
        for option in CONFIGURATION_OPTIONS:
            if option.handling is Handling.TAKEN and option.key in self._given:
                yield option, self._given[option.key]

    def _parameters_of_other_strategies(self) -> list[str]:
        name = self._value(_STRATEGY, str)
        why = f"{_STRATEGY} is not set" if name is None else f"{_STRATEGY} is {name}"
        return [
            f"{given.spelling} has no effect: {why}."
            for option, given in self._taken()
            if _strategy_of(option) not in {None, name}
        ]


def _strategy_of(option: ConfigurationOption) -> str | None:
    """The restart strategy that a key is a parameter of."""
    family, _, rest = option.key.partition(".")
    return rest.partition(".")[0] if family == "restart-strategy" and option.key != _STRATEGY else None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _scalars(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, object]]:
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"there is no key in line {node.start_mark.line + 1}")
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode):
            yield from _scalars(value, f"{name}.")
        elif isinstance(value, yaml.ScalarNode):
            yield name, None if value.tag == "tag:yaml.org,2002:null" else value.value
        else:
            raise ValueError(f"{name} in line {value.start_mark.line + 1} has a list of values")


def _as_text(pairs: Iterable[tuple[str, object]]) -> dict[str, str]:
    found: dict[str, str] = {}
    problems: list[str] = []
    for key, value in pairs:
        if key in found:
            problems.append(f"{key} is given twice.")
        if isinstance(value, bool):
            found[key] = str(value).lower()
        elif isinstance(value, timedelta):
            found[key] = format_duration(value)
        elif isinstance(value, str | int | float):
            found[key] = str(value)
        else:
            problems.append(f"{key} = {value!r} is no value: write text, a number or a boolean.")
    _refuse(problems)
    return found


def _read_all(settings: Mapping[str, str]) -> tuple[Mapping[str, _Given], list[str]]:
    """The settings, by the newest spelling of each key, and the warnings."""
    problems = [_unknown(key) for key in settings if key not in _BY_SPELLING]
    found: dict[str, _Given] = {}
    warnings: list[str] = []
    for option in CONFIGURATION_OPTIONS:
        spellings = [spelling for spelling in (option.key, *option.old) if spelling in settings]
        if not spellings:
            continue
        used, *ignored = spellings
        warnings += [f"{spelling} has no effect: {used} is set as well." for spelling in ignored]
        try:
            given = _Given(used, settings[used], option.type.read(settings[used]))
        except ValueError as error:
            why = error if isinstance(error, TooLong) else f"it must be {option.type.allowed}"
            problems.append(f"{used} = {settings[used]!r} cannot be read: {why}.")
            continue
        if (bounds := option.bounds) is not None and not bounds.admit(given.value):
            warnings.append(f"{given} is out of range, and {bounds.otherwise} is used. {option.effect}")
            given = replace(given, value=bounds.otherwise)
        if option.handling is not Handling.TAKEN and given.value != option.as_here:
            if option.handling is Handling.REFUSED:
                problems.append(f"{given} is refused. {option.effect}")
            else:
                warnings.append(f"{given} has no effect. {option.effect}")
        found[option.key] = given
    _refuse(problems)
    return found, warnings


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InvalidConfiguration(f"The configuration cannot be used: {' '.join(problems)}", hint=_HINT)


def _unknown(key: str) -> str:
    if key.startswith(_OWNED):
        (nearest,) = difflib.get_close_matches(key, _BY_SPELLING, n=1, cutoff=0)
        return f"{key} is not known here; the nearest key that is known is {nearest}."
    return f"{key} is no key of checkpoints, recovery or restarts ({', '.join(f'{prefix}*' for prefix in _OWNED)})."
