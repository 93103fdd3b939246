"""``mainstay node``, ``relay`` and ``doctor``. Invalid input gives one clear line and a non-zero code."""

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
    from mainstay.probes.relay import RelayConfig
    from mainstay.probes.transport import TlsFiles, Transport

_ONCE_S: Final = 30.0
"""How long ``--once`` tries."""
_RELAY_ANSWER_S: Final = 5.0
"""A relay answers after one write to its disk; one that takes longer is better left alone."""


def _option(variable: str | None, about: str) -> Any:
    return Parameter(env_var=variable, help=about, negative="")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a node daemon or a relay reaches the service."""

    service: Annotated[str, _option("MAINSTAY_SERVICE", "Connect to the service at this URL.")] = (
        "http://127.0.0.1:8080"
    )
    token: Annotated[
        str | None,
        _option("MAINSTAY_TOKEN", "Use this token; prefer a file, as all users can read a command line."),
    ] = None
    token_file: Annotated[
        Path | None,
        _option("MAINSTAY_TOKEN_FILE", "Read the token from this file ('mainstay token' creates it)."),
    ] = None
    ca_file: Annotated[
        Path | None, _option("MAINSTAY_CA_FILE", "Trust the authorities in this PEM file instead of the system's.")
    ] = None
    client_certificate: Annotated[
        Path | None, _option("MAINSTAY_CLIENT_CERTIFICATE", "Show this PEM certificate to the service.")
    ] = None
    client_key: Annotated[
        Path | None, _option("MAINSTAY_CLIENT_KEY", "Read the PEM private key of the certificate from this file.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(ServiceOptions):
    """Options of ``mainstay node``, from the command line or the environment."""

    relay: Annotated[
        str | None,
        _option(
            "MAINSTAY_RELAY",
            "Send frames through the relay at this URL; they go to the service directly while it does not answer.",
        ),
    ] = None
    name: Annotated[str | None, _option("MAINSTAY_NODE", "Name this node; the default is the host name.")] = None
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
    power_domain: Annotated[
        str, _option("MAINSTAY_POWER_DOMAIN", "Name the PDU, busway, or UPS that feeds the node and its neighbors.")
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


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(ServiceOptions):
    """Options of ``mainstay relay``, from the command line or the environment."""

    name: Annotated[str | None, _option("MAINSTAY_RELAY_NAME", "Name this relay; the default is the host name.")] = None
    data_dir: Annotated[Path | None, _option("MAINSTAY_RELAY_DATA", "Keep the spool in this directory.")] = None
    host: Annotated[str, _option("MAINSTAY_RELAY_HOST", "Listen on this address; the default is loopback.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _option("MAINSTAY_RELAY_PORT", "Listen on this port; 0 takes a free one.")] = 8081
    spool_bytes: Annotated[
        int, _option("MAINSTAY_RELAY_SPOOL_BYTES", "Keep at most this many bytes of frames; nodes send directly then.")
    ] = 1024 * 1024 * 1024
    gather: Annotated[
        float, _option("MAINSTAY_RELAY_GATHER", "Set the seconds that frames wait for those of other nodes.")
    ] = 0.5
    tls_certificate: Annotated[
        Path | None, _option("MAINSTAY_RELAY_TLS_CERTIFICATE", "Read the PEM certificate chain from this file.")
    ] = None
    tls_key: Annotated[Path | None, _option("MAINSTAY_RELAY_TLS_KEY", "Read the PEM private key from this file.")] = (
        None
    )
    insecure_listen: Annotated[
        bool,
        _option("MAINSTAY_RELAY_INSECURE_LISTEN", "Listen beyond loopback without TLS, in a network that you trust."),
    ] = False


def relay(options: RelayOptions = RelayOptions()) -> None:
    """Run a rack relay: take frames of nodes, store them, and send them to the service in bundles."""
    from mainstay.probes.relay import run_relay
    from mainstay.probes.spool import SpoolError
    from mainstay.probes.transport import Transport

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = _relay_config(options)
        transport = Transport(options.service, _token(options), tls=_tls(options))
        if not transport.token:
            _fail("relay", "no token: pass --token-file ('mainstay token relay' creates the token)")
        run_relay(config, transport, lambda url: print(f"Mainstay relay {config.name} is ready on {url}", flush=True))
    except (ValueError, OSError, SpoolError) as error:
        _fail("relay", str(error))


def _relay_config(options: RelayOptions) -> RelayConfig:
    from mainstay.probes.core_types import validate_name
    from mainstay.probes.data_dir import default_data_dir
    from mainstay.probes.identity import default_name
    from mainstay.probes.relay import RelayConfig

    config = RelayConfig(
        name=validate_name(options.name, "--name") if options.name else default_name(),
        data_dir=options.data_dir or default_data_dir().with_name("relay"),
        host=options.host,
        port=options.port,
        spool_bytes=options.spool_bytes,
        gather=options.gather,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        insecure_listen=options.insecure_listen,
    )
    config.check()
    return config


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
    from mainstay.probes.data_dir import keep_files_private, private_directory
    from mainstay.probes.transport import Transport

    config = _config(options)
    try:
        relay = Transport(options.relay, read_s=_RELAY_ANSWER_S, tls=_tls(options)) if options.relay else None
    except ValueError as error:
        raise ValueError(f"--relay: {error}") from error
    keep_files_private()
    private_directory(config.data_dir)
    transport = Transport(options.service, _token(options), tls=_tls(options))
    return config.build(transport, enroll=_enrollment(options, config, transport), relay=relay)


def _tls(options: ServiceOptions) -> TlsFiles:
    from mainstay.probes.transport import TlsFiles

    return TlsFiles(options.ca_file, options.client_certificate, options.client_key)


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
        power_domain=validate_name(options.power_domain, "--power-domain") if options.power_domain else "",
        kernel_log=options.kernel_log,
        child=SamplerProcessConfig(interval=options.interval),
    )


def _token(options: ServiceOptions) -> str:
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
        join_token = options.join_token or ""
        return stored or enroll(options.service, config.name, join_token, config.data_dir, _tls(options))

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
