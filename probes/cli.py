"""``mainstay node``, ``relay`` and ``doctor``. Invalid input gives one clear line and a non-zero code."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainstay.probes.command_options import (
    CommandParser,
    NodeOptions,
    RelayOptions,
    ServiceOptions,
    build_parser,
    fail,
    parse,
)
from mainstay.probes.stop_signal import stop_at_signal

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.probes.daemon import NodeDaemon
    from mainstay.probes.transport import TlsFiles, Transport

_ONCE_S: Final = 30.0
"""How long ``--once`` tries."""
_RELAY_ANSWER_S: Final = 5.0
"""A relay answers after one write to its disk; one that takes longer is better left alone."""
_NODE: Final = "Run the node daemon: sample this machine, send the samples, and run the tasks of the service."
_RELAY: Final = "Run a rack relay: take frames of nodes, store them, and send them to the service in bundles."
_DOCTOR: Final = "Check this machine for missing requirements; the exit code is 0 if the essentials are present."


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command of this module."""
    doctor = CommandParser(prog="mainstay doctor", description=_DOCTOR, allow_abbrev=False)
    doctor.add_argument("--json", action="store_true", help="Print the checks as JSON.")
    return {
        "node": build_parser("node", _NODE, NodeOptions),
        "relay": build_parser("relay", _RELAY, RelayOptions),
        "doctor": doctor,
    }


def node(words: Sequence[str]) -> None:
    """Run ``mainstay node`` with these words of the command line."""
    from mainstay.probes.spool import SpoolError

    options = parse(parsers()["node"], NodeOptions, words)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        daemon = _daemon(options)
    except (ValueError, OSError, SpoolError) as error:
        fail("node", str(error))
    stop_at_signal(daemon.stop)
    give_up = time.monotonic() + _ONCE_S
    daemon.run(until=lambda d: options.once and (_sent(d) or time.monotonic() > give_up))
    if options.once and not _sent(daemon):
        fail("node", f"{options.service} did not receive the report and a frame within {_ONCE_S:.0f} s", 1)


def relay(words: Sequence[str]) -> None:
    """Run ``mainstay relay`` with these words of the command line."""
    from mainstay.probes.relay import check_options, run_relay
    from mainstay.probes.spool import SpoolError
    from mainstay.probes.transport import Transport

    options = parse(parsers()["relay"], RelayOptions, words)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        check_options(options)
        transport = Transport(options.service, _token(options), tls=_tls(options))
        if not transport.token:
            fail("relay", "no token: pass --token-file ('mainstay token relay' creates the token)")
        run_relay(options, transport, lambda name, url: print(f"Mainstay relay {name} is ready on {url}", flush=True))
    except (ValueError, OSError, SpoolError) as error:
        fail("relay", str(error))


def doctor(words: Sequence[str]) -> None:
    """Run ``mainstay doctor`` with these words of the command line."""
    from mainstay.probes.doctor import examine, healthy, render, to_json

    as_json = parsers()["doctor"].parse_args(list(words)).json
    checks = examine()
    if as_json:
        print(to_json(checks))
    else:
        print(render(checks))
    sys.exit(0 if healthy(checks) else 1)


def _daemon(options: NodeOptions) -> NodeDaemon:
    from mainstay.probes.daemon import NodeDaemon, check_options
    from mainstay.probes.data_dir import default_data_dir, keep_files_private, private_directory
    from mainstay.probes.identity import default_name
    from mainstay.probes.transport import Transport

    check_options(options)
    name = options.name or default_name()
    try:
        relay = Transport(options.relay, read_s=_RELAY_ANSWER_S, tls=_tls(options)) if options.relay else None
    except ValueError as error:
        raise ValueError(f"--relay: {error}") from error
    keep_files_private()
    directory = private_directory(options.data_dir or default_data_dir())
    transport = Transport(options.service, _token(options), tls=_tls(options))
    enroll = _enrollment(options, name, directory, transport)
    return NodeDaemon(options, name, directory, transport, enroll=enroll, relay=relay)


def _tls(options: ServiceOptions) -> TlsFiles:
    from mainstay.probes.transport import TlsFiles

    return TlsFiles(options.ca_file, options.client_certificate, options.client_key)


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


def _enrollment(options: NodeOptions, name: str, directory: Path, transport: Transport) -> Callable[[], str] | None:
    """Set the token of the transport if possible; else return a function that gets one when the service answers.

    Raises:
        ValueError: no token is available.
    """
    from mainstay.probes.identity import enroll, load_credential
    from mainstay.probes.transport import RejectedError, RetryableError

    if transport.token:
        return None
    stored = load_credential(options.service, name, directory)
    if stored is None and not options.join_token:
        raise ValueError(
            "no token: give --token-file, or enroll this node with --join-token "
            "('mainstay token join' on the host of the service creates one)"
        )

    def get() -> str:
        join_token = options.join_token or ""
        return stored or enroll(options.service, name, join_token, directory, _tls(options))

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
