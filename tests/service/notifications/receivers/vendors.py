"""A web server on loopback that answers as a vendor does: it accepts what they accept, and refuses what they refuse.

The rules are those of the vendors' documentation; each module of ``receivers`` names its pages.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SLACK_PATH = "/services/T0123456789/B0123456789/abcdefghijklmnopqrstuvwx"
TEAMS_PATH = (
    "/workflows/0f1e2d3c4b5a69788796a5b4c3d2e1f0/triggers/manual/paths/invoke?api-version=2016-06-01"
    "&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE"
)
ROUTING_KEY = "0123456789abcdef0123456789abcdef"
Answer = tuple[int, str, dict[str, str]]


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Vendor:
    """The server. ``rule`` answers, unless ``forced`` has an answer for the next request."""

    rule: Callable[[Received], Answer]
    received: list[Received] = field(default_factory=list)
    forced: list[Answer] = field(default_factory=list)
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                vendor.answer(self, Received(self.command, self.path, headers, self.rfile.read(length)))

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def last(self) -> Received:
        return self.received[-1]

    def answer(self, handler: BaseHTTPRequestHandler, received: Received) -> None:
        self.received.append(received)
        status, text, headers = self.forced.pop(0) if self.forced else self.rule(received)
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text.encode())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def accept(_: Received) -> Answer:
    return 200, "", {}


def repeat(received: Received) -> Answer:
    """The page of a proxy that shows the whole request."""
    return 502, f"cannot reach {received.path} with {received.headers} and {received.body.decode()}", {}


def slack(received: Received) -> Answer:
    """An incoming webhook."""
    if received.path != SLACK_PATH:
        return 404, "no_service", {}
    try:
        payload = received.json
    except ValueError:
        return 400, "invalid_payload", {}
    if not payload.get("text"):
        return 400, "no_text", {}
    return (400, "invalid_blocks", {}) if any(_block_faults(payload["blocks"])) else (200, "ok", {})


def _block_faults(blocks: list[dict[str, Any]]) -> Iterator[str]:
    if len(blocks) > 50:
        yield "more than 50 blocks"
    for block in blocks:
        limits = {"header": 150, "section": 3000}
        if block["type"] in limits and not 0 < len(block["text"]["text"]) <= limits[block["type"]]:
            yield f"text of a {block['type']}"
        if block["type"] == "header" and block["text"]["type"] != "plain_text":
            yield "markup in a header"
        if "fields" in block and not 0 < len(block["fields"]) <= 10:
            yield "number of fields"
        if any(not 0 < len(text["text"]) <= 2000 for text in block.get("fields", [])):
            yield "text of a field"
        for element in block.get("elements", []):
            if element["type"] == "button" and (len(element["text"]["text"]) > 75 or len(element["url"]) > 3000):
                yield "a button"


def teams(received: Received) -> Answer:
    """The webhook of a workflow."""
    wanted, found = (parse_qs(urlsplit(path).query).get("sig") for path in (TEAMS_PATH, received.path))
    if wanted != found:
        code = {"code": "DirectApiAuthorizationRequired", "message": "The request must be authenticated."}
        return 401, json.dumps({"error": code}), {}
    if len(received.body) > 28 * 1024:
        return 413, json.dumps({"error": {"code": "RequestEntityTooLarge"}}), {}
    (attachment,) = received.json["attachments"]
    known = attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    return (202, "", {}) if known and not any(_card_faults(attachment["content"])) else (400, "TriggerInputSchema", {})


def _card_faults(card: dict[str, Any]) -> Iterator[str]:
    if (card["type"], card["version"]) != ("AdaptiveCard", "1.4"):
        yield "another card"
    for block in card["body"]:
        if block["type"] != "RichTextBlock" or any(run["type"] != "TextRun" for run in block["inlines"]):
            yield "a block in which markup works"
    for action in card["actions"]:
        if action["type"] != "Action.OpenUrl" or not action["url"].startswith("https://"):
            yield "an action that opens no page"


def pagerduty(received: Received) -> Answer:
    """The Events API v2."""
    if len(received.body) > 512 * 1024:
        return 413, "", {}
    try:
        faults = list(_event_faults(received.json))
    except ValueError:
        faults = ["JSON cannot be parsed"]
    if faults:
        refusal = {"status": "invalid event", "message": "Event object is invalid", "errors": faults}
        return 400, json.dumps(refusal), {}
    done = {"status": "success", "message": "Event processed", "dedup_key": received.json["dedup_key"]}
    return 202, json.dumps(done), {}


def _event_faults(event: dict[str, Any]) -> Iterator[str]:
    if event["routing_key"] != ROUTING_KEY:
        yield f"'routing_key' is invalid: {event['routing_key']}"
    if event["event_action"] not in {"trigger", "acknowledge", "resolve"}:
        yield "'event_action' is invalid"
    if not 0 < len(event["dedup_key"]) <= 255:
        yield "'dedup_key' is invalid"
    payload = event["payload"]
    if not 0 < len(payload["summary"]) <= 1024:
        yield "'payload.summary' is missing or too long"
    if payload["severity"] not in {"critical", "error", "warning", "info"}:
        yield "'payload.severity' is invalid"
    if not payload["source"]:
        yield "'payload.source' is missing"
    if not all(link["href"].startswith("https://") for link in event["links"]):
        yield "'links' are invalid"
