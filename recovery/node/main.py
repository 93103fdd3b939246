"""``mainstay run``: one node's launcher, and on node rank 0 the coordinator beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from mainstay.probes.data_dir import private_directory
from mainstay.probes.open_files import raise_open_file_limit
from mainstay.probes.spool import SpoolError
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.controller.failure import ReplayTrigger
from mainstay.recovery.membership import launcher_discovery
from mainstay.recovery.node.coordinator_host import CoordinatorHost
from mainstay.recovery.node.launcher import Launcher
from mainstay.recovery.option_values import TOKEN_VARIABLE, OptionsError
from mainstay.recovery.options import RunOptions, parse

log = logging.getLogger("mainstay.launcher")

FILES, FILES_PER_NODE = 512, 4
"""Open files of a coordinator: its own, and connections to each node, while an old one closes too."""


def main(words: Sequence[str]) -> int:
    """Run the job on this node; returns its exit code, 2 for bad input."""
    try:
        options = parse(words)
        os.environ.pop(TOKEN_VARIABLE, None)  # not for the processes that run the user's code
        logging.basicConfig(level=logging.INFO, format=f"[{options.node}] %(message)s")
        private_directory(options.state_dir)
        raise_open_file_limit(FILES + FILES_PER_NODE * options.max_nodes)
        return asyncio.run(_serve(options))
    except (OptionsError, CheckpointError, OSError, SpoolError) as error:
        print(f"mainstay run: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2 if isinstance(error, OptionsError | CheckpointError) else 1


async def _serve(options: RunOptions) -> int:
    office = CoordinatorHost(options)
    try:
        joins = await launcher_discovery.find_coordinator(options)
        first = joins or (options.host, options.port)
        if options.node_rank == 0 and joins is None:
            first = await office.open(*first)
        launcher = Launcher(options, first, office)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, _replay, office)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, launcher.leave, 128 + number, f"stopped by {number.name}")
        return await launcher.run()
    finally:
        await office.close()


def _replay(office: CoordinatorHost) -> None:
    if office.coordinator is None or not office.held:
        log.warning("SIGUSR2 asks for a replay: send it to the launcher that coordinates, of node 0 at first")
    else:
        office.coordinator.workflows.replays.request_replay(
            ReplayTrigger(reason="SIGUSR2 asks for a replay", asked=True)
        )
