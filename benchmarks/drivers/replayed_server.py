"""A bucket's server in front of another one, whose answers it keeps: it takes hardly any processor time for a request.

    python -m benchmarks.drivers.replayed_server http://127.0.0.1:8080 0.03

It prints where it is. What it is asked for the first time it asks the other server for; the same request gets the same
answer from then on, so many seconds later. Only for whoever reads. ``GET /`` tells how many requests it has had.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from urllib.parse import urlsplit

_END = b"\r\n\r\n"
#: Headers of one connection, or of one moment.
_OWN = frozenset({"connection", "content-length", "date", "transfer-encoding"})


class ReplayedServer(asyncio.Protocol):
    """One connection.

    Args:
        behind: host and port of the server that has the answers.
        latency: seconds from a request to its answer.
        answers: by request line; all connections share them.
        asked: the number of requests so far, of all connections.
    """

    def __init__(self, behind: str, latency: float, answers: dict[str, bytes], asked: list[int]) -> None:
        self._behind, self._latency, self._answers, self._asked = behind, latency, answers, asked
        self._received = b""
        self._transport: asyncio.Transport
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while _END in self._received:
            head, _, self._received = self._received.partition(_END)
            line = head.partition(b"\r\n")[0].decode()
            if line.startswith("GET / "):
                self._send(_answer(200, "OK", {}, json.dumps({"requests": self._asked[0], "bytes": 0}).encode()))
                continue
            self._asked[0] += 1
            if line in self._answers:
                asyncio.get_running_loop().call_later(self._latency, self._send, self._answers[line])
            else:
                task = asyncio.create_task(self._learn(line))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _learn(self, line: str) -> None:
        self._answers[line] = await asyncio.to_thread(self._ask, line)
        self._send(self._answers[line])

    def _ask(self, line: str) -> bytes:
        method, path, _ = line.split(" ")
        if method != "GET":
            raise ValueError(f"Nothing but reading is replayed: {line}")
        connection = http.client.HTTPConnection(self._behind)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
            return _answer(answer.status, answer.reason, kept, answer.read())
        finally:
            connection.close()

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _answer(status: int, reason: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode("latin-1") + _END + body


async def main(url: str, latency: float) -> None:
    """Serve until the process is killed."""
    answers: dict[str, bytes] = {}
    asked = [0]
    server = await asyncio.get_running_loop().create_server(
        lambda: ReplayedServer(urlsplit(url).netloc, latency, answers, asked), "127.0.0.1", 0, backlog=512
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
