"""Kryo: classes to register with Spark's serializer, which is set up once, when Spark starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from dagster_ckpt.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_kryo", "kryo_conf"]

_SERIALIZER = "org.apache.spark.serializer.KryoSerializer"


def kryo_conf(types: Sequence[str], registrators: Sequence[str]) -> dict[str, str]:
    """Spark's settings for these classes; empty without classes.

    Args:
        types: classes to register.
        registrators: classes that extend ``org.apache.spark.serializer.KryoRegistrator``.
    """
    if not types and not registrators:
        return {}
    named = {"spark.kryo.classesToRegister": types, "spark.kryo.registrator": registrators}
    return {
        "spark.serializer": _SERIALIZER,
        **{key: ",".join(dict.fromkeys(classes)) for key, classes in named.items() if classes},
    }


def check_kryo(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Check that Spark was started with these settings, and that they can set up its serializer.

    Raises:
        InvalidConfiguration: Spark runs with other settings, or a class is missing or of the wrong kind.
    """
    running = spark.sparkContext.getConf()
    missing = [f"{key}={value}" for key, value in conf.items() if running.get(key) != value]
    if missing:
        raise InvalidConfiguration(
            f"Spark already runs without {', '.join(missing)}, and its serializer cannot be changed any more.",
            hint="Register types before anything starts Spark in this process, start it with these settings, or stop "
            "it first with spark.stop().",
        )
    if not conf:
        return
    context = spark.sparkContext
    try:
        # Set up the serializer now: Spark would do so on first use, and a bad class would fail batch after batch.
        context._jvm.org.apache.spark.serializer.KryoSerializer(context._jsc.sc().conf()).newKryo()  # type: ignore[union-attr]  # noqa: SLF001
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        raise InvalidConfiguration(
            f"Spark's Kryo serializer cannot be set up with {conf}: {cause.toString()}.",
            hint="Each class must be on Spark's class path. What takes the place of a serializer class must extend "
            "org.apache.spark.serializer.KryoRegistrator, and call kryo.register(type, serializer) itself: Spark has "
            "no setting that gives a type its serializer. Spark keeps these settings until spark.stop().",
        ) from error
