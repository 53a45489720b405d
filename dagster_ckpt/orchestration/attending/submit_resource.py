"""Spark as a Dagster resource whose driver is not the Dagster run's process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from pydantic import ConfigDict, Field

from dagster_ckpt.checkpoint import SUBMITTED
from dagster_ckpt.errors import InvalidConfiguration, SparkNotStarted
from dagster_ckpt.orchestration.attending.masters import (
    CLIENT,
    CLUSTER,
    KUBERNETES,
    YARN,
    check_master,
    settings_on_cluster,
)
from dagster_ckpt.orchestration.resources import SparkSessionResource
from dagster_ckpt.shown_text import redacted

__all__ = ["SparkSubmitResource", "own_spark"]

#: A driver for months says little; PySpark's own drivers say no more.
_CONF = {"spark.log.level": "WARN"}
#: The names of settings whose values are secrets: those that Spark hides in its web page, and those of the clouds.
_SECRET = re.compile(
    r"secret|passw|token|credential|(?:access|account|api|private|shared|sas)[-_.]?key|\.sas\.", re.IGNORECASE
)
#: Those whose values only say where a secret is. By those of Kubernetes the pod is made, before a session is; those of
#: Hadoop, some of which end in the name of an account, open the storage that `spark-submit` and YARN read.
_REFERENCE = re.compile(
    r"spark\.kubernetes\.(?:.+\.)?(?:secrets\.|secretKeyRef\.|\w*TokenFile$)"
    r"|.*\.(?:enabled|provider(?:\.(?:path|impl|mapping))?|account\.keyfile|password-file|enable\.delegation\.token)$"
    r"|.*\.(?:provider\.type|account\.keyprovider|token\.(?:file|endpoint|binding))(?:\.|$)",
    re.IGNORECASE,
)
#: What Spark brings beside `files`, or in their place.
_ALSO_FILES = ("spark.files", "spark.yarn.dist.files")
#: The image of all pods on Kubernetes; those of the driver and of the executors; and where local files go through.
_IMAGE = "spark.kubernetes.container.image"
_IMAGES = ("spark.kubernetes.driver.container.image", "spark.kubernetes.executor.container.image")
_UPLOADS = "spark.kubernetes.file.upload.path"
#: Where Spark's own images have Spark.
_JARS_OF_IMAGE = "local:///opt/spark/jars"
#: Set by the JVM above a driver, for that driver alone.
_OF_A_DRIVER = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "DAGSTER_CKPT_DRIVER")


class SparkSubmitResource(dg.ConfigurableResource["SparkSubmitResource"]):
    """Spark whose driver ``spark-submit`` starts: on this host, or on one of a standalone cluster, YARN or Kubernetes.

    The Dagster run attends the driver: it reports checkpoints and failures, and *Terminate* reaches the driver. The
    driver outlives the run's process; the resume sensor then launches a run that attends the same driver.

    .. code-block:: python

        spark = SparkSubmitResource(definitions="my_project.definitions:defs", master="local[4]")
        spark = SparkSubmitResource(
            definitions="my_project.definitions:defs", master="spark://host:7077", deploy_mode="cluster"
        )
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    definitions: str = Field(
        description="Import path module:name of the Definitions that have the asset and this resource; the driver "
        "loads them. They must be installed where the driver runs."
    )
    master: str = Field(
        default="local[*]",
        description="Spark master URL: local, local[...], spark://host:port, yarn or k8s://https://host:port. What is "
        "submitted to Kubernetes is tested, and was not run there.",
    )
    deploy_mode: str = Field(
        default=CLIENT,
        description="'client': the driver is a process on the host of the Dagster run. 'cluster': a Worker of the "
        "standalone cluster starts the driver, or YARN or Kubernetes does.",
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, key to value.")
    files: list[str] = Field(
        default_factory=list, description="Files, by path or URL, that Spark brings to the driver and the executors."
    )
    image: str | None = Field(
        default=None,
        description="With k8s://: the image of the driver's pod and of the executors' pods, which has Spark, the "
        "project and dagster-ckpt.",
    )
    app_name: str | None = Field(default=None, description="Application name; the job's name by default.")
    python: str | None = Field(
        default=None,
        description="The Python of the driver and of the executors, on their hosts. Default: the path of this Python; "
        "in a pod of its own python3, as the image has it.",
    )
    spark_home: str | None = Field(
        default=None, description="The Spark whose bin/spark-submit is used. Default: that of the installed pyspark."
    )
    jar: str | None = Field(
        default=None,
        description="With cluster: any jar, which Spark wants for a driver there; the Workers of a standalone cluster "
        "must be able to read the jar; on Kubernetes local:///opt/spark/jars/NAME is a path in the image. Default: the "
        "spark-launcher jar of spark_home, on Kubernetes that of /opt/spark in the image.",
    )

    def command(self, job_name: str, run_id: str, required: Mapping[str, str] | None = None) -> list[str]:
        """The call of ``spark-submit`` for the driver of a run.

        Spark's standalone manager refuses a Python file with ``cluster``, but runs any main class, and the class that
        runs Python files for Spark is one. The same call is used for ``client``, and for YARN.

        Every user of a host can read a command line, so settings that look like secrets are left out: the driver takes
        them from the definitions, in time for its Spark session.

        Args:
            job_name: of the job.
            run_id: of the Dagster run.
            required: settings that win over ``conf``.

        Raises:
            InvalidConfiguration: a field cannot be used.
        """
        self._check()
        home = self._home()
        python = self.python or ("python3" if self._in_pod else sys.executable)
        conf = {**_CONF, "spark.pyspark.python": python, **self._conf(), **(required or {})}
        if self.deploy_mode == CLUSTER:
            conf |= settings_on_cluster(self.master)
        return [
            str(home / "bin" / "spark-submit"),
            *("--master", self.master, "--deploy-mode", self.deploy_mode, "--name", self.app_name or job_name),
            *(
                part
                for key, value in conf.items()
                if not _is_secret(key, value)
                for part in ("--conf", f"{key}={value}")
            ),
            *(("--files", ",".join(self.files)) if self.files else ()),
            *("--class", "org.apache.spark.deploy.PythonRunner", self.jar or self._any_jar(home)),
            *("-m", "", SUBMITTED, self.definitions, job_name, run_id),
        ]

    def environment(self) -> dict[str, str]:
        """The environment of ``spark-submit``: this one, and where modules lie. A driver in client mode has it, too."""
        mine = {key: value for key, value in os.environ.items() if key not in _OF_A_DRIVER}
        return {**mine, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in sys.path if path))}

    def in_driver(self) -> SparkSessionResource:
        """What the driver uses instead: it joins the Spark that ``spark-submit`` has prepared."""
        return SparkSessionResource(
            master=self.master, conf=self._conf(), app_name=self.app_name, early_jvm=False, class_archive=False
        )

    def _conf(self) -> dict[str, str]:
        return self.conf if self.image is None else {**self.conf, _IMAGE: self.image}

    @property
    def _in_pod(self) -> bool:
        """Whether the driver is in a pod of its own."""
        return self.master.startswith(KUBERNETES) and self.deploy_mode == CLUSTER

    def _any_jar(self, home: Path) -> str:
        jars = sorted((home / "jars").glob("spark-launcher_*.jar"))
        if not jars:
            raise SparkNotStarted(
                f"{home} has no jars/spark-launcher_*.jar, so it is no Spark. No driver was started.",
                hint="Set spark_home of SparkSubmitResource to the directory of a Spark, or leave it out.",
            )
        return f"{_JARS_OF_IMAGE}/{jars[0].name}" if self._in_pod else str(jars[0])

    def _check(self) -> None:
        check_master(self.master, self.deploy_mode, self.conf)
        if redacted(self.master) != self.master:
            raise InvalidConfiguration(
                f"The master {redacted(self.master)} has a credential, and every user of a host can read the "
                "command line.",
                hint="Write the URL without the credential; a file that KUBECONFIG names may have it.",
            )
        self._check_image()
        if not all(self.definitions.partition(":")):
            raise InvalidConfiguration(
                f"definitions={self.definitions!r} is no import path.", hint="Write it as 'package.module:name'."
            )
        self._check_files()

    def _check_image(self) -> None:
        if not self.master.startswith(KUBERNETES):
            if self.image is not None:
                raise InvalidConfiguration(
                    f"image is for a master on Kubernetes, and the master is {self.master!r}.",
                    hint="Remove image; on YARN the containers' images are settings of YARN, which "
                    "spark.yarn.appMasterEnv.* and spark.executorEnv.* pass on.",
                )
            return
        named = self.conf.get(_IMAGE)
        if self.image is not None and named not in {None, self.image}:
            raise InvalidConfiguration(
                f"image is {self.image!r}, and {_IMAGE} of conf is {named!r}.", hint="Remove one of the two."
            )
        if self.image is None and named is None and not all(self.conf.get(key) for key in _IMAGES):
            raise InvalidConfiguration(
                f"Nothing names the image of the pods, without which {self.master} starts none.",
                hint="Set image of SparkSubmitResource to an image with Spark, the project and dagster-ckpt.",
            )

    def _check_files(self) -> None:
        named: dict[str, str] = {}
        for file in self.files:
            shown, (place, mark, other) = redacted(file), file.partition("#")
            name = other or place.rstrip("/").rpartition("/")[2]
            if shown != file:
                raise InvalidConfiguration(
                    f"{shown} of files has a credential, and every user of a host can read a command line.",
                    hint="Write the URL without the credential, and give the credential to Hadoop by conf.",
                )
            if "," in file:
                raise InvalidConfiguration(
                    f"{file!r} of files has a comma, at which Spark would divide the name.",
                    hint="Write an entry of files for each file, and rename a file that has a comma in its name.",
                )
            if mark and self.master != YARN:
                raise InvalidConfiguration(
                    f"{file!r} of files has a '#', behind which YARN alone reads another name.", hint="Rename the file."
                )
            if self._in_pod and _UPLOADS not in self.conf and _is_local(place):
                raise InvalidConfiguration(
                    f"{file!r} of files is on this host, and the driver in its pod gets it through a place that both "
                    "can reach.",
                    hint=f"Set {_UPLOADS} in conf to such a place, such as s3a://bucket/uploads, or name a file of the "
                    "image as local:///path.",
                )
            if name in named:
                raise InvalidConfiguration(
                    f"{named[name]!r} and {file!r} of files would both be {name!r} in the driver.",
                    hint="Rename one of them.",
                )
            named[name] = file
        both = [key for key in _ALSO_FILES if self.files and key in self.conf]
        if both:
            raise InvalidConfiguration(
                f"files and {both[0]} of conf name files, and Spark brings those of one alone.",
                hint=f"Move those of {both[0]} into files.",
            )

    def _home(self) -> Path:
        if self.spark_home is not None:
            return Path(self.spark_home)
        from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - Spark, only for runs

        return Path(str(_find_spark_home()))


def own_spark(resource: SparkSessionResource | SparkSubmitResource) -> SparkSessionResource:
    """With what a process starts Spark that runs the query itself: a drill, or ``dagster-ckpt run``."""
    return resource.in_driver() if isinstance(resource, SparkSubmitResource) else resource


def _is_secret(key: str, value: str) -> bool:
    return (_SECRET.search(key) is not None and _REFERENCE.match(key) is None) or redacted(value) != value


def _is_local(file: str) -> bool:
    return "://" not in file or file.startswith("file:")
