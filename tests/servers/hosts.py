"""Hosts of their own on one machine: each has a name, an address, processes, a /tmp and a disk that no other host sees.

They are namespaces of Linux below one user namespace, so that who runs the tests need not be root. Their packets stay
on a bridge that only they and the servers of :class:`Network` reach: nothing leaves the machine, nor touches its own
addresses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

__all__ = ["ADDRESS", "Host", "Network"]

#: Where the bridge is, and so the servers that all hosts reach.
ADDRESS = "10.99.0.1"
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = ("ip", "nsenter", "unshare")
#: What a host needs of this machine's /tmp, if it is there: the code, and its Python.
_CODE = [str(path) for path in dict.fromkeys((_ROOT, Path(sys.prefix), Path(sys.base_prefix)))]
#: The first process of a host. It hangs its own disk over DISK and /tmp, and takes the names of all hosts.
_FIRST = """
set -e
name=$1 disk=$2 names=$3
shift 3
hostname "$name"
mount -t proc proc /proc
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs "$disk"
for code in "$@"; do
    case $code in /tmp/*)
        mkdir -p "$disk/${code#/tmp/}"
        mount --rbind "$code" "$disk/${code#/tmp/}"
    esac
done
case $disk in /tmp/*) mkdir -p "$disk/${disk#/tmp/}" ;; esac
printf '%b' "$names" > "$disk/hosts"
mount --bind "$disk/hosts" /etc/hosts
mount --rbind "$disk" /tmp
mount -t tmpfs tmpfs "$disk"
echo ready
trap '' CHLD
exec cat
"""


class Host:
    """One host.

    Args:
        network: that the host is on.
        name: of the host, and of its cable.
        address: on the network.
        disk: the directory that is the host's own disk. It is the same path on every host, and another disk.
    """

    def __init__(self, network: Network, name: str, address: str, disk: Path) -> None:
        self.name, self.address, self.disk = name, address, disk
        self._network = network
        disk.mkdir(exist_ok=True)
        namespaces = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child")
        first = ("sh", "-c", _FIRST, "sh", name, str(disk), network.names, *_CODE)
        self._holder = _held([*network.within, "unshare", *namespaces, *first])
        (child,) = psutil.Process(self._holder.pid).children()
        #: Runs the rest of a command line on this host.
        self.within = (
            *("nsenter", f"--target={child.pid}", "--user", "--preserve-credentials"),
            *("--net", "--uts", "--mount", "--pid"),
        )
        self._first = child
        network.ip("link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        network.ip("link", "set", "dev", name, "master", "bridge", "up")
        for setting in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
        ):
            _run([*self.within, "ip", *setting])

    def start(self, *command: str, environment: Mapping[str, str], said: Path) -> subprocess.Popen[bytes]:
        """Start a command on this host's disk; what it says goes to a file that survives the host.

        Signals go to :meth:`processes`: the process that is returned waits outside of the host for its end.
        """
        at_home = ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(self.disk))
        own = {"HOME": str(self.disk), "PYTHONPATH": str(_ROOT), "TMPDIR": "/tmp"}
        with said.open("ab") as log:
            return subprocess.Popen(
                [*self.within, *at_home, *command],
                env={**os.environ, **own, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def processes(self, name: str = "") -> list[psutil.Process]:
        """The processes that live on this host now, by a part of their command line."""
        namespace = _pid_namespace(self._first)
        found = []
        for process in psutil.process_iter():
            try:
                is_here = _pid_namespace(process) == namespace and process.status() != psutil.STATUS_ZOMBIE
                if is_here and name in " ".join(process.cmdline()):
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return [process for process in found if process.pid != self._first.pid]

    def link_down(self) -> None:
        """Pull the cable: the host keeps its address, and every packet from it and to it is lost."""
        self._network.ip("link", "set", "dev", self.name, "down")

    def link_up(self) -> None:
        """Put the cable back."""
        self._network.ip("link", "set", "dev", self.name, "up")

    def vanish(self) -> None:
        """Lose the host without a last packet: its cable, then every process with SIGKILL, and its disk."""
        if self._holder.poll() is None:
            self.link_down()  # a killed process would have its connections closed in good order
            self._network.ip("link", "delete", "dev", self.name)  # the kernel would do so some time later
            self._first.kill()
            _end(self._holder)


class Network:
    """A bridge with hosts on it; a context manager that leaves nothing behind.

    Args:
        names: of the hosts that may be started.
        disk: the directory that is each host's own disk.
    """

    def __init__(self, *names: str, disk: Path) -> None:
        self._addresses = {name: f"10.99.0.{number}" for number, name in enumerate(names, 2)}
        self._disk = disk
        lines = [f"{address} {name}" for name, address in {"localhost": "127.0.0.1", **self._addresses}.items()]
        #: What each host has as its /etc/hosts.
        self.names = "".join(f"{line}\\n" for line in lines)
        self._holder: subprocess.Popen[bytes] | None = None
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        for program in _PROGRAMS:
            assert shutil.which(program), f"{program} is missing, with which tests make hosts; see tools/require-hosts"
        holder = _held(["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; exec cat"])
        self._holder = holder
        enter = ("nsenter", f"--target={holder.pid}", "--user", "--preserve-credentials", "--net")
        #: Runs the rest of a command line where the bridge is, as that namespace's root.
        self.within = enter
        #: The same, as a user who is not root.
        self.within_as_user = (*enter, "unshare", "--user", "--map-user=1000", "--map-group=1000")
        self.ip("link", "add", "name", "bridge", "type", "bridge")
        self.ip("addr", "add", f"{ADDRESS}/24", "dev", "bridge")
        for device in ("lo", "bridge"):
            self.ip("link", "set", "dev", device, "up")
        return self

    def __exit__(self, *of: object) -> None:
        self.vanish()
        if self._holder is not None:
            _end(self._holder)

    def vanish(self) -> None:
        """Lose all hosts that are still there."""
        for host in self._hosts:
            host.vanish()

    def host(self, name: str) -> Host:
        """Start a host, whose disk is empty."""
        host = Host(self, name, self._addresses[name], self._disk)
        self._hosts.append(host)
        return host

    def ip(self, *arguments: str) -> None:
        _run([*self.within, "ip", *arguments])


def _held(command: list[str]) -> subprocess.Popen[bytes]:
    """A process that holds namespaces until it is ended, or until this process is gone."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != b"ready\n":
        raise AssertionError(
            "Tests of hosts need Linux, and root or the right to make user namespaces (`unshare -Ur true`); see "
            f"tools/require-hosts. {' '.join(command[:8])}: {process.stderr.read().decode().strip()}"
        )
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _pid_namespace(process: psutil.Process) -> str:
    return str(Path(f"/proc/{process.pid}/ns/pid").readlink())
