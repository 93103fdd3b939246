"""A service that says two things: these nodes are not trusted, and these it would not admit. For benches and tests."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Warner:
    """Answers job reports with the present ``hazards``; use as a context manager. ``url``: for ``--service``."""

    def __init__(self) -> None:
        self.hazards: dict[str, Any] = {}
        self.admission: list[dict[str, Any]] = []
        """Nodes in the answer to an admission check."""
        self.status = 200
        """Of that answer."""
        self.answers = threading.Event()
        """An admission check has no answer while this is not set."""
        self.answers.set()
        self.asked: list[dict[str, Any]] = []
        """Admission checks so far."""
        warner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, told = 200, dict[str, Any](node_warnings=warner.hazards)
                if self.path.endswith("/admission"):
                    warner.asked.append(json.loads(sent))
                    warner.answers.wait()
                    status, told = warner.status, {"nodes": warner.admission}
                body = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = _answer  # noqa: N815 - as http.server calls them

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server names it
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
