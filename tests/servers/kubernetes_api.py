"""As much of Kubernetes' API as ``spark-submit`` asks for: takes what it is sent, and tells how a pod has ended.

No pod is run. Whatever is asked beyond that is answered with status 501, so that no test relies on a guess.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["KubernetesApi", "kubernetes_api"]


class KubernetesApi(ThreadingHTTPServer):
    """The server.

    Attributes:
        made: what was created, in order.
        unknown: what was asked for and not answered.
        refuses: a status with which every creation of a pod is answered, and its reason.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.made: list[dict[str, Any]] = []
        self.unknown: list[str] = []
        self.refuses: tuple[int, str] | None = None

    @property
    def master(self) -> str:
        """The URL for Spark."""
        return f"k8s://http://127.0.0.1:{self.server_address[1]}"

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """What was created of one kind."""
        return [item for item in self.made if item["kind"] == kind]


class _Call(BaseHTTPRequestHandler):
    server: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._make()

    def do_PATCH(self) -> None:
        """What Spark applies on the server's side, such as a ConfigMap."""
        self._make()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked, kind = parse_qs(parts.query), parts.path.split("/")[5:6]
        if kind != ["pods"]:
            self.server.unknown.append(f"GET {self.path}")
            self._answer(501, {"kind": "Status", "message": "not served"})
            return
        pods = [_ended(item) for item in self.server.of_kind("Pod")]
        if asked.get("watch") == ["true"]:
            events = [{"type": "MODIFIED", "object": pod} for pod in pods]
            self._send(200, "".join(json.dumps(event) + "\n" for event in events).encode())
        elif len(parts.path.split("/")) > 6:
            self._answer(200, pods[0])
        else:
            listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "2"}, "items": pods}
            self._answer(200, listed)

    def _make(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["kind"] == "Pod" and self.server.refuses is not None:
            status, reason = self.server.refuses
            self._answer(status, {"kind": "Status", "status": "Failure", "code": status, "message": reason})
            return
        namespace = urlsplit(self.path).path.split("/")[4]
        body["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1", "namespace": namespace}
        self.server.made.append(body)
        self._answer(201, body)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _ended(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod whose containers have ended with 1."""
    now = "2026-01-01T00:00:00Z"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}}
    states = [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": False, "restartCount": 0, "state": ended}
        for each in pod["spec"]["containers"]
    ]
    status = {"phase": "Failed", "startTime": now, "containerStatuses": states}
    return {**pod, "metadata": {**pod["metadata"], "creationTimestamp": now, "resourceVersion": "2"}, "status": status}


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """A running server."""
    with KubernetesApi() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
