"""The class archive: used only if it is whole and nobody else's, and switched off by whom the user is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dagster_ckpt.spark.jvm import class_archive
from dagster_ckpt.spark.jvm.class_archive import (
    CACHE_VARIABLE,
    ClassArchive,
    archive_for,
    make_class_archive,
    with_archive,
)
from dagster_ckpt.spark.jvm.launching import OPTIONS_VARIABLE
from tests.helpers.processes import lives
from tests.helpers.threads import no_more_threads
from tests.jobs.harness import eventually

DAY = 86_400.0
CONTENT = bytes(range(256)) * 64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xss4m")
    monkeypatch.setattr(class_archive, "_attempts", [])
    monkeypatch.setattr(class_archive, "_looks", [])
    return tmp_path / "cache"


@pytest.fixture
def archive(cache: Path) -> ClassArchive:
    """An archive with any content, as if it was just made."""
    found = archive_for({})
    assert found is not None
    assert found.path.parent.parent == cache
    before = os.umask(0o002)  # as on many a machine
    try:
        found.path.write_bytes(CONTENT)
        found.path.chmod(0o600)
        found.seal()
    finally:
        os.umask(before)
    return found


def options(conf: dict[str, str] | None = None, *, wanted: bool = True) -> str:
    """The options of a JVM that is started now."""
    with with_archive(conf or {}, wanted=wanted):
        inside = os.environ[OPTIONS_VARIABLE]
    assert os.environ[OPTIONS_VARIABLE] == "-Xss4m"
    return inside


def test_a_whole_archive_is_used_and_the_users_options_stand_after_it(archive: ClassArchive) -> None:
    assert options() == f'"-XX:SharedArchiveFile={archive.path}" -Xss4m'
    assert options(wanted=False) == "-Xss4m"
    assert archive.path.parent.stat().st_mode & 0o777 == 0o700
    assert class_archive._begin({}) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_archive_or_its_facts_is_used(archive: ClassArchive, data: st.DataObject) -> None:
    archive.path.write_bytes(CONTENT)
    archive.seal()
    file = data.draw(st.sampled_from([archive.path, archive.facts]))
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = whole[:at]
    flipped = cut + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    damaged = data.draw(st.sampled_from([cut, flipped, whole + b"x" if file == archive.path else b""]))
    if file == archive.facts:
        with suppress(ValueError):
            assume(json.loads(damaged) != json.loads(whole))  # a blank of JSON may be another
    file.write_bytes(damaged)
    assert options() == "-Xss4m"


def test_a_damaged_archive_is_made_anew(archive: ClassArchive) -> None:
    archive.path.write_bytes(CONTENT[1:])
    assert not archive.may_be_made()
    assert not archive.is_whole()
    assert archive.may_be_made()


def test_what_somebody_else_could_have_written_is_not_used(archive: ClassArchive, tmp_path: Path) -> None:
    for path, mode in ((archive.path, 0o620), (archive.facts, 0o602), (archive.path.parent, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert options() == "-Xss4m"
        path.chmod(before)
    assert options() != "-Xss4m"
    archive.path.rename(tmp_path / "elsewhere")
    archive.path.symlink_to(tmp_path / "elsewhere")
    assert options() == "-Xss4m"


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.driver.extraJavaOptions": "-Xshare:off"},
        {"spark.driver.extraJavaOptions": "-Da=b -XX:SharedArchiveFile=/mine.jsa"},
        {"spark.driver.defaultJavaOptions": "-XX:ArchiveClassesAtExit=/mine.jsa"},
    ],
)
def test_a_user_who_decides_about_class_data_sharing_is_left_alone(archive: ClassArchive, conf: dict[str, str]) -> None:
    assert options(conf) == "-Xss4m"
    archive.facts.unlink()
    assert class_archive._begin(conf) is None


def test_an_empty_variable_switches_it_off(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert archive_for({}) is None
    assert options() == "-Xss4m"
    assert class_archive._begin({}) is None


def test_a_directory_that_cannot_be_used_is_no_error(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file")
    assert options() == "-Xss4m"
    assert class_archive._begin({}) is None
    assert "Spark starts without a class archive" in caplog.text


def test_a_cache_that_hangs_holds_up_no_start(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(class_archive, "_PATIENCE", 0.1)
    whole = archive.facts.read_bytes()
    archive.facts.unlink()
    os.mkfifo(archive.facts, 0o600)  # who reads it waits for a writer
    assert options() == "-Xss4m"
    (look,) = class_archive._looks
    assert options() == "-Xss4m"
    assert class_archive._looks == [look], "one look hangs, and no other is begun"
    assert "has not answered" in caplog.text
    archive.facts.write_bytes(whole)
    look.join()
    monkeypatch.setattr(class_archive, "_PATIENCE", 60)
    archive.facts.unlink()
    archive.seal()
    assert options() != "-Xss4m", "a cache that answers again is used again"


def test_a_cache_that_hangs_holds_up_no_job(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.facts.unlink()
    log = archive.path.with_suffix(".log")
    os.mkfifo(log)  # who writes to it waits for a reader
    monkeypatch.setattr(sys, "executable", "/bin/true")
    make_class_archive({})
    make_class_archive({})
    (attempt,) = class_archive._attempts
    assert attempt.is_alive()
    assert attempt.daemon
    log.read_bytes()
    attempt.join()


def test_a_process_without_more_threads_goes_on_without_an_archive(
    archive: ClassArchive, caplog: pytest.LogCaptureFixture
) -> None:
    with no_more_threads():
        assert options() == "-Xss4m"
        archive.facts.unlink()
        make_class_archive({})
    assert caplog.text.count("can't start new thread") == 2


def test_another_class_path_has_another_archive(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive_for({}) == archive
    others = [archive_for({"spark.driver.extraClassPath": "/a.jar"})]
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/b.jar")
    others.append(archive_for({}))
    assert len({archive, *others}) == 3


def test_a_failed_attempt_is_not_repeated_for_a_day(archive: ClassArchive) -> None:
    archive.facts.unlink()
    archive.failed.write_text("why")
    assert not archive.may_be_made()
    old = time.time() - 2 * DAY
    os.utime(archive.failed, (old, old))
    assert archive.may_be_made()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ages=st.lists(st.sampled_from([0.1, 0.5, 0.9, 2, 7, 29, 31, 60]), max_size=6, unique=True))
def test_the_newest_three_that_are_in_use_are_kept(archive: ClassArchive, ages: list[float]) -> None:
    """And nothing of the others, or of attempts that were killed."""
    others = {age: ClassArchive(archive.path.with_name(f"other-{number}.jsa")) for number, age in enumerate(ages)}
    for age, other in others.items():
        other.path.write_bytes(b"")
        other.facts.write_bytes(b"")
        other.making.mkdir()
        (other.making / "archive").write_bytes(b"")
        for path in (other.path, other.making):
            os.utime(path, (time.time() - age * DAY,) * 2)
    archive.seal()
    kept = {age for age in sorted(ages)[:2] if age < 30}
    for age, other in others.items():
        assert (other.path.exists(), other.facts.exists()) == (age in kept, age in kept)
        assert other.making.exists() == (age < 1), "one that is being made is left alone"
        other.delete()
        shutil.rmtree(other.making, ignore_errors=True)
    assert archive.is_whole()


def test_an_archive_that_somebody_has_deleted_is_made_anew(archive: ClassArchive) -> None:
    archive.path.unlink()
    assert archive.may_be_made()


_TRAINS = """
import subprocess, sys
from pathlib import Path
from dagster_ckpt.spark.jvm import train_class_archive

def train(made, class_path):
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as jvm:
        print(jvm.pid, flush=True)

train_class_archive._train = train
train_class_archive.main()
"""


def test_a_jvm_that_writes_an_archive_ends_with_the_run_that_wants_it(tmp_path: Path) -> None:
    """Such a JVM reads its standard input no more, and writes for a minute."""
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINS, str(tmp_path / "it.jsa"), ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        jvm = psutil.Process(int(training.stdout.readline()))
        try:
            training.stdin.close()
            training.wait(60)
            eventually("the JVM ends", lambda: not lives(jvm))
        finally:
            with suppress(psutil.NoSuchProcess):
                jvm.kill()


def test_an_archive_that_is_made_by_hand_takes_no_other_process_of_its_group_along(tmp_path: Path) -> None:
    """As from the script of a user: the script's group has other processes, too."""
    with subprocess.Popen(
        ["sh", "-c", '"$@"; echo goes on', "sh", sys.executable, "-c", _TRAINS, str(tmp_path / "it.jsa"), ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        jvm = psutil.Process(int(script.stdout.readline()))
        try:
            script.stdin.close()
            assert script.stdout.readline() == "goes on\n"
            assert script.wait(60) == 0
        finally:
            with suppress(psutil.NoSuchProcess):
                jvm.kill()
