"""Step records become frames that the service accepts; what a rank did not tell is missing, never zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from probes.frame import FRAME_VERSION, Frame, check_shape, checksum, decode, encode
from probes.signals import WIDE_MISSING
from recovery.launcher.messages import StepRecord
from recovery.launcher.steps import MAX_STEPS, StepFrames


def record(epoch: int, step_time: float = 0.1, loss: float | None = None) -> StepRecord:
    return StepRecord(
        generation=1,
        epoch=epoch,
        step_time=step_time,
        compute_time=0.05,
        snapshot_blocked=0.001,
        end_ns=epoch,
        loss=loss,
    )


def tensors(cut: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    ranks, steps = len(cut["entities"]), cut["samples"]
    narrow = np.frombuffer(cut["values"], "<f4").reshape(ranks, 4, steps)
    return narrow, np.frombuffer(cut["wide"], "<i8").reshape(ranks, 1, steps)


def test_a_frame_of_three_steps() -> None:
    frames = StepFrames("job", 2)
    for epoch in (5, 6, 7):
        frames.add(0, record(epoch, step_time=epoch / 10, loss=1.0 / epoch))
    frames.add(1, record(6))
    cut = frames.cut()
    assert cut is not None
    assert (cut["t0"], cut["samples"], cut["entities"]) == (5.0, 3, ("0", "1"))
    narrow, wide = tensors(cut)
    np.testing.assert_allclose(narrow[0, 0], [0.5, 0.6, 0.7], rtol=1e-6)
    np.testing.assert_allclose(narrow[0, 3], [1 / 5, 1 / 6, 1 / 7], rtol=1e-6)
    assert np.isnan(narrow[1, 0]).tolist() == [True, False, True]
    assert math.isnan(narrow[1, 3, 1])
    assert wide[1, 0].tolist() == [WIDE_MISSING, 6, WIDE_MISSING]
    assert frames.cut() is None


def test_the_service_can_read_it() -> None:
    frames = StepFrames("job", 3)
    frames.add(2, record(1))
    cut = frames.cut()
    assert cut is not None
    catalogue = cut.pop("catalogue")
    crc = checksum(cut["values"], cut["wide"])
    frame = Frame(
        version=FRAME_VERSION, stream="s", sequence=1, catalogue=catalogue.digest, crc32=crc, **cut
    )  # fmt: skip
    check_shape(decode(encode(frame)), narrow=len(catalogue.narrow), wide=len(catalogue.wide))


def test_a_repeated_step_replaces_what_was_known_of_it() -> None:
    frames = StepFrames("job", 1)
    frames.add(0, record(3, step_time=9.0))
    frames.add(0, record(3, step_time=1.0))
    cut = frames.cut()
    assert cut is not None
    assert tensors(cut)[0][0, 0].tolist() == [1.0]


def test_a_gap_is_cut_into_frames_of_bounded_size() -> None:
    frames = StepFrames("job", 1)
    frames.add(0, record(1))
    frames.add(0, record(MAX_STEPS + 10))
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
        frames.add(0, record(epoch))
    assert frames.due_in() == 0.0


def test_a_loss_too_large_for_float32_is_missing() -> None:
    frames = StepFrames("job", 1)
    frames.add(0, record(1, loss=1e300))
    cut = frames.cut()
    assert cut is not None
    assert math.isnan(tensors(cut)[0][0, 3, 0])
