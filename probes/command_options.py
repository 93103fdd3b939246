"""Options of ``mainstay node`` and ``mainstay relay``, from the command line or the environment.

argparse reads them: a node needs no command-line library, which with its own requirements is larger than all else that
the node daemon installs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, NoReturn, TypeVar, get_args, get_type_hints

_Options = TypeVar("_Options")
_METAVARS: dict[type, str] = {str: "TEXT", Path: "PATH", int: "NUMBER", float: "NUMBER"}
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Option:
    """What a field of an options class says of itself."""

    text: str
    variable: str = ""
    """Environment variable that may set it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a node daemon or a relay reaches the service."""

    service: Annotated[str, Option("Connect to the service at this URL.", "MAINSTAY_SERVICE")] = "http://127.0.0.1:8080"
    token: Annotated[
        str | None, Option("Use this token; prefer a file, as all users can read a command line.", "MAINSTAY_TOKEN")
    ] = None
    token_file: Annotated[
        Path | None, Option("Read the token from this file ('mainstay token' creates it).", "MAINSTAY_TOKEN_FILE")
    ] = None
    ca_file: Annotated[
        Path | None, Option("Trust the authorities in this PEM file instead of the system's.", "MAINSTAY_CA_FILE")
    ] = None
    client_certificate: Annotated[
        Path | None, Option("Show this PEM certificate to the service.", "MAINSTAY_CLIENT_CERTIFICATE")
    ] = None
    client_key: Annotated[
        Path | None, Option("Read the PEM private key of the certificate from this file.", "MAINSTAY_CLIENT_KEY")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(ServiceOptions):
    """Options of ``mainstay node``, from the command line or the environment."""

    relay: Annotated[
        str | None,
        Option(
            "Send frames through the relay at this URL; they go to the service directly while it does not answer.",
            "MAINSTAY_RELAY",
        ),
    ] = None
    name: Annotated[str | None, Option("Name this node; the default is the host name.", "MAINSTAY_NODE")] = None
    join_token: Annotated[
        str | None,
        Option(
            "Enroll the node with this one-time token; the data directory keeps the token of the node.",
            "MAINSTAY_JOIN_TOKEN",
        ),
    ] = None
    data_dir: Annotated[Path | None, Option("Keep spool and credential in this directory.", "MAINSTAY_NODE_DATA")] = (
        None
    )
    cohort: Annotated[
        str | None,
        Option("Compare this node with this cohort; the default follows from the hardware.", "MAINSTAY_COHORT"),
    ] = None
    rack: Annotated[str, Option("Name the rack; Mainstay groups faults of many nodes of a rack.", "MAINSTAY_RACK")] = ""
    switches: Annotated[
        str, Option("List the network switches above the node, nearest first: leaf-3,spine-1.", "MAINSTAY_SWITCHES")
    ] = ""
    power_domain: Annotated[
        str, Option("Name the PDU, busway, or UPS that feeds the node and its neighbors.", "MAINSTAY_POWER_DOMAIN")
    ] = ""
    kernel_log: Annotated[
        str,
        Option(
            "Read the kernel log: auto (/dev/kmsg, else journald), off, or the path of a file or pipe.",
            "MAINSTAY_KERNEL_LOG",
        ),
    ] = "auto"
    interval: Annotated[float, Option("Set the seconds between samples.", "MAINSTAY_INTERVAL")] = 1.0
    batch: Annotated[int, Option("Set the samples per frame.", "MAINSTAY_BATCH")] = 2
    once: Annotated[
        bool, Option("Send the report and one frame, then exit; the code is 0 if the service received both.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(ServiceOptions):
    """Options of ``mainstay relay``, from the command line or the environment."""

    name: Annotated[str | None, Option("Name this relay; the default is the host name.", "MAINSTAY_RELAY_NAME")] = None
    data_dir: Annotated[Path | None, Option("Keep the spool in this directory.", "MAINSTAY_RELAY_DATA")] = None
    host: Annotated[str, Option("Listen on this address; the default is loopback.", "MAINSTAY_RELAY_HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option("Listen on this port; 0 takes a free one.", "MAINSTAY_RELAY_PORT")] = 8081
    spool_bytes: Annotated[
        int, Option("Keep at most this many bytes of frames; nodes send directly then.", "MAINSTAY_RELAY_SPOOL_BYTES")
    ] = 1024 * 1024 * 1024
    gather: Annotated[
        float, Option("Set the seconds that frames wait for those of other nodes.", "MAINSTAY_RELAY_GATHER")
    ] = 0.5
    tls_certificate: Annotated[
        Path | None, Option("Read the PEM certificate chain from this file.", "MAINSTAY_RELAY_TLS_CERTIFICATE")
    ] = None
    tls_key: Annotated[Path | None, Option("Read the PEM private key from this file.", "MAINSTAY_RELAY_TLS_KEY")] = None
    insecure_listen: Annotated[
        bool,
        Option("Listen beyond loopback without TLS, in a network that you trust.", "MAINSTAY_RELAY_INSECURE_LISTEN"),
    ] = False


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Names each default that is not empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class CommandParser(argparse.ArgumentParser):
    """Ends the command with one line where argparse prints its usage as well."""

    def error(self, message: str) -> NoReturn:
        fail(self.prog.removeprefix("mainstay "), f"{message}. Run '{self.prog} --help'.")


def build_parser(command: str, about: str, options: type) -> argparse.ArgumentParser:
    """Build the parser of ``mainstay COMMAND`` from a data class whose fields carry an ``Option``."""
    parser = CommandParser(
        prog=f"mainstay {command}", description=about, allow_abbrev=False, formatter_class=_HelpFormatter
    )
    defaults = options()
    for name, (kind, option) in options_of(options).items():
        text = option.text.replace("%", "%%") + (f" [{option.variable}]" if option.variable else "")
        if kind is bool:
            parser.add_argument(_flag(name), action="store_true", help=text)
            continue
        default = getattr(defaults, name)
        parser.add_argument(_flag(name), type=kind, default=default, help=text, metavar=_METAVARS[kind])
    return parser


def options_of(options: type) -> dict[str, tuple[type, Option]]:
    """Return the type of each field, without ``None``, and what it says of itself."""
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, option = get_args(hint)
        found[name] = (get_args(kind)[0] if isinstance(kind, UnionType) else kind, option)
    return found


def parse(parser: argparse.ArgumentParser, options: type[_Options], words: Sequence[str]) -> _Options:
    """Read the options; words of the command line win over variables of the environment. Bad input ends the command."""
    given = [
        word
        for name, (kind, option) in options_of(options).items()
        if (value := os.environ.get(option.variable, ""))
        for word in _as_words(parser, name, kind, option.variable, value)
    ]
    return options(**vars(parser.parse_args([*given, *words])))


def _as_words(parser: argparse.ArgumentParser, name: str, kind: type, variable: str, value: str) -> list[str]:
    if kind is not bool:
        return [f"{_flag(name)}={value}"]
    if value.lower() not in _SWITCH:
        parser.error(f"{variable}={value} must be one of {', '.join(_SWITCH)}")
    return [_flag(name)] if _SWITCH[value.lower()] else []


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def fail(command: str, message: str, code: int = 2) -> NoReturn:
    """End a command with one line on standard error."""
    sys.stderr.write(f"mainstay {command}: {message}\n")
    sys.exit(code)
