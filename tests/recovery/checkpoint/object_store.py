"""A real S3 server (moto) on loopback, and a proxy before it that answers wrongly, cuts connections, and flips bits."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "checkpoints"
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
FAULTS = ("403", "500", "503", "reset", "reset_after", "torn_request", "torn_response", "flip_request", "flip_response")


class FaultProxy(ThreadingHTTPServer):
    """Forwards to the server. ``fail`` says what happens to the next requests whose method and path match."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.requests: list[tuple[str, str]] = []
        self._rules: list[list[object]] = []
        self._guard = threading.Lock()
        self.count = 0
        """Faults that happened."""

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/runs/here?endpoint=http://127.0.0.1:{self.server_port}"

    def fail(self, fault: str, method: str, text: str = "", times: int = 1) -> None:
        """The next ``times`` requests of ``method`` with ``text`` in their path get ``fault``."""
        assert fault in FAULTS
        with self._guard:
            self._rules.append([fault, method, text, times])

    def work_again(self) -> None:
        with self._guard:
            self._rules.clear()

    def fault_of(self, method: str, path: str) -> str:
        with self._guard:
            self.requests.append((method, path))
            for rule in self._rules:
                fault, wanted, text, left = rule
                if wanted == method and str(text) in path and int(str(left)) > 0:
                    rule[3] = int(str(left)) - 1
                    self.count += 1
                    return str(fault)
        return ""

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that a fault has cut is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        fault = self.server.fault_of(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length // 2 if fault == "torn_request" else length)
        if fault in {"reset", "torn_request"}:
            return self._reset()
        if fault.isdigit():
            return self._send(int(fault), {"Content-Type": "application/xml"}, SLOW_DOWN)
        status, headers, content = self._forward(_flipped(body) if fault == "flip_request" else body)
        if fault == "reset_after":
            return self._reset()
        if fault == "torn_response":
            self._send(status, headers, content[: len(content) // 2], len(content))
            return self._reset()
        return self._send(status, headers, _flipped(content) if fault == "flip_response" else content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - as http.server calls them

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=30)
        with contextlib.closing(connection):
            headers = {name: text for name, text in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def _send(self, status: int, headers: dict[str, str], content: bytes, length: int | None = None) -> None:
        head = self.command == "HEAD"
        self.send_response_only(status)
        for name, text in headers.items():
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, text)
        known = {name.lower(): text for name, text in headers.items()}.get("content-length")
        self.send_header("Content-Length", str(known if head and known else length or len(content)))
        self.end_headers()
        if not head:
            self.wfile.write(content)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1]) if body else body


@contextlib.contextmanager
def s3_server() -> Iterator[FaultProxy]:
    """A server with an empty bucket, behind a proxy."""
    from moto.server import ThreadedMotoServer  # it takes a second to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with another_way(server.get_host_and_port()) as proxy:
            connection = http.client.HTTPConnection(*proxy.upstream, timeout=30)
            connection.request("POST", "/moto-api/reset")
            connection.getresponse().read()
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status == 200
            connection.close()
            yield proxy
    finally:
        server.stop()


@contextlib.contextmanager
def another_way(upstream: tuple[str, int]) -> Iterator[FaultProxy]:
    """A proxy before the same bucket."""
    proxy = FaultProxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
