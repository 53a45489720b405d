"""What differs between the releases of Delta that a batch is written with."""

from __future__ import annotations

from typing import Any

from dagster_ckpt.errors import InvalidConfiguration

__all__ = ["DELTA", "more_parameters"]

DELTA = "org.apache.spark.sql.delta"
"""The package of Delta's classes."""

#: Of the constructors of ``WriteIntoDelta``, whose further one is a boolean, and of ``DeltaOperations.Write``, whose
#: further ones are options: in Delta 4.0; 4.1 and 4.2; 4.3 and 4.4.
_PARAMETERS = ((8, 4), (8, 7), (9, 9))


def more_parameters(classes: Any) -> tuple[int, int]:
    """How many parameters more than in Delta 4.0 the constructors have by which a batch is written.

    Raises:
        InvalidConfiguration: nobody knows what these parameters are.
    """

    def parameters(name: str) -> int:
        return int(classes.loadClass(f"{DELTA}.{name}").getConstructors()[0].getParameterCount())

    try:
        found = parameters("commands.WriteIntoDelta"), parameters("DeltaOperations$Write")
    except Exception:  # a class has another name
        found = (0, 0)
    if found not in _PARAMETERS:
        raise InvalidConfiguration(
            "A DeltaSink does not know how the Delta of this Spark writes.",
            hint="Use Delta 4.0 to 4.4, in the release for your Spark.",
        )
    return found[0] - _PARAMETERS[0][0], found[1] - _PARAMETERS[0][1]
