"""Steady load on two ``mainstay serve`` for long: does memory stay flat, and is anything lost or stored twice?

``python -m bench.soak [--nodes N] [--minutes M] [--json FILE]``. Relays report all nodes each 5 s, and each minute an
event must become a finding. Both services are killed in the first half, in turn; in the second half nothing happens.
Telemetry stays in memory for an eighth of the run (at most 15 min, as by default), so that it is full by then.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from bench.lib_chaos import Load, two_services
from bench.lib_fleet import resident_bytes
from bench.report import RESULTS, Row, publish

KILLS = (0.12, 0.24, 0.36, 0.4)
"""Shares of the run after which a service is killed."""
MIB = 2**20


async def play(load: Load, minutes: float) -> None:
    memory, disk, waits, backlog = defaultdict[str, list[float]](list), list[float](), list[float](), list[int]()
    nodes, kills = iter(load.names[3::7]), iter(enumerate(KILLS))
    async with load.flowing():
        await asyncio.sleep(30.0)
        began, kill = time.monotonic(), next(kills, None)
        for minute in range(round(minutes)):
            before = time.monotonic()
            if kill is not None and minute / minutes >= kill[1]:
                service, kill = load.services[kill[0] % 2], next(kills, None)
                service.kill()
                service.start()
                await service.answers()
            asked = time.monotonic()
            waits.append(await load.detected(next(nodes), load.people) - asked)
            await asyncio.sleep(began + 60.0 * (minute + 1) - time.monotonic())
            for name, held in memory_of(load).items():
                memory[name].append(held)
            disk.append(load.server.scalar("SELECT pg_database_size(current_database())") / MIB)
            backlog.append(load.backlog())
            told = ", ".join(f"{name} {used[-1]:.0f} MiB" for name, used in memory.items())
            print(f"{minute + 1} min: {told}, disk {disk[-1]:.0f} MiB, {before - began:.0f} s", flush=True)
        await load.settle(60.0)
    half = len(disk) // 2
    for name, used in memory.items():
        limit = None if name == "PostgreSQL" else 2.0
        note = f"from {used[half]:.0f} to {used[-1]:.0f} MiB, by the slope of {len(used) - half} readings"
        load.row(f"memory of {name}, growth in the second half", growth(used[half:]), "%", limit, note=note)
    load.row("bundles that relays hold, most in the second half", max(backlog[half:]), "", len(load.relays))
    load.row("event to finding, worst", max(waits), "s", 10.0, n=len(waits), note=f"with {len(KILLS)} kills")
    rate = (disk[-1] - disk[half]) / (len(disk) - half - 1 or 1) * 60 / len(load.names)
    load.row("disk of PostgreSQL a node-hour", rate, "MiB", None, note=f"{disk[-1]:.0f} MiB in the end")
    await load.compare([(relay, relay.nodes[0]) for relay in load.relays[:8]], 600.0)


def memory_of(load: Load) -> dict[str, float]:
    """MiB of each service, and of PostgreSQL: what its processes share counts once."""
    used = {f"service {n}": resident_bytes(one.child.pid) / MIB for n, one in enumerate(load.services, start=1)}
    backends = [pid for (pid,) in load.server.query("SELECT pid FROM pg_stat_activity")]
    return used | {"PostgreSQL": sum(map(proportional_bytes, backends)) / MIB}


def proportional_bytes(pid: int) -> int:
    """Memory of a process, its part of what it shares; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def growth(used: list[float]) -> float:
    """Percent by which the line through equally spaced readings rises from the first to the last."""
    slope, _ = np.polyfit(np.arange(len(used)), used, 1)
    return float(slope * (len(used) - 1) / np.mean(used) * 100)


async def measure(count: int, minutes: float) -> list[Row]:
    ring = int(min(900.0, max(60.0, minutes * 60 / 8)))
    names = [f"n{number:05d}" for number in range(count)]
    async with two_services(names, {"MAINSTAY_TELEMETRY__RING_SECONDS": str(ring)}) as made:
        load = Load(**made)
        load.row("minutes", minutes, "min", None, note=f"{ring} s of telemetry in memory")
        await play(load, minutes)
        return load.rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=120.0, help="at least 3: a slope needs two readings")
    parser.add_argument("--json", type=Path, default=RESULTS / "soak.json", metavar="FILE")
    told = parser.parse_args()
    publish("soak", asyncio.run(measure(told.nodes, told.minutes)), told.json)


if __name__ == "__main__":
    main()
