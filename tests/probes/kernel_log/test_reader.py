"""Following the log: records of every spelling, from pipes and files that are cut and replaced, each told once."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.core_types import EventKind
from mainstay.probes.kernel_log import sources
from mainstay.probes.kernel_log.reader import BootClock, KernelLog
from mainstay.probes.kernel_log.records import Record, from_journal, from_kmsg, from_line
from mainstay.probes.kernel_log.sources import JournaldSource, Kmsg, PlainFile, SourceError, open_source
from mainstay.probes.samplers.base import SourceEvent

REASON = "/dev/kmsg: Operation not permitted (needs CAP_SYSLOG); journalctl: not found"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, MMU Fault: ENGINE CE0 faulted @ 0x1"


def kmsg(text: str, seconds: float, sequence: int, flags: str = "-") -> bytes:
    return f"3,{sequence},{int(seconds * 1e6)},{flags};{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


def test_a_kmsg_record_is_read_without_its_dictionary() -> None:
    assert from_kmsg(kmsg("a;b,c", 12.5, 7)) == Record("a;b,c", 12.5, 7)
    assert from_kmsg(b"6,339,5140900,-,caller=T1;NET: x\\x0ay\\xc3\\xa4\\x5c\n") == Record("NET: x\nyä\\", 5.1409, 339)
    assert from_kmsg(kmsg("begin", 1, 1, "c")).begins  # type: ignore[union-attr]
    assert from_kmsg(kmsg("rest", 1, 2, "+")).continues  # type: ignore[union-attr]
    for junk in (b"", b"nothing", b"1,2,3", b"a,b,c,d;e", b"\xff\xfe;"):
        assert from_kmsg(junk) is None


def test_what_journald_writes() -> None:
    line = b'{"MESSAGE":"a text","_SOURCE_MONOTONIC_TIMESTAMP":"12500000","__MONOTONIC_TIMESTAMP":"13"}'
    assert from_journal(line) == Record("a text", 12.5)
    assert from_journal(b'{"MESSAGE":[104,105,255]}') == Record("hi\ufffd")
    assert from_journal(b'{"MESSAGE":["one","two"]}') == Record("one")
    for junk in (b"", b"[]", b"{", b'{"MESSAGE":null}', b'{"MESSAGE":[]}', b"\xff", b'{"MESSAGE":{"a":1}}'):
        assert from_journal(junk) is None


@pytest.mark.parametrize("before", [
    "", "[ 1234.567890] ", "[Thu Sep 19 02:29:46 2024] ", "<3>", "<3>[    0.000000] ", "kern  :err   : [   12.5] ",
    "Nov 21 03:02:28 node-17 kernel: ", "Nov  1 03:02:28 node-17 kernel: [680111.646286] ",
    "2026-11-21T03:02:28.123456+00:00 node-17 kernel: [12.5] ", "kern  :err   : 2025-02-10T16:28:06,502716+00:00 ",
])  # fmt: skip
def test_what_stands_before_a_line_of_a_file_is_left_out(before: str) -> None:
    record = from_line((before + LOST + "\n").encode())
    assert record is not None
    assert record.text == LOST


@given(st.binary(max_size=400))
def test_no_bytes_are_too_much_for_any_spelling(data: bytes) -> None:
    for read in (from_kmsg, from_journal, from_line):
        read(data)
    from_kmsg(b"3,1,1,-;" + data)


class Following:
    """A reader at work, and what it told."""

    def __init__(self, directory: Path, where: str, opener: Callable[[str], object] = open_source) -> None:
        self.told: list[SourceEvent] = []
        self.boot = 1000.0
        clock = BootClock("boot-1", lambda: 50_000.0 + self.boot, lambda: self.boot)
        self.reader = KernelLog(where, self.told.append, directory / "mark.json", clock, opener)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self.reader.start()
        deadline = time.monotonic() + 60
        while not (self.reader.reading or self.reader.reason) and time.monotonic() < deadline:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def codes(self, count: int) -> list[object]:
        deadline = time.monotonic() + 60
        while len(self.told) < count:
            assert time.monotonic() < deadline, self.told
            time.sleep(0.005)
        return [happened.data.get("code", happened.data.get("fault")) for happened in self.told]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


def write(path: Path, *lines: bytes | str) -> None:
    with path.open("ab") as file:
        file.write(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))


def test_a_line_of_a_pipe_is_told_within_milliseconds(tmp_path: Path, pipe: Path) -> None:
    with Following(tmp_path, str(pipe)) as following:
        started = time.monotonic()
        write(pipe, kmsg(LOST, 1001.0, 1))
        following.codes(1)
        assert time.monotonic() - started < 0.5
        (told,) = following.told
        assert (told.kind, told.data["pci"]) == (EventKind.XID, "0000:3b:00")
        write(pipe, "nothing of note", "[12.5] " + FAULT)  # another writer, another spelling
        assert following.codes(2) == [79, 31]
        write(pipe, b"\xff\x00\xfe" * 50 + b"\n", b"x" * 100_000 + b"\n", FAULT)
        assert following.codes(3) == [79, 31, 31]
        assert following.reader.reading
    assert not following.reader._thread.is_alive()


def test_a_line_in_pieces_is_one_line(tmp_path: Path, pipe: Path) -> None:
    with Following(tmp_path, str(pipe)) as following:
        write(pipe, kmsg(LOST[:20], 1001.0, 1, "c"), kmsg(LOST[20:], 1001.1, 2, "+"), kmsg(FAULT, 1001.2, 3))
        assert following.codes(2) == [79, 31]
        write(pipe, kmsg("NVRM: The NVIDIA GPU 0000:65:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has"
                         "\\x0aNVRM: fallen off the bus and is not responding to commands.", 1002.0, 4))  # fmt: skip
        following.codes(3)
        assert following.told[2].kind is EventKind.GPU_LOST
        assert following.told[2].data["pci"] == "0000:65:00.0"


def test_a_file_is_read_from_its_end_and_followed_through_cuts_and_replacements(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    write(path, LOST)
    with Following(tmp_path, str(path)) as following:
        write(path, FAULT)
        assert following.codes(1) == [31]
        path.write_text("")
        write(path, "NVRM: Xid (PCI:0000:3b:00): 13, x")
        assert following.codes(2) == [31, 13]
        path.rename(tmp_path / "kern.log.1")
        time.sleep(0.3)  # the file is away for a moment
        write(path, "NVRM: Xid (PCI:0000:3b:00): 43, x")
        assert following.codes(3) == [31, 13, 43]


class Buffer:
    """A kernel's buffer for tests: one record a read, overwritten ones answer EPIPE."""

    def __init__(self, pair: tuple[socket.socket, socket.socket], *records: bytes | int) -> None:
        self.records = list(records)
        self.pair = pair

    def open(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Kmsg]:
        read = os.read
        descriptor = self.pair[0].fileno()

        def fake(fd: int, size: int) -> bytes:
            if fd != descriptor:
                return read(fd, size)
            if not self.records:
                raise BlockingIOError
            record = self.records.pop(0)
            if isinstance(record, int):
                raise OSError(record, os.strerror(record))
            return record

        def make(_: str) -> Kmsg:
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", lambda *_: os.dup(descriptor))
                made = Kmsg()
            os.close(made._descriptor)
            made._descriptor = descriptor
            made.close = lambda: None  # type: ignore[method-assign]  # the socket pair is the test's
            return made

        monkeypatch.setattr(os, "read", fake)
        return make

    def append_records(self, *records: bytes | int) -> None:
        self.records += records
        self.pair[1].send(b"!")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield made
    for end in made:
        end.close()


def test_of_what_was_logged_before_only_what_still_holds_is_told_once_with_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    old = [kmsg(FAULT, 100.0, 1), kmsg(LOST, 400.0, 2), kmsg("EXT4-fs (sda1): mounted", 500.0, 3)]
    with Following(tmp_path, "auto", Buffer(pair, *old).open(monkeypatch)) as following:
        assert following.codes(1) == [79]
        assert following.told[0].t == pytest.approx(50_000.0 + 400.0)
        assert following.told[0].data["before_start"] is True
    with Following(tmp_path, "auto", Buffer(pair, *old, kmsg(LOST, 999.0, 4)).open(monkeypatch)) as following:
        following.codes(1)
        assert following.told[0].t == pytest.approx(50_999.0), "only what came while no daemon ran"
    buffer = Buffer(pair, *old)
    following = Following(tmp_path, "auto", buffer.open(monkeypatch))
    following.reader._clock.boot_id = "boot-2"
    following.reader._skip_until = following.reader._load()
    with following:
        assert following.codes(1) == [79], "another boot is another log"


def test_overwritten_records_are_counted_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    buffer = Buffer(pair, kmsg("a", 1000.1, 10), errno.EPIPE, kmsg(LOST, 1000.2, 25))
    with Following(tmp_path, "auto", buffer.open(monkeypatch)) as following:
        assert following.codes(1) == [79]
        assert following.reader.lost == 14
        buffer.append_records(kmsg(FAULT, 1000.15, 26))
        assert following.codes(2) == [79, 31], "another processor's clock may be a little behind"


def test_a_source_that_breaks_is_opened_again_and_tells_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr("mainstay.probes.kernel_log.reader._BROKEN_S", 0.05)
    records = [kmsg(LOST, 1000.1, 1), kmsg(FAULT, 1000.2, 2)]
    buffer = Buffer(pair, *records, errno.EIO, *records, kmsg(LOST, 1000.3, 3))
    with Following(tmp_path, "auto", buffer.open(monkeypatch)) as following:
        assert following.codes(3) == [79, 31, 79]
        assert following.reader.reading


def test_a_log_that_cannot_be_read_is_said_once_and_asked_again(
    tmp_path: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mainstay.probes.kernel_log.reader._REOPEN_S", 0.02)
    tries: list[str] = []

    def opener(where: str) -> object:
        tries.append(where)
        if len(tries) < 4:
            raise SourceError(REASON)
        return open_source(str(pipe))

    with Following(tmp_path, "auto", opener) as following:
        deadline = time.monotonic() + 60
        while not following.reader.reading and time.monotonic() < deadline:
            assert following.reader.reason in ("", tries and REASON)
            time.sleep(0.005)
        write(pipe, FAULT)
        following.codes(1)
    assert caplog.text.count("the kernel log cannot be read") == 1


def test_off_is_off(tmp_path: Path) -> None:
    with Following(tmp_path, "off") as following:
        assert not following.reader.reading
        assert following.reader.reason == "switched off"


def test_what_cannot_be_opened_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="No such file"):
        open_source(str(tmp_path / "none"))
    monkeypatch.setattr(sources, "KMSG", tmp_path / "kmsg")
    monkeypatch.setattr(sources.shutil, "which", lambda _: None)
    monkeypatch.setattr(Kmsg.__init__, "__defaults__", (tmp_path / "kmsg",))
    with pytest.raises(SourceError, match=r"kmsg: No such file or directory; journalctl: not found"):
        open_source("auto")


@pytest.fixture
def journalctl(tmp_path: Path) -> Iterator[Path]:
    """A stand-in for journalctl: first asked whether there is anything, then followed."""
    program = tmp_path / "journalctl"
    body = (
        '#!/bin/sh\ncase "$*" in *--follow*) ;; *) echo something; exit 0;; esac\n'
        f'echo \'{{"MESSAGE":"{LOST}","_SOURCE_MONOTONIC_TIMESTAMP":"1001000000"}}\'\nexec sleep 60\n'
    )
    program.write_text(body)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.processes
def test_journald_is_followed_and_its_process_ended(tmp_path: Path, journalctl: Path) -> None:
    opened: list[JournaldSource] = []

    def opener(_: str) -> JournaldSource:
        opened.append(JournaldSource(str(journalctl)))
        return opened[-1]

    with Following(tmp_path, "auto", opener) as following:
        assert following.codes(1) == [79]
    assert opened[0]._process.wait(60) is not None


@pytest.mark.processes
def test_a_journal_that_shows_nothing_is_no_source(journalctl: Path) -> None:
    journalctl.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SourceError, match="systemd-journal"):
        JournaldSource(str(journalctl))


def test_a_pipe_outlives_its_writers(pipe: Path) -> None:
    source = PlainFile(pipe)
    for _ in range(3):
        write(pipe, "line")
        assert [record.text for record in source.read(1.0)] == ["line"]
    assert list(source.read(0.01)) == []
    source.close()
    source.close()
