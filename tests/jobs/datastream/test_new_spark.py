"""What takes effect only where Spark is started by the program: one process with a Spark of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.datastream.own_process import run_program

_PROGRAM = '''
import json, logging, os, sys
from pathlib import Path

root = Path(sys.argv[1])
classes = root / "classes" / "example"
classes.mkdir(parents=True)
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    f"--driver-class-path {classes.parent} --conf spark.ui.enabled=false "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell"
)
from pyspark import SparkContext

# A registrator is a class on Spark's class path; the compiler is the one that Spark generates code with.
SparkContext._ensure_initialized()
jvm = SparkContext._jvm
compiler = jvm.org.codehaus.janino.SimpleCompiler()
compiler.cook("""
package example;
public class Registrator implements org.apache.spark.serializer.KryoRegistrator {
    public void registerClasses(com.esotericsoftware.kryo.Kryo kryo) {
        kryo.register(java.util.StringJoiner.class, new com.esotericsoftware.kryo.serializers.JavaSerializer());
    }
}
""")
for name, code in dict(compiler.getBytecodes()).items():
    (classes.parent / (name.replace(".", "/") + ".class")).write_bytes(bytes(code))

from dagster_ckpt.datastream import (
    EmbeddedRocksDBStateBackend, RestartStrategies, StreamExecutionEnvironment
)
from dagster_ckpt.errors import InvalidConfiguration

(root / "in").mkdir()
(root / "in" / "0.json").write_text(json.dumps({"id": 1}))
seen = {}


def ids(session):
    rows = session.readStream.schema("id int").json(str(root / "in")).dropDuplicates(["id"])
    return rows.writeStream.format("parquet").option("path", str(root / "out")).trigger(availableNow=True)


def program():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_default_local_parallelism(3)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(root / "storage"))
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(str(root / "db"))
    env.set_state_backend(backend)
    env.set_parallelism(2)
    env.add_query(ids)
    return env


def registered(kryo, name):
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = kryo.getClassResolver().getRegistration(jvm.java.lang.Class.forName(name, False, loader))
    return None if found is None else found.getSerializer().getClass().getName()


env = program()
env.register_type("java.util.concurrent.atomic.LongAdder")
env.register_type_with_kryo_serializer("java.util.StringJoiner", "example.Registrator")
result = env.execute("ids")

spark = SparkContext._active_spark_context
kryo = jvm.org.apache.spark.serializer.KryoSerializer(spark._jsc.sc().conf()).newKryo()
seen["status"] = result.queries[0].status
seen["rows"] = len(list((root / "out").glob("part-*.parquet")))
seen["master"] = spark.master
seen["local"] = sorted(path.name for path in (root / "db").iterdir() if path.name.startswith(("blockmgr", "spark")))
seen["conf"] = {key: spark.getConf().get(key) for key in (
    "spark.serializer", "spark.kryo.classesToRegister", "spark.kryo.registrator"
)}
seen["registered"] = {name: registered(kryo, name) for name in (
    "java.util.concurrent.atomic.LongAdder", "java.util.StringJoiner", "java.util.ArrayDeque"
)}

late = program()
late.register_type("java.util.ArrayDeque")
try:
    late.execute("late")
except InvalidConfiguration as error:
    seen["late"] = str(error)

spark.stop()
wrong = program()
wrong.add_default_kryo_serializer("java.util.StringJoiner", "com.esotericsoftware.kryo.serializers.JavaSerializer")
try:
    wrong.execute("wrong")
except InvalidConfiguration as error:
    seen["wrong"] = str(error)
print(json.dumps(seen), flush=True)
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program saw of the Spark that it started."""
    root = tmp_path_factory.mktemp("program")
    return run_program(_PROGRAM, root)


def test_the_program_ran(seen: dict[str, Any]) -> None:
    assert seen["status"] == "FINISHED"
    assert seen["rows"] >= 1


def test_local_parallelism_is_the_threads_of_its_master(seen: dict[str, Any]) -> None:
    assert seen["master"] == "local[3]"


def test_working_files_lie_in_the_storage_paths(seen: dict[str, Any]) -> None:
    assert seen["local"]


def test_types_are_registered_with_kryo(seen: dict[str, Any]) -> None:
    assert seen["conf"] == {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.classesToRegister": "java.util.concurrent.atomic.LongAdder,java.util.StringJoiner",
        "spark.kryo.registrator": "example.Registrator",
    }
    assert seen["registered"]["java.util.concurrent.atomic.LongAdder"] is not None
    assert seen["registered"]["java.util.ArrayDeque"] is None, "nobody registered it"


def test_a_registrator_gives_a_type_its_serializer(seen: dict[str, Any]) -> None:
    java = "com.esotericsoftware.kryo.serializers.JavaSerializer"
    assert seen["registered"]["java.util.StringJoiner"] == java
    assert seen["registered"]["java.util.concurrent.atomic.LongAdder"] != java


def test_a_type_that_comes_too_late_is_refused(seen: dict[str, Any]) -> None:
    assert "Spark already runs without spark.kryo.classesToRegister=java.util.ArrayDeque" in seen["late"]
    assert "spark.stop()" in seen["late"]


def test_a_serializer_is_no_registrator(seen: dict[str, Any]) -> None:
    assert "com.esotericsoftware.kryo.serializers.JavaSerializer" in seen["wrong"]
    assert "must extend org.apache.spark.serializer.KryoRegistrator" in seen["wrong"]
