"""``mainstay run``: one node's launcher, and on node rank 0 the coordinator beside it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence

from probes.spool import SpoolError
from recovery.launcher.coordinator import Coordinator
from recovery.launcher.launcher import Launcher
from recovery.launcher.options import OptionsError, RunOptions, parse
from recovery.launcher.replay import Suspicion
from recovery.launcher.reporter import Reporter

log = logging.getLogger("mainstay.launcher")


def main(words: Sequence[str]) -> int:
    """Run the job on this node; returns its exit code, 2 for bad input."""
    try:
        options = parse(words)
    except OptionsError as error:
        print(f"mainstay run: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    logging.basicConfig(level=logging.INFO, format=f"[{options.node}] %(message)s")
    try:
        return asyncio.run(_serve(options))
    except (OSError, SpoolError) as error:
        print(f"mainstay run: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 1


async def _serve(options: RunOptions) -> int:
    if options.node_rank != 0:
        launcher = Launcher(options, (options.host, options.port))
        _on_signal(lambda: log.warning("SIGUSR2 asks for a replay: send it to the launcher of node 0"))
        return await _run(launcher, launcher.stop)
    reporter = Reporter(options)
    coordinator = Coordinator(options, reporter)
    try:
        port = await coordinator.start(options.host, options.port)
        launcher = Launcher(options, (options.host, port))
        coordinator.new_store = launcher.host_store
        _on_signal(lambda: coordinator.replays.ask(Suspicion(reason="SIGUSR2 asks for a replay", asked=True)))

        def stop(exit_code: int, reason: str) -> None:
            coordinator.stopped(exit_code)  # tells every node, this one among them
            launcher.stop(exit_code, reason)

        return await _run(launcher, stop)
    finally:
        await coordinator.close()
        reporter.close()


def _on_signal(replay: Callable[[], object]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, replay)


async def _run(launcher: Launcher, stop: Callable[[int, str], None]) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, 128 + number, f"stopped by {number.name}")
    return await launcher.run()
