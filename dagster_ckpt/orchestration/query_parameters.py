"""The parameters of a query's function beside the context and the session: resources, and run configuration."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import dagster as dg
from pydantic import ValidationError

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["QueryParameters", "told_problems"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class QueryParameters:
    """What a query's function takes as third parameter and more.

    Attributes:
        resources: the names of parameters that are resources, and of their keys.
        config_name: the parameter that is run configuration, ``None`` without one.
        config: the class of this parameter.
    """

    resources: frozenset[str]
    config_name: str | None
    config: type[dg.Config] | None

    @classmethod
    def of(cls, function: Callable[..., Any], taken: Collection[str]) -> QueryParameters:
        """The parameters of a function.

        Args:
            function: the query's.
            taken: the fields of run configuration that the function's own must not repeat.

        Raises:
            InvalidConfiguration: the function cannot be called with a context and a session, or a parameter is neither
                a resource nor configuration.
        """
        try:
            first, *others = _beside_the_context(function)
        except (TypeError, ValueError) as error:
            raise _refused(function, str(error)) from error
        if first.kind not in _POSITIONAL:
            raise _refused(function, f"its second parameter {first} cannot be given by position")
        if unnamed := [str(parameter) for parameter in others if parameter.kind not in _NAMED]:
            raise _refused(function, f"{unnamed[0]} names no resource")
        types = {item.name: _type_of(item, function) for item in others}
        configs = {name: type_ for name, type_ in types.items() if _is_config(type_)}
        if len(configs) > 1:
            raise _refused(function, f"{' and '.join(configs)} are both run configuration")
        for name, config in configs.items():
            if repeated := sorted(set(taken) & set(config.model_fields)):
                raise _refused(function, f"{name} repeats {', '.join(repeated)} of every streaming asset")
        resources = frozenset(item.name for item in others if item.name not in configs)
        return cls(resources, next(iter(configs), None), next(iter(configs.values()), None))

    def config_fields(self) -> Mapping[str, Any]:
        """The fields of the function's own run configuration, for a ``config_schema``."""
        return {} if self.config is None else self.config.to_fields_dict()

    def arguments(self, context: dg.AssetExecutionContext, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a run, by name; ``given`` is the run configuration.

        Raises:
            InvalidConfiguration: the configuration does not fit the function's own.
        """
        found = {name: getattr(context.resources, name) for name in self.resources}
        if self.config_name is not None and self.config is not None:
            own = {field: given[field] for field in self.config_fields() if field in given}
            try:
                found[self.config_name] = self.config(**own)
            except ValueError as error:
                told = told_problems(error) if isinstance(error, ValidationError) else str(error)
                raise InvalidConfiguration(
                    f"The run configuration does not fit {self.config.__name__}: {told}",
                    hint=f"Its fields are {', '.join(self.config_fields())}.",
                ) from error
        return found


def told_problems(error: ValidationError) -> str:
    """What does not fit, in one line: each field, what is wrong with it, and its value."""
    problems = error.errors(include_url=False)
    told = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}, and is {item['input']!r}" for item in problems]
    return f"{'; '.join(told)}."


def _beside_the_context(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2 or parameters[0].kind not in _POSITIONAL:
        raise TypeError(f"it takes ({', '.join(map(str, parameters))})")
    return parameters[1:]


def _is_config(type_: object) -> TypeGuard[type[dg.Config]]:
    """Whether a type is configuration; Dagster's resources are such types too."""
    return isinstance(type_, type) and issubclass(type_, dg.Config) and not issubclass(type_, dg.ConfigurableResource)


def _type_of(parameter: inspect.Parameter, function: Callable[..., Any]) -> object:
    """The annotation of a parameter; its text if a type checker alone knows the name."""

    def alone() -> None:
        pass

    alone.__annotations__ = {parameter.name: parameter.annotation}
    names = getattr(inspect.unwrap(function), "__globals__", {})
    with contextlib.suppress(NameError, AttributeError):
        return inspect.get_annotations(alone, globals=names, eval_str=True)[parameter.name]
    return parameter.annotation


def _refused(function: Callable[..., Any], why: str) -> InvalidConfiguration:
    name = getattr(function, "__name__", repr(function))
    return InvalidConfiguration(
        f"The function {name} cannot be a checkpointed streaming asset: {why}.",
        hint=f"Write `def {name}(context, spark)`, and after these the resources by their keys, and at most one "
        "parameter whose type is a dg.Config.",
    )
