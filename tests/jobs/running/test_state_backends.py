"""What each state backend makes a real Spark do, and that its state comes back."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import pytest

from dagster_ckpt import CustomStateBackend, EmbeddedRocksDBStateBackend, HashMapStateBackend, PredefinedOptions
from dagster_ckpt.checkpoint.catalog.file_reader import materialize_checkpoint
from dagster_ckpt.config import state_backend
from dagster_ckpt.config.restart import RestartStrategies
from dagster_ckpt.config.state_backend import HDFS_PROVIDER, ROCKSDB_PROVIDER, StateBackend
from dagster_ckpt.errors import CheckpointFailure, InvalidConfiguration, StateBackendMismatch
from dagster_ckpt.spark.events import SettingsIgnored
from dagster_ckpt.spark.job import StreamingJob
from dagster_ckpt.spark.releases import RELEASES, release_of
from tests.helpers.spark.streaming import confs
from tests.jobs.harness import Bench, copied, deduplicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata

_STATE = "spark.sql.streaming.stateStore"
_FORMAT = f"{_STATE}.checkpointFormatVersion"
_CHANGELOG = f"{_STATE}.rocksdb.changelogCheckpointing.enabled"
_ROOT = Path(__file__).resolve().parents[3]
_THEIRS = "com.example.TheirStateStoreProvider"


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path / "job")


def with_backend(bench: Bench, backend: StateBackend | None, **options: Any) -> StreamingJob:
    return replace(bench.job(**options), state_backend=backend)


def kinds(metadata: CheckpointMetadata) -> set[str]:
    """The suffixes of the state files that a checkpoint holds."""
    paths = [PurePosixPath(file.path) for file in metadata.files]
    return {path.suffix for path in paths if path.match("checkpoint/state/0/*/*") and path.parts[3].isdigit()}


def rocksdb_options(bench: Bench, metadata: CheckpointMetadata, scratch: Path) -> dict[str, str]:
    """What RocksDB itself wrote down of its options, in the newest snapshot of a checkpoint."""
    materialize_checkpoint(bench.catalog, metadata, scratch)
    archive = max((scratch / "checkpoint/state/0/0").glob("*.zip"))
    with zipfile.ZipFile(archive) as opened:
        (name,) = [name for name in opened.namelist() if name.rpartition("/")[2].startswith("OPTIONS")]
        lines = opened.read(name).decode().splitlines()
    return dict(line.strip().split("=", 1) for line in lines if "=" in line)


def as_spark_reads(session: SparkSession) -> Any:
    """The RocksDB options of a session, as the state store takes them."""
    jvm: Any = session._jvm
    state = jvm.org.apache.spark.sql.execution.streaming.state
    settings = session._jsparkSession.sessionState().conf()
    return state.RocksDBConf.apply(state.StateStoreConf(settings, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())))


# --- each one ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "session_says", "provider", "state_format", "files"),
    [
        (
            HashMapStateBackend(),
            {f"{_STATE}.providerClass": ROCKSDB_PROVIDER, _FORMAT: "2"},
            HDFS_PROVIDER,
            1,
            {".delta"},
        ),
        (
            EmbeddedRocksDBStateBackend(),
            {f"{_STATE}.providerClass": HDFS_PROVIDER, _CHANGELOG: "false"},
            ROCKSDB_PROVIDER,
            2,
            {".changelog", ".crc"},
        ),
        (
            EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False),
            {f"{_STATE}.providerClass": HDFS_PROVIDER, _CHANGELOG: "true", _FORMAT: "1"},
            ROCKSDB_PROVIDER,
            1,
            {".zip"},
        ),
        (
            CustomStateBackend(HDFS_PROVIDER, {f"{_STATE}.compression.codec": "zstd"}),
            {f"{_STATE}.compression.codec": "lz4"},
            HDFS_PROVIDER,
            1,
            {".delta"},
        ),
    ],
    ids=["hash map", "RocksDB, incremental", "RocksDB, full", "custom"],
)
def test_it_wins_over_the_session_and_its_state_comes_back(
    bench: Bench,
    backend: StateBackend,
    session_says: Mapping[str, str],
    provider: str,
    state_format: int,
    files: set[str],
) -> None:
    settings: list[dict[str, str]] = []

    def observed(bench: Bench, session: SparkSession) -> DataStreamWriter:
        settings.append({key: session.conf.get(key) or "" for key in backend.spark_conf()})
        return deduplicated(bench, session)

    job = with_backend(bench, backend, query=observed)
    with confs(bench.spark, session_says):
        first = bench.tick(2, job)
        second = bench.tick(2, job)
    assert second.started.restored == first.completed[-1]
    bench.assert_exact()
    for metadata in (*first.completed, *second.completed):
        assert metadata.facts.state_store_provider == provider
        assert metadata.facts.state_format == state_format
        assert kinds(metadata) == files
        fixed = metadata.facts.sql_confs  # what Spark wrote down as settled by the first start
        assert isinstance(fixed, dict)
        assert {key: fixed.get(key, value) for key, value in backend.spark_conf().items()} == backend.spark_conf()
    assert settings == [backend.spark_conf()] * 2


@pytest.mark.parametrize("changelog", ["true", "false"])
def test_without_a_backend_it_is_as_the_session_says(bench: Bench, changelog: str) -> None:
    with confs(bench.spark, {_CHANGELOG: changelog, _FORMAT: "1"}):
        (completed,) = bench.tick(1).completed
    assert kinds(completed) == ({".changelog"} if changelog == "true" else {".zip"})


# --- RocksDB's options ------------------------------------------------------------------------------------------------


def _snapshots_now(**options: Any) -> EmbeddedRocksDBStateBackend:
    """A backend whose every batch leaves a snapshot to look into."""
    return EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False, **options)


def test_a_profile_and_the_options_on_top_of_it_reach_rocksdb(bench: Bench, tmp_path: Path) -> None:
    backend = _snapshots_now(
        predefined_options=PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM,
        options=lambda: {"compression": "zstd", "maxWriteBufferNumber": 6},
    )
    sessions: list[SparkSession] = []

    def seen(bench: Bench, session: SparkSession) -> DataStreamWriter:
        sessions.append(session)
        return deduplicated(bench, session)

    launch = bench.tick(1, with_backend(bench, backend, query=seen))
    # RocksDB does not write down the size of its cache; this is how Spark reads the session of the query.
    assert as_spark_reads(sessions[0]).blockCacheSizeMB() == 256
    written = rocksdb_options(bench, launch.completed[-1], tmp_path / "snapshot")
    assert written["block_size"] == str(128 << 10)
    assert written["write_buffer_size"] == str(64 << 20)
    assert written["max_write_buffer_number"] == "6"
    assert written["max_open_files"] == "-1"
    assert written["compression"] == "kZSTD"
    # What no setting of Spark reaches is as RocksDB ships it; the warning says so.
    assert written["min_write_buffer_number_to_merge"] == "1"
    assert written["target_file_size_base"] == str(64 << 20)
    assert written["max_bytes_for_level_base"] == str(256 << 20)
    assert written["max_background_jobs"] == "2"
    # What the profiles ask for and RocksDB does anyway.
    assert written["compaction_style"] == "kCompactionStyleLevel"
    assert written["level_compaction_dynamic_level_bytes"] == "true"
    assert written["use_fsync"] == "false"
    assert "disable_data_sync" not in written, "RocksDB has no such option any more"
    (ignored,) = launch.of(SettingsIgnored)
    assert "setTargetFileSizeBase(256 MB)" in ignored.reasons[0]


#: Other than the profiles ask for, where Spark can be told.
_SESSION_SAYS = {f"{_STATE}.rocksdb.maxOpenFiles": "500", f"{_STATE}.rocksdb.blockSizeKB": "16"}


@pytest.mark.parametrize(
    ("profile", "asked_for"),
    [
        (
            PredefinedOptions.SPINNING_DISK_OPTIMIZED,
            {
                "max_open_files": "-1",
                "use_fsync": "false",
                "compaction_style": "kCompactionStyleLevel",
                "level_compaction_dynamic_level_bytes": "true",
            },
        ),
        (PredefinedOptions.FLASH_SSD_OPTIMIZED, {"max_open_files": "-1", "use_fsync": "false"}),
    ],
)
def test_what_a_smaller_profile_asks_for_reaches_rocksdb(
    bench: Bench, tmp_path: Path, profile: PredefinedOptions, asked_for: Mapping[str, str]
) -> None:
    with confs(bench.spark, _SESSION_SAYS):
        launch = bench.tick(1, with_backend(bench, _snapshots_now(predefined_options=profile)))
    written = rocksdb_options(bench, launch.completed[-1], tmp_path / "snapshot")
    assert {name: written[name] for name in asked_for} == asked_for
    assert written["block_size"] == str(16 << 10), "what the profile does not ask for is as the session says"
    assert written["max_background_jobs"] == "2", "no setting of Spark reaches it; the warning says so"
    assert "disable_data_sync" not in written, "RocksDB has no such option any more"
    (ignored,) = launch.of(SettingsIgnored)
    assert profile.name in ignored.reasons[0]
    assert "setIncreaseParallelism(4)" in ignored.reasons[0]


def test_the_default_profile_leaves_rocksdb_to_the_session(bench: Bench, tmp_path: Path) -> None:
    """So that the test above would fail if the options were these anyway."""
    with confs(bench.spark, _SESSION_SAYS):
        launch = bench.tick(1, with_backend(bench, _snapshots_now(predefined_options=PredefinedOptions.DEFAULT)))
    written = rocksdb_options(bench, launch.completed[-1], tmp_path / "snapshot")
    assert (written["max_open_files"], written["block_size"]) == ("500", str(16 << 10))
    assert not launch.of(SettingsIgnored)


def test_without_a_profile_rocksdb_has_sparks_values(bench: Bench, tmp_path: Path) -> None:
    """So that the test above would fail if the options were these anyway."""
    launch = bench.tick(1, with_backend(bench, _snapshots_now()))
    written = rocksdb_options(bench, launch.completed[-1], tmp_path / "snapshot")
    assert (written["block_size"], written["max_write_buffer_number"]) == (str(4 << 10), "2")
    assert written["compression"] == "kLZ4Compression"
    assert not launch.of(SettingsIgnored)


@pytest.mark.releases
def test_the_known_options_are_those_of_this_spark(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    conf = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.streaming.state.RocksDBConf$")
    module = conf.getField("MODULE$").get(None)
    names = set()
    for field in conf.getDeclaredFields():
        if field.getType().getName().endswith("ConfEntry"):
            field.setAccessible(True)
            names.add(field.get(module).fullName())
    running = release_of(spark.version)
    later = {name for other in RELEASES if other.minor > running.minor for name in other.rocksdb_options}
    ours = {f"{_STATE}.rocksdb.{name}".lower() for name in state_backend._OPTIONS if name not in later}
    assert ours | {_CHANGELOG.lower()} == names


def test_an_unknown_option_ends_the_job_before_anything_is_touched(bench: Bench) -> None:
    bench.tick(1)
    bench.land(1)
    backend = EmbeddedRocksDBStateBackend(options=lambda: {"targetFileSizeBase": 1})
    refusal = bench.refused(InvalidConfiguration, with_backend(bench, backend))
    assert "targetFileSizeBase" in refusal.message
    assert not refusal.recoverable


# --- changes from one start to the next -------------------------------------------------------------------------------


@pytest.mark.parametrize("state_format", [pytest.param("1", marks=pytest.mark.exhaustive), "2"])
@pytest.mark.parametrize("incremental", [False, True], ids=["full to incremental", "incremental to full"])
def test_incremental_and_options_may_change_at_a_restart(
    bench: Bench, tmp_path: Path, state_format: str, *, incremental: bool
) -> None:
    before = EmbeddedRocksDBStateBackend(incremental)
    after = EmbeddedRocksDBStateBackend(not incremental, options=lambda: {"blockSizeKB": 32})
    with confs(bench.spark, {_FORMAT: state_format}):
        first = bench.tick(2, with_backend(bench, before))
        second = bench.tick(2, with_backend(bench, after))
        third = bench.tick(2, with_backend(bench, after))
    assert second.started.restored == first.completed[-1]
    assert third.started.restored == second.completed[-1]
    bench.assert_exact()
    checksums = {".crc"} if state_format == "2" else set()
    if incremental:
        assert kinds(first.completed[-1]) == {".changelog"} | checksums
        assert kinds(second.completed[-1]) == {".zip"} | checksums
        written = rocksdb_options(bench, third.completed[-1], tmp_path / "snapshot")
        assert written["block_size"] == str(32 << 10)
    else:
        assert kinds(first.completed[-1]) == {".zip"} | checksums
        # The snapshot of before the change, and the changes since.
        assert kinds(second.completed[-1]) == {".zip", ".changelog"} | checksums
    assert not [event for launch in (first, second, third) for event in launch.of(SettingsIgnored)]


def test_what_spark_fixed_at_the_first_start_is_named(bench: Bench) -> None:
    bench.tick(1, with_backend(bench, EmbeddedRocksDBStateBackend(options=lambda: {"formatVersion": 5})))
    went_on = bench.tick(1, with_backend(bench, EmbeddedRocksDBStateBackend(options=lambda: {"formatVersion": 6})))
    (ignored,) = went_on.of(SettingsIgnored)
    (reason,) = ignored.reasons
    assert f"{_STATE}.rocksdb.formatVersion=6: it stays 5" in reason
    bench.assert_exact()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("before", "after", "restore_from"),
    [
        (HashMapStateBackend(), EmbeddedRocksDBStateBackend(), "latest"),
        (EmbeddedRocksDBStateBackend(), HashMapStateBackend(), "chk-1"),
        (None, HashMapStateBackend(), "latest"),
        (None, CustomStateBackend(_THEIRS, layout="rocksdb"), "chk-1"),
    ],
    ids=["hash map to RocksDB", "RocksDB to hash map", "default to hash map", "default to custom"],
)
def test_another_provider_is_refused(
    bench: Bench, before: StateBackend | None, after: StateBackend, restore_from: str
) -> None:
    bench.tick(1, with_backend(bench, before))
    newest = bench.tick(1, with_backend(bench, before)).completed[-1]
    bench.land(1)
    refusal = bench.refused(StateBackendMismatch, with_backend(bench, after), restore_from=restore_from)
    assert (newest.name if restore_from == "latest" else "chk-1") in refusal.message
    assert str(newest.facts.state_store_provider) in refusal.message
    assert after.provider in refusal.message
    assert ("HashMapStateBackend()" if before == HashMapStateBackend() else "RocksDBStateBackend()") in refusal.hint
    assert "restore_from: none" in refusal.hint
    assert not refusal.recoverable
    went_on = bench.tick(0, with_backend(bench, before))
    assert went_on.started.restored == newest
    bench.assert_exact()


def test_a_query_without_state_takes_any_backend(bench: Bench) -> None:
    bench.query = copied
    bench.tick(1, with_backend(bench, HashMapStateBackend()))
    went_on = bench.tick(1, with_backend(bench, EmbeddedRocksDBStateBackend()))
    assert went_on.started.restored is not None
    assert not went_on.of(SettingsIgnored)
    bench.assert_exact()


# --- a provider of the user's -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def their_provider(spark: SparkSession) -> None:
    """A class of its own on Spark's class path that does what RocksDB's provider does."""
    jvm, new_array = cast("Any", spark._jvm), cast("Any", spark.sparkContext._gateway).new_array
    compiler = jvm.org.codehaus.janino.SimpleCompiler()  # what Spark compiles its own queries with
    package, _, name = _THEIRS.rpartition(".")
    compiler.cook(f"package {package}; public class {name} extends {ROCKSDB_PROVIDER} {{}}")
    code = bytes(compiler.getBytecodes().get(_THEIRS))
    # A jar that is added later is not seen by the thread of a query, so the class goes where Spark's own are.
    signature = new_array(jvm.java.lang.Class, 4)
    signature[0] = jvm.java.lang.Class.forName("java.lang.String")
    signature[1] = jvm.java.lang.Class.forName("[B")
    signature[2] = signature[3] = jvm.java.lang.Integer.TYPE
    define = jvm.java.lang.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", signature)
    define.setAccessible(True)
    arguments = new_array(jvm.java.lang.Object, 4)
    arguments[0], arguments[1], arguments[2], arguments[3] = _THEIRS, code, 0, len(code)
    define.invoke(jvm.java.lang.ClassLoader.getSystemClassLoader(), arguments)


def test_their_provider_is_captured_by_the_layout_it_is_said_to_have(bench: Bench, their_provider: None) -> None:
    job = with_backend(bench, CustomStateBackend(_THEIRS, {_CHANGELOG: "false"}, layout="rocksdb"))
    first = bench.tick(2, job)
    second = bench.tick(2, job)
    assert second.started.restored == first.completed[-1]
    assert second.completed[-1].facts.state_store_provider == _THEIRS
    assert kinds(second.completed[-1]) == {".zip"}
    bench.assert_exact()


def test_their_provider_is_salvaged(bench: Bench, their_provider: None) -> None:
    job = with_backend(bench, CustomStateBackend(_THEIRS, layout="rocksdb"))
    bench.run_and_cancel(2, with_backend(bench, job.state_backend))
    went_on = bench.tick(1, job)
    assert went_on.started.restored is not None
    assert went_on.started.restored.kind == "salvage"
    bench.assert_exact()


def test_their_checkpoint_needs_their_backend(bench: Bench, their_provider: None) -> None:
    job = with_backend(bench, CustomStateBackend(_THEIRS, layout="rocksdb"))
    bench.tick(1, job)
    refusal = bench.refused(StateBackendMismatch)
    assert _THEIRS in refusal.message
    assert f"CustomStateBackend('{_THEIRS}', layout=...)" in refusal.hint
    bench.tick(1, job)
    bench.assert_exact()


def test_a_layout_that_is_not_the_providers_makes_no_checkpoint(bench: Bench, their_provider: None) -> None:
    bench.land(1)
    launch = bench.launch(with_backend(bench, CustomStateBackend(_THEIRS, layout="hdfs")))
    with pytest.raises(CheckpointFailure, match=rf"{_THEIRS} keeps \S+ in state/0/0, which .*HDFSBacked\S+ does not"):
        launch.result()
    assert not launch.completed


def test_without_a_setting_there_is_a_partition_per_core_and_a_later_setting_is_told(bench: Bench) -> None:
    unset = bench.spark.newSession()
    unset.conf.unset("spark.sql.shuffle.partitions")
    assert unset.conf.get("spark.sql.shuffle.partitions") == "200", "Spark's own default"
    job = replace(bench.job(query=deduplicated), session=lambda: unset)
    first = bench.tick(1, job)
    cores = bench.spark.sparkContext.defaultParallelism
    assert first.completed[-1].facts.partitions == cores
    same = bench.tick(1, job)
    assert same.completed[-1].facts.partitions == cores
    assert not same.of(SettingsIgnored)

    later = unset.newSession()
    later.conf.set("spark.sql.shuffle.partitions", "7")
    told = bench.tick(1, replace(job, session=lambda: later))
    (ignored,) = told.of(SettingsIgnored)
    assert ignored.reasons[0].startswith(f"spark.sql.shuffle.partitions=7: it stays {cores}, ")
    assert told.completed[-1].facts.partitions == cores
    bench.assert_exact()


# --- what does not take effect is told --------------------------------------------------------------------------------


def test_directories_that_come_too_late_are_told(bench: Bench, tmp_path: Path) -> None:
    used = bench.spark.conf.get("spark.local.dir")
    assert used is not None
    launch = bench.tick(1, with_backend(bench, EmbeddedRocksDBStateBackend(db_storage_paths=[str(tmp_path)])))
    (ignored,) = launch.of(SettingsIgnored)
    (reason,) = ignored.reasons
    assert f"db_storage_paths={tmp_path}" in reason
    assert used in reason
    same = bench.tick(1, with_backend(bench, EmbeddedRocksDBStateBackend(db_storage_paths=[used])))
    assert not same.of(SettingsIgnored)


def test_it_is_told_once_in_a_run_that_is_restarted(bench: Bench) -> None:
    attempts: list[int] = []

    def failing(bench: Bench, session: SparkSession) -> DataStreamWriter:
        attempts.append(1)
        rows = bench.read(session).dropDuplicates(["id"])
        return bench.write(rows.selectExpr("raise_error('not yet') AS id" if len(attempts) < 3 else "id", "v"))

    backend = EmbeddedRocksDBStateBackend(number_of_transfer_threads=4)
    restart = RestartStrategies.fixed_delay_restart(3, "10 ms")
    launch = bench.tick(1, with_backend(bench, backend, query=failing, restart=restart))
    assert len(attempts) == 3
    assert len(launch.restarts) == 2
    (ignored,) = launch.of(SettingsIgnored)
    assert "number_of_transfer_threads=4" in ignored.reasons[0]


_FRESH_PROCESS = """
import sys
from dataclasses import replace
from pathlib import Path
from dagster_ckpt import EmbeddedRocksDBStateBackend, SparkSessionResource
from dagster_ckpt.spark.events import SettingsIgnored
from tests.jobs.harness import Bench
root, *directories = map(Path, sys.argv[1:])
backend = EmbeddedRocksDBStateBackend(db_storage_paths=[str(directory) for directory in directories])
conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8", "spark.local.dir": str(root / "theirs")}
spark = SparkSessionResource(master="local[2]", conf=conf).session("tiny", backend.launch_conf())
bench = Bench(spark, root / "job")
launch = bench.tick(1, replace(bench.job(), state_backend=backend))
bench.assert_exact()
assert not launch.of(SettingsIgnored)
for directory in directories:
    print(directory.name, len({path.parent for path in directory.rglob("StateStoreId*/**/CURRENT")}))
"""


@pytest.mark.exhaustive
@pytest.mark.integration
def test_stores_work_in_the_directories_that_spark_is_started_with(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FRESH_PROCESS, str(tmp_path), str(tmp_path / "one"), str(tmp_path / "two")],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    working = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    assert working.keys() == {"one", "two"}
    assert sum(working.values()) >= 8
    assert not (tmp_path / "theirs").exists()


@pytest.mark.integration
def test_snapshots_are_stored_as_often_as_checkpoints_unless_the_user_says_otherwise() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FRESH_SESSION], cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1000ms", "20000ms", "60000ms", "None", "None", "7s"]


_FRESH_SESSION = """
from datetime import timedelta
from dagster_ckpt import EmbeddedRocksDBStateBackend, HashMapStateBackend
from dagster_ckpt.spark.query import start_session, streaming_session
spark = start_session("snapshots", "local[1]", {"spark.ui.enabled": "false"})
key = "spark.sql.streaming.stateStore.maintenanceInterval"
def tell(seconds, backend=None):
    print(streaming_session(spark, None, backend, snapshots_each=timedelta(seconds=seconds)).conf.get(key, None))
for seconds in (0.1, 20, 600):
    tell(seconds)
tell(20, HashMapStateBackend())
tell(20, EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=False))
spark.conf.set(key, "7s")
tell(20)
"""
