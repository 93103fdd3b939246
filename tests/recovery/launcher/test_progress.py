"""Words of ranks about what they do become samples of all ranks, and samples become frames."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from mainstay.probes.core_types import GROUP_KINDS, StepPhase
from mainstay.probes.frame import FRAME_VERSION, MAX_FRAME_BYTES, Frame, check_shape, checksum, decode, encode
from mainstay.probes.signals import WIDE_MISSING
from mainstay.recovery.protocol.worker_messages import ProgressReport
from mainstay.recovery.telemetry.progress import (
    CATALOG,
    ROW,
    ProgressCollector,
    ProgressFrames,
    ProgressSample,
    ProgressTable,
    grid_seconds,
)

STEP = CATALOG.wide.index("progress_step")
DP_BEGUN = CATALOG.wide.index("dp_enqueued")
DP_ENDED = CATALOG.wide.index("dp_completed")


def word(
    step: int = 5, *, generation: int = 1, in_call: float = 0.0, phase: StepPhase = StepPhase.TRAIN
) -> ProgressReport:
    return ProgressReport(
        generation=generation, time_ns=1, step=step, phase=phase, in_call=in_call, call="all_reduce dp",
        enqueued={"dp": 2**40 + step, "nonsense": 1}, completed={"dp": 2**40},
    )  # fmt: skip


def ingest_reports(
    board: ProgressTable, *words: tuple[int, ProgressReport], forming: bool = False, pid: int = 7
) -> None:
    gathering = ProgressCollector()
    for rank, said in words:
        gathering.add_report(rank, 7, said)
    for body in gathering.cut():
        board.ingest(body, 1, lambda _, has: has == pid, forming=forming)


def sample_of(board: ProgressTable) -> ProgressSample:
    """The next one that the grid gives."""
    deadline = time.monotonic() + 60.0
    while (found := board.sample()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_what_ranks_say_is_in_the_sample() -> None:
    board = ProgressTable(3)
    ingest_reports(board, (0, word(5)), (2, word(6, in_call=2.5, phase=StepPhase.EVALUATE)))
    found = sample_of(board)
    assert found.has_reported.tolist() == [True, False, True]
    assert found.time % board.seconds == 0.0
    np.testing.assert_array_equal(found.narrow, [[0.0, np.nan, 3.0], [0.0, np.nan, 2.5]])
    assert found.wide[STEP].tolist() == [5, WIDE_MISSING, 6]
    assert found.wide[DP_BEGUN].tolist() == [2**40 + 5, WIDE_MISSING, 2**40 + 6]
    values = found.values()
    assert values.shape == (len(CATALOG.narrow) + len(CATALOG.wide), 3)
    assert values[2 + DP_BEGUN, 0] == 2**40 + 5
    assert np.isnan(values[2 + CATALOG.wide.index("world_enqueued")]).all()


def test_the_grid_gives_each_point_once_and_nothing_when_nobody_speaks() -> None:
    board = ProgressTable(1)
    assert board.sample() is None
    ingest_reports(board, (0, word()))
    first = sample_of(board)
    assert board.sample() is None or time.time() >= first.time + board.seconds


def test_silence_shows_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    board = ProgressTable(2)
    ingest_reports(board, (0, word()), (1, word()))
    now = time.monotonic()
    monkeypatch.setattr("mainstay.recovery.telemetry.progress.time.monotonic", lambda: now + 0.8)
    ingest_reports(board, (1, word()))
    monkeypatch.setattr("mainstay.recovery.telemetry.progress.time.monotonic", lambda: now + 1.3)
    assert sample_of(board).has_reported.tolist() == [False, True]


def test_a_process_that_was_replaced_is_not_heard() -> None:
    board = ProgressTable(1)
    ingest_reports(board, (0, word()), pid=8)
    assert board.sample() is None
    ingest_reports(board, (0, word()))
    board.forget(0)
    assert board.sample() is None


def test_a_rank_of_no_such_number_is_not_heard() -> None:
    board = ProgressTable(1)
    ingest_reports(board, (5, word()))
    assert board.sample() is None


@pytest.mark.parametrize(("generation", "forming"), [(0, False), (1, True)])
def test_a_job_that_forms_is_warming_up(generation: int, forming: bool) -> None:
    """Counts of two generations must not be compared, and who waits for the coordinator does not hang."""
    board = ProgressTable(1)
    ingest_reports(board, (0, word(9, generation=generation, in_call=30.0)), forming=forming)
    found = sample_of(board)
    assert found.narrow[:, 0].tolist() == [StepPhase.WARM_UP, 0.0]
    assert found.wide[STEP, 0] == 9
    assert (found.wide[1:] == WIDE_MISSING).all()


def test_numbers_that_cannot_be_are_not_passed_on() -> None:
    gathering = ProgressCollector()
    gathering.add_report(0, 7, word(2**63))
    assert gathering.cut() == []
    board = ProgressTable(1)
    ingest_reports(board, (0, word(in_call=math.nan)))
    assert math.isnan(sample_of(board).narrow[1, 0])


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        ProgressTable(1).ingest(b"x" * (ROW.itemsize + 1), 1, lambda *_: True, forming=False)


def test_only_the_newest_word_is_sent_and_none_of_the_dead() -> None:
    gathering = ProgressCollector()
    gathering.add_report(0, 7, word(1))
    gathering.add_report(0, 7, word(2))
    gathering.add_report(1, 7, word(3))
    gathering.forget(1)
    (body,) = gathering.cut()
    rows = np.frombuffer(body, ROW)
    assert rows["wide"][:, STEP].tolist() == [2]
    assert gathering.cut() == []


def sample_at(at: float, ranks: int = 2) -> ProgressSample:
    narrow = np.zeros((len(CATALOG.narrow), ranks), np.float32)
    wide = np.arange(len(CATALOG.wide) * ranks, dtype=np.int64).reshape(len(CATALOG.wide), ranks)
    return ProgressSample(at, narrow, wide + int(at))


def read(cut: dict) -> Frame:
    fields = dict(cut)
    known = fields.pop("catalog")
    frame = Frame(
        version=FRAME_VERSION, stream="s", sequence=1, catalog=known.digest,
        crc32=checksum(fields["values"], fields["wide"]), **fields,
    )  # fmt: skip
    found = decode(encode(frame))
    check_shape(found, narrow=len(known.narrow), wide=len(known.wide))
    return found


def test_a_frame_holds_a_second_and_the_service_can_read_it() -> None:
    frames = ProgressFrames("job", 2)
    frames.add_sample(sample_at(99.5))
    assert not frames.due
    frames.add_sample(sample_at(100.0))
    assert frames.due
    cut = frames.cut()
    assert cut is not None
    frame = read(cut)
    assert (frame.subject, frame.axis, frame.t0, frame.dt, frame.samples) == ("job", "time", 99.5, 0.5, 2)
    assert frame.entities == ("0", "1")
    wide = np.frombuffer(frame.wide, "<i8").reshape(2, len(CATALOG.wide), 2)
    assert wide[1, 3].tolist() == [7 + 99, 7 + 100]
    assert frames.cut() is None


def test_a_gap_ends_a_frame() -> None:
    frames = ProgressFrames("job", 2)
    frames.add_sample(sample_at(100.0))
    frames.add_sample(sample_at(103.0))
    assert frames.due
    assert [cut["t0"] for cut in iter(frames.cut, None)] == [100.0, 103.0]


def test_a_large_world_fits() -> None:
    ranks = 65_536
    assert grid_seconds(ranks) == 1.0
    frames = ProgressFrames("job", ranks)
    frames.add_sample(sample_at(100.0, ranks))
    assert frames.due
    cut = frames.cut()
    assert cut is not None
    assert len(cut["values"]) + len(cut["wide"]) <= MAX_FRAME_BYTES
    read(cut)


def test_kinds_of_group_are_those_of_the_catalog() -> None:
    assert [name.removesuffix("_enqueued") for name in CATALOG.wide if name.endswith("_enqueued")] == [*GROUP_KINDS]
    assert DP_BEGUN + len(GROUP_KINDS) == DP_ENDED
