"""What a run does before its driver has taken the job over, with real programs in place of ``spark-submit``."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import dagster as dg
import psutil
import pytest

from dagster_ckpt import (
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    SparkSessionResource,
    SparkSubmitResource,
)
from dagster_ckpt.checkpoint.catalog.catalog import CheckpointCatalog
from dagster_ckpt.checkpoint.control.epochs import Claim, End
from dagster_ckpt.checkpoint.control.heartbeat import Completed, FailedCheckpoints, Heartbeat, HeartbeatFile
from dagster_ckpt.checkpoint.format.manifest import CheckpointMetadata
from dagster_ckpt.checkpoint.processes import ProcessIdentity
from dagster_ckpt.checkpoint.submissions import Submission, Submissions
from dagster_ckpt.clock import SystemClock, iso
from dagster_ckpt.errors import (
    CheckpointError,
    Fenced,
    InvalidConfiguration,
    JobAlreadyRunning,
    NotRestarted,
    SparkNotStarted,
    StorageUnusable,
)
from dagster_ckpt.orchestration import names
from dagster_ckpt.orchestration.attending import attendant as attendant_module
from dagster_ckpt.orchestration.attending import own_submission, submitted_process
from dagster_ckpt.orchestration.attending.attendant import Attendant
from dagster_ckpt.orchestration.attending.driver_report import DriverReport, Told
from dagster_ckpt.orchestration.attending.masters import find_master
from dagster_ckpt.orchestration.attending.submitted_process import SubmittedProcess
from dagster_ckpt.orchestration.reporting import CheckpointReporter
from dagster_ckpt.standalone.submitted import submitted_drive
from dagster_ckpt.testing.dagster_dev import wait_for
from tests.helpers.checkpoint.submitting import submitted
from tests.helpers.orchestration.stored_job import StoredJob, make_asset, run_id
from tests.servers.ports import free_port

DEFINITIONS = "some_project.definitions:defs"
KUBERNETES = {"master": "k8s://https://host:443"}
IMAGE = "spark.kubernetes.container.image"


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    return StoredJob(tmp_path / "storage")


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def spark_home(tmp_path: Path, script: str, *, mode: int = 0o755) -> str:
    """A directory like that of a Spark, whose ``spark-submit`` is this script."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "jars").mkdir()
    (home / "jars" / "spark-launcher_2.13-4.3.0.jar").touch()
    program = home / "bin" / "spark-submit"
    program.write_text(f"#!{sys.executable}\nimport os, sys\n{script}")
    program.chmod(mode)
    return str(home)


def materialize(
    job: StoredJob, spark: SparkSubmitResource | SparkSessionResource, tags: dict[str, str] | None = None
) -> CheckpointError:
    """Run the asset; returns the error that fails the run."""
    asset = make_asset()
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(CheckpointError) as raised:
        dg.materialize(
            [asset], resources={"checkpoint_storage": job.storage, "spark": spark}, instance=instance, tags=tags
        )
    return raised.value


def submit(
    tmp_path: Path, script: str = "sys.exit(1)", *, master: str = "local[*]", image: str | None = None
) -> SparkSubmitResource:
    home = spark_home(tmp_path, script)
    return SparkSubmitResource(definitions=DEFINITIONS, spark_home=home, master=master, image=image)


def test_a_driver_that_ends_before_its_claim_fails_the_run_by_its_own_word(job: StoredJob, tmp_path: Path) -> None:
    script = (
        "print('noise'); print('dagster-ckpt driver: InvalidConfiguration: no such module', flush=True); sys.exit(1)"
    )
    error = materialize(job, submit(tmp_path, script))
    assert isinstance(error, SparkNotStarted)
    assert error.message == (
        "spark-submit has ended with 1 before the driver took job 'orders' over: InvalidConfiguration: no such module"
    )
    assert "nothing was changed" in error.hint
    assert job.catalog.records.epochs.highest() == 0
    latest = job.catalog.records.submissions.latest()
    assert (latest.number, latest.standing) == (1, None), "a driver that appears late is not wanted"


def test_a_python_without_the_package_is_named(job: StoredJob, tmp_path: Path) -> None:
    script = "print(\"/usr/bin/python3: No module named 'dagster_ckpt'\", file=sys.stderr); sys.exit(1)"
    error = materialize(job, submit(tmp_path, script))
    assert "No module named 'dagster_ckpt'" in error.message
    assert error.hint.startswith("Mend it, and launch the job again; nothing was changed. Install dagster-ckpt")


def test_a_secret_that_the_cluster_asks_for_is_named(job: StoredJob, tmp_path: Path) -> None:
    said = "Caused by: java.lang.IllegalStateException: Expected SaslMessage, received something else"
    error = materialize(job, submit(tmp_path, f"print({said!r}, file=sys.stderr); sys.exit(1)"))
    assert "Expected SaslMessage" in error.message
    assert "spark.authenticate.secret in conf/spark-defaults.conf of spark_home" in error.hint


def test_a_resumed_run_whose_driver_never_came_counts_with_its_reason(job: StoredJob, tmp_path: Path) -> None:
    claim = job.die(run_id())
    tags = {names.SERIES_TAG: str(claim.series), names.RESUMES_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    materialize(job, submit(tmp_path), tags)
    (failure,) = job.failures.of(claim.series)
    assert (failure.kind, failure.run_id != claim.run_id) == ("SparkNotStarted", True)


@pytest.mark.parametrize("fails", ["no spark-submit", "no master", "resources"])
def test_a_resumed_run_that_could_not_submit_counts_with_its_reason(job: StoredJob, tmp_path: Path, fails: str) -> None:
    """The record of a run that has merely died says nothing that a person could mend."""
    claim = job.die(run_id())
    tags = {names.SERIES_TAG: str(claim.series), names.RESUMES_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    master = f"spark://127.0.0.1:{free_port()}" if fails == "no master" else "local[*]"
    spark = submit(tmp_path, master=master)
    config: dict[str, Any] = {}
    if fails == "no spark-submit":
        (Path(str(spark.spark_home)) / "bin" / "spark-submit").unlink()
    elif fails == "resources":
        config = {"resources": {"spark": {"config": {"definitions": DEFINITIONS, "spark_home": str(spark.spark_home)}}}}
    resources = {
        "checkpoint_storage": job.storage,
        "spark": SparkSubmitResource.configure_at_launch() if config else spark,
    }
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(CheckpointError) as raised:
        dg.materialize([make_asset()], resources=resources, instance=instance, tags=tags, run_config=config)
    (failure,) = job.failures.of(claim.series)
    assert (failure.reason, failure.kind) == (raised.value.message, type(raised.value).__name__)
    assert failure.recoverable is (fails != "resources")
    assert failure.run_id != claim.run_id


def test_a_run_that_another_run_refuses_is_no_failure_of_the_job(job: StoredJob, tmp_path: Path) -> None:
    claim = job.die(run_id())
    other, process = job.claim(run_id()), ProcessIdentity.of(os.getppid())
    beat = Heartbeat(other.epoch, other.run_id, (process,), 1, 0.0, uptime=SystemClock().monotonic())
    job.catalog.records.heartbeat.write(beat)
    tags = {names.SERIES_TAG: str(claim.series), names.RESUMES_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    assert isinstance(materialize(job, submit(tmp_path), tags), JobAlreadyRunning)
    assert job.failures.of(claim.series) == []


def test_a_master_that_is_not_there_is_named_and_nothing_is_started(job: StoredJob, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{unused.getsockname()[1]}"
    error = materialize(job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')", master=master))
    assert isinstance(error, SparkNotStarted)
    assert error.message.startswith(f"No Spark master answers at {master} (")
    assert "Start the master" in error.hint
    assert not (tmp_path / "called").exists()
    assert not job.root.exists()


def yarn_site(directory: Path, **settings: object) -> str:
    """A directory with a ``yarn-site.xml``; in the names ``_`` stands for ``.``."""
    directory.mkdir()
    told = "".join(
        f"<property><name>yarn.resourcemanager.{name.replace('_', '.')}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (directory / "yarn-site.xml").write_text(f"<configuration>{told}</configuration>")
    return str(directory)


def test_a_resource_manager_that_is_not_there_is_named_and_nothing_is_started(
    job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's client would go on asking for a quarter of an hour."""
    place = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HADOOP_CONF_DIR", yarn_site(tmp_path / "site", address=place))
    error = materialize(job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')", master="yarn"))
    assert isinstance(error, SparkNotStarted)
    assert error.message.startswith(f"No ResourceManager answers ({place}: ")
    assert str(tmp_path / "site") in error.hint
    assert not (tmp_path / "called").exists()
    assert not job.root.exists()


@pytest.mark.parametrize(
    ("named", "told", "kind"),
    [
        (None, "None of HADOOP_CONF_DIR and YARN_CONF_DIR is set.", InvalidConfiguration),
        # On a mount that is away, perhaps: the next restart may find it.
        ("/nowhere", "/nowhere is no directory. No driver was started.", SparkNotStarted),
    ],
)
def test_a_configuration_of_yarn_that_is_missing_is_named(
    job: StoredJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    told: str,
    kind: type[CheckpointError],
) -> None:
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    if named is not None:
        monkeypatch.setenv("YARN_CONF_DIR", named)
    error = materialize(job, submit(tmp_path, master="yarn"))
    assert isinstance(error, kind)
    assert error.message == told
    assert "Set HADOOP_CONF_DIR in the environment of the Dagster run" in error.hint


def test_any_of_two_resource_managers_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair = {"ha_enabled": "true", "ha_rm-ids": "a, b", "address_a": f"127.0.0.1:{free_port()}"}
        second = {"hostname_b": "127.0.0.1", "address_b": "${yarn.resourcemanager.hostname.b}:8"}
        monkeypatch.setenv("HADOOP_CONF_DIR", yarn_site(tmp_path / "site", **pair, **second))
        conf = {"spark.hadoop.yarn.resourcemanager.address.b": f"127.0.0.1:{server.getsockname()[1]}"}
        find_master("yarn", conf)
        with pytest.raises(SparkNotStarted, match=r"127\.0\.0\.1:8: "):
            find_master("yarn", {})


def test_a_resource_manager_that_only_hadoop_can_find_is_left_to_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", yarn_site(tmp_path / "site", address="${env.YARN_HOST}:8032"))
    find_master("yarn", {})


@pytest.mark.parametrize(
    "text",
    [
        '<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="more.xml"/></configuration>',
        "<configuration>",
    ],
    ids=["in another file", "in a file that only Hadoop can read"],
)
def test_a_resource_manager_that_is_named_elsewhere_is_left_to_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Where nothing names it, Hadoop asks the port 8032 of this host, at which nobody answers."""
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(SparkNotStarted, match=r"0\.0\.0\.0:8032: "):
        find_master("yarn", {})
    (tmp_path / "yarn-site.xml").write_text(text)
    find_master("yarn", {})
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(SparkNotStarted, match=place):
        find_master("yarn", {"spark.hadoop.yarn.resourcemanager.address": place})


def test_a_driver_on_yarn_is_started_once_and_brings_files(tmp_path: Path) -> None:
    spark = submit(tmp_path, master="yarn").model_copy(update={"deploy_mode": "cluster", "files": ["/a", "hdfs://b/c"]})
    told = spark.command("orders", "run")
    assert {"spark.yarn.maxAppAttempts=1", "spark.yarn.submit.waitAppCompletion=true"} <= set(told)
    assert told[told.index("--files") + 1] == "/a,hdfs://b/c"


def test_a_driver_on_a_standalone_cluster_is_started_once(tmp_path: Path) -> None:
    spark = submit(tmp_path, master="spark://host:7077").model_copy(update={"deploy_mode": "cluster"})
    assert "spark.driver.supervise=false" in spark.command("orders", "run"), "else spark-defaults.conf decides"


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_driver_on_kubernetes_is_of_the_image(tmp_path: Path, deploy_mode: str) -> None:
    spark = submit(tmp_path).model_copy(update={**KUBERNETES, "image": "shop:1", "deploy_mode": deploy_mode})
    told = spark.command("orders", "run")
    assert f"{IMAGE}=shop:1" in told
    assert spark.in_driver().conf[IMAGE] == "shop:1", "the executors of a drill, too"
    in_pod = deploy_mode == "cluster"
    assert ("spark.kubernetes.submission.waitAppCompletion=true" in told) == in_pod, "spark-submit tells of the end"
    jar = told[told.index("--class") + 2]
    assert jar.removesuffix("/spark-launcher_2.13-4.3.0.jar") == (
        "local:///opt/spark/jars" if in_pod else f"{spark.spark_home}/jars"
    )


def test_a_pod_gets_its_secrets_by_name_and_a_python_of_the_image(tmp_path: Path) -> None:
    named = {
        "spark.kubernetes.driver.secrets.shop-db": "/etc/secrets",
        "spark.kubernetes.executor.secretKeyRef.DB_PASSWORD": "shop-db:password",
        "spark.kubernetes.authenticate.submission.oauthTokenFile": "/var/run/token",
    }
    secret = {"spark.kubernetes.authenticate.submission.oauthToken": "abc", "spark.hadoop.fs.s3a.secret.key": "def"}
    spark = submit(tmp_path).model_copy(
        update={**KUBERNETES, "image": "shop:1", "deploy_mode": "cluster", "conf": {**named, **secret}}
    )
    told = spark.command("orders", "run")
    assert {f"{key}={value}" for key, value in named.items()} <= set(told)
    assert not any(key in part for key in secret for part in told if not part.startswith(tuple(named)))
    assert "spark.pyspark.python=python3" in told, "that of this host is no path in the image"
    here = spark.model_copy(update={"deploy_mode": "client"}).command("orders", "run")
    assert f"spark.pyspark.python={sys.executable}" in here


def test_the_images_may_be_named_by_conf(tmp_path: Path) -> None:
    kinds = {f"spark.kubernetes.{kind}.container.image": "shop:1" for kind in ("driver", "executor")}
    for conf in ({IMAGE: "shop:1"}, kinds):
        told = submit(tmp_path / str(len(conf))).model_copy(update={**KUBERNETES, "conf": conf})
        assert {f"{key}={value}" for key, value in conf.items()} <= set(told.command("orders", "run"))


def test_files_of_a_driver_in_a_pod_lie_where_the_pod_reaches_them(tmp_path: Path) -> None:
    conf = {"spark.kubernetes.file.upload.path": "s3a://shop/uploads"}
    in_pod = {**KUBERNETES, "image": "shop:1", "deploy_mode": "cluster"}
    spark = submit(tmp_path).model_copy(update={**in_pod, "files": ["/a/b.csv"], "conf": conf})
    assert "/a/b.csv" in spark.command("orders", "run")
    spark = spark.model_copy(update={"files": ["local:///opt/b.csv", "s3a://shop/c.csv"], "conf": {}})
    assert "local:///opt/b.csv,s3a://shop/c.csv" in spark.command("orders", "run")


@pytest.mark.parametrize("scheme", ["https://", "http://", ""])
def test_a_kubernetes_that_is_not_there_is_named_and_nothing_is_started(
    job: StoredJob, tmp_path: Path, scheme: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"k8s://{scheme}127.0.0.1:{unused.getsockname()[1]}"
    error = materialize(
        job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')", master=master, image="shop:1")
    )
    assert error.message.startswith(f"No Kubernetes API server answers at {master} (127.0.0.1:")
    assert "kubectl cluster-info" in error.hint
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("url", "port"), [("https://kube", 443), ("http://kube", 80), ("kube", 443)])
def test_a_kubernetes_has_the_ports_of_its_scheme(url: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = create_autospec(socket.create_connection)
    monkeypatch.setattr(socket, "create_connection", connect)
    find_master(f"k8s://{url}", {})
    assert connect.call_args.args[0] == ("kube", port)


@pytest.mark.parametrize(("url", "port"), [("k8s://https://[::1]", 443), ("spark://[::1]:7077", 7077)])
def test_an_address_of_ipv6_stands_in_brackets(url: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in a URL: no name service knows a host in brackets."""
    connect = create_autospec(socket.create_connection)
    monkeypatch.setattr(socket, "create_connection", connect)
    find_master(url, {})
    assert connect.call_args.args[0] == ("::1", port)


def test_the_id_that_yarn_gave_is_left_open_where_spark_submit_does_not_tell_it(tmp_path: Path) -> None:
    process = SubmittedProcess([spark_home(tmp_path, "") + "/bin/spark-submit"], {}, "orders", "run")
    process._process.wait()
    assert "`yarn logs -applicationId ID` what the driver said" in process.why("orders", "yarn", "cluster").hint
    assert "the Worker's work/driver-*/stdout" in process.why("orders", "spark://host:7077", "cluster").hint


def test_what_yarn_says_is_told_and_its_log_is_named(job: StoredJob, tmp_path: Path) -> None:
    log = """26/11/25 19:37:42 INFO Client: Submitting application application_1795_0001 to ResourceManager
26/11/25 19:37:43 INFO Client: Application report for application_1795_0001 (state: FAILED)
26/11/25 19:37:43 INFO Client:
\t client token: N/A
\t queue: root.default
26/11/25 19:37:43 ERROR Client: Application diagnostics message: User application exited with status 1
Exception in thread "main" org.apache.spark.SparkException: Application finished with failed status
\tat org.apache.spark.deploy.yarn.Client.run(Client.scala:1)
"""
    process = SubmittedProcess([spark_home(tmp_path, f"print({log!r})") + "/bin/spark-submit"], {}, "orders", "run")
    process._process.wait()
    error = process.why("orders", "yarn", "cluster")
    assert error.message.partition(" over: ")[2] == (
        "26/11/25 19:37:43 ERROR Client: Application diagnostics message: User application exited with status 1 / "
        'Exception in thread "main" org.apache.spark.SparkException: Application finished with failed status'
    )
    assert "`yarn logs -applicationId application_1795_0001` what the driver said" in error.hint


def test_a_missing_spark_submit_is_named(job: StoredJob, tmp_path: Path) -> None:
    spark = submit(tmp_path)
    assert spark.spark_home is not None
    program = Path(spark.spark_home) / "bin" / "spark-submit"
    program.unlink()
    error = materialize(job, spark)
    assert error.message == f"{program} cannot be started: No such file or directory. No driver was started."
    assert "set spark_home" in error.hint


def test_a_spark_submit_that_may_not_be_executed_is_named(job: StoredJob, tmp_path: Path) -> None:
    home = spark_home(tmp_path, "", mode=stat.S_IRUSR)
    error = materialize(job, SparkSubmitResource(definitions=DEFINITIONS, spark_home=home))
    assert "cannot be started: Permission denied. No driver was started." in error.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"master": "mesos://host:5050"},
            "Spark knows no master 'mesos://host:5050', or SparkSubmitResource does not.",
        ),
        ({"master": "k8s://https://me:abc@host"}, "The master k8s://https://***@host has a credential, and every user"),
        (KUBERNETES, "Nothing names the image of the pods, without which k8s://https://host:443 starts none."),
        ({**KUBERNETES, "image": "a:1", "conf": {IMAGE: "a:2"}}, f"image is 'a:1', and {IMAGE} of conf is 'a:2'."),
        ({"image": "a:1", "master": "yarn"}, "image is for a master on Kubernetes, and the master is 'yarn'."),
        (
            {**KUBERNETES, "deploy_mode": "cluster", "image": "a:1", "files": ["/a/rates.csv"]},
            "'/a/rates.csv' of files is on this host, and the driver in its pod gets it through a place that both",
        ),
        ({"deploy_mode": "cluster"}, "deploy_mode='cluster' needs a cluster, and the master is 'local[*]'."),
        ({"deploy_mode": "remote"}, "deploy_mode is 'remote', and Spark knows client and cluster."),
        ({"definitions": "defs"}, "definitions='defs' is no import path."),
        ({"conf": {"spark.driver.supervise": "true"}}, "spark.driver.supervise is 'true': the master would start"),
        ({"conf": {"spark.yarn.maxAppAttempts": "2"}}, "spark.yarn.maxAppAttempts is '2': the master would start"),
        ({"files": ["/a/rates.csv", "/b/rates.csv"]}, "'/a/rates.csv' and '/b/rates.csv' of files would both be"),
        ({"files": ["/a/b.csv", "/c#b.csv"], "master": "yarn"}, "'/a/b.csv' and '/c#b.csv' of files would both be"),
        ({"files": ["/a/one,two.csv"]}, "'/a/one,two.csv' of files has a comma, at which Spark would divide the name."),
        ({"files": ["/a/b.csv#c.csv"]}, "'/a/b.csv#c.csv' of files has a '#', behind which YARN alone reads another"),
        ({"files": ["https://me:abc@host/b"]}, "https://***@host/b of files has a credential, and every user"),
        (
            {"files": ["/a"], "conf": {"spark.files": "/b"}},
            "files and spark.files of conf name files",
        ),
    ],
)
def test_what_cannot_be_submitted_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        SparkSubmitResource.model_validate({"definitions": DEFINITIONS, **fields}).command("orders", "run")
    assert raised.value.message.startswith(message)
    assert raised.value.hint


def test_a_spark_that_is_not_there_may_come_back() -> None:
    with pytest.raises(SparkNotStarted, match=r"/nowhere has no jars/spark-launcher_\*\.jar, so it is no Spark"):
        SparkSubmitResource.model_validate({"definitions": DEFINITIONS, "spark_home": "/nowhere"}).command("o", "run")


def test_a_directory_of_outputs_that_is_another_users_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Path, root: Path) -> None:
        raise StorageUnusable(f"{root} is another user's.", hint="Name another one.")

    monkeypatch.setattr(submitted_process, "make_working_directory", refuse)
    with pytest.raises(StorageUnusable, match="is another user's"):
        submitted_process.SubmittedProcess(["true"], {}, "orders", "run")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "wJalrXUtnFEMI"),
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", "Eby8vdM02xNO"),
        ("spark.hadoop.fs.azure.sas.fixed.token.shop", "sv=2022"),
        ("spark.authenticate.secret", "abc"),
        ("spark.ssl.keyStorePassword", "abc"),
        ("spark.jars.repositories", "https://me:abc@repository.example/maven"),
    ],
)
def test_a_secret_reaches_the_driver_and_no_command_line(key: str, value: str) -> None:
    spark = SparkSubmitResource(definitions=DEFINITIONS, conf={key: value, "spark.driver.memory": "1g"})
    told = spark.command("orders", "run")
    assert "spark.driver.memory=1g" in told
    assert not [part for part in told if key in part or value in part]
    assert spark.in_driver().conf[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.example.Provider"),
        ("spark.hadoop.fs.azure.account.oauth.provider.type.secret.Provider", "org.example.Provider"),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://hdfs/user/etl/aws.jceks"),
        ("spark.hadoop.fs.s3a.bucket.b.security.credential.provider.path", "jceks://file/etc/aws.jceks"),
        ("spark.hadoop.hadoop.security.credstore.java-keystore-provider.password-file", "store.pass"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider.mapping", "org.example.One=org.example.Two"),
        ("spark.hadoop.fs.azure.sas.token.provider.type", "org.example.Provider"),
        ("spark.hadoop.fs.azure.sas.token.provider.type.acc.dfs.core.windows.net", "org.example.Provider"),
        ("spark.hadoop.fs.azure.account.keyprovider.acc.dfs.core.windows.net", "org.example.Provider"),
        ("spark.hadoop.fs.azure.account.oauth2.token.file", "/var/run/secrets/azure/token"),
        ("spark.hadoop.fs.gs.auth.access.token.provider.impl", "org.example.Provider"),
        ("spark.hadoop.fs.gs.auth.service.account.keyfile", "/etc/gcs.p12"),
    ],
)
def test_what_only_names_a_secret_is_on_the_command_line(key: str, value: str) -> None:
    """Where YARN and the executors read it: they are there before the driver has read its order."""
    spark = SparkSubmitResource(definitions=DEFINITIONS, conf={key: value})
    assert f"{key}={value}" in spark.command("orders", "run")
    with_secret = SparkSubmitResource(definitions=DEFINITIONS, conf={key: "https://me:abc@host"})
    assert not [part for part in with_secret.command("orders", "run") if "abc" in part]


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.azure.account.key.provider.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.fixed.token.acc.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.key.keyprovider.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.key.keyfile",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "spark.hadoop.my.provider.token",
        "spark.hadoop.my.provider.path.password",
    ],
)
def test_a_secret_is_left_off_whatever_its_name_says_beside(key: str) -> None:
    spark = SparkSubmitResource(definitions=DEFINITIONS, conf={key: "abc"})
    assert not [part for part in spark.command("orders", "run") if "abc" in part]


def test_a_storage_in_the_memory_of_a_driver_is_refused(tmp_path: Path) -> None:
    resources = {
        "checkpoint_storage": JobManagerCheckpointStorage(working_directory=str(tmp_path / "live")),
        "spark": submit(tmp_path),
    }
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(InvalidConfiguration, match="memory of a driver"):
        dg.materialize([make_asset()], resources=resources, instance=instance)


def test_a_living_driver_is_not_doubled(job: StoredJob, tmp_path: Path) -> None:
    claim = job.claim(run_id())
    other = ProcessIdentity.of(os.getppid())
    beat = Heartbeat(claim.epoch, claim.run_id, (other,), 1, 0.0, uptime=SystemClock().monotonic())
    job.catalog.records.heartbeat.write(beat)
    error = materialize(job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')"))
    assert isinstance(error, JobAlreadyRunning)
    assert not (tmp_path / "called").exists()


def waits_for_its_driver(job: StoredJob, run: str, *, alive: bool = True) -> Submission:
    """A run on this host has submitted a driver that has not come yet; returns the submission."""
    records = job.catalog.records
    submission = submitted(records, Submission(run, records.epochs.highest(), None, "{}", 1.0))
    process = ProcessIdentity.of(os.getppid())
    process = process if alive else replace(process, created=0.0, ticks=1)
    records.attendant.write(Heartbeat(1, run, (process,), 1, 0.0, uptime=SystemClock().monotonic()))
    return submission


def comes(job: StoredJob, submission: Submission) -> Claim:
    """The driver of a submission takes the job over."""
    claim = job.claim(submission.run_id)
    job.catalog.records.submissions.take(submission, claim.epoch)
    job.beat(claim, alive=True)
    return claim


def test_a_run_beside_a_run_that_waits_for_its_driver_is_refused(job: StoredJob, tmp_path: Path) -> None:
    first = waits_for_its_driver(job, run_id())
    error = materialize(job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')"))
    assert isinstance(error, JobAlreadyRunning)
    assert first.run_id in error.message
    assert not (tmp_path / "called").exists()
    assert job.catalog.records.submissions.of(first.run_id) == first, "its driver is still wanted"
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    assert (sign.run_id, sign.stopped) == (first.run_id, False)


def test_a_run_that_the_sensor_has_launched_waits_until_the_run_before_it_has_gone(
    job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor has just marked that run as dead, which the process of that run finds out seconds later."""
    claim = job.die(run_id())
    first = waits_for_its_driver(job, run_id())
    tags = {names.SERIES_TAG: str(claim.series), names.RESUMES_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    looks = iter(range(3))

    def look(file: HeartbeatFile) -> Heartbeat | None:
        found = read(file)
        if found is not None and found.run_id == first.run_id and next(looks, None) is None:
            file.write(replace(sign, stopped=True))
        return found

    read = HeartbeatFile.read
    monkeypatch.setattr(HeartbeatFile, "read", look)
    monkeypatch.setattr(own_submission, "_LOOK", 0.01)
    error = materialize(job, submit(tmp_path), tags)
    assert isinstance(error, SparkNotStarted), "the driver of this run was submitted"


@pytest.mark.parametrize("why", ["its process is gone", "its driver had come and died"])
def test_a_run_goes_on_where_nobody_waits_any_more(job: StoredJob, tmp_path: Path, why: str) -> None:
    first = waits_for_its_driver(job, run_id(), alive=why != "its process is gone")
    if why == "its driver had come and died":
        job.beat(job.claim(first.run_id), alive=False)
    assert isinstance(materialize(job, submit(tmp_path)), SparkNotStarted)
    assert job.catalog.records.submissions.of(first.run_id) is None


def test_a_driver_that_comes_beside_a_later_submission_is_left_to_its_run(job: StoredJob, tmp_path: Path) -> None:
    """It takes its submission just before the later run withdraws that."""
    first = waits_for_its_driver(job, run_id(), alive=False)

    class Beside(Submissions):
        def withdraw(self, submission: Submission) -> int | None:
            comes(job, submission)
            return super().withdraw(submission)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.checkpoint.control.job_records.Submissions", Beside)
        error = materialize(job, submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')"))
    assert isinstance(error, JobAlreadyRunning)
    assert first.run_id in error.message
    assert not (tmp_path / "called").exists()
    assert job.catalog.records.submissions.of(first.run_id) == first, "so the sensor has the driver attended again"
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    assert sign.run_id == first.run_id


def test_a_driver_that_comes_without_a_submission_leaves_none(job: StoredJob, tmp_path: Path) -> None:
    """A run whose process is the driver takes the job over beside the submission."""
    other = run_id()

    class Beside(Submissions):
        def add(self, submission: Submission, over: int) -> Submission:
            added = super().add(submission, over)
            job.beat(job.claim(other), alive=True)
            return added

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.checkpoint.control.job_records.Submissions", Beside)
        error = materialize(job, submit(tmp_path))
    assert isinstance(error, JobAlreadyRunning)
    latest = job.catalog.records.submissions.latest()
    assert (latest.number, latest.standing) == (1, None)


class Waiting:
    """A run whose ``spark-submit`` waits for room on the cluster, until the test says what happens to the run."""

    def __init__(
        self, job: StoredJob, tmp_path: Path, happens: Callable[[], object], *, canceled: bool = False
    ) -> None:
        self.job, self.run, self._happens, self._pid = job, run_id(), happens, tmp_path / "pid"
        pid = f"open({str(self._pid)!r} + '.new', 'w').write(str(os.getpid()))"
        move = f"os.rename({str(self._pid)!r} + '.new', {str(self._pid)!r})"
        spark = submit(tmp_path, f"import signal\n{pid}\n{move}\nsignal.pause()")
        told = Told(self._turn, lambda: canceled, *[lambda *_: None] * 8)
        reporter = create_autospec(CheckpointReporter)
        self.attendant = Attendant(job.catalog, self.run, self.run, reporter, told, SystemClock(), time.sleep)
        self.attendant.submit(spark, None, None, {})

    def __enter__(self) -> Attendant:
        return self.attendant

    def __exit__(self, *_: object) -> None:
        assert self.attendant._process is not None
        self.attendant._process.kill()

    def _turn(self) -> None:
        if self._pid.exists():
            self._happens()

    @property
    def waits(self) -> bool:
        """Whether ``spark-submit`` still does."""
        return psutil.pid_exists(int(self._pid.read_text()))


def interrupt() -> None:
    raise dg.DagsterExecutionInterruptedError


def test_a_driver_that_has_not_come_is_not_wanted_when_its_run_is_interrupted(job: StoredJob, tmp_path: Path) -> None:
    """The sensor has given the run up, for example; nobody would end its ``spark-submit`` any more."""
    waiting = Waiting(job, tmp_path, interrupt)
    with waiting as attendant:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            attendant.attend()
        assert not waiting.waits
    assert job.catalog.records.submissions.latest().standing is None, "a driver that appears late ends"
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    assert (sign.stopped, sign.interrupted) == (True, True), "it has not told how the driver ends"


@pytest.mark.parametrize("canceled", [False, True])
def test_a_driver_that_comes_just_when_its_run_is_interrupted_goes_on(
    job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, canceled: bool
) -> None:
    """Or has the time that every driver has to end a canceled job in order."""
    monkeypatch.setattr(attendant_module, "_GRACE", 2.0)

    class Beside(Submissions):
        def withdraw(self, submission: Submission) -> int | None:
            comes(job, submission)
            return super().withdraw(submission)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.checkpoint.control.job_records.Submissions", Beside)
        job = StoredJob(job.root)
        waiting = Waiting(job, tmp_path, interrupt, canceled=canceled)
        with waiting as attendant:
            with pytest.raises(dg.DagsterExecutionInterruptedError):
                attendant.attend()
            assert waiting.waits, "in client mode it has the driver below it"
    assert job.catalog.records.submissions.of(waiting.run) is not None, "so the driver is attended again"


def test_a_driver_that_has_not_come_is_not_wanted_when_another_run_takes_the_job_over(
    job: StoredJob, tmp_path: Path
) -> None:
    def taken_over() -> None:
        if job.catalog.records.epochs.highest() == 0:
            job.claim(run_id())

    waiting = Waiting(job, tmp_path, taken_over)
    with waiting as attendant:
        with pytest.raises(Fenced, match="is not wanted any more"):
            attendant.attend()
        assert not waiting.waits


def another_attends(waiting: Waiting, run: str) -> None:
    """This run was paused, and another one has taken its place."""
    records = waiting.job.catalog.records
    found = records.attendant.read()
    assert found is not None
    records.attendant.write(replace(found, run_id=run))
    waiting.attendant._sign._due_at = 0.0


def test_a_driver_that_has_not_come_is_not_wanted_when_another_run_is_in_its_place(
    job: StoredJob, tmp_path: Path
) -> None:
    """Nobody would end its ``spark-submit``, which may wait for room on the cluster for ever."""
    waiting = Waiting(job, tmp_path, lambda: another_attends(waiting, run_id()))
    with waiting as attendant:
        with pytest.raises(JobAlreadyRunning, match="attends the driver"):
            attendant.attend()
        assert not waiting.waits
    assert job.catalog.records.submissions.latest().standing is None


def test_a_driver_that_has_come_goes_on_when_another_run_attends_it(job: StoredJob, tmp_path: Path) -> None:
    """This run was paused before it has seen the claim."""

    def happens() -> None:
        submission = job.catalog.records.submissions.of(waiting.run)
        assert submission is not None
        if job.catalog.records.epochs.highest() == 0:
            comes(job, submission)
            another_attends(waiting, run_id())

    waiting = Waiting(job, tmp_path, happens)
    with waiting as attendant:
        with pytest.raises(JobAlreadyRunning, match="attends the driver"):
            attendant.attend()
        assert waiting.waits, "in client mode it has the driver below it"


def logs(tmp_path: Path) -> list[Path]:
    """What drivers have put out."""
    return sorted((tmp_path / f"dagster_ckpt-{os.geteuid()}" / "drivers").glob("*"))


@pytest.mark.parametrize(("status", "stays"), [("FAILED", True), ("FINISHED", False), ("CANCELED", False)])
def test_what_the_driver_of_a_failed_job_has_said_stays(
    job: StoredJob, tmp_path: Path, status: str, stays: bool
) -> None:
    class Beside(Submissions):
        def withdraw(self, submission: Submission) -> int | None:
            claim = comes(job, submission)
            job.end(claim, status, "a row of poison")
            job.beat(claim, alive=False, stopped=True)
            return super().withdraw(submission)

    resources = {"checkpoint_storage": job.storage, "spark": submit(tmp_path, "print('why'); sys.exit(1)")}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setattr("dagster_ckpt.checkpoint.control.job_records.Submissions", Beside)
        dg.materialize([make_asset()], resources=resources, instance=instance, raise_on_error=False)
    assert [log.read_text() for log in logs(tmp_path)] == (["why\n"] if stays else [])


def ended(job: str) -> Path:
    """The output of a driver that has ended."""
    process = SubmittedProcess(["/bin/true"], {}, job, run_id())
    process._process.wait()
    return process.log


def test_what_earlier_drivers_have_said_does_not_pile_up(tmp_path: Path) -> None:
    """A driver that is lost, or attended by another run at its end, leaves its output behind."""
    home = spark_home(tmp_path, "import signal\nprint('here', flush=True)\nsignal.pause()")
    lives = SubmittedProcess([f"{home}/bin/spark-submit"], {}, "orders", run_id())
    try:
        wait_for(lambda: lives.log.read_text() == "here\n", "the first driver")
        other = ended("orders-eu")
        os.utime(lives.log, (0, 0))
        os.utime(other, (0, 0))
        said = []
        for number in range(1, 15):
            said.append(ended("orders"))
            os.utime(said[-1], (number, number))
        assert set(logs(tmp_path)) == {lives.log, other, *said[-11:]}
    finally:
        lives.kill()
    last = ended("orders")
    assert set(logs(tmp_path)) == {other, *said[-10:], last}


@pytest.mark.parametrize("fails", ["directory", "file"])
def test_an_output_that_cannot_be_written_is_named_and_nobody_waits_for_the_driver(
    job: StoredJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    spark = submit(tmp_path, f"open({str(tmp_path / 'called')!r}, 'w')")
    (tmp_path / "full").touch()
    monkeypatch.setattr(submitted_process, "default_root", lambda: tmp_path / "full" / "own")
    if fails == "file":
        monkeypatch.setattr(submitted_process, "make_working_directory", lambda *_: None)
    error = materialize(job, spark)
    assert isinstance(error, SparkNotStarted)
    assert "for the driver's output and cannot be written: Not a directory. No driver was started." in error.message
    assert "TMPDIR" in error.hint
    assert not (tmp_path / "called").exists()
    latest = job.catalog.records.submissions.latest()
    assert (latest.number, latest.standing) == (1, None)


def test_the_environment_of_a_driver_is_not_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    found = SparkSubmitResource(definitions=DEFINITIONS).environment()
    assert "PYSPARK_GATEWAY_PORT" not in found
    assert set(filter(None, sys.path)) <= set(found["PYTHONPATH"].split(os.pathsep))


def definitions(job: StoredJob, spark: object = None) -> dg.Definitions:
    spark = spark or SparkSubmitResource(definitions=DEFINITIONS)
    return dg.Definitions(assets=[make_asset()], resources={"checkpoint_storage": job.storage, "spark": spark})


def test_a_driver_takes_its_order_from_the_storage(job: StoredJob) -> None:
    order = submitted(job.catalog.records, Submission("a" * 32, 4, 2, '{"restore_from": "chk-3"}', 1.0))
    drive = submitted_drive(definitions(job), DEFINITIONS, "orders", "a" * 32)
    assert (drive.run_id, drive.op_config, drive.submission) == ("a" * 32, {"restore_from": "chk-3"}, order)
    assert type(drive.resources["spark"]).__name__ == "SparkSessionResource"


def test_a_driver_finds_an_asset_that_dagster_has_made_another_of(job: StoredJob) -> None:
    """As Dagster does with the assets of components, whose definitions are made by a function."""
    given = definitions(job)
    assets = [asset for asset in given.assets or () if isinstance(asset, dg.AssetsDefinition)]
    regrouped = dg.map_asset_specs(lambda spec: spec.replace_attributes(group_name="sales"), assets)
    plain = dg.Definitions(assets=regrouped, resources=given.resources)
    submitted(job.catalog.records, Submission("a" * 32, 0, None, "{}", 1.0))
    drive = submitted_drive(dg.definitions(lambda: plain), DEFINITIONS, "orders", "a" * 32)
    assert (drive.asset.name, drive.asset.group_names_by_key[drive.asset.key]) == ("orders", "sales")
    with pytest.raises(InvalidConfiguration, match="has no checkpointed streaming asset"):
        submitted_drive(dg.Definitions(resources=plain.resources), DEFINITIONS, "orders", "a" * 32)


def test_a_driver_that_appears_late_changes_nothing(job: StoredJob) -> None:
    """Its run has withdrawn it, or a later run has submitted another, or another driver has claimed the job."""
    submitted(job.catalog.records, Submission("b" * 32, 0, None, "{}", 1.0))
    with pytest.raises(Fenced, match="does not want a driver"):
        submitted_drive(definitions(job), DEFINITIONS, "orders", "a" * 32)
    drive = submitted_drive(definitions(job), DEFINITIONS, "orders", "b" * 32)
    job.end(job.claim(run_id()), "FINISHED")
    with pytest.raises(Fenced, match="has claimed epoch 1"):
        drive.run()
    assert job.catalog.records.epochs.highest() == 1


def test_a_driver_whose_run_gives_it_up_beside_its_claim_stops(job: StoredJob) -> None:
    submitted(job.catalog.records, Submission("b" * 32, 0, None, "{}", 1.0))
    drive = submitted_drive(definitions(job), DEFINITIONS, "orders", "b" * 32)
    assert drive.submission is not None
    job.catalog.records.submissions.withdraw(drive.submission)
    with pytest.raises(Fenced, match="does not want a driver"):
        drive.run()
    assert job.catalog.choice() is None, "the driver has started nothing"


def test_a_run_that_gives_its_driver_up_beside_the_claim_attends_it(job: StoredJob, tmp_path: Path) -> None:
    """``spark-submit`` loses the master, which has started the driver all the same."""

    class Beside(Submissions):
        def withdraw(self, submission: Submission) -> int | None:
            claim = comes(job, submission)
            job.end(claim, "FINISHED")
            job.beat(claim, alive=False, stopped=True)
            return super().withdraw(submission)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_ckpt.checkpoint.control.job_records.Submissions", Beside)
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"checkpoint_storage": job.storage, "spark": submit(tmp_path)}
            assert dg.materialize([make_asset()], resources=resources, instance=instance).success
    assert job.catalog.records.submissions.of(job.catalog.records.epochs.read_claim(1).run_id) is not None  # type: ignore[union-attr]


def test_a_driver_says_what_its_definitions_lack(job: StoredJob) -> None:
    with pytest.raises(InvalidConfiguration, match=r"is dict, and no dagster\.Definitions"):
        submitted_drive({}, DEFINITIONS, "orders", "a" * 32)
    with pytest.raises(InvalidConfiguration, match="has no checkpointed streaming asset 'flights'"):
        submitted_drive(definitions(job), DEFINITIONS, "flights", "a" * 32)
    plain = FileSystemCheckpointStorage(checkpoint_path=str(job.root))
    with pytest.raises(InvalidConfiguration, match="is FileSystemCheckpointStorage, and no SparkSubmitResource"):
        submitted_drive(definitions(job, plain), DEFINITIONS, "orders", "a" * 32)


def test_a_checkpoint_that_fails_is_told_by_a_run_that_attends(job: StoredJob) -> None:
    claim = job.claim(run_id())
    job.checkpoint(job.choose(claim), 1)
    job.beat(claim, alive=True)
    beat = job.catalog.records.heartbeat.read()
    assert beat is not None
    told: list[Any] = []

    def tell(name: str) -> Callable[..., None]:
        return lambda *arguments: told.append((name, *arguments))

    driver = Told(
        lambda: None,
        lambda: False,
        *map(tell, ("claimed", "started", "completed", "traced", "failed", "beaten", "log", "said")),
    )
    report = DriverReport(
        job.catalog, claim.run_id, create_autospec(CheckpointReporter), driver, SystemClock(), time.sleep
    )
    report.claimed(claim)
    failed = FailedCheckpoints(1, "the storage is full", 1.0, 2)
    for heartbeat in (beat, replace(beat, failed_checkpoints=failed), replace(beat, failed_checkpoints=failed)):
        report.look(heartbeat)
    again = replace(failed, in_a_row=2, number=3, at=9.0)
    report.look(replace(beat, failed_checkpoints=again))
    assert [entry[1] for entry in told if entry[0] == "failed"] == [failed, again]


def test_resources_of_the_run_configuration_do_not_reach_a_driver(job: StoredJob, tmp_path: Path) -> None:
    config = {"resources": {"spark": {"config": {"definitions": DEFINITIONS, "spark_home": "/nowhere"}}}}
    resources = {"checkpoint_storage": job.storage, "spark": SparkSubmitResource.configure_at_launch()}
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(InvalidConfiguration, match="has resources"):
        dg.materialize([make_asset()], resources=resources, instance=instance, run_config=config)


@pytest.mark.parametrize(
    "spark",
    [SparkSubmitResource(definitions=DEFINITIONS, spark_home="/nowhere"), SparkSessionResource()],
    ids=["as it was submitted", "with definitions that no longer submit"],
)
def test_what_is_on_record_is_told_by_a_run_that_attends(
    job: StoredJob, spark: SparkSubmitResource | SparkSessionResource
) -> None:
    """The driver has ended when the run that was to attend it comes: the run tells how, and submits nothing."""
    claim = job.claim(run_id())
    submitted(job.catalog.records, Submission(claim.run_id, 0, None, "{}", 1.0))
    store = job.choose(claim)
    job.checkpoint(store, 1)
    job.end(claim, "FAILED", "a row of poison")
    job.beat(claim, alive=False, stopped=True)
    tags = {names.ATTENDS_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    error = materialize(job, spark, tags)
    assert isinstance(error, NotRestarted)
    assert "a row of poison" in error.message
    sign = job.catalog.records.attendant.read()
    assert sign is not None
    assert (sign.stopped, sign.interrupted) == (True, False)


def test_a_job_that_returns_to_the_version_before_is_not_to_be_launched(job: StoredJob) -> None:
    claim = job.claim(run_id())
    submitted(job.catalog.records, Submission(claim.run_id, 0, None, "{}", 1.0))
    job.checkpoint(job.choose(claim), 1)
    end = End("FAILED", "version 2 completed no checkpoint", False, iso(0.0), taken_back="2", returns_to="1")
    job.catalog.records.epochs.record_end(claim.epoch, end)
    job.beat(claim, alive=False, stopped=True)
    tags = {names.ATTENDS_TAG: claim.run_id, names.PARENT_RUN_TAG: claim.run_id}
    error = materialize(job, SparkSessionResource(), tags)
    assert isinstance(error, NotRestarted)
    assert error.hint == "The resume sensor launches version 1 as soon as its code is there."


def test_a_run_that_attends_reads_each_checkpoint_once(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may be retained, and a run that reads for as long as its lease counts as dead."""
    claim = job.claim(run_id())
    store = job.choose(claim)
    first, second = (job.checkpoint(store, batch) for batch in (1, 2))
    job.beat(claim, alive=True)
    beat = job.catalog.records.heartbeat.read()
    assert beat is not None
    reporter = create_autospec(CheckpointReporter)
    nobody = Told(lambda: None, lambda: False, *[lambda *_: None] * 8)
    report = DriverReport(job.catalog, claim.run_id, reporter, nobody, SystemClock(), time.sleep)
    report.claimed(claim)
    report.look(beat)
    reporter.began.assert_called_once_with([first, second])

    read: list[int] = []
    load = CheckpointCatalog.load

    def counted(catalog: CheckpointCatalog, job_id: str, number: int) -> CheckpointMetadata:
        read.append(number)
        return load(catalog, job_id, number)

    monkeypatch.setattr(CheckpointCatalog, "completed", None)
    monkeypatch.setattr(CheckpointCatalog, "load", counted)
    third = job.checkpoint(store, 3)
    (job.root / "orders" / first.job_id / "chk-4").mkdir()  # being written
    report.look(replace(beat, completed=Completed(third.reference, claim.epoch)))
    reporter.completed.assert_called_with([first, second, third])
    fourth = Completed(f"{first.job_id}/chk-5", claim.epoch)
    job.catalog.records.deletions.ask(claim.epoch, first.job_id, [1], [], "subsumed")
    report.look(replace(beat, completed=fourth))
    reporter.completed.assert_called_with([second, third])
    assert read == [3, 4, 4]
