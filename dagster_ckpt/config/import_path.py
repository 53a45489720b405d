"""Objects that a user names by their import path."""

from __future__ import annotations

import importlib
from typing import Any

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["load_object"]


def load_object(path: str, what: str) -> Any:
    """The object at ``module:name`` (or ``module.name``).

    Args:
        path: the import path.
        what: describes the object in the error: ``the factory of a checkpoint storage``.

    Raises:
        InvalidConfiguration: the object cannot be imported.
    """
    module, separator, name = path.partition(":")
    if not separator:
        module, _, name = path.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfiguration(
            f"{path!r}, {what}, cannot be imported: {error}.",
            hint="Write it as 'package.module:name', and make sure that it is installed where the job runs.",
        ) from error
    return found
