"""Step records become frames that the service accepts; what a rank did not tell is missing, never zero."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from mainstay.probes.frame import FRAME_VERSION, Frame, check_shape, checksum, decode, encode
from mainstay.probes.signals import WIDE_MISSING, SignalSource, catalog
from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers
from mainstay.recovery.telemetry.step_frames import MAX_STEPS, PairFrames, StepFrames

RANK = catalog(SignalSource.RANK).narrow
LOSS = RANK.index("loss")


def record(
    epoch: int, step_time: float = 0.1, loss: float | None = None, signals: dict[str, float] | None = None
) -> StepRecord:
    return StepRecord(
        generation=1,
        epoch=epoch,
        step_time=step_time,
        compute_time=0.05,
        snapshot_blocked=0.001,
        end_ns=epoch,
        loss=loss,
        signals=signals or {},
    )


def tensors(cut: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    ranks, steps = len(cut["entities"]), cut["samples"]
    narrow = np.frombuffer(cut["values"], "<f4").reshape(ranks, -1, steps)
    return narrow, np.frombuffer(cut["wide"], "<i8").reshape(ranks, 1, steps)


def test_a_frame_of_three_steps() -> None:
    frames = StepFrames("job", 2)
    for epoch in (5, 6, 7):
        frames.add_record(0, record(epoch, step_time=epoch / 10, loss=1.0 / epoch))
    frames.add_record(1, record(6))
    cut = frames.cut()
    assert cut is not None
    assert (cut["t0"], cut["samples"], cut["entities"]) == (5.0, 3, ("0", "1"))
    narrow, wide = tensors(cut)
    np.testing.assert_allclose(narrow[0, 0], [0.5, 0.6, 0.7], rtol=1e-6)
    np.testing.assert_allclose(narrow[0, LOSS], [1 / 5, 1 / 6, 1 / 7], rtol=1e-6)
    assert np.isnan(narrow[1, 0]).tolist() == [True, False, True]
    assert math.isnan(narrow[1, LOSS, 1])
    assert wide[1, 0].tolist() == [WIDE_MISSING, 6, WIDE_MISSING]
    assert frames.cut() is None


def test_the_service_can_read_it() -> None:
    frames = StepFrames("job", 3)
    frames.add_record(2, record(1))
    cut = frames.cut()
    assert cut is not None
    catalog = cut.pop("catalog")
    crc = checksum(cut["values"], cut["wide"])
    frame = Frame(
        version=FRAME_VERSION, stream="s", sequence=1, catalog=catalog.digest, crc32=crc, **cut
    )  # fmt: skip
    check_shape(decode(encode(frame)), narrow=len(catalog.narrow), wide=len(catalog.wide))


def test_a_repeated_step_replaces_what_was_known_of_it() -> None:
    frames = StepFrames("job", 1)
    frames.add_record(0, record(3, step_time=9.0))
    frames.add_record(0, record(3, step_time=1.0))
    cut = frames.cut()
    assert cut is not None
    assert tensors(cut)[0][0, 0].tolist() == [1.0]


def test_a_gap_is_cut_into_frames_of_bounded_size() -> None:
    frames = StepFrames("job", 1)
    frames.add_record(0, record(1))
    frames.add_record(0, record(MAX_STEPS + 10))
    first, second = frames.cut(), frames.cut()
    assert first is not None
    assert second is not None
    assert first["samples"] == MAX_STEPS
    assert second["t0"] == MAX_STEPS + 10
    assert frames.cut() is None


def test_when_a_frame_is_due() -> None:
    frames = StepFrames("job", 1)
    assert frames.due_in() > 0.5
    for epoch in range(MAX_STEPS):
        frames.add_record(0, record(epoch))
    assert frames.due_in() == 0.0


def test_a_loss_too_large_for_float32_is_missing() -> None:
    frames = StepFrames("job", 1)
    frames.add_record(0, record(1, loss=1e300))
    cut = frames.cut()
    assert cut is not None
    assert math.isnan(tensors(cut)[0][0, LOSS, 0])


def test_signals_by_name_and_none_that_nobody_declared() -> None:
    frames = StepFrames("job", 1)
    frames.add_record(0, record(1, signals={"forward_seconds": 0.25, "no_such_signal": 1.0, "tokens": 4096.0}))
    cut = frames.cut()
    assert cut is not None
    narrow = tensors(cut)[0][0, :, 0]
    assert narrow[RANK.index("forward_seconds")] == 0.25
    assert narrow[RANK.index("tokens")] == 4096.0
    assert np.isnan(narrow[RANK.index("backward_seconds")])


def test_the_assignment_is_reported_where_a_script_asks_for_it() -> None:
    frames = StepFrames("job", 2)
    frames.add_record(0, msgspec.structs.replace(record(1), micro_batches=5))
    frames.add_record(1, record(1))
    cut = frames.cut()
    assert cut is not None
    told = tensors(cut)[0][:, RANK.index("micro_batches"), 0]
    assert told[0] == 5.0
    assert np.isnan(told[1])


def test_a_value_that_its_signal_cannot_have_is_missing() -> None:
    """The service would refuse the frame of all ranks for it."""
    frames = StepFrames("job", 1)
    frames.add_record(0, record(1, loss=-3.0, signals={"communication_wait_seconds": -0.001, "tokens": math.inf}))
    cut = frames.cut()
    assert cut is not None
    narrow = tensors(cut)[0][0, :, 0]
    assert np.isnan(narrow[RANK.index("communication_wait_seconds")])
    assert np.isnan(narrow[RANK.index("tokens")])
    assert narrow[LOSS] == -3.0


def as_frame(cut: dict[str, Any]) -> Frame:
    fields = dict(cut)
    known = fields.pop("catalog")
    crc = checksum(fields["values"], fields["wide"])
    frame = Frame(version=FRAME_VERSION, stream="s", sequence=1, catalog=known.digest, crc32=crc, **fields)
    read = decode(encode(frame))
    check_shape(read, narrow=len(known.narrow), wide=len(known.wide))
    return read


def test_a_large_world_is_cut_into_frames_that_may_be_sent() -> None:
    ranks = 16_384
    frames = StepFrames("job", ranks)
    for epoch in range(1, 8):
        frames.add_record(epoch, record(epoch))
    seen: list[int] = []
    while (cut := frames.cut()) is not None:
        read = as_frame(cut)
        seen.extend(range(int(read.t0), int(read.t0) + read.samples))
    assert seen == list(range(1, 8))


def transfers(epoch: int, seconds: dict[int, float], end_ns: int = 7) -> Transfers:
    nbytes = dict.fromkeys(seconds, 100.0)
    return Transfers(generation=1, epoch=epoch, end_ns=end_ns, seconds=seconds, nbytes=nbytes)


def test_pairs_of_two_steps() -> None:
    frames = PairFrames("job", 4)
    frames.add_transfers(1, transfers(5, {0: 0.1}))
    frames.add_transfers(0, transfers(5, {3: 0.2, 1: 0.3}, end_ns=9))
    frames.add_transfers(1, transfers(6, {0: 0.4}))
    (cut,) = frames.cut()
    assert (cut["entities"], cut["t0"], cut["samples"]) == (("0>1", "1>0", "3>0"), 5.0, 2)
    assert cut["catalog"].narrow == ("transfer_seconds", "transfer_bytes")
    assert cut["catalog"].wide == ("step_end_nanoseconds",)
    as_frame(cut)
    narrow = np.frombuffer(cut["values"], "<f4").reshape(3, 2, 2)
    wide = np.frombuffer(cut["wide"], "<i8").reshape(3, 2)
    np.testing.assert_allclose(narrow[:, 0], [[0.1, 0.4], [0.3, np.nan], [0.2, np.nan]])
    assert wide.tolist() == [[7, 7], [9, WIDE_MISSING], [9, WIDE_MISSING]]
    assert frames.cut() == []


def test_transfers_that_cannot_be_are_left_out() -> None:
    frames = PairFrames("job", 2)
    frames.add_transfers(1, transfers(1, {0: 1e300, 1: 0.1, 7: 0.1, -1: 0.1, 2**63: 0.1}, end_ns=2**63))
    (cut,) = frames.cut()
    assert cut["entities"] == ("0>1",)
    assert np.isnan(np.frombuffer(cut["values"], "<f4")[0])
    assert np.frombuffer(cut["wide"], "<i8")[0] == WIDE_MISSING
    frames.add_transfers(0, Transfers(generation=1, epoch=1, end_ns=0, seconds={}, nbytes={}))
    assert frames.cut() == []


def test_pairs_of_a_large_world_fit_into_frames() -> None:
    """A ring and two neighbors of 16,384 ranks, and once all to all among few hundred."""
    frames = PairFrames("job", 16_384)
    for epoch in range(1, 4):
        for rank in range(16_384):
            frames.add_transfers(rank, transfers(epoch, {(rank - 1) % 16_384: 0.1, (rank + 1) % 16_384: 0.1}))
    count = 0
    while cuts := frames.cut():
        count += sum(int(np.isfinite(np.frombuffer(as_frame(cut).values, "<f4")).sum()) for cut in cuts)
    assert count == 3 * 2 * 16_384 * 2
    many = PairFrames("job", 512)
    for rank in range(512):
        many.add_transfers(rank, transfers(1, {peer: 0.1 for peer in range(512) if peer != rank}))
    assert sum(len(as_frame(cut).entities) for cut in many.cut()) == 512 * 511
