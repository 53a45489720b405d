"""Spark's masters: which of them a driver can be submitted to, what differs, and whether one is there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from dagster_ckpt.errors import InvalidConfiguration, SparkNotStarted

__all__ = ["CLIENT", "CLUSTER", "KUBERNETES", "YARN", "check_master", "find_master", "settings_on_cluster"]

CLIENT, CLUSTER = "client", "cluster"
YARN = "yarn"
#: How the URL of a Kubernetes begins.
KUBERNETES = "k8s://"
_MASTER = re.compile(r"local(\[.*\])?|spark://.+|yarn|k8s://.+")
_API_SERVER = re.compile(r"k8s://((?P<scheme>https?)://)?(?P<host>\[[^]]+\]|[^:/]+)(:(?P<port>\d+))?(/|$)")
#: What a driver on a cluster needs, by how its master begins. Then spark-submit ends with the driver, and so tells that
#: the driver has ended before its first record; and the cluster starts no second driver.
_ON_CLUSTER = {
    "spark://": {"spark.standalone.submit.waitAppCompletion": "true", "spark.driver.supervise": "false"},
    YARN: {"spark.yarn.submit.waitAppCompletion": "true", "spark.yarn.maxAppAttempts": "1"},
    KUBERNETES: {"spark.kubernetes.submission.waitAppCompletion": "true"},
}
#: With any other value the cluster starts a driver that has ended again.
_ONE_DRIVER = {"spark.driver.supervise": "false", "spark.yarn.maxAppAttempts": "1"}
#: Seconds for a connection to a master.
_PATIENCE = 10.0
_CONFIGURATION = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ADDRESS, _HOST = "yarn.resourcemanager.address", "yarn.resourcemanager.hostname"
#: Where YARN's ResourceManager listens if nothing says where.
_ANY_HOST, _PORT = "0.0.0.0", 8032  # noqa: S104 - for a client that is this host
_REFERENCE = re.compile(r"\$\{([^}]+)\}")
#: How Hadoop's files name another file.
_INCLUDE = "{http://www.w3.org/2001/XInclude}include"


def check_master(master: str, deploy_mode: str, conf: Mapping[str, str]) -> None:
    """Make sure that a driver can be submitted like this.

    Args:
        master: the URL of the master.
        deploy_mode: where the driver is to be.
        conf: of Spark.

    Raises:
        InvalidConfiguration: it cannot.
    """
    if not _MASTER.fullmatch(master):
        raise InvalidConfiguration(
            f"Spark knows no master {master!r}, or SparkSubmitResource does not.",
            hint="Use local, local[...], spark://host:port, yarn or k8s://https://host:port; for another cluster "
            "manager use SparkSessionResource, whose driver is the Dagster run.",
        )
    if deploy_mode not in {CLIENT, CLUSTER}:
        raise InvalidConfiguration(
            f"deploy_mode is {deploy_mode!r}, and Spark knows client and cluster.", hint="Set one of the two."
        )
    if deploy_mode == CLUSTER and not settings_on_cluster(master):
        raise InvalidConfiguration(
            f"deploy_mode='cluster' needs a cluster, and the master is {master!r}.",
            hint="Set master to spark://host:port, yarn or k8s://https://host:port, or deploy_mode to 'client'.",
        )
    for key, only in _ONE_DRIVER.items():
        if (value := conf.get(key, only)).lower() != only:
            raise InvalidConfiguration(
                f"{key} is {value!r}: the master would start the driver again beside the resume sensor, which starts "
                "another one.",
                hint=f"Remove {key}; the restart strategy of the asset decides about restarts.",
            )


def settings_on_cluster(master: str) -> Mapping[str, str]:
    """The settings of Spark for a driver on the cluster; none for a master that has no cluster."""
    return next((settings for start, settings in _ON_CLUSTER.items() if master.startswith(start)), {})


def find_master(master: str, conf: Mapping[str, str]) -> None:
    """Make sure that a master is there. Spark itself goes on trying for minutes.

    Args:
        master: the URL of the master.
        conf: of Spark; what it says about YARN wins over YARN's own files.

    Raises:
        InvalidConfiguration: nothing says where YARN is.
        SparkNotStarted: nothing answers at the master.
    """
    if master.startswith("spark://"):
        places, name = master.removeprefix("spark://").split(","), f"Spark master answers at {master}"
        hint = "Start the master, or set master of SparkSubmitResource to the URL that the master's web page shows."
    elif master.startswith(KUBERNETES):
        places, name = [_api_server(master)], f"Kubernetes API server answers at {master}"
        hint = "Set master of SparkSubmitResource to k8s:// and the URL that `kubectl cluster-info` shows."
    elif master == YARN:
        directories = _yarn_directories()
        told, is_all = _told_by(directories)
        told |= _told_in(conf)
        places = list(_resource_managers(told)) if is_all or any(map(_is_place, told)) else []
        name = "ResourceManager answers"
        hint = f"Start YARN, or let HADOOP_CONF_DIR name the directory of its yarn-site.xml; now it is {directories}."
    else:
        return
    failed = []
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE):
                return
        except (OSError, ValueError) as error:
            failed.append(f"{place}: {error}")
    if failed:
        raise SparkNotStarted(f"No {name} ({'; '.join(failed)}). No driver was started.", hint=hint)


def _api_server(master: str) -> str:
    """Host and port of a Kubernetes: Spark takes HTTPS where the URL names no scheme."""
    found = _API_SERVER.match(master)
    if found is None:
        return master  # no connection is tried there
    return f"{found['host']}:{found['port'] or (80 if found['scheme'] == 'http' else 443)}"


def _yarn_directories() -> str:
    """The directories with YARN's configuration, separated as in a path.

    Raises:
        InvalidConfiguration: the environment names none.
        SparkNotStarted: one is not there, as on a mount that is away.
    """
    named = [directory for variable in _CONFIGURATION if (directory := os.environ.get(variable))]
    missing = [directory for directory in named if not Path(directory).is_dir()]
    hint = "Set HADOOP_CONF_DIR in the environment of the Dagster run to the directory that has the cluster's "
    hint += "yarn-site.xml and core-site.xml."
    if missing:
        raise SparkNotStarted(f"{missing[0]} is no directory. No driver was started.", hint=hint)
    if not named:
        raise InvalidConfiguration(f"None of {' and '.join(_CONFIGURATION)} is set.", hint=hint)
    return os.pathsep.join(named)


def _told_by(directories: str) -> tuple[dict[str, str], bool]:
    """The settings in YARN's files, and whether that is all: Hadoop may read what cannot be read here."""
    told: dict[str, str] = {}
    is_all = True
    for directory in directories.split(os.pathsep):
        for file in (Path(directory) / "core-site.xml", Path(directory) / "yarn-site.xml"):
            try:
                root = ET.parse(file).getroot()  # noqa: S314 - the operator's own file
            except FileNotFoundError:
                continue
            except (OSError, ET.ParseError):
                is_all = False
                continue
            is_all = is_all and root.find(f".//{_INCLUDE}") is None
            told |= {
                entry.findtext("name", "").strip(): entry.findtext("value", "").strip()
                for entry in root.iter("property")
            }
    return told, is_all


def _is_place(key: str) -> bool:
    return key.startswith((_ADDRESS, _HOST))


def _told_in(conf: Mapping[str, str]) -> dict[str, str]:
    prefix = "spark.hadoop."
    return {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)}


def _resource_managers(told: Mapping[str, str]) -> Iterator[str]:
    """Host and port of each ResourceManager, except of those that only Hadoop can find out."""
    is_pair = told.get("yarn.resourcemanager.ha.enabled") == "true"
    ids = told.get("yarn.resourcemanager.ha.rm-ids", "") if is_pair else ""
    for suffix in [f".{name.strip()}" for name in ids.split(",") if name.strip()] or [""]:
        address = told.get(_ADDRESS + suffix) or told.get(_HOST + suffix, _ANY_HOST)
        address = _REFERENCE.sub(lambda found: told.get(found[1], found[0]), address)
        if "${" not in address:
            yield address if ":" in address else f"{address}:{_PORT}"
