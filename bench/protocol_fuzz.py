"""Random and mutated frames against a live agent: it neither crashes, nor runs them, nor grows, nor stops answering.

Frames come from three places: random bytes, messages that are right but for a few flipped, added or missing bytes, and
pickles that would leave a file behind if any process loaded them. Half of the connections know the job's token, so that
all that lies behind the greeting is reached. Left out are ``Drop`` and ``Fence``: an honest one does what it says.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from bench.lib_source import ArraySource
from bench.report import RESULTS, Row, publish
from bench.snapshot_path import MIB, agents
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.framing import MAX_MESSAGE_BYTES
from mainstay.recovery.agent.messages import (
    Committed,
    ConfigureDisk,
    ConfigureParity,
    DiscardAfterEpoch,
    Fetch,
    GetInventory,
    Hello,
    LoadDisk,
    OpenArena,
    Rebuild,
    SaveCheckpoint,
)
from mainstay.recovery.agent.peer_messages import (
    CheckpointStep,
    Decode,
    ParityMismatch,
    ReadCheckpointTensors,
    ReadHead,
    ReadLayout,
    ReadParity,
    ReadProtected,
    ReadRow,
    ReadSlot,
)
from mainstay.recovery.agent.server import MAX_CONNECTIONS
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.job_certificates import Authority, job_tls

SEED: Final = 5
TLS: Final = job_tls("bench-token", "bench", Authority.SNAPSHOTS)
NOWHERE: Final = "no-endpoint"
"""Not host:port, and no mutation of a few bytes makes it a host that could be asked."""
ROOM_MIB: Final = 64
"""What an agent may grow by: pages of threads, and what the allocator keeps."""


def corpus(place: Path) -> list[bytes]:
    """Every request but Drop and Fence, right as it stands."""
    config = DiskConfig(run="run-1", generation=1, every=1, dp=1, pp=1, tp=1)
    messages = [
        Hello(job="bench", generation=1), GetInventory(),
        Committed(rank=0, epoch=1, generation=1, slot=0), OpenArena(rank=0, layout=b"[]"),
        Fetch(rank=0, epoch=1, from_rank=1, endpoint=NOWHERE), Rebuild(rank=0, epoch=1, group=()),
        LoadDisk(rank=0, epoch=1, directory=str(place / "none"), run="run-1"), ConfigureDisk(config=config),
        SaveCheckpoint(epoch=1), ConfigureParity(groups=(), every=0), DiscardAfterEpoch(epoch=1 << 40),
        ReadHead(rank=0, epoch=1), ReadSlot(rank=0, epoch=1, offset=0, nbytes=4096),
        ReadRow(ranks=(0, 1), place=0, epoch=1), ReadParity(ranks=(0, 1), place=0, epoch=1, word=0, nbytes=64),
        ReadProtected(rank=0, epoch=1), ReadLayout(rank=0),
        Decode(rank=0, epoch=1, ranks=(0, 1), place=0, word=0, sources=()),
        ParityMismatch(ranks=(0, 1), place=0, epoch=1),
        ReadCheckpointTensors(step=CheckpointStep(run="run-1", epoch=1, cut=(1, 0, 0)), tensors=(("param.0", 1),)),
    ]  # fmt: skip
    return [msgspec.msgpack.encode(message) for message in messages]


class Fuzzer:
    """Makes frames, sends them, and reads what comes back without believing it."""

    def __init__(self, place: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._corpus = corpus(place)
        self.trap = place / "executed"
        self._pickle = f"cos\nsystem\n(S'touch {self.trap}'\ntR.".encode()
        self.kinds = dict.fromkeys(("random", "mutated", "pickle", "broken length"), 0)

    def frame(self) -> bytes:
        """Length and body; the length may lie."""
        kind = self._chance.choices(list(self.kinds), (0.3, 0.5, 0.1, 0.1))[0]
        self.kinds[kind] += 1
        body = self._chance.randbytes(self._chance.randrange(1, 400))
        if kind == "mutated":
            body = self._mutate(self._chance.choice(self._corpus))
        elif kind == "pickle":
            body = self._pickle
        length = self._chance.getrandbits(32) if kind == "broken length" else len(body)
        return struct.pack("<I", length) + body

    def _mutate(self, body: bytes) -> bytes:
        found = bytearray(body)
        for _ in range(self._chance.randrange(1, 5)):
            at, what = self._chance.randrange(len(found)), self._chance.randrange(4)
            if what == 0:
                found[at] ^= 1 << self._chance.randrange(8)
            elif what == 1:
                found[at] = self._chance.getrandbits(8)
            elif what == 2 and len(found) > 1:
                del found[at]
            else:
                found.insert(at, self._chance.getrandbits(8))
        return bytes(found)

    def attack(self, address: Any, family: socket.AddressFamily) -> None:
        """One connection, greeted or not, with frames until it is closed."""
        with socket.socket(family, socket.SOCK_STREAM) as plain:
            plain.settimeout(0.5)
            try:
                plain.connect(address)
                # A stranger at the TCP port gets no further than TLS.
                wrapped = family == socket.AF_INET and self._chance.random() < 0.9
                sock = TLS.client.wrap_socket(plain) if wrapped else plain
                sock.settimeout(0.02)  # a body that never comes is not waited for
                if self._chance.random() < 0.5:
                    sock.sendall(struct.pack("<I", len(self._corpus[0])) + self._corpus[0])
                    sock.recv(4096)
                for _ in range(self._chance.randrange(1, 4)):
                    sock.sendall(self.frame())
                    if not sock.recv(65536):
                        return
            except OSError:
                return


def resident(pid: int) -> int:
    """Bytes of anonymous memory: shared pages of arenas are the ranks' state, not the agent's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no RssAnon")


def flood(address: Any, pid: int) -> int:
    """As many connections as there may be and more, each with half of the largest message; bytes resident then."""
    socks: list[socket.socket] = []
    try:
        for _ in range(MAX_CONNECTIONS + 50):
            plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            socks.append(plain)
            plain.settimeout(0.5)
            try:
                plain.connect(address)
                member = TLS.client.wrap_socket(plain)
                socks.append(member)
                member.settimeout(0.05)
                member.sendall(struct.pack("<I", MAX_MESSAGE_BYTES) + bytes(MAX_MESSAGE_BYTES // 2))
            except OSError:
                continue
        time.sleep(0.5)
        return resident(pid)
    finally:
        for sock in socks:
            sock.close()


def measure(frames: int, seed: int) -> list[Row]:
    place = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    try:
        with agents(1, place, "--checkpoint-dir", str(place / "disk"), "--checkpoint-interval", "1") as (
            (endpoint, client),
        ):
            pid = pid_of(client.path)
            client.open_arena(0, ArraySource({"state": np.zeros(100_000, np.uint8)}).layout)
            return _rows(_Target(endpoint, client, pid), Fuzzer(place, seed), frames)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Target:
    """The agent under attack."""

    def __init__(self, endpoint: str, client: Any, pid: int) -> None:
        host, _, port = endpoint.rpartition(":")
        self.tcp, self.unix, self.pid, self.client = (host, int(port)), str(client.path), pid, client

    def serves(self) -> bool:
        """Whether an honest caller is served, and finds its arena."""
        for _ in range(40):  # connections that were cut off are closed within HELLO_SECONDS
            try:
                self.client.close()
                self.client.inventory()
            except (AgentError, OSError):
                time.sleep(0.25)
            else:
                return True
        return False

    def alive(self) -> bool:
        return "mainstay.recovery.agent" in Path(f"/proc/{self.pid}/cmdline").read_text()


def pid_of(path: Path) -> int:
    """Of the process that holds the Unix socket."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"\0{path}\0" in (entry / "cmdline").read_text():
                return int(entry.name)
        except OSError:
            continue
    raise ValueError(f"no process serves {path}")


def _rows(target: _Target, fuzzer: Fuzzer, frames: int) -> list[Row]:
    before, most, served = resident(target.pid), 0, True
    begun = time.monotonic()
    while sum(fuzzer.kinds.values()) < frames:
        for _ in range(200):
            fuzzer.attack(*((target.tcp, socket.AF_INET) if fuzzer_coin(fuzzer) else (target.unix, socket.AF_UNIX)))
        if not target.alive():
            break
        most = max(most, resident(target.pid))
        served = served and target.serves()
    sent, seconds = sum(fuzzer.kinds.values()), time.monotonic() - begun
    alive = target.alive()
    flooded = flood(target.tcp, target.pid) - before if alive else 0
    served = served and alive and target.serves()
    grown, bound = (most - before) / MIB, ROOM_MIB + MAX_CONNECTIONS * MAX_MESSAGE_BYTES // MIB
    note = ", ".join(f"{count} {kind}" for kind, count in fuzzer.kinds.items()) + f"; {seconds:.0f} s"
    return [
        Row(claim="the agent lives after hostile frames", figure="yes" if alive else "no", unit="", target="yes",
            holds=alive, kind="live", n=sent, note=note),
        Row(claim="it serves an honest caller all the while, and after the flood", figure="yes" if served else "no",
            unit="", target="yes", holds=served, kind="live", n=sent),
        Row(claim="pickles that were executed", figure=int(fuzzer.trap.exists()), unit="", target="0",
            holds=not fuzzer.trap.exists(), kind="live", n=fuzzer.kinds["pickle"]),
        Row(claim="its memory grew by, under hostile frames", figure=round(grown, 1), unit="MiB",
            target=f"<= {ROOM_MIB}", holds=grown <= ROOM_MIB, kind="live", n=sent,
            baseline=f"{before / MIB:.0f} MiB before", note="anonymous pages; arenas are bounded by /dev/shm"),
        Row(claim="and with half of the largest message on every connection that there may be",
            figure=round(flooded / MIB, 1), unit="MiB", target=f"<= {bound}", holds=alive and flooded / MIB <= bound,
            kind="live", n=MAX_CONNECTIONS, note="the bound: connections x the largest message"),
    ]  # fmt: skip


def fuzzer_coin(fuzzer: Fuzzer) -> bool:
    """Alternate between both sockets."""
    return sum(fuzzer.kinds.values()) % 2 == 0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.protocol_fuzz")
    parser.add_argument("--json", type=Path, default=RESULTS / "protocol_fuzz.json", metavar="FILE")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--quick", action="store_true", help="3,000 frames")
    options = parser.parse_args(argv)
    frames = min(3000, options.frames) if options.quick else options.frames
    publish("protocol_fuzz", measure(frames, options.seed), options.json)


if __name__ == "__main__":
    main()
