"""The kernels of a speed check: means that see a throttled device, and no trace in the training process."""

from __future__ import annotations

import itertools

import pytest
import torch

from mainstay.recovery.sdk import speed_check
from mainstay.recovery.sdk.speed_check import ROUND_SECONDS, ROUNDS, measure_speed

CPU = torch.device("cpu")


def test_all_kernels_are_measured_and_training_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_check, "ROUND_SECONDS", 0.002)
    random, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    answer = measure_speed(7, CPU)
    assert (answer.request, answer.problem) == (7, "")
    assert set(answer.seconds) == {"matmul", "copy", "host"}
    assert all(0 < seconds < 1 for seconds in answer.seconds.values())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_float32_matmul_precision() == precision
    assert torch.is_grad_enabled()


def test_a_device_that_stands_still_a_part_of_the_time_is_slow_and_a_busy_moment_is_not() -> None:
    """Every call takes 1 ms; the throttled device stands still for 9 ms after every ninth."""

    def seconds(pauses: dict[int, float]) -> float:
        ticks = itertools.count()
        now = 0.0

        def clock() -> float:
            nonlocal now
            call, after = divmod(next(ticks), 2)
            if after:
                now += 0.001 + pauses.get(call % 9 if len(pauses) == 1 else call, 0.0)
            return now

        return measure_speed(1, CPU, clock).seconds["matmul"]

    sound, throttled = seconds({}), seconds({8: 0.009})
    assert sound == pytest.approx(0.001)
    assert throttled == pytest.approx(0.002, rel=0.2)
    first_round = dict.fromkeys(range(3, 5), 0.05)
    assert seconds(first_round) == pytest.approx(0.001), "the fastest of the rounds counts"
    assert ROUNDS * ROUND_SECONDS < 0.2


def test_a_device_without_memory_for_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB.\nmore")

    monkeypatch.setattr(torch, "ones", full)
    answer = measure_speed(3, CPU)
    assert (answer.seconds, answer.problem) == ({}, "CUDA out of memory. Tried to allocate 32.00 MiB.")
