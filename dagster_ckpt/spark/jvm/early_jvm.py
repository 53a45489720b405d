"""Starting the JVM of Spark beside the claim: the longest step of a start needs nothing that the storage tells."""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from dagster_ckpt.checkpoint import mark_children

__all__ = ["start_beside"]

_log = logging.getLogger(__name__)

#: What PySpark imports, pandas with it, when it first passes a value to the JVM.
_AT_FIRST_CALL = "pyspark.testing.utils"


def start_beside(
    start: Callable[[], object] | None, measured: AbstractContextManager[Callable[[str], object]]
) -> Callable[[], None]:
    """Begin to start a JVM on a thread of its own.

    A run that is refused leaves an idle JVM, which has done nothing and ends with this process.

    Args:
        start: starts the JVM, and tells whether it is that of a standby; ``None`` to leave the start to the session.
        measured: measures the start, on that thread, and can give it another name.

    Returns:
        a function that waits until the JVM is there. It raises nothing: a JVM that did not start is started by the
        session, which tells why. Meanwhile it imports what PySpark needs at its first call into the JVM.
    """
    if start is None:
        return lambda: None
    mark_children()  # so that a later run may kill the JVM if this process leaves the JVM behind

    def run() -> None:
        try:
            with measured as rename:
                if start():
                    rename("standby")
        except Exception as error:
            _log.warning("The JVM did not start beside the claim, and is started again: %s", error)

    thread = threading.Thread(target=run, name="dagster-ckpt-jvm", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # there can be no more threads
        _log.warning("The JVM starts with the session, not beside the claim: %s", error)
        return lambda: None

    def wait() -> None:
        with contextlib.suppress(Exception):  # PySpark imports it itself, and tells why it cannot
            importlib.import_module(_AT_FIRST_CALL)
        thread.join()

    return wait
