"""A receiver of Prometheus remote write, which decodes what it is sent by hand."""

from __future__ import annotations

import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa

Labels = tuple[tuple[str, str], ...]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number, shift, at = number | (data[at] & 0x7F) << shift, shift + 7, at + 1
    return number | data[at] << shift, at + 1


def fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Number and content of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        size, at = read_varint(data, at) if tag & 7 == 2 else ({1: 8}[tag & 7], at)
        assert at + size <= len(data)
        yield tag >> 3, struct.unpack("<d", data[at : at + 8])[0] if tag & 7 == 1 else data[at : at + size]
        at += size


@dataclass
class Receiver:
    """What arrived, and the statuses to answer with; 204 when they are used up."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """Uncompressed, accepted or not."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """With names in lower case."""
    samples: dict[Labels, dict[int, float]] = field(default_factory=dict)
    """Labels of a series → Unix milliseconds → value, of accepted requests."""

    def accept(self, body: bytes, headers: dict[str, str]) -> int:
        size, _ = read_varint(body, 0)  # a Snappy block begins with its size
        plain = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
        self.bodies.append(plain)
        self.headers.append(headers)
        status = self.statuses.pop(0) if self.statuses else 204
        for _, series in fields(plain) if status == 204 else ():
            parts = list(fields(series))
            labels = tuple(tuple(text.decode() for _, text in fields(label)) for kind, label in parts if kind == 1)
            assert list(labels) == sorted(set(labels))
            (sample,) = (dict(fields(sample)) for kind, sample in parts if kind == 2)
            assert sample[2] not in self.samples.setdefault(labels, {}), f"{labels} twice"
            self.samples[labels][sample[2]] = sample[1]
        return status

    def at(self, second: int) -> dict[Labels, float]:
        return {labels: told[second * 1000] for labels, told in self.samples.items() if second * 1000 in told}


@contextmanager
def receiving(statuses: Sequence[int] = (), tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port, while the block lasts."""
    receiver = Receiver(statuses=list(statuses))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.accept(body, {name.lower(): value for name, value in self.headers.items()}))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        receiver.url = f"{'http' if tls is None else 'https'}://localhost:{server.server_port}/api/v1/write"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield receiver
        server.shutdown()
