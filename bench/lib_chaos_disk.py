"""Disks of ``bench.chaos`` that become full: small ones in memory, and a real relay that keeps its spool on one.

Mounting needs root. Nodes of the relay are real senders, which number their frames and keep them until the relay or a
service acknowledges them: a number that is not stored in the end was lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, LiteralString

from bench.lib_chaos import Load, until
from bench.lib_cluster import Proxy, small_disk
from bench.lib_fleet import Client
from mainstay.probes.bundle import decode_bundle, decode_layout, unpack
from mainstay.probes.frame import decode
from tests.probes.relay_process import RelayedNode, RelayProcess, running_nodes

RELAY: Final = "r1"
NODES: Final = tuple(f"rack-node-{number}" for number in range(4))
DISK_MIB: Final = 8
PACE_SECONDS: Final = 0.2
"""Between two frames of a node: a disk that is full has room for some of them in its last block."""
DRAIN_SECONDS: Final = 90.0


@dataclass
class Rack:
    """Nodes whose frames go through a real relay on a small disk, and directly while it does not take them."""

    load: Load
    place: Path
    """Of the disk and of the nodes' spools."""
    relay: RelayProcess = field(init=False)
    nodes: list[RelayedNode] = field(default_factory=list)
    refused: int = 0
    """Frames that the relay refused because its disk was full."""

    @property
    def disk(self) -> Path:
        return self.place / "disk"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Nodes send; in the end they wait until all is acknowledged."""
        service = Proxy(*(one.port for one in self.load.processes))
        await service.start()
        url, tokens = f"http://127.0.0.1:{service.port}", [await self._credential(name) for name in NODES]
        relay_token = await self._token({"name": RELAY, "kind": "relay", "racks": ["*"]})
        with ExitStack() as stack:
            stack.enter_context(small_disk(self.disk, DISK_MIB))
            self.relay = RelayProcess(url, self.disk / "relay", relay_token)
            stack.callback(self.relay.close)
            await asyncio.to_thread(self.relay.start)
            made = running_nodes(dict(zip(tokens, NODES, strict=True)), self.place, self.relay.url, url)
            self.nodes = stack.enter_context(made)
            sending = asyncio.create_task(self._send())
            yield
            sending.cancel()
            await until(lambda: not any(len(node.spool) for node in self.nodes), DRAIN_SECONDS)
            await until(lambda: not self.waiting(), DRAIN_SECONDS)
        await service.stop()

    async def _token(self, wanted: dict[str, object]) -> str:
        return await _token_of(self.load.people[0], "/v1/auth/tokens", wanted)

    async def _credential(self, node: str) -> str:
        token = await self._token({"name": node, "kind": "join", "scopes": ["report"]})
        return await _token_of(Client(self.load.services[0].port, token), "/v1/nodes:enroll", {"name": node})

    async def _send(self) -> None:
        while True:
            for node in self.nodes:
                node.put()
            await asyncio.sleep(PACE_SECONDS)

    def waiting(self) -> float:
        return self.relay.metric("spool_entries")

    def turned_away(self) -> int:
        """Frames that the relay has refused since its start because it could not write."""
        return int(self.relay.metric('requests_refused_total{reason="disk-error"}'))

    def compare(self) -> None:
        """Report what is stored of the nodes' frames."""
        row = self.load.row
        statement: LiteralString = "SELECT kind, body FROM blocks WHERE subject = ANY(%s)"
        stored = frames_of(self.load.server.query(statement, [RELAY, *NODES]))
        sent = {(node.name, number) for node in self.nodes for number in range(1, node.sent + 1)}
        row("frames of nodes of a real relay lost", len(sent - set(stored)), "", 0.0, n=len(sent))
        row("frames that the relay refused while its disk was full", self.refused, "", None)


async def _token_of(client: Client, path: str, wanted: dict[str, object]) -> str:
    status, answer = await client.request("POST", path, json.dumps(wanted).encode())
    if status != 201:
        raise RuntimeError(answer.decode())
    return str(json.loads(answer)["token"])


def frames_of(blocks: Iterable[tuple[str, bytes]]) -> Counter[tuple[str, int]]:
    """Node and sequence of each frame in stored blocks, which hold a frame or a bundle → how often it is stored."""
    found: Counter[tuple[str, int]] = Counter()
    for kind, body in blocks:
        if kind == "bundle":
            bundle = decode_bundle(bytes(body))
            found.update((one.subject, one.sequence) for one in unpack(bundle, decode_layout(bundle.layout)))
        else:
            frame = decode(bytes(body))
            found[frame.subject, frame.sequence] += 1
    return found
