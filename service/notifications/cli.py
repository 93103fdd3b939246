"""``mainstay notifications``: check, upload, show, and test routes and receivers of messages about incidents.

Exit codes: 0 done, 2 invalid input, 5 the service rejected the request or did not answer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import App

from mainstay.detectors.cli_errors import BAD_INPUT, NO_SERVICE, InputError, one_line
from mainstay.probes.transport import TransportError
from mainstay.service.commands.cli import Connection

if TYPE_CHECKING:  # the commands import what they need when they run
    from mainstay.probes.transport import Transport

_CONFIG: Final = "/notifications/config"
_TEST_SECONDS: Final = 30.0

_STORED: Final = Connection()

notifications = App(name="notifications", help="Configure messages about incidents.")

_one_line = one_line("mainstay notifications", {InputError: BAD_INPUT, TransportError: NO_SERVICE})


@notifications.command
@_one_line
def check(file: Path, /) -> int:
    """Check a file of routes and receivers; an error names the place and the problem.

    Parameters
    ----------
    file
        Read this TOML file.
    """
    from mainstay.service.common.problem import UnprocessableError
    from mainstay.service.notifications.config import parse

    try:
        made = parse(_text(file))
    except UnprocessableError as error:
        raise InputError(f"{file}: {error}") from error
    print(f"{file}: valid; {len(made.receivers)} receivers, {len(made.routes)} routes")
    return 0


@notifications.command
@_one_line
def push(file: Path, /, connection: Connection = _STORED) -> int:
    """Put the routes and receivers of a file in force.

    Parameters
    ----------
    file
        Read this TOML file.
    """
    transport = connection.open()
    version = transport.json("GET", _CONFIG)["version"]
    told = transport.json("PUT", _CONFIG, {"text": _text(file), "replaces": version})
    print(f"version {told['version']} is in force: {len(told['receivers'])} receivers, {len(told['routes'])} routes")
    for receiver in told["receivers"]:
        for secret in receiver["missing_secrets"]:
            print(f"receiver {receiver['name']}: the service finds no secret {secret!r} in {told['secrets_dir']}")
    return 0


@notifications.command
@_one_line
def show(connection: Connection = _STORED) -> int:
    """Print the routes and receivers in force as TOML."""
    print(connection.open().json("GET", _CONFIG)["text"], end="")
    return 0


@notifications.command(name="test")
@_one_line
def send_test(receiver: str, /, connection: Connection = _STORED) -> int:
    """Send a test message and wait until the receiver has accepted it.

    Parameters
    ----------
    receiver
        Name of the receiver.
    """
    transport = connection.open()
    sent = transport.json("POST", "/notifications:test", {"receiver": receiver})
    found = _wait(transport, receiver, sent["id"])
    if found["state"] != "delivered":
        error = found["error"] or "no attempt has ended"
        raise TransportError(f"{receiver} has not accepted the message after {_TEST_SECONDS:.0f} s: {error}")
    print(f"{receiver} accepted the message")
    return 0


def _wait(transport: Transport, receiver: str, message: str) -> dict[str, Any]:
    """The message once its end is known, or as it is after ``_TEST_SECONDS``."""
    deadline = time.monotonic() + _TEST_SECONDS
    while True:
        listed = transport.json("GET", f"/notifications?receiver={receiver}&limit=50")["items"]
        found: dict[str, Any] = next((item for item in listed if item["id"] == message), {"state": "", "error": ""})
        if found["state"] in {"delivered", "failed"} or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text") from error
