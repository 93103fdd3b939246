"""``mainstay notifications``: check, upload, show, and test routes and receivers of messages about incidents.

Exit codes: 0 done, 2 invalid input, 5 the service rejected the request or did not answer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, NO_SERVICE, InputError, one_line, open_transport
from mainstay.probes.transport import TransportError

if TYPE_CHECKING:  # the commands import what they need when they run
    from mainstay.probes.transport import Transport

_CONFIG: Final = "/notifications/config"
_TEST_SECONDS: Final = 30.0

notifications = App(name="notifications", help="Configure messages about incidents.")
Service = Annotated[str, Parameter(env_var="MAINSTAY_SERVICE")]
Token = Annotated[str | None, Parameter(env_var="MAINSTAY_TOKEN")]
TokenFile = Annotated[Path | None, Parameter(env_var="MAINSTAY_TOKEN_FILE")]

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
def push(file: Path, /, *, service: Service, token: Token = None, token_file: TokenFile = None) -> int:
    """Put the routes and receivers of a file in force.

    Parameters
    ----------
    file
        Read this TOML file.
    service
        Connect to the service at this URL.
    token
        Use this token with scope admin; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    """
    transport = open_transport(service, token, token_file)
    version = transport.json("GET", _CONFIG)["version"]
    told = transport.json("PUT", _CONFIG, {"text": _text(file), "replaces": version})
    print(f"version {told['version']} is in force: {len(told['receivers'])} receivers, {len(told['routes'])} routes")
    for receiver in told["receivers"]:
        for secret in receiver["missing_secrets"]:
            print(f"receiver {receiver['name']}: the service finds no secret {secret!r} in {told['secrets_dir']}")
    return 0


@notifications.command
@_one_line
def show(*, service: Service, token: Token = None, token_file: TokenFile = None) -> int:
    """Print the routes and receivers in force as TOML.

    Parameters
    ----------
    service
        Connect to the service at this URL.
    token
        Use this token with scope read; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    """
    print(open_transport(service, token, token_file).json("GET", _CONFIG)["text"], end="")
    return 0


@notifications.command(name="test")
@_one_line
def send_test(receiver: str, /, *, service: Service, token: Token = None, token_file: TokenFile = None) -> int:
    """Send a test message and wait until the receiver has accepted it.

    Parameters
    ----------
    receiver
        Name of the receiver.
    service
        Connect to the service at this URL.
    token
        Use this token with scope act; prefer a file, as all users can read a command line.
    token_file
        Read the token from this file.
    """
    transport = open_transport(service, token, token_file)
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
