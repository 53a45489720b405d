"""Which standby a run takes, without a JVM: keepers that do not tell the truth, and keepers that say nothing."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_ckpt.filesystem import default_root, make_working_directory
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.spark.jvm import lost_jvm
from dagster_ckpt.spark.standby import adopted_jvm, adopting, place
from dagster_ckpt.spark.standby.adopted_jvm import AdoptedJvm, RefusedError, adopt
from dagster_ckpt.spark.standby.handover import UNASKED
from dagster_ckpt.spark.standby.place import Standby
from tests.helpers.processes import lives
from tests.jobs.harness import eventually

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands a JVM over")]

ROOT = Path(__file__).resolve().parents[4]
#: A keeper whose "JVM" listens, never answers, and ends with its standard input.
_KEEPER = """
import array, json, os, socket, subprocess, sys, time
from dagster_ckpt.spark.standby.keeper import _listen
lie = sys.argv[1]
jvm = "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", jvm], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
port = int(child.stdout.readline())
listener = _listen("it")
listener.settimeout(None)
print(child.pid, flush=True)
connection, _ = listener.accept()
if lie == "silence":
    time.sleep(600)
told = {"pid": os.getppid() if lie == "pid" else child.pid, "port": port + (lie == "port"), "secret": "s"}
ends = os.pipe()
held = array.array("i", [ends[1] if lie == "lifeline" else child.stdin.fileno(), ends[0]])
connection.sendmsg([json.dumps(told).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])
connection.recv(5)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory, where standbys listen; its path is longer than the address of a socket."""
    root = tmp_path / ("long" * 30)
    root.mkdir()
    monkeypatch.setenv("TMPDIR", str(root))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(adopted_jvm, "PATIENCE", 1.0)
    make_working_directory(place.directory(), default_root())
    return place.directory()


@contextmanager
def _keeper(lie: str) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A keeper, and its JVM, both gone at the end."""
    with subprocess.Popen([sys.executable, "-c", _KEEPER, lie], cwd=ROOT, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        jvm = psutil.Process(int(keeper.stdout.readline()))
        try:
            yield psutil.Process(keeper.pid), jvm
        finally:
            keeper.kill()
            keeper.wait()
            eventually("the JVM ends with its keeper", lambda: not lives(jvm))


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("pid", "is no JVM of its keeper"),
        ("lifeline", "would outlive this process"),
        ("port", "does not listen on port"),
        ("", "has not answered"),
    ],
)
def test_a_jvm_that_is_not_what_its_keeper_says_is_refused(lie: str, why: str) -> None:
    with _keeper(lie) as (keeper, jvm):
        with pytest.raises(RefusedError, match=why):
            adopt("it")
        eventually("its keeper gives up", lambda: not lives(keeper))
        eventually("and the JVM ends", lambda: not lives(jvm))
    assert "PYSPARK_GATEWAY_PORT" not in os.environ


def test_a_keeper_that_hangs_is_killed_and_its_jvm_ends() -> None:
    with _keeper("silence") as (keeper, jvm):
        with pytest.raises(TimeoutError, match=str(keeper.pid)):
            adopt("it")
        eventually("the keeper is killed", lambda: not lives(keeper))
        eventually("its JVM ends", lambda: not lives(jvm))


def test_a_killed_keeper_leaves_a_socket_and_no_standby(home: Path) -> None:
    with _keeper(""):
        pass
    assert (home / "it.sock").is_socket()
    assert adopt("it") is None


#: Holds the lock of a keeper.
_HOLDS = (
    "import fcntl, sys; lock = open(sys.argv[1], 'wb'); fcntl.flock(lock, fcntl.LOCK_EX); print(flush=True); input()"
)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        try:
            yield
        finally:
            keeper.kill()


def test_a_jvm_is_launched_with_a_run_also_where_a_killed_standby_has_left_its_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(adopting, "_keep", lambda wanted, early: started.append((wanted.name, early)))
    monkeypatch.setattr(adopting, "_kept", kept := adopting._Kept())
    monkeypatch.setattr(Standby, "of", lambda conf, class_archive: Standby("it", conf, {}, class_archive))

    def launched() -> int:
        adopting.launch_early("job", "local[1]", {}, class_archive=False)
        assert kept.thread is not None
        kept.thread.join()
        return len(started)

    (home / "it.sock").touch()
    with _locked(home / "it.lock"):
        assert launched() == 0, "the standby waits"
    assert launched() == 1


def test_a_directory_that_cannot_be_read_ends_no_thread_and_no_keeper(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def fail(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "glob", fail)
    place.sweep()
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(adopting, "is_kept", fail)
    monkeypatch.setattr(adopting, "_kept", kept := adopting._Kept())
    monkeypatch.setattr(Standby, "of", lambda conf, class_archive: Standby("it", conf, {}, class_archive))
    adopting.launch_early("orders", "local[1]", {}, class_archive=False)
    assert kept.thread is not None
    kept.thread.join()
    assert "The JVM of orders is started by its run: [Errno 5]" in caplog.text


#: A keeper that says when it would start its JVM. Somebody asks whether it lives, as is_kept does, until it waits.
_BEGINS = """
import fcntl, sys, time
from pathlib import Path
from dagster_ckpt.spark.standby import keeper
def start(*_, **__):
    print("starts", flush=True)
    sys.exit(0)
keeper._start, keeper._SCORE = start, Path("/proc/self/nothing")
asks = (keeper.directory() / "it.lock").open("wb")
fcntl.flock(asks, fcntl.LOCK_SH)
time.sleep = lambda _: fcntl.flock(asks, fcntl.LOCK_UN)
keeper.main()
"""


def test_a_keeper_begins_though_somebody_has_just_asked_for_one_and_its_score_cannot_be_set() -> None:
    asked = Standby("it", {}, {}, class_archive=False).asked(early=False)
    with subprocess.Popen(
        [sys.executable, "-c", _BEGINS, "it"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(asked)
        keeper.stdin.flush()
        assert keeper.stdout.read() == b"starts\n"


def test_what_keepers_have_left_goes_after_a_month(home: Path) -> None:
    for name in ("gone", "alive", "new"):
        (home / f"{name}.warm").mkdir()
        (home / f"{name}.warm" / "part").touch()
        for suffix in ("sock", "log", "lock"):
            (home / f"{name}.{suffix}").touch()
    with _locked(home / "alive.lock"):
        for name in ("gone", "alive"):
            os.utime(home / f"{name}.lock", (1, 1))
        place.sweep()
        left = {path.name for path in home.iterdir()}
    assert left == {f"{name}.{suffix}" for name in ("alive", "new") for suffix in ("warm", "sock", "log", "lock")}


def test_no_standby_is_taken_from_a_directory_that_others_can_enter(home: Path) -> None:
    with _keeper(""):
        home.chmod(0o711)
        with pytest.raises(RefusedError, match="others can enter"):
            adopt("it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_no_standby_is_taken_from_a_directory_of_another_user(home: Path) -> None:
    with _keeper(""):
        os.chown(home, 65534, 65534)
        with pytest.raises(RefusedError, match="others can enter"):
            adopt("it")


def test_each_thing_that_a_jvm_depends_on_makes_another_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "user.jar"
    jar.write_bytes(b"1")
    conf = {"spark.driver.memory": "1g", "spark.jars": str(jar)}

    def name(**changes: str) -> str:
        place._environment.cache_clear()
        return Standby.of({**conf, **changes}, class_archive=True).name

    first = name()
    assert name() == first
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("DAGSTER_CKPT_DRIVER", "another driver")
    monkeypatch.setenv("SF_PARTNER", "DagsterLabs_Dagster")  # in runs, and not where Dagster launches these
    assert name() == first, "as the next run's would be"
    found = {first, name(**{"spark.driver.memory": "2g"})}
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "rotated")
    found.add(name())
    jar.write_bytes(b"22")
    found.add(name())
    monkeypatch.chdir(tmp_path)
    found.add(name())
    assert len(found) == 5
    assert "rotated" not in "".join(found)
    place._environment.cache_clear()


def test_the_process_that_launches_a_run_knows_the_standby_of_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    place._environment.cache_clear()
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    before = Standby.of({}, class_archive=True)
    assert before.environment["PYSPARK_PYTHON"] == sys.executable, "as the run sets it"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    place._environment.cache_clear()
    assert Standby.of({}, class_archive=True).name == before.name
    assert before.early != before.name, "who asks for a warm JVM waits for no other"
    place._environment.cache_clear()


def test_what_is_wrong_with_a_standby_is_a_warning_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: str) -> None:
        raise RefusedError("process 1 is no JVM of its keeper")

    monkeypatch.setattr(adopting, "adopt", refuse)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.setattr(adopting, "_kept", adopting._Kept())
    assert not adopting.adopt_standby("job", "local[1]", {}, class_archive=False)
    assert "Spark starts a JVM, because the one that waits cannot be adopted: process 1 is no JVM" in caplog.text


def test_no_jvm_is_launched_again_soon_when_no_run_has_asked_for_the_last_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(adopting, "_kept", kept := adopting._Kept())
    monkeypatch.setattr(adopting, "make_working_directory", lambda *_: None)
    monkeypatch.setattr(adopting, "directory", lambda: tmp_path)
    started = []

    class Keeper(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **settings: Any) -> None:
            started.append(command)
            super().__init__([sys.executable, "-c", f"import sys; input(); sys.exit({UNASKED})"], **settings)

    monkeypatch.setattr(subprocess, "Popen", Keeper)
    for _ in range(2):
        adopting.launch_early("job", "local[1]", {}, class_archive=False)
        assert kept.thread is not None
        kept.thread.join()
    assert len(started) == 1
    assert "for an hour none is launched" in caplog.text
    kept.next_at = 0.0
    adopting.launch_early("job", "local[1]", {}, class_archive=False)
    assert kept.thread is not None
    kept.thread.join()
    assert len(started) == 2


#: A keeper whose JVM is adopted at once, and which stays as the parent of the JVM.
_ADOPTED = """
import os, time
input()
os.write(1, b"taken")
nowhere = os.open(os.devnull, os.O_RDWR)
os.dup2(nowhere, 0), os.dup2(nowhere, 1)
time.sleep(600)
"""


def test_an_adopted_jvm_costs_its_launcher_no_thread_no_file_and_at_its_end_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(adopting, "_kept", kept := adopting._Kept())
    monkeypatch.setattr(adopting, "make_working_directory", lambda *_: None)
    monkeypatch.setattr(adopting, "directory", lambda: tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    class Keeper(subprocess.Popen[bytes]):
        def __init__(self, _: list[str], **settings: Any) -> None:
            super().__init__([sys.executable, "-c", _ADOPTED], **settings)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Keeper)

    def launch() -> None:
        adopting.launch_early("job", "local[1]", {}, class_archive=False)
        thread = kept.thread
        assert thread is not None
        thread.join(30)
        assert not thread.is_alive()

    try:
        launch()
        files = _open_files()
        launch()
        launch()
        assert _open_files() == files
        assert [keeper.poll() for keeper in started] == [None] * 3, "the parents of the JVMs stay"
        for keeper in started:
            keeper.kill()
            os.waitid(os.P_PID, keeper.pid, os.WEXITED | os.WNOWAIT)
        zombies = [psutil.Process(keeper.pid) for keeper in started]
        launch()
        assert not any(zombie.is_running() for zombie in zombies)
    finally:
        for keeper in started:
            keeper.kill()
            keeper.wait()


def test_a_run_without_a_jvm_of_its_own_keeps_no_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopting, "_kept", kept := adopting._Kept())
    spark = SparkSessionResource(standby=1, class_archive=False)
    with spark.standby_ends_with_job(lambda: False):
        spark.help_next_start()
    assert kept.thread is None


def test_the_log_says_when_there_is_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    monkeypatch.setattr(adopting, "_kept", adopting._Kept())
    with caplog.at_level(logging.INFO):
        assert not adopting.adopt_standby("job", "local[1]", {}, class_archive=False)
    assert "no standby of this configuration waits" in caplog.text


#: A parent that starts a "JVM", and becomes what a keeper becomes when its JVM is adopted.
_PARENT = """
import os, socket, subprocess, sys
from dagster_ckpt.spark.standby import keeper
ends = "import sys; line = sys.stdin.readline(); sys.exit(3 if line else 0)"
jvm = subprocess.Popen([sys.executable, "-c", ends], stdin=int(sys.argv[1]), stdout=subprocess.DEVNULL)
print(jvm.pid, flush=True)
keeper._stay_as_parent(jvm.pid, socket.socket(fileno=int(sys.argv[2])), "0")
"""


@contextmanager
def _adopted() -> Iterator[tuple[AdoptedJvm, subprocess.Popen[str]]]:
    """A "JVM" of another parent, and that parent."""
    read, write = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(read), str(theirs.fileno())],
        cwd=ROOT,
        pass_fds=[read, theirs.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        os.close(read)
        theirs.close()
        assert parent.stdout is not None
        jvm = AdoptedJvm(int(parent.stdout.readline()), write, ours)
        assert parent.stdout.read() == "taken", "whoever wanted the standby is told"
        try:
            yield jvm, parent
        finally:
            jvm.kill()
            jvm.stdin.close()
            parent.kill()


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        (lambda jvm: jvm.kill(), -signal.SIGKILL, "it was killed by SIGKILL, as the kernel does to a process when"),
        (lambda jvm: jvm.stdin.write(b"\n"), 3, "it ended with exit code 3"),
    ],
    ids=["killed", "ended"],
)
def test_a_jvm_of_another_parent_is_held_like_ones_own(
    end: Callable[[AdoptedJvm], object], code: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopted_jvm, "PATIENCE", 120.0)
    with _adopted() as (jvm, parent):
        assert jvm.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            jvm.wait(0.01)
        memory = psutil.Process(parent.pid).memory_info
        eventually("its parent, which stays as long as the JVM, is small", lambda: memory().rss < 20_000_000)
        end(jvm)
        assert jvm.wait() == jvm.poll() == jvm.returncode == code
        assert how in lost_jvm._ending(jvm)  # type: ignore[arg-type]
        jvm.kill()
        assert parent.wait(60) == 0


def test_the_end_of_a_jvm_whose_parent_is_gone_is_seen_and_not_explained() -> None:
    with _adopted() as (jvm, parent):
        parent.kill()
        parent.wait()
        assert jvm.poll() is None
        jvm.kill()
        jvm.wait()
        assert jvm.poll() is not None
        assert lost_jvm._ending(jvm) == "it has ended; its error output says why"  # type: ignore[arg-type]


def test_a_jvm_that_is_let_go_ends_and_leaves_no_open_file() -> None:
    before = _open_files()
    read, write = os.pipe()
    said, output = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=read, stdout=output, stderr=output) as process:
        os.close(read)
        os.close(output)
        theirs.close()
        jvm = AdoptedJvm(process.pid, write, ours)
        assert jvm.poll() is None
        del jvm, ours
        gc.collect()
        try:
            process.wait(60)
        finally:
            process.kill()
    adopted_jvm._pump(said)
    assert _open_files() == before


def _open_files() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir() if file.exists() or file.is_symlink()}


_WAITS = """
import math, subprocess, sys, time
from dagster_ckpt.spark.standby import keeper
keeper.UNADOPTED = keeper._LOOK = 0.01
driver = keeper._Driver()
driver.is_warm = sys.argv[1] == "warm"
print("waits", flush=True)
until = 0.0 if sys.argv[1] == "over" else math.inf
with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as jvm:
    try:
        print(keeper._await(keeper._listen("it"), jvm, driver, until), flush=True)
    finally:
        jvm.kill()
"""


@pytest.mark.parametrize(("when", "said", "ended"), [("warm", "None\n", 0), ("cold", "", 1)])
def test_a_standby_goes_when_its_driver_is_gone_for_long_and_at_once_while_it_is_not_warm(
    when: str, said: str, ended: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, when], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "waits\n"
        below = psutil.Process(keeper.pid)
        eventually("its JVM runs", lambda: bool(below.children()))
        (jvm,) = below.children()
        assert keeper.poll() is None, "its driver is there"
        keeper.stdin.close()
        assert keeper.stdout.read() == said
        assert keeper.wait() == ended
        with contextlib.suppress(psutil.NoSuchProcess):
            jvm.kill()


def test_an_early_jvm_goes_when_its_run_has_not_come() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, "over"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.read() == "waits\nNone\n", "though the process that launched the run is there"
