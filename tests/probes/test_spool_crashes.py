"""The spool loses, repeats and renumbers nothing, wherever its process is killed or the power fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainstay.probes.spool import Spool

ROOT = Path(__file__).resolve().parents[2]


def abandon(spool: Spool) -> None:
    """Release the directory as a killed process does: without a sync and without a message."""
    spool._file.close()
    os.close(spool._acked_descriptor)
    spool._lock.close()


class SpoolModel(RuleBasedStateMachine):
    """A spool against a list: appends, acknowledgements, rejections, restarts and crashes in any order."""

    MAX_BYTES = 2048

    @initialize()
    def make(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.spool = Spool(self.directory, self.MAX_BYTES)
        self.stream = self.spool.stream
        self.model: list[tuple[int, bytes]] = []
        self.next = 1
        self.lent = 0

    @rule(size=st.integers(1, MAX_BYTES // 4), filler=st.binary(min_size=1, max_size=1))
    def append(self, size: int, filler: bytes) -> None:
        dropped = self.spool.dropped
        sequence = self.spool.append(filler * size)
        assert sequence == self.next
        self.next += 1
        self.model.append((sequence, filler * size))
        del self.model[: self.spool.dropped - dropped]

    @rule(limit=st.integers(1, 5))
    def peek(self, limit: int) -> None:
        entries = self._entries(limit)
        assert entries == self.model[:limit]
        self.lent = max([self.lent, *(sequence for sequence, _ in entries)])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.model)))
        entries = self.spool.peek(count)
        self.lent = max(self.lent, entries[-1].sequence)
        self.spool.ack(entries[-1].sequence)
        del self.model[:count]

    @precondition(lambda self: self.model)
    @rule()
    def reject(self) -> None:
        (entry,) = self.spool.peek()
        self.lent = max(self.lent, entry.sequence)
        self.spool.reject(entry, "the model rejects it")
        del self.model[0]

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self._open()

    @rule()
    def killed(self) -> None:
        """SIGKILL: what was written stays, synced or not."""
        abandon(self.spool)
        self._open()

    @rule(data=st.data())
    def power_lost(self, data: st.DataObject) -> None:
        """What was not synced may be cut anywhere, or be followed by rubbish."""
        synced, last = self.spool._synced, self.spool._segments[-1]
        abandon(self.spool)
        body = last.path.read_bytes()
        floor = last.size - sum(16 + len(payload) for sequence, payload in self.model if sequence >= synced)
        cut = data.draw(st.integers(floor, len(body)))
        last.path.write_bytes(body[:cut] + data.draw(st.binary(max_size=20)))
        before, self.next = self.next, None
        self._open(torn=True)
        survivors = self._entries(1 << 20)
        assert survivors == self.model[: len(survivors)]
        assert all(sequence >= synced for sequence, _ in self.model[len(survivors) :]), "synced entries survive"
        self.model = survivors
        self.next = self.spool._next
        self.lent = max([self.lent, *(sequence for sequence, _ in survivors)])
        assert self.lent < self.next <= before

    def _entries(self, limit: int) -> list[tuple[int, bytes]]:
        return [(entry.sequence, entry.payload) for entry in self.spool.peek(limit)]

    def _open(self, *, torn: bool = False) -> None:
        self.spool = Spool(self.directory, self.MAX_BYTES)
        assert self.spool.stream == self.stream
        assert torn or self.spool._next == self.next

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "spool"):
            assert len(self.spool) == len(self.model)
            assert sum(path.stat().st_size for path in self.directory.glob("*.seg")) <= self.MAX_BYTES

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
            shutil.rmtree(self.directory)


SpoolModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_against_a_model = pytest.mark.slow(SpoolModel.TestCase)


APPENDER = """
import sys
from pathlib import Path
from mainstay.probes.spool import Spool
spool = Spool(Path(sys.argv[1]), 16384)
out = open(1, "wb", buffering=0)
while True:
    sequence = spool.append(lambda n: n.to_bytes(8, "little") * (1 + n % 40))
    out.write(b"+%d\\n" % sequence)
    if sequence % 7 == 0:
        head = spool.peek(8)
        out.write(b"-%d\\n" % head[-1].sequence)
        spool.ack(head[-1].sequence)
"""


@pytest.mark.processes
@pytest.mark.slow
def test_sigkill_at_any_point_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Twenty processes in turn append to one spool, acknowledge and start segments until SIGKILL ends each."""
    last = acked = said = 0
    for turn in range(20):
        process = subprocess.Popen([sys.executable, "-c", APPENDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(1 + 23 * turn % 90)]
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
        process.stdout.close()
        process.wait()
        for line in lines:
            if line.startswith(b"+") and line.endswith(b"\n"):
                assert int(line[1:]) in (last + 1, last + 2), "one append may have gone unsaid"
                last = int(line[1:])
            elif line.startswith(b"-") and line.endswith(b"\n"):
                acked, said = said, int(line[1:])
        with Spool(tmp_path, 16384) as spool:
            entries = spool.peek(10_000)
            assert all(e.payload == e.sequence.to_bytes(8, "little") * (1 + e.sequence % 40) for e in entries)
            found = [entry.sequence for entry in entries]
            kept = spool._next - 1
            assert kept in (last, last + 1), "everything that was appended is there"
            assert found in (list(range(said + 1, kept + 1)), list(range(acked + 1, kept + 1))), "no gap, none twice"
            last, acked, said = kept, kept - len(found), kept - len(found)
