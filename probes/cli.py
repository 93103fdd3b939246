"""``mainstay node`` and ``mainstay doctor``. Bad input gives one clear line and a non-zero code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from cyclopts import Parameter

if TYPE_CHECKING:  # commands import what they need when they run
    from probes.daemon import DaemonConfig, NodeDaemon
    from probes.transport import Transport

_ONCE_S: Final = 30.0
"""How long ``--once`` tries."""


def _option(variable: str | None, about: str) -> Any:
    return Parameter(env_var=variable, help=about, negative="")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What ``mainstay node`` takes, from the command line or the environment."""

    service: Annotated[str, _option("MAINSTAY_SERVICE", "Where the service listens.")] = "http://127.0.0.1:8080"
    name: Annotated[str | None, _option("MAINSTAY_NODE", "This node's name; the host name if not given.")] = None
    token: Annotated[
        str | None,
        _option("MAINSTAY_TOKEN", "The node's own token (a command line can be read by every user: prefer a file)."),
    ] = None
    token_file: Annotated[Path | None, _option("MAINSTAY_TOKEN_FILE", "A file with the node's own token.")] = None
    join_token: Annotated[
        str | None,
        _option("MAINSTAY_JOIN_TOKEN", "A one-time token that enrols the node; its own is kept in the data directory."),
    ] = None
    data_dir: Annotated[Path | None, _option("MAINSTAY_NODE_DATA", "Where spool and credential are kept.")] = None
    cohort: Annotated[
        str | None, _option("MAINSTAY_COHORT", "Nodes of one cohort are compared; from the hardware if not given.")
    ] = None
    rack: Annotated[str, _option("MAINSTAY_RACK", "Where the node stands; a fault of many nodes of a rack is one.")] = (
        ""
    )
    switches: Annotated[
        str,
        _option("MAINSTAY_SWITCHES", "Network switches above the node, nearest first: leaf-3,spine-1."),
    ] = ""
    kernel_log: Annotated[
        str, _option("MAINSTAY_KERNEL_LOG", "auto (/dev/kmsg, else journald), off, or the path of a file or pipe.")
    ] = "auto"
    interval: Annotated[float, _option("MAINSTAY_INTERVAL", "Seconds between samples.")] = 1.0
    batch: Annotated[int, _option("MAINSTAY_BATCH", "Samples a frame.")] = 2
    once: Annotated[bool, _option(None, "Send the report and one frame, then end: 0 when the service has both.")] = (
        False
    )


def node(options: NodeOptions = NodeOptions()) -> None:
    """The node daemon: measures this machine, sends what it measured, carries out the service's orders."""
    from probes.spool import SpoolError

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        daemon = _daemon(options)
    except (ValueError, OSError, SpoolError) as error:
        _fail("node", str(error))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    give_up = time.monotonic() + _ONCE_S
    daemon.run(until=lambda d: options.once and (_sent(d) or time.monotonic() > give_up))
    if options.once and not _sent(daemon):
        _fail("node", f"{options.service} did not take the report and a frame within {_ONCE_S:.0f} s", 1)


def doctor(*, json: Annotated[bool, Parameter(negative="", help="Print the checks as JSON.")] = False) -> None:
    """What is missing on this machine and how to get it; 0 when the essentials are there."""
    from probes.doctor import examine, healthy, render, to_json

    checks = examine()
    if json:
        print(to_json(checks))
    else:
        render(checks)
    sys.exit(0 if healthy(checks) else 1)


def default_data_dir() -> Path:
    """The system's place for a service's state when root, the user's own otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/mainstay/node")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mainstay" / "node"


def _daemon(options: NodeOptions) -> NodeDaemon:
    from probes.transport import Transport

    config = _config(options)
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    transport = Transport(options.service, _token(options))
    return config.build(transport, enrol=_enrolment(options, config, transport))


def _config(options: NodeOptions) -> DaemonConfig:
    from probes.child import ChildConfig
    from probes.daemon import DaemonConfig
    from probes.identity import default_name, read_switches
    from probes.words import check_name

    if not 0.05 <= options.interval <= 3600:
        raise ValueError(f"--interval {options.interval} is not between 0.05 and 3600 seconds")
    if not 1 <= options.batch <= 3600:
        raise ValueError(f"--batch {options.batch} is not between 1 and 3600 samples")
    return DaemonConfig(
        name=check_name(options.name, "--name") if options.name else default_name(),
        data_dir=options.data_dir or default_data_dir(),
        cohort=check_name(options.cohort, "--cohort") if options.cohort else None,
        batch=options.batch,
        rack=check_name(options.rack, "--rack") if options.rack else "",
        switches=read_switches(options.switches),
        kernel_log=options.kernel_log,
        child=ChildConfig(interval=options.interval),
    )


def _token(options: NodeOptions) -> str:
    token = options.token or ""
    if options.token_file is not None:
        token = options.token_file.read_text().strip()
        if not token:
            raise ValueError(f"--token-file {options.token_file} is empty")
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token holds characters that no token has")
    return token


def _enrolment(options: NodeOptions, config: DaemonConfig, transport: Transport) -> Callable[[], str] | None:
    """Give the transport a token now if that is possible; else how to get one once the service can be reached.

    Raises:
        ValueError: there is no token to be had.
    """
    from probes.identity import enrol, load_credential
    from probes.transport import Later, Refused

    if transport.token:
        return None
    stored = load_credential(options.service, config.name, config.data_dir)
    if stored is None and not options.join_token:
        raise ValueError("no token: give --token-file, or --join-token to enrol this node (mainstay token makes one)")

    def get() -> str:
        return stored or enrol(options.service, config.name, options.join_token or "", config.data_dir)

    try:
        transport.token = get()
    except Refused as error:
        raise ValueError(str(error)) from error
    except Later as error:
        if 400 <= error.status < 500:
            raise ValueError(str(error)) from error
        logging.getLogger(__name__).warning("%s; measuring meanwhile", error)
        return get
    return None


def _sent(daemon: NodeDaemon) -> bool:
    return daemon.delivered > 0 and daemon.reported


def _fail(command: str, message: str, code: int = 2) -> NoReturn:
    print(f"mainstay {command}: {message}", file=sys.stderr)
    sys.exit(code)
