"""What the command line shows of a storage is text, whatever somebody has written there."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.catalog.newest import find_newest
from dagster_ckpt.checkpoint.control.pins import Pin, Pins
from dagster_ckpt.checkpoint.control.quarantine import Quarantined
from dagster_ckpt.checkpoint.format.facts import Facts
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata, FileEntry
from dagster_ckpt.cli import main
from dagster_ckpt.filesystem import PosixFileSystem
from tests.helpers.checkpoint.driver import JOB, Ledger, Run, state
from tests.helpers.checkpoint.driver import Pins as PinnedFiles

#: What a terminal obeys, what markup is made of, what a line ends with, what cannot be encoded.
HOSTILE = [
    "[/ops]",
    "[bold",
    "[link=https://evil.example]x[/link]",
    ":smile:",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "a\nFAKE LINE\r\tb",
    "\u202egnp.exe",
    "\u2028x",
    "\x7f",
    "\x00",
    "{x}%s\\",
]
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as pins:
        path = tmp_path_factory.mktemp("text") / "storage"
        run = Run(PosixFileSystem(path), Ledger(), PinnedFiles(Path(pins))).start()
        for step in range(3):
            run.checkpoint(state(step))
        yield path


def call(storage: Path, *arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, [*arguments, "--path", str(storage)])


def is_plain(text: str) -> bool:
    return all(char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in text)


def lines_of(storage: Path) -> list[tuple[str, int, int]]:
    """How each command ends, and in how many lines."""
    catalog = CheckpointCatalog(PosixFileSystem(storage), JOB)
    commands = [
        ["list"],
        ["list", JOB, "--json"],
        ["describe", JOB],
        ["describe", JOB, "--json"],
        ["verify", JOB],
        ["preflight", JOB],
        ["retention", JOB, "--num-retained", "1"],
        ["retention", JOB, "--json"],
        ["report", JOB, "--json"],
    ]
    found = []
    for command in commands:
        result = call(storage, *command)
        shown = result.stdout + result.stderr
        assert is_plain(shown), f"{command}: {shown!r}"
        shown.encode()
        found.append((" ".join(command), result.exit_code, shown.count("\n")))
    assert find_newest(catalog).metadata is not None
    return found


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(TEXT, min_size=7, max_size=7))
@example(texts=[HOSTILE[0]] * 7)
@example(texts=[HOSTILE[4]] * 7)
@example(texts=[HOSTILE[6]] * 7)
@example(texts=[HOSTILE[7]] * 7)
def test_what_is_written_in_a_manifest_or_a_record_is_shown_as_text(storage: Path, texts: list[str]) -> None:
    restored, writer, fact, sink, file, pinned, broken = texts
    catalog = CheckpointCatalog(PosixFileSystem(storage), JOB)
    newest = find_newest(catalog).metadata
    assert newest is not None
    place = storage / catalog.pointer(newest) / "_metadata"
    genuine = place.read_bytes()
    original = CheckpointMetadata.decode(genuine, "here")
    first = catalog.completed(original.job_id)[0][0].reference
    try:
        lines = lines_of(storage)
        name = re.sub(r"[\x00/]|\.\.", "_", file)  # of a file there can be
        extra = FileEntry(f"checkpoint/x{name}", 1, hashlib.sha256(b"x").hexdigest(), b"x")
        place.write_bytes(
            replace(
                original,
                restored_from=restored,
                writer={"run_id": writer, "host": writer},
                facts=Facts.model_validate({**original.facts.to_json(), "note": fact, fact: [fact]}),
                sink={**(original.sink or {}), "path": sink},
                files=(*original.files, extra),
            ).encode()
        )
        catalog.records.quarantine.add(Quarantined(first, broken, 1, "run", broken.replace("\0", ""), "then"))
        Pins(catalog.filesystem, JOB).add(Pin(original.reference, pinned, "now", "0" * 32))
        changed = lines_of(storage)
        assert [(name, status) for name, status, _ in changed] == [(name, status) for name, status, _ in lines]
        document = json.loads(call(storage, "describe", JOB, "--json").stdout)
        assert document["restored_from"] == restored
    finally:
        place.write_bytes(genuine)
        catalog.records.quarantine.lift(first)
        Pins(catalog.filesystem, JOB).clear(original.reference)


@pytest.mark.parametrize("reason", HOSTILE)
def test_the_reason_of_a_pin_is_shown_as_it_was_given(storage: Path, reason: str) -> None:
    if "\x00" not in reason:
        assert call(storage, "pin", JOB, "chk-1", "--reason", reason).exit_code == 0
    try:
        result = call(storage, "retention", JOB, "--num-retained", "1")
        assert result.exit_code == 0
        assert is_plain(result.stdout)
        if reason.isascii() and reason.isprintable():
            assert reason in result.stdout
    finally:
        assert call(storage, "unpin", JOB, "chk-1").exit_code in {0, 1}


@settings(max_examples=30, deadline=None)
@given(name=TEXT.filter(lambda text: "\x00" not in text and not text.startswith("-") and text not in {"", "latest"}))
@example(name="[/ops]")
@example(name="\x1b[2J")
@example(name="https://user:hidden@host/x?sig=hidden")
def test_an_error_shows_what_was_asked_for_as_text(storage: Path, name: str) -> None:
    for command in (["describe", JOB, name], ["verify", JOB, name], ["describe", name]):
        result = call(storage, *command)
        assert result.exit_code != 0
        assert is_plain(result.stdout + result.stderr)
        assert "hidden" not in result.stderr
