"""Two different names never open one place, and one name opens one place through every door."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_ckpt.checkpoint import resolve_checkpoint_pointer, savepoint_storage
from dagster_ckpt.checkpoint.taking.savepoint_files import _place_of
from dagster_ckpt.cli.places import storage_at
from dagster_ckpt.config.state_backend import EmbeddedRocksDBStateBackend
from dagster_ckpt.datastream.storage_access import decode_path_from_reference, encode_path_as_reference
from dagster_ckpt.errors import CheckpointError, CheckpointNotFound, InvalidConfiguration
from dagster_ckpt.filesystem import FileSystem, PosixFileSystem, open_filesystem
from dagster_ckpt.orchestration import FileSystemCheckpointStorage
from dagster_ckpt.paths import is_same_place, local_path, split_location, unescaped
from dagster_ckpt.spark.preflight.source_files import local_file
from dagster_ckpt.spark.sinks.spark_sink_log import FileSink

#: Components of a path: those that some parser decodes, cuts, strips or globs, and those that lead elsewhere.
PIECES = r"""a %20 + # ? %23 %25 % & = ; : * [x] {y} ~ \ ' " $HOME é 😀 :: @ http: file: s3:"""
_pieces = st.sampled_from([*PIECES.split(), " ", "\n", "\t", "e\u0301"])
_others = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), max_size=2)
COMPONENTS = st.lists(_pieces | _others, min_size=1, max_size=3).map("".join)
STEPS = COMPONENTS | st.sampled_from(["..", ".", "", "link", "a b", "a%20b", "a#1", "a#2", "a?1"])
NAMES = st.lists(STEPS, min_size=1, max_size=4)
URLS = ("file:{}", "file://{}", "FILE:///{}", "file:///{}/", "file:{}//")
#: A bucket's client or Spark's connector takes these for something else.
CONTROL = {"?", "#", "\x7f", *map(chr, range(32))}
_numbers = itertools.count()


def laid_out(world: Path, steps: list[str]) -> str:
    """Make the directories of a path, one after the other, as the operating system takes each; give the path."""
    path = str(world)
    for step in steps:
        path = f"{path}/{step}"
        with contextlib.suppress(FileExistsError):
            Path(path).mkdir()
    return path


def new_world(above: Path) -> Path:
    """A directory to walk in, deep enough for ``..``, with a link to elsewhere, and a link that leads nowhere."""
    root = above / f"world-{next(_numbers)}"
    start = root / "1" / "2" / "3" / "4" / "5"
    (root / "far" / "away").mkdir(parents=True)
    start.mkdir(parents=True)
    (start / "link").symlink_to(root / "far" / "away")
    (start / "loop").symlink_to("loop")
    return start


def doors(spelling: str, like: FileSystem) -> dict[str, Callable[[], str]]:
    """Everything that takes a path of a user, and the directory that it goes to."""

    def claimed() -> str:
        storage, name = _place_of(f"{open_filesystem(spelling).url}/savepoint", like)
        assert name == "savepoint"
        return storage.url

    def reference() -> str:
        return decode_path_from_reference(encode_path_as_reference(open_filesystem(spelling).url))

    found: dict[str, Callable[[], str]] = {
        "a storage": lambda: open_filesystem(spelling).url,
        "what the storage says of itself": lambda: open_filesystem(open_filesystem(spelling).url).url,
        "--path": lambda: storage_at(spelling).url,
        "a pointer": lambda: resolve_checkpoint_pointer(spelling, like=like).external_pointer,
        "a pointer to _metadata": lambda: resolve_checkpoint_pointer(f"{spelling}/_metadata").external_pointer,
        "a savepoint's directory": lambda: savepoint_storage(spelling, None, like=like).url,
        "a record of a claimed savepoint": claimed,
        "a reference": reference,
        "the working directory": lambda: str(
            FileSystemCheckpointStorage(checkpoint_path="/x", working_directory=spelling)._working_root()
        ),
        "a file sink": lambda: str(FileSink(spelling).path),
    }
    if "," not in spelling and not spelling.startswith(("~", ".")):
        backend = EmbeddedRocksDBStateBackend
        found["db_storage_paths"] = lambda: backend(db_storage_paths=[spelling]).launch_conf()["spark.local.dir"]
    return found


def one_place(above: Path, steps: list[str], others: list[str]) -> None:
    world = new_world(above)
    try:
        first, second = laid_out(world, steps), laid_out(world, others)
        for path in (first, second):
            if len(Path(os.path.realpath(path)).relative_to(above).parts) < 3:
                return  # out of this world
        Path(f"{first}/_metadata").write_text("of the first")  # the operating system says which directory this is
        storage = PosixFileSystem(world)
        for spelling in (first, f"{first}/", *(form.format(first) for form in URLS)):
            for door, opened in doors(spelling, storage).items():
                there = opened()
                assert Path(there, "_metadata").read_text() == "of the first", f"{door} of {spelling!r} opens {there!r}"
                assert os.path.normpath(there) == there, "nobody may take it for another, Hadoop neither"
        is_same = Path(first).samefile(second)
        for form in ("{}", *URLS):
            assert (open_filesystem(form.format(second)).list("") == open_filesystem(first).list("")) == is_same
    finally:
        shutil.rmtree(next(parent for parent in world.parents if parent.parent == above))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(NAMES, NAMES)
@example(["a#1"], ["a#2"])
@example(["a%20b"], ["a b"])
@example(["a?1"], ["a"])
@example(["link", "..", "x"], ["x"])
@example(["a\n"], ["a"])
@example(["a\tb"], ["ab"])
def test_one_name_opens_one_place_through_every_door(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], others: list[str]
) -> None:
    one_place(tmp_path_factory.getbasetemp(), steps, others)


@pytest.mark.exhaustive
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(NAMES, NAMES)
def test_one_name_opens_one_place_through_every_door_at_length(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], others: list[str]
) -> None:
    one_place(tmp_path_factory.getbasetemp(), steps, others)


@pytest.mark.parametrize("bucket", ["gs://bucket", "s3://bucket", "abfs://data@mine.dfs.core.windows.net", "hdfs://nn"])
@settings(max_examples=40, deadline=None)
@given(NAMES)
def test_a_name_in_a_bucket_is_refused_or_is_literal(bucket: str, steps: list[str]) -> None:
    written = "/".join(steps)
    refused = any(step in {".", ".."} or set(step) & CONTROL or "::" in step for step in steps)
    refused |= bucket.startswith("abfs") and any("\\" in step or step.endswith(".") for step in steps)
    refused |= bucket.startswith("hdfs") and not any(steps)
    if refused:
        with pytest.raises(InvalidConfiguration) as raised:
            open_filesystem(f"{bucket}/{written}")
        assert raised.value.hint
        return
    opened = open_filesystem(f"{bucket}/{written}")
    assert opened.url == "/".join([bucket, *filter(None, steps)])
    assert open_filesystem(opened.url).url == opened.url


@given(NAMES)
def test_an_escaped_uri_of_spark_names_the_file(steps: list[str]) -> None:
    path = "/in/" + "/".join(step for step in steps if step not in {"", ".", ".."})
    assert local_file(f"file://{quote(path)}") == Path(path)
    assert unescaped(f"s3a://bucket{quote(path)}") == f"s3a://bucket{path}"
    assert local_file(f"s3a://bucket{quote(path)}") is None


@pytest.mark.parametrize("text", ["file://var/db", "file://user:hidden@var/db", "file:var/db", "file:~/db"])
def test_a_file_url_without_its_slash_is_refused_by_every_door(tmp_path: Path, text: str) -> None:
    for door, opened in doors(text, PosixFileSystem(tmp_path)).items():
        with pytest.raises((InvalidConfiguration, CheckpointNotFound), match="absolute path of this machine") as raised:
            opened()
        assert "Did you forget a slash?" in raised.value.hint, door
        assert "hidden" not in str(raised.value)


def test_a_url_of_before_is_not_silently_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.1.0, a URL was decoded and cut: who upgrades is told where the job is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b" / "job" / "control").mkdir(parents=True)
    (tmp_path / "var" / "db" / "job").mkdir(parents=True)
    before = {f"file://{tmp_path}/a%20b": tmp_path / "a b", f"file://{tmp_path}/var#1": tmp_path / "var"}
    for url, place in before.items():
        for opened in (open_filesystem, storage_at, resolve_checkpoint_pointer):
            with pytest.raises((InvalidConfiguration, CheckpointNotFound), match="does not exist") as raised:
                opened(url)
            assert f"taken for {str(place)!r}" in raised.value.hint
        local_path(url).mkdir()  # as the hint says
        assert open_filesystem(url).list("") == []
    with pytest.raises(InvalidConfiguration) as raised:
        open_filesystem("file://var/db")
    assert f"taken for '{tmp_path}/var/db'" in raised.value.hint
    assert open_filesystem(f"file://{tmp_path}/new%20one").url == f"{tmp_path}/new%20one", "nothing was there before"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS | st.just("loop"), max_size=4), st.lists(STEPS | st.just("loop"), max_size=4))
@example(["loop"], ["a b"])
@example(["a b"], ["loop", "x"])
@example(["loop"], ["link", "..", "x"])
def test_whether_two_paths_are_one_place_is_always_answered(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], others: list[str]
) -> None:
    world = new_world(tmp_path_factory.getbasetemp())
    try:
        one, other = "/".join([str(world), *steps]), "/".join([str(world), *others])
        answer = is_same_place(one, other)
        assert answer == is_same_place(other, one)
        with contextlib.suppress(OSError):  # nothing is there
            assert answer == Path(one).samefile(other)
    finally:
        shutil.rmtree(world.parents[4])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(NAMES)
@example(["a b"])
@example(["~"])
@example([".."])
def test_in_a_directory_that_was_deleted_every_door_gives_a_domain_error(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    above = tmp_path_factory.getbasetemp()
    gone = above / f"gone-{next(_numbers)}"
    gone.mkdir()
    path = "/".join(steps)
    with contextlib.chdir(gone):
        gone.rmdir()
        for spelling in (path, f"./{path}", f"{gone}/{path}", f"file:{path}", f"file://{path}"):
            for opened in doors(spelling, PosixFileSystem(above)).values():
                with contextlib.suppress(CheckpointError):
                    opened()


@pytest.mark.parametrize("port", ["9" * 5, "9" * 5000, "0" * 5000, "\u0661", "-1", "1_0", "x"])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    with pytest.raises(InvalidConfiguration, match="no host or bucket is called so"):
        split_location(f"s3://bucket:{port}/directory")


def test_below_a_directory_that_may_not_be_entered_every_door_gives_a_domain_error(tmp_path: Path) -> None:
    """Root may enter every directory, so another process tries."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = [sys.executable, "-m", "tests.unit.filesystem.unprivileged", str(closed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_url_is_shown_without_secrets() -> None:
    shown = split_location("maprfs://user:secret@host:1/a b?token=hidden#hidden").shown
    assert shown == "maprfs://host:1/a b"
