"""``mainstay run``: one node's launcher, and on node rank 0 the coordinator beside it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence

from recovery.launcher.coordinator import Coordinator
from recovery.launcher.launcher import Launcher
from recovery.launcher.options import OptionsError, RunOptions, parse
from recovery.launcher.reporter import Reporter


def main(words: Sequence[str]) -> int:
    """Run the job on this node; returns its exit code, 2 for bad input."""
    try:
        options = parse(words)
        listener = _store_socket(options) if options.node_rank == 0 else None
    except OptionsError as error:
        print(f"mainstay run: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    logging.basicConfig(level=logging.INFO, format=f"[{options.node}] %(message)s")
    try:
        return asyncio.run(_serve(options, listener))
    except OSError as error:
        print(f"mainstay run: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 1


def _store_socket(options: RunOptions) -> socket.socket:
    """Where the store will listen: bound before anybody is told."""
    try:
        return socket.create_server((options.host, 0), backlog=1024)
    except OSError as error:
        raise OptionsError(f"--rdzv-endpoint: this node cannot listen on {options.host}: {error}") from error


async def _serve(options: RunOptions, listener: socket.socket | None) -> int:
    if listener is None:
        return await _launch(options, (options.host, options.port), None, None)
    host, port = listener.getsockname()[:2]
    reporter = Reporter(options)
    coordinator = Coordinator(options, reporter, (host, port))
    try:
        found = await coordinator.start(options.host, options.port)
        return await _launch(options, (options.host, found), coordinator, listener)
    finally:
        await coordinator.close()
        reporter.close()


async def _launch(
    options: RunOptions, endpoint: tuple[str, int], coordinator: Coordinator | None, listener: socket.socket | None
) -> int:
    launcher = Launcher(options, endpoint)

    def stop(number: int) -> None:
        if coordinator is not None:
            coordinator.stopped(128 + number)  # tells every node, this one among them
        launcher.stop(128 + number, f"stopped by {signal.Signals(number).name}")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return await launcher.run(listener)
