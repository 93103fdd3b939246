"""``mainstay node`` and ``mainstay doctor``. Invalid input gives one clear line and a non-zero code."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from cyclopts import Parameter

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.probes.daemon import DaemonConfig, NodeDaemon
    from mainstay.probes.transport import Transport

_ONCE_S: Final = 30.0
"""How long ``--once`` tries."""


def _option(variable: str | None, about: str) -> Any:
    return Parameter(env_var=variable, help=about, negative="")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of ``mainstay node``, from the command line or the environment."""

    service: Annotated[str, _option("MAINSTAY_SERVICE", "Connect to the service at this URL.")] = (
        "http://127.0.0.1:8080"
    )
    name: Annotated[str | None, _option("MAINSTAY_NODE", "Name this node; the default is the host name.")] = None
    token: Annotated[
        str | None,
        _option("MAINSTAY_TOKEN", "Use this token of the node; prefer a file, as all users can read a command line."),
    ] = None
    token_file: Annotated[Path | None, _option("MAINSTAY_TOKEN_FILE", "Read the token of the node from this file.")] = (
        None
    )
    join_token: Annotated[
        str | None,
        _option(
            "MAINSTAY_JOIN_TOKEN",
            "Enroll the node with this one-time token; the data directory keeps the token of the node.",
        ),
    ] = None
    data_dir: Annotated[Path | None, _option("MAINSTAY_NODE_DATA", "Keep spool and credential in this directory.")] = (
        None
    )
    cohort: Annotated[
        str | None,
        _option("MAINSTAY_COHORT", "Compare this node with this cohort; the default follows from the hardware."),
    ] = None
    rack: Annotated[str, _option("MAINSTAY_RACK", "Name the rack; Mainstay groups faults of many nodes of a rack.")] = (
        ""
    )
    switches: Annotated[
        str,
        _option("MAINSTAY_SWITCHES", "List the network switches above the node, nearest first: leaf-3,spine-1."),
    ] = ""
    kernel_log: Annotated[
        str,
        _option(
            "MAINSTAY_KERNEL_LOG",
            "Read the kernel log: auto (/dev/kmsg, else journald), off, or the path of a file or pipe.",
        ),
    ] = "auto"
    interval: Annotated[float, _option("MAINSTAY_INTERVAL", "Set the seconds between samples.")] = 1.0
    batch: Annotated[int, _option("MAINSTAY_BATCH", "Set the samples per frame.")] = 2
    once: Annotated[
        bool, _option(None, "Send the report and one frame, then exit; the code is 0 if the service received both.")
    ] = False


def node(options: NodeOptions = NodeOptions()) -> None:
    """Run the node daemon: sample this machine, send the samples, and run the tasks of the service."""
    from mainstay.probes.spool import SpoolError

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
        _fail("node", f"{options.service} did not receive the report and a frame within {_ONCE_S:.0f} s", 1)


def doctor(*, json: Annotated[bool, Parameter(negative="", help="Print the checks as JSON.")] = False) -> None:
    """Check this machine for missing requirements; the exit code is 0 if the essentials are present."""
    from mainstay.probes.doctor import examine, healthy, render, to_json

    checks = examine()
    if json:
        print(to_json(checks))
    else:
        render(checks)
    sys.exit(0 if healthy(checks) else 1)


def _daemon(options: NodeOptions) -> NodeDaemon:
    from mainstay.probes.transport import Transport

    config = _config(options)
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    transport = Transport(options.service, _token(options))
    return config.build(transport, enroll=_enrollment(options, config, transport))


def _config(options: NodeOptions) -> DaemonConfig:
    from mainstay.probes.core_types import validate_name
    from mainstay.probes.daemon import DaemonConfig
    from mainstay.probes.data_dir import default_data_dir
    from mainstay.probes.identity import default_name, read_switches
    from mainstay.probes.sampler_supervisor import SamplerProcessConfig

    if not 0.05 <= options.interval <= 3600:
        raise ValueError(f"--interval {options.interval} must be from 0.05 to 3600 s")
    if not 1 <= options.batch <= 3600:
        raise ValueError(f"--batch {options.batch} must be from 1 to 3600 samples")
    return DaemonConfig(
        name=validate_name(options.name, "--name") if options.name else default_name(),
        data_dir=options.data_dir or default_data_dir(),
        cohort=validate_name(options.cohort, "--cohort") if options.cohort else None,
        batch=options.batch,
        rack=validate_name(options.rack, "--rack") if options.rack else "",
        switches=read_switches(options.switches),
        kernel_log=options.kernel_log,
        child=SamplerProcessConfig(interval=options.interval),
    )


def _token(options: NodeOptions) -> str:
    token = options.token or ""
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read --token-file {options.token_file}: {error}") from error
        if not token:
            raise ValueError(f"--token-file {options.token_file} is empty")
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token contains invalid characters")
    return token


def _enrollment(options: NodeOptions, config: DaemonConfig, transport: Transport) -> Callable[[], str] | None:
    """Set the token of the transport if possible; else return a function that gets one when the service answers.

    Raises:
        ValueError: no token is available.
    """
    from mainstay.probes.identity import enroll, load_credential
    from mainstay.probes.transport import RejectedError, RetryableError

    if transport.token:
        return None
    stored = load_credential(options.service, config.name, config.data_dir)
    if stored is None and not options.join_token:
        raise ValueError(
            "no token: give --token-file, or enroll this node with --join-token "
            "('mainstay token join' on the host of the service creates one)"
        )

    def get() -> str:
        return stored or enroll(options.service, config.name, options.join_token or "", config.data_dir)

    try:
        transport.token = get()
    except RejectedError as error:
        raise ValueError(str(error)) from error
    except RetryableError as error:
        if 400 <= error.status < 500:
            raise ValueError(str(error)) from error
        logging.getLogger(__name__).warning("%s; the daemon samples meanwhile", error)
        return get
    return None


def _sent(daemon: NodeDaemon) -> bool:
    return daemon.delivered > 0 and daemon.reported


def _fail(command: str, message: str, code: int = 2) -> NoReturn:
    print(f"mainstay {command}: {message}", file=sys.stderr)
    sys.exit(code)
