"""What a rack relay costs: the real ``mainstay relay`` between 128 nodes at 1 Hz and a receiver that keeps everything.

``python -m bench.relay [--nodes N] [--seconds S] [--json FILE]``. Nodes sample at the same moments, so their frames
arrive within the first third of each second. Processor time is that of the relay's process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import psutil

from bench.lib_fleet import GPU, GPUS, Client, Samples
from bench.lib_receiver import Receiver
from bench.report import RESULTS, Row, publish

_ROOT: Final = Path(__file__).resolve().parents[1]
_SPREAD_S: Final = 0.3
_WARM_UP_S: Final = 5


@dataclass
class Rack:
    """Nodes that send a frame a second through a relay."""

    port: int
    count: int
    samples: Samples = field(default_factory=lambda: Samples(1))
    acks: list[float] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.nodes = {f"n{k:05d}": Client(self.port, f"token-{k}", connections=1) for k in range(self.count)}

    async def announce(self) -> None:
        body = msgspec.json.encode(GPU)
        status, answer = await self.nodes["n00000"].request("PUT", f"/v1/telemetry/catalogs/{GPU.digest}", body)
        assert status == 204, answer

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.sent += 1
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for name in self.nodes:
                    group.create_task(self._send(name, self.sent))
            await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))

    async def _send(self, name: str, sequence: int) -> None:
        await asyncio.sleep(random.random() * _SPREAD_S)
        body, started = self.samples.frame(name, sequence), time.monotonic()
        status, answer = await self.nodes[name].request(
            "POST", "/v1/telemetry/frames", body, kind="application/msgpack"
        )
        assert status == 204, answer
        self.acks.append(time.monotonic() - started)


def measure(nodes: int, seconds: int) -> list[Row]:
    receiver, sizes = Receiver(), []
    receiver.node_tokens = {f"token-{k}": f"n{k:05d}" for k in range(nodes)}
    receiver.answer = lambda _m, path, body: sizes.append(len(body)) if path.endswith("/bundles") else None
    with receiver, tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "mainstay", "relay", "--service", receiver.url, "--port", "0", "--name", "r1"]
        child = subprocess.Popen(
            [*command, "--data-dir", directory],
            cwd=_ROOT, env={**os.environ, "MAINSTAY_TOKEN": "relay"}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert child.stdout is not None
            rack = Rack(int(child.stdout.readline().rsplit(":", 1)[1]), nodes)
            return asyncio.run(_watched(rack, psutil.Process(child.pid), receiver, seconds, sizes))
        finally:
            child.terminate()
            child.wait(15)


async def _watched(
    rack: Rack, process: psutil.Process, receiver: Receiver, seconds: int, sizes: list[int]
) -> list[Row]:
    await rack.announce()
    await rack.run(_WARM_UP_S)
    await asyncio.sleep(1.0)
    rack.acks.clear()
    sizes.clear()
    before, bundles, started = process.cpu_times(), len(receiver.bundles), time.monotonic()
    await rack.run(seconds)
    await asyncio.sleep(1.0)
    after, elapsed = process.cpu_times(), time.monotonic() - started
    busy = after.user + after.system - before.user - before.system
    frames = len(rack.acks)
    members = [len(subjects) for subjects in list(receiver.bundles.values())[bundles:]]
    readings = frames * rack.samples.readings
    nodes, load = rack.count, os.getloadavg()[0]
    note = f"{frames} frames of {rack.samples.readings} readings in {elapsed:.0f} s; load average {load:.1f}"
    p50, p99 = (float(1000 * q) for q in np.quantile(rack.acks, (0.5, 0.99)))
    return [
        _row(f"relay, {nodes} nodes at 1 Hz: processor time a frame", 1e6 * busy / frames, "us", note),
        _row(f"relay, {nodes} nodes at 1 Hz: share of a core", 100 * busy / elapsed, "%"),
        _row("relay: processor time a million readings", 1e6 * busy / readings, "s"),
        _row("relay: resident memory", process.memory_info().rss / 2**20, "MiB"),
        _row("relay: acknowledgement of a frame, median", p50, "ms", f"p99 {p99:.0f} ms"),
        _row("relay: nodes a bundle, mean", float(np.mean(members)), "nodes", f"{len(members)} bundles"),
        _row("relay: bytes a frame to the service", sum(sizes) / max(1, sum(members)), "B",
             f"{len(rack.samples.frame('n00000', 1))} B directly; {GPUS} GPUs"),
    ]  # fmt: skip


def _row(claim: str, figure: float, unit: str, note: str = "") -> Row:
    return Row(claim=claim, figure=figure, unit=unit, target="-", holds=None, kind="live", note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.relay")
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--json", type=Path, default=RESULTS / "relay.json", metavar="FILE")
    given = parser.parse_args()
    publish("relay", measure(given.nodes, given.seconds), given.json)
