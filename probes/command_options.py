"""Options of ``mainstay node`` and ``mainstay relay``, from the command line or the environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import Parameter


def _variable(name: str) -> Any:
    """Let an environment variable set the option as well."""
    return Parameter(env_var=name, negative="")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a node daemon or a relay reaches the service."""

    service: Annotated[str, _variable("MAINSTAY_SERVICE")] = "http://127.0.0.1:8080"
    """Connect to the service at this URL."""
    token: Annotated[str | None, _variable("MAINSTAY_TOKEN")] = None
    """Use this token; prefer a file, as all users can read a command line."""
    token_file: Annotated[Path | None, _variable("MAINSTAY_TOKEN_FILE")] = None
    """Read the token from this file ('mainstay token' creates it)."""
    ca_file: Annotated[Path | None, _variable("MAINSTAY_CA_FILE")] = None
    """Trust the authorities in this PEM file instead of the system's."""
    client_certificate: Annotated[Path | None, _variable("MAINSTAY_CLIENT_CERTIFICATE")] = None
    """Show this PEM certificate to the service."""
    client_key: Annotated[Path | None, _variable("MAINSTAY_CLIENT_KEY")] = None
    """Read the PEM private key of the certificate from this file."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(ServiceOptions):
    """Options of ``mainstay node``, from the command line or the environment."""

    relay: Annotated[str | None, _variable("MAINSTAY_RELAY")] = None
    """Send frames through the relay at this URL; they go to the service directly while it does not answer."""
    name: Annotated[str | None, _variable("MAINSTAY_NODE")] = None
    """Name this node; the default is the host name."""
    join_token: Annotated[str | None, _variable("MAINSTAY_JOIN_TOKEN")] = None
    """Enroll the node with this one-time token; the data directory keeps the token of the node."""
    data_dir: Annotated[Path | None, _variable("MAINSTAY_NODE_DATA")] = None
    """Keep spool and credential in this directory."""
    cohort: Annotated[str | None, _variable("MAINSTAY_COHORT")] = None
    """Compare this node with this cohort; the default follows from the hardware."""
    rack: Annotated[str, _variable("MAINSTAY_RACK")] = ""
    """Name the rack; Mainstay groups faults of many nodes of a rack."""
    switches: Annotated[str, _variable("MAINSTAY_SWITCHES")] = ""
    """List the network switches above the node, nearest first: leaf-3,spine-1."""
    power_domain: Annotated[str, _variable("MAINSTAY_POWER_DOMAIN")] = ""
    """Name the PDU, busway, or UPS that feeds the node and its neighbors."""
    kernel_log: Annotated[str, _variable("MAINSTAY_KERNEL_LOG")] = "auto"
    """Read the kernel log: auto (/dev/kmsg, else journald), off, or the path of a file or pipe."""
    interval: Annotated[float, _variable("MAINSTAY_INTERVAL")] = 1.0
    """Set the seconds between samples."""
    batch: Annotated[int, _variable("MAINSTAY_BATCH")] = 2
    """Set the samples per frame."""
    once: Annotated[bool, Parameter(negative="")] = False
    """Send the report and one frame, then exit; the code is 0 if the service received both."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(ServiceOptions):
    """Options of ``mainstay relay``, from the command line or the environment."""

    name: Annotated[str | None, _variable("MAINSTAY_RELAY_NAME")] = None
    """Name this relay; the default is the host name."""
    data_dir: Annotated[Path | None, _variable("MAINSTAY_RELAY_DATA")] = None
    """Keep the spool in this directory."""
    host: Annotated[str, _variable("MAINSTAY_RELAY_HOST")] = "127.0.0.1"
    """Listen on this address; the default is loopback."""
    port: Annotated[int, _variable("MAINSTAY_RELAY_PORT")] = 8081
    """Listen on this port; 0 takes a free one."""
    spool_bytes: Annotated[int, _variable("MAINSTAY_RELAY_SPOOL_BYTES")] = 1024 * 1024 * 1024
    """Keep at most this many bytes of frames; nodes send directly then."""
    gather: Annotated[float, _variable("MAINSTAY_RELAY_GATHER")] = 0.5
    """Set the seconds that frames wait for those of other nodes."""
    tls_certificate: Annotated[Path | None, _variable("MAINSTAY_RELAY_TLS_CERTIFICATE")] = None
    """Read the PEM certificate chain from this file."""
    tls_key: Annotated[Path | None, _variable("MAINSTAY_RELAY_TLS_KEY")] = None
    """Read the PEM private key from this file."""
    insecure_listen: Annotated[bool, _variable("MAINSTAY_RELAY_INSECURE_LISTEN")] = False
    """Listen beyond loopback without TLS, in a network that you trust."""


def fail(command: str, message: str, code: int = 2) -> NoReturn:
    """End a command with one line on standard error."""
    sys.stderr.write(f"mainstay {command}: {message}\n")
    sys.exit(code)
