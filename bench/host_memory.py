"""What snapshots cost in host memory: shared memory and the agents' own, against S(slots + 2t/(g - t)) + 2 %.

Real agents on loopback, a rank each, with states of unequal tensors, under every scheme, after several protected epochs
so that all rows and copies exist that ever will. What counts are blocks of files under the arenas' directories, and
pages of the agents' processes that are not shared. The agents' own memory does not grow with the state, so the figure
that is promised is that of shared memory; theirs stands beside it in MiB, and in a sum worked out for 8 GiB of state.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.lib_agents import until
from bench.lib_budget import host_bytes
from bench.lib_source import ArraySource
from bench.protocol_fuzz import pid_of, resident
from bench.report import RESULTS, Row, publish
from bench.snapshot_path import MIB, agents
from mainstay.recovery import placement
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import Word
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.protection_scheme import ProtectionScheme, parse

SCHEMES: Final = (("xor", 4), ("rs:2", 6), ("copies:2", 4), ("none", 2))
"""And how many nodes."""
STATE: Final = 48 * MIB
EPOCHS: Final = 5
SLOTS: Final = 3
"""Two, and one for what parity still needs; without parity two."""
SLACK: Final = 0.02
NODE_STATE: Final = 8 * 1024 * MIB
"""What the sum with the agent's own memory is worked out for."""


class Node:
    """An agent's rank."""

    def __init__(self, client: AgentClient, rank: int, state: int) -> None:
        sizes = [state // 2, state // 4, state // 8, state // 8 - 1024 * rank]
        self.source = ArraySource({f"tensor{i}": np.full(size, rank, np.uint8) for i, size in enumerate(sizes)})
        self.arena = Arena.attach(Path(client.open_arena(rank, self.source.layout).path))
        self.writer = SnapshotWriter(
            self.arena, self.source, on_committed=lambda e, g, s: client.committed(rank, e, g, s)
        )

    def save(self, epoch: int) -> None:
        self.writer.start(epoch, 1)
        self.writer.wait()


def measured(scheme: ProtectionScheme, count: int, state: int) -> tuple[list[int], list[int]]:
    """Bytes in shared memory and of the agent's own, of each node, with everything there."""
    directory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    protected = scheme.tolerance > 0
    options = ["--parity-interval", "1"] if protected else []
    try:
        with agents(count, directory, *options, "--scrub-interval", "0") as found:
            nodes = [Node(client, rank, state) for rank, (_, client) in enumerate(found)]
            hosts = [placement.PlacementHost(f"node-{rank}", (rank,)) for rank in range(count)]
            groups: tuple[Group, ...] = tuple(
                tuple(GroupMember(node=f"node-{r}", endpoint=found[r][0], rank=r) for r in group)
                for group in (placement.place_groups(hosts, scheme).groups if protected else ())
            )
            for _, client in found:
                client.configure_parity(groups, 1 if protected else 0, str(scheme))
            for epoch in range(1, EPOCHS + 1):
                for node in nodes:
                    node.save(epoch)
                if protected:
                    until(lambda e=epoch: all(n.arena.word(Word.PARITY_EPOCH) == e for n in nodes), "parity", 120.0)  # type: ignore[misc]
            time.sleep(0.5)  # the memory released behind an epoch is gone
            shared = [blocks(directory, f"node-{rank}") for rank in range(count)]
            own = [resident(pid_of(client.path)) for _, client in found]
            for node in nodes:
                node.writer.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return shared, own


def blocks(directory: Path, node: str) -> int:
    """Bytes of all files of ``node``, as the file system counts them."""
    return sum(file.stat().st_blocks * 512 for at in directory.glob(f"*/*/{node}") for file in at.iterdir())


def rows(state: int) -> list[Row]:
    made = []
    for text, count in SCHEMES:
        scheme = parse(text, count if text in {"xor", "rs:2"} else None)
        shared, own = measured(scheme, count, state)
        slots = SLOTS if scheme.tolerance else 2
        group = count if scheme.parity and scheme.tolerance else 0
        parity = scheme.parity if group else 0
        bound = host_bytes(state, slots=slots, parity=parity, group=group, copies=scheme.copies)
        ratio = max(shared) / bound
        whole = host_bytes(NODE_STATE, slots=slots, parity=parity, group=group, copies=scheme.copies)
        both = (max(shared) / bound * whole + max(own)) / whole
        made.append(
            Row(
                claim=f"host memory of a node, {scheme}, {count} nodes, {slots} slots", figure=round(ratio, 4),
                unit="x the formula", target=f"<= {1 + SLACK:g}", holds=ratio <= 1 + SLACK, kind="live", n=count,
                baseline=f"formula {bound / MIB:.1f} MiB at {state // MIB} MiB of state",
                note=f"{max(shared) / MIB:.1f} MiB in shared memory; an agent's own {max(own) / MIB:.0f} MiB, for any "
                f"the state: worked out for 8 GiB a node, {both:.4f} x together",
            )
        )  # fmt: skip
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.host_memory")
    parser.add_argument("--json", type=Path, default=RESULTS / "host_memory.json", metavar="FILE")
    parser.add_argument("--mib", type=int, default=STATE // MIB, help="state of a rank")
    parser.add_argument("--quick", action="store_true", help="16 MiB")
    options = parser.parse_args(argv)
    publish("host_memory", rows((min(16, options.mib) if options.quick else options.mib) * MIB), options.json)


if __name__ == "__main__":
    main()
