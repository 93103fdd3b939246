"""A stand-in for the service's ingest, for tests and benches of the node floor: checks, records, and fails on demand.

It answers as the contract says (204 when it has a frame, ``X-Mainstay-Duplicate`` when it had it already, problem+json
otherwise) and keeps everything in memory. It can be told to be away, slow, or to refuse.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from mainstay.probes.bundle import decode_bundle, decode_layout, unpack
from mainstay.probes.frame import Frame, FrameError, check_shape, decode
from mainstay.probes.signals import Catalog

Answer = tuple[int, dict[str, str], bytes]


class Receiver:
    """Listens on a free loopback port while it is used as a context manager, or between ``start`` and ``away``."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, str], dict[int, Frame]] = defaultdict(dict)
        """(subject, stream) to sequence to frame: what is durable here."""
        self.events: dict[str, dict[str, Any]] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.catalogs: dict[str, Catalog] = {}
        self.orders: list[dict[str, Any]] = []
        """Handed out, and removed, at the next long poll."""
        self.bundles: dict[tuple[str, str, int], list[str]] = {}
        """(relay, stream, sequence) to the subjects of a bundle."""
        self.node_tokens: dict[str, str] = {}
        """Token to node: what ``GET /v1/auth/me`` answers, in addition to ``token``."""
        self.racks: dict[str, str] = {}
        """Racks of nodes that are not in ``rack-1``, which is the relay's."""
        self.rejections: list[dict[str, Any]] = []
        """Members of the next bundle that are refused."""
        self.duplicates = 0
        self.arrived: list[float] = []
        """Unix seconds at which frames and events came in."""
        self.delay = 0.0
        """Seconds that every answer takes."""
        self.answer: Callable[[str, str, bytes], Answer | None] = lambda _method, _path, _body: None
        """May answer in the service's stead: given method, path and body, None to continue as usual."""
        self.token: str | None = None
        """The only bearer token that is taken; None takes any."""
        self.changed = threading.Condition()
        self._server: _Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen: on a free port the first time, on the same one after ``away``."""
        self._server = _Server(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def away(self) -> None:
        """Stop listening and drop every connection, as a killed service does."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drop_connections()
        self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.away()

    def wait(self, condition: Callable[[Receiver], bool], timeout: float = 20.0) -> None:
        """Block until ``condition`` holds.

        Raises:
            TimeoutError: it does not within ``timeout`` seconds.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self), timeout):
                raise TimeoutError(f"not within {timeout} s")

    @property
    def all_frames(self) -> list[Frame]:
        """Every frame, by stream in order of sequence."""
        return [frames[sequence] for frames in self.frames.values() for sequence in sorted(frames)]

    # Below: one method a route, called with ``changed`` held.

    def handle_request(self, method: str, target: str, body: bytes, token: str) -> Answer:
        path = urlsplit(target).path
        if (special := self.answer(method, path, body)) is not None:
            return special
        if self.token is not None and token not in {self.token, *self.node_tokens} and not path.endswith(":enroll"):
            return problem(401, "unauthorized", "the token is not known")
        if path == "/v1/auth/me":
            node = self.node_tokens.get(token)
            racks = [self.racks.get(node, "rack-1")] if node else ["rack-1"]
            kind = "node" if node else "relay"
            return reply({"subject": node or "r1", "scopes": ["report"], "kind": kind, "racks": racks})
        if path.startswith(("/v1/telemetry/", "/v1/events")):
            return self._data(method, path.removeprefix("/v1/").split("/"), body)
        return self._control(method, path.removeprefix("/v1/").split("/"), target, body)

    def _data(self, method: str, parts: list[str], body: bytes) -> Answer:
        match method, parts:
            case "POST", ["telemetry", "frames"]:
                return self._frame(body)
            case "POST", ["telemetry", "bundles"]:
                return self._bundle(body)
            case "PUT", ["telemetry", "catalogs", digest]:
                return self._catalog(digest, body)
            case "POST", ["events"]:
                return self._events(body)
        return problem(404, "not-found", f"{method} {parts}")

    def _control(self, method: str, parts: list[str], target: str, body: bytes) -> Answer:
        match method, parts:
            case "PUT", ["nodes", name]:
                self.reports[name] = json.loads(body)
                return reply({"name": name})
            case "GET", ["nodes", name, "tasks"] if name in self.reports:
                return self._orders(float(parse_qs(urlsplit(target).query)["wait"][0]))
            case "POST", ["nodes:enroll"]:
                return reply({"node": json.loads(body)["name"], "token": self.token or "a-token"})
            case "POST", ["validations", validation, "results"]:
                self.results[validation] = json.loads(body)
                return reply({"id": validation})
        return problem(404, "not-found", f"{method} {parts}")

    def _frame(self, body: bytes) -> Answer:
        try:
            frame = decode(body)
            known = self.catalogs.get(frame.catalog)
            if known is None:
                return problem(409, "unknown-catalog", f"catalog {frame.catalog} is not known")
            check_shape(frame, narrow=len(known.narrow), wide=len(known.wide))
        except FrameError as error:
            return problem(422, "invalid-frame", str(error))
        if not self._keep(frame):
            return 204, {"X-Mainstay-Duplicate": "1"}, b""
        return 204, {}, b""

    def _bundle(self, body: bytes) -> Answer:
        try:
            bundle = decode_bundle(body)
            known = self.catalogs.get(bundle.catalog)
            if known is None:
                return problem(409, "unknown-catalog", f"catalog {bundle.catalog} is not known")
            frames = list(unpack(bundle, decode_layout(bundle.layout)))
        except FrameError as error:
            return problem(422, "invalid-bundle", str(error))
        self.bundles[bundle.relay, bundle.stream, bundle.sequence] = [frame.subject for frame in frames]
        rejected, self.rejections = self.rejections, []
        refused = {(one["subject"], one["sequence"]) for one in rejected}
        for frame in frames:
            if (frame.subject, frame.sequence) not in refused:
                self._keep(frame)
        return reply({"rejected": rejected}) if rejected else (204, {}, b"")

    def _keep(self, frame: Frame) -> bool:
        """Return whether the frame is new."""
        frames = self.frames[frame.subject, frame.stream]
        if frame.sequence in frames:
            self.duplicates += 1
            return False
        frames[frame.sequence] = frame
        self.arrived.append(time.time())
        return True

    def _catalog(self, digest: str, body: bytes) -> Answer:
        catalog = msgspec.json.decode(body, type=Catalog)
        if catalog.digest != digest:
            return problem(422, "invalid-catalog", "the digest does not match")
        self.catalogs[digest] = catalog
        return 204, {}, b""

    def _events(self, body: bytes) -> Answer:
        items = json.loads(body)["items"]
        fresh = {item["id"]: item for item in items if item["id"] not in self.events}
        self.events.update(fresh)
        self.arrived.extend(time.time() for _ in fresh)
        return reply({"accepted": len(fresh), "duplicates": len(items) - len(fresh)})

    def _orders(self, wait: float) -> Answer:
        self.changed.wait_for(lambda: self.orders, min(wait, 1.0))  # a second: tests should end soon
        orders, self.orders = self.orders, []
        return reply({"items": orders})


def reply(document: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


def problem(status: int, slug: str, detail: str) -> Answer:
    document = {"type": f"urn:mainstay:problem:{slug}", "title": slug, "status": status, "detail": detail}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(document).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle is what some tests are about."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if receiver.delay:
                time.sleep(receiver.delay)
            with receiver.changed:
                status, headers, content = receiver.handle_request(self.command, self.path, body, token)
                receiver.changed.notify_all()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = serve  # noqa: N815 - names that http.server prescribes

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's signature
            """Quiet."""

    return Handler
