"""The spool: entries leave in order, once, with their numbers; damage, a full disk and other owners are handled."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from mainstay.probes.data_dir import TooOpenError
from mainstay.probes.spool import Spool, SpoolError


def drain(spool: Spool) -> list[tuple[int, bytes]]:
    return [(entry.sequence, entry.payload) for entry in spool.peek(1 << 20)]


def test_entries_leave_in_order_and_only_when_acknowledged(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        assert [spool.append(payload) for payload in (b"a", b"b", b"c")] == [1, 2, 3]
        assert drain(spool) == [(1, b"a"), (2, b"b"), (3, b"c")]
        spool.ack(2)
        assert drain(spool) == [(3, b"c")]
        assert len(spool) == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_an_acknowledgement_of_what_was_never_sent_swallows_nothing(tmp_path: Path, reopened: bool) -> None:
    spool = Spool(tmp_path)
    spool.append(b"a")
    spool.ack(99)
    if reopened:
        spool.close()
        spool = Spool(tmp_path)
    with spool:
        assert spool.append(b"b") == 2
        assert drain(spool) == [(2, b"b")]
        assert len(spool) == 1


def test_a_payload_may_carry_its_own_number(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(b"first")
        spool.append(lambda sequence: f"I am {sequence}".encode())
        assert drain(spool)[1] == (2, b"I am 2")


def test_numbers_and_stream_outlive_the_process_even_when_nothing_is_pending(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        stream = spool.stream
        spool.ack(spool.append(b"x"))
    with Spool(tmp_path) as spool:
        assert (spool.stream, len(spool), spool.append(b"y")) == (stream, 0, 2)


def test_another_directory_is_another_stream(tmp_path: Path) -> None:
    with Spool(tmp_path / "a") as one, Spool(tmp_path / "b") as other:
        assert one.stream != other.stream


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    with Spool(tmp_path), pytest.raises(SpoolError, match="in use by another process"):
        Spool(tmp_path)


def test_a_foreign_file_is_set_aside_and_the_rest_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0000000000000001.seg").write_text("a foreign file")
    with Spool(tmp_path) as spool:
        spool.append(b"x")
        assert [payload for _, payload in drain(spool)] == [b"x"]
    assert (tmp_path / "0000000000000001.damaged").read_text() == "a foreign file"
    assert len([record for record in caplog.records if "set aside" in record.message]) == 1


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_damaged_segment_is_set_aside_and_its_numbers_are_never_used_again(
    tmp_path: Path, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Spool(tmp_path, max_bytes=4096) as spool:
        stream, numbers = spool.stream, [spool.append(bytes([n]) * 100) for n in range(1, 9)]
    paths = sorted(tmp_path.glob("*.seg"))
    assert len(paths) > 2
    bad = paths[0] if which == "first" else paths[-1]
    inside = set(numbers) - set(range(int(paths[1].stem), 9) if which == "first" else range(1, int(paths[-1].stem)))
    content = bytearray(bad.read_bytes())
    content[:8] = b"XXXXXXXX"
    bad.write_bytes(bytes(content))
    with Spool(tmp_path, max_bytes=4096) as spool:
        assert spool.stream == stream
        fresh = spool.append(b"new")
        assert fresh > max(numbers)
        assert {sequence for sequence, _ in drain(spool)} == (set(numbers) - inside) | {fresh}
    assert bad.with_suffix(".damaged").read_bytes() == bytes(content)
    assert len([record for record in caplog.records if "set aside" in record.message]) == 1


def test_a_directory_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir(mode=0o755)
    with pytest.raises(TooOpenError, match="chmod 700"):
        Spool(tmp_path / "wide")
    Spool(tmp_path / "new" / "spool").close()
    assert (tmp_path / "new" / "spool").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", [0, 1025])
def test_an_impossible_entry_is_refused_in_words(tmp_path: Path, size: int) -> None:
    with Spool(tmp_path, max_bytes=4096) as spool:
        with pytest.raises(ValueError, match=f"entry has {size} bytes, allowed are 1 to 1024"):
            spool.append(bytes(size))
        assert spool.append(b"x") == 1


def test_when_full_the_oldest_go_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path, max_bytes=4096) as spool:
        for _ in range(100):
            spool.append(bytes(100))
        left = drain(spool)
        assert [sequence for sequence, _ in left] == list(range(101 - len(left), 101))
        assert spool.dropped == 100 - len(left) > 0
        assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 4096
    assert "oldest entries are lost" in caplog.text


def test_a_rejected_entry_is_kept_aside_with_its_reason_and_blocks_nobody(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(b"bad")
        spool.append(b"good")
        spool.reject(spool.peek()[0], "422 nonsense")
        assert drain(spool) == [(2, b"good")]
    aside = tmp_path / "rejected"
    assert (aside / "0000000000000001.entry").read_bytes() == b"bad"
    assert "422 nonsense" in (aside / "0000000000000001.reason").read_text()


def test_what_is_kept_aside_is_bounded(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for _ in range(70):
            spool.append(b"bad")
            spool.reject(spool.peek()[0], "no")
    assert len(list((tmp_path / "rejected").iterdir())) == 128


def test_a_damaged_record_costs_the_rest_of_its_segment_and_never_blocks(tmp_path: Path) -> None:
    with Spool(tmp_path, max_bytes=4096) as spool:
        for _ in range(6):
            spool.append(bytes(80))
        assert len(spool._segments) == 3
    first = min(tmp_path.glob("*.seg"))
    body = bytearray(first.read_bytes())
    body[-1] ^= 1
    first.write_bytes(body)
    with Spool(tmp_path, max_bytes=4096) as spool:
        assert [sequence for sequence, _ in drain(spool)] == [1, 3, 4, 5, 6]
        assert len(spool) == 5
        spool.ack(6)
        assert len(spool) == 0


def test_a_lost_tail_does_not_free_acknowledged_numbers(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for _ in range(3):
            spool.append(b"x")
        spool.ack(3)
    (segment,) = tmp_path.glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-1])
    with Spool(tmp_path) as spool:
        assert len(spool) == 0
        assert spool.append(b"y") == 4
        assert drain(spool) == [(4, b"y")]


def test_a_lost_record_of_acknowledgements_means_sending_again(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(b"x")
        spool.ack(1)
    (tmp_path / "acked").write_bytes(b"junk junk junk")
    with Spool(tmp_path) as spool:
        assert drain(spool) == [(1, b"x")]


def test_nothing_is_lent_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(1), real(descriptor)))
    with Spool(tmp_path) as spool:
        spool.append(b"x")
        spool.append(b"y")
        before = len(synced)
        assert len(spool.peek(2)) == 2
        assert len(synced) == before + 1, "one sync for both"
        spool.peek(2)
        assert len(synced) == before + 1, "nothing new, nothing to sync"


def test_a_disk_that_refuses_costs_nothing_but_the_entry(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(b"first")
        good = spool._file
        with Path("/dev/full").open("r+b", buffering=0) as full:
            spool._file = _Full(full, good)
            with pytest.raises(OSError, match="No space left"):
                spool.append(b"second")
            spool._file = good
        assert spool.append(b"again") == 2
        assert drain(spool) == [(1, b"first"), (2, b"again")]


class _Full:
    """Writes go to a full device, everything else to the real file."""

    def __init__(self, full, good) -> None:
        self.write = full.write
        self.truncate, self.seek, self.fileno = good.truncate, good.seek, good.fileno


def test_wait_returns_as_soon_as_something_is_there(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        assert not spool.wait(0.01)
        thread = threading.Timer(0.05, lambda: spool.append(b"x"))
        thread.start()
        started = time.monotonic()
        assert spool.wait(10)
        assert time.monotonic() - started < 5
        thread.join()


def test_many_threads_may_append_while_one_drains(tmp_path: Path) -> None:
    with Spool(tmp_path, max_bytes=1 << 16) as spool:
        threads = [threading.Thread(target=lambda: [spool.append(b"x" * 50) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        seen: list[int] = []
        deadline = time.monotonic() + 30
        while len(seen) + spool.dropped < 800 and time.monotonic() < deadline:
            for entry in spool.peek(64):
                seen.append(entry.sequence)
                spool.ack(entry.sequence)
        for thread in threads:
            thread.join()
        assert seen == sorted(set(seen))
