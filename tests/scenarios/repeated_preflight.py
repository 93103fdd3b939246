"""Check NODES nodes of this machine TIMES times, as a coordinator does; print what was found wrong each time.

Usage: repeated_preflight.py NODESxTIMES…. The launchers of all nodes share one fork server, and have no ranks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any, cast

from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.preflight import Preflight
from mainstay.recovery.controller.state.events import NodeJoined
from mainstay.recovery.node.child_processes import ForkServerClient
from mainstay.recovery.node.node_check import PRELOAD, NodeChecker
from mainstay.recovery.node.process_control import adopt_orphans
from mainstay.recovery.node.worker_output import OutputPump
from mainstay.recovery.options import RunOptions, parse
from mainstay.recovery.protocol.messages import LauncherHello


class Line:
    """The connection to a launcher that only checks."""

    def __init__(self, checker: NodeChecker) -> None:
        self._checker = checker
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: Any) -> None:
        """Have the launcher carry out the message."""
        task = asyncio.ensure_future(self._checker.run(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def options_of(number: int, nodes: int) -> RunOptions:
    """The options of one node."""
    flags = {"--nnodes": nodes, "--node-rank": number, "--node-name": f"node-{number}", "--job-id": "job"}
    words = [str(word) for flag in flags.items() for word in flag]
    return parse([*words, "--rdzv-endpoint", "127.0.0.1:1", "--preflight", "enforce", "-m", "no_script"])


async def repeat(nodes: int, times: int, fork_server: ForkServerClient) -> None:
    """Check the nodes again and again."""
    job = Job(options_of(0, nodes), cast("Any", None), cast("Any", None))
    check = Preflight(job)

    def answer(message: Any) -> None:
        check.answer(message)
        job.spawn(job.notify())  # as a coordinator does after each message

    for number in range(nodes):
        options = options_of(number, nodes)
        hello = LauncherHello(
            job="job", node=options.node, node_rank=number, nnodes=nodes, nproc=1, spares=0, standbys=0,
            pid=1, agent_endpoint="127.0.0.1:1",
        )  # fmt: skip
        line = Line(NodeChecker(options, fork_server, answer))
        job.connections[options.node] = LauncherConnection(cast("Any", line), 0.0)
        job.apply(NodeJoined(hello=hello))
    for _ in range(times):
        begun = time.monotonic()
        await check.check_start()
        told = {"nodes": nodes, "bad": check.bad, "seconds": time.monotonic() - begun}
        print(json.dumps(told), flush=True)


async def main(rounds: list[str]) -> None:
    """Each of ``rounds`` is NODESxTIMES."""
    adopt_orphans()
    pump = OutputPump()
    fork_server = ForkServerClient(pump, (PRELOAD,))
    await fork_server.warm
    for words in rounds:
        nodes, times = map(int, words.split("x"))
        await repeat(nodes, times, fork_server)
    fork_server.close()
    await fork_server.child.kill()
    pump.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    asyncio.run(main(sys.argv[1:]))
