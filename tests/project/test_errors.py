from __future__ import annotations

import inspect
import re

import pytest

from dagster_ckpt import errors
from dagster_ckpt.errors import CheckpointError

_LINE = re.compile(r"^ *(?P<branch>(?:[│ ]   )*[├└]── |)(?P<name>[A-Z]\w+)(?: \((?P<builtin>\w+)\))?(?P<words> .*|)$")


def real_classes() -> list[type[CheckpointError]]:
    return [
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, CheckpointError) and found.__module__ == errors.__name__
    ]


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Name of each error in the drawing -> its parent there and the builtin in parentheses."""
    text = inspect.getdoc(errors) or ""
    tree: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in text.partition("::\n")[2].splitlines():
        if not line.strip():
            continue
        match = _LINE.match(line)
        assert match is not None, f"not part of a tree: {line!r}"
        depth = len(match["branch"]) // 4
        del path[depth:]
        assert match["name"] not in tree, f"{match['name']} is drawn twice"
        tree[match["name"]] = (path[-1] if path else None, match["builtin"])
        path.append(match["name"])
    return tree


def test_the_tree_drawn_in_the_docstring_is_the_real_one() -> None:
    real: dict[str, tuple[str | None, str | None]] = {}
    for found in real_classes():
        ours = [base.__name__ for base in found.__bases__ if base.__module__ == errors.__name__]
        builtins = [base.__name__ for base in found.__bases__ if base.__module__ == "builtins"]
        if found is CheckpointError:
            ours, builtins = [], []
        real[found.__name__] = (ours[0] if ours else None, builtins[0] if builtins else None)
    assert drawn() == real


def test_all_is_sorted_and_complete() -> None:
    assert errors.__all__ == sorted(found.__name__ for found in real_classes())


@pytest.mark.parametrize("error", real_classes())
def test_message_and_hint(error: type[CheckpointError]) -> None:
    raised = error("What happened to /path.", hint="Do this next.")
    assert str(raised) == "What happened to /path.\nDo this next."
    assert (raised.message, raised.hint) == ("What happened to /path.", "Do this next.")
    assert str(error("What happened.")) == "What happened."
    assert error.__doc__


#: What a restart cannot help, because a person has to do something first. A new error has to be put here or below.
_BEYOND_A_RESTART = {
    "InvalidConfiguration": "another value",
    "JavaNotFound": "a Java",
    "UnsupportedSpark": "another Spark",
    "CheckpointNotFound": "another pointer, or what it names back in its place",
    "ForeignCheckpoint": "another checkpoint, or another path",
    "CorruptCheckpoint": "the file from a backup, or another checkpoint",
    "CorruptMetadata": "as above",
    "CorruptRecord": "as above",
    "UnknownMetadataVersion": "another release",
    "CheckpointFileMissing": "as above",
    "CheckpointFileChanged": "as above",
    "MustStop": "to see what else runs",
    "Fenced": "nothing: a newer run goes on",
    "SinkOverlap": "the other query to end",
    "TopicRecreated": "a decision",
    "UpgradeFailed": "the code of the version before, or another new one",
    "JobAlreadyRunning": "the other run to end",
    "RestoreRefused": "a decision",
    "CheckpointsLost": "a decision",
    "QueryMismatch": "another query, or another checkpoint",
    "RestoreWithLoss": "a decision",
    "SinkNotEmpty": "a decision",
    "SinkMismatch": "the files back in their place",
    "StateBackendMismatch": "another state backend",
    "PoisonBatch": "other code, or other data",
    "NotRestarted": "what the last failure says, and a new run",
}
#: What may be over at the next attempt.
_MAY_PASS = {
    "CheckpointError",
    "StorageError",
    "StorageUnusable",
    "WorkingDirectoryFailed",
    "PublishConflict",
    "PublishUnknown",
    "CaptureIncomplete",
    "CheckpointFailure",
    "CheckpointExpired",
    "SavepointFailed",
    "ToleranceExceeded",
    "QueryFailed",
    "QueryNotBuilt",
    "SparkNotStarted",
    "DriverLost",
}


def test_of_each_error_it_is_decided_whether_a_restart_can_help() -> None:
    recoverable = {found.__name__: found.recoverable for found in real_classes()}
    assert recoverable == {**dict.fromkeys(_BEYOND_A_RESTART, False), **dict.fromkeys(_MAY_PASS, True)}
