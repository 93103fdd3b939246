"""The record of a step: sections, waits, phases, workload, numeric anomalies; on a device, without waiting for it."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mainstay.probes.core_types import StepPhase
from mainstay.probes.signals import SIGNALS, SignalSource
from mainstay.recovery.protocol.wire import encode, from_worker
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.sdk.measurement_budget import LONGEST_STRIDE
from mainstay.recovery.sdk.meter import WARM_UP_STEPS, StepMeter
from mainstay.recovery.sdk.numerics import DIGEST_EVERY
from mainstay.recovery.sdk.sections import DeviceSections

NAP = 0.02


class Layer(torch.nn.Module):
    """A linear layer that sleeps for a given time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.nap = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.nap)
        out: torch.Tensor = self.inner(x)
        return out


@pytest.fixture
def model() -> Layer:
    torch.manual_seed(0)
    return Layer()


@pytest.fixture
def meter(model: Layer) -> Iterator[StepMeter]:
    found = StepMeter(model)
    found.training = True
    yield found
    found.close()


def step(meter: StepMeter, model: Layer, epoch: int = 1, *, digests: bool = False) -> StepRecord:
    """One step with a forward and a backward pass."""
    meter.begin_step(epoch)
    model.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    meter.before_update()
    meter.loss = loss
    meter.end(3, epoch, digests=digests)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    return record


def test_every_signal_is_declared_and_travels(meter: StepMeter, model: Layer) -> None:
    meter.work(10, 100)
    record = step(meter, model, DIGEST_EVERY, digests=True)
    for name in record.signals:
        assert SIGNALS[name].source is SignalSource.RANK
        assert not SIGNALS[name].wide
    assert from_worker.decode(encode(record)) == record
    assert {
        "forward_seconds", "backward_seconds", "data_wait_seconds", "communication_wait_seconds", "run_delay_seconds",
        "gc_seconds", "tokens", "sequence_squares", "gradient_norm", "nonfinite_values", "parameters_digest",
        "step_phase",
    } <= record.signals.keys()  # fmt: skip


def test_a_sleep_in_a_forward_pass_is_the_ranks_own_time(meter: StepMeter, model: Layer) -> None:
    quick = step(meter, model)
    model.nap = NAP
    slow = step(meter, model, 2)
    assert slow.signals["forward_seconds"] >= NAP > quick.signals["forward_seconds"]
    assert slow.compute_time >= NAP
    assert slow.signals["backward_seconds"] < NAP


def test_waiting_for_data_is_none_of_it(meter: StepMeter, model: Layer) -> None:
    def slow() -> Iterator[int]:
        for number in itertools.count():
            time.sleep(NAP)
            yield number

    source = slow()
    assert meter.wait_for_data(source) == 0  # before the block: not part of its compute time, and told all the same
    meter.begin_step(1)
    assert meter.wait_for_data(source) == 1
    meter.end(1, 1, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    assert record.signals["data_wait_seconds"] >= 2 * NAP
    assert record.compute_time < NAP
    assert step(meter, model, 2).signals["data_wait_seconds"] == 0.0
    with pytest.raises(StopIteration):
        meter.wait_for_data(iter(()))


def test_the_norm_is_of_the_ranks_own_gradients(meter: StepMeter, model: Layer) -> None:
    record = step(meter, model)
    own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert record.signals["gradient_norm"] == pytest.approx(float(own.norm()), rel=1e-6)
    assert record.signals["nonfinite_values"] == 0.0


@pytest.mark.parametrize("sick", [math.nan, math.inf, -math.inf])
def test_numeric_anomalies_are_reported_and_never_sent(sick: float, meter: StepMeter, model: Layer) -> None:
    with torch.no_grad():
        model.inner.bias[0] = sick
    record = step(meter, model)
    assert record.signals["nonfinite_values"] == 1.0
    assert record.loss is None
    assert all(math.isfinite(value) for value in record.signals.values())
    meter.begin_step(LONGEST_STRIDE)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, sick)
    meter.before_update()
    meter.end(1, LONGEST_STRIDE, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    assert record.signals["nonfinite_values"] == 1.0
    assert "gradient_norm" not in record.signals


def test_a_step_without_a_norm_sees_what_replicas_exchange(model: Layer) -> None:
    meter = StepMeter(model, replicas=2)
    meter.budget.every = 4
    said = []
    for value in (1.0, math.nan, 1.0):
        meter.begin_step(5)
        model(torch.ones(2, 4)).sum().backward()
        assert meter.traffic.on_exchange is not None
        assert meter.traffic.on_exchange([torch.tensor([1.0, value]), torch.tensor([1])])
        meter.before_update()
        meter.end(1, 5, digests=False)
        (record,) = meter.collect()
        assert isinstance(record, StepRecord)
        assert "gradient_norm" not in record.signals
        said.append(record.signals["nonfinite_values"])
    assert said == [0.0, 1.0, 0.0]
    meter.close()


def test_nothing_is_said_where_nothing_is_known(meter: StepMeter) -> None:
    meter.begin_step(1)
    meter.end(1, 1, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    missing = {"nonfinite_values", "gradient_norm", "forward_seconds", "tokens", "parameters_digest"}
    assert not missing & record.signals.keys()


def test_phases(meter: StepMeter, model: Layer) -> None:
    said = [step(meter, model, epoch + 1).signals["step_phase"] for epoch in range(WARM_UP_STEPS)]
    assert said == [StepPhase.WARM_UP] * WARM_UP_STEPS
    assert meter.phase is StepPhase.TRAIN
    assert step(meter, model, 6).signals["step_phase"] == StepPhase.TRAIN
    with meter.inside(StepPhase.EVALUATE):
        assert meter.phase is StepPhase.EVALUATE
        with meter.inside(StepPhase.CHECKPOINT):
            assert meter.phase is StepPhase.CHECKPOINT
        assert meter.phase is StepPhase.EVALUATE
    assert step(meter, model, 7).signals["step_phase"] == StepPhase.CHECKPOINT  # its step time holds the pause
    assert step(meter, model, 8).signals["step_phase"] == StepPhase.TRAIN
    meter.training = False
    assert meter.phase is StepPhase.WARM_UP


def test_workload_adds_up_and_starts_anew(meter: StepMeter, model: Layer) -> None:
    meter.work(5, None)
    meter.work(6, 20)
    record = step(meter, model)
    assert (record.signals["tokens"], record.signals["sequence_squares"]) == (11.0, 20.0)
    assert "tokens" not in step(meter, model, 2).signals


def test_a_step_that_was_canceled_leaves_nothing(meter: StepMeter, model: Layer) -> None:
    meter.begin_step(1)
    meter.sections.begin_section("forward")
    time.sleep(NAP)
    meter.work(100, None)
    meter.restart()
    record = step(meter, model)
    assert record.signals["forward_seconds"] < NAP
    assert "tokens" not in record.signals


def test_sections_by_hand(meter: StepMeter, model: Layer) -> None:
    meter.begin_step(1)
    with meter.sections.inside("forward"):
        model(torch.ones(2, 4))  # its own hooks find themselves inside
        time.sleep(NAP)
    meter.end(1, 1, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    assert record.signals["forward_seconds"] >= NAP


def test_garbage_collection_is_timed(meter: StepMeter, model: Layer) -> None:
    step(meter, model)
    meter.begin_step(2)
    gc.collect()
    meter.end(1, 2, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    assert record.signals["gc_seconds"] > 0.0
    assert step(meter, model, 3).signals["gc_seconds"] >= 0.0


def test_digests_are_of_equal_bits_at_the_same_epochs(meter: StepMeter, model: Layer) -> None:
    first = step(meter, model, DIGEST_EVERY).signals["parameters_digest"]
    assert "parameters_digest" not in step(meter, model, DIGEST_EVERY + 1).signals
    assert step(meter, model, 2 * DIGEST_EVERY).signals["parameters_digest"] == first
    with torch.no_grad():
        model.inner.weight[0, 0] += 1e-6
    assert step(meter, model, 3 * DIGEST_EVERY).signals["parameters_digest"] != first


class FakeEvent:
    """A CUDA event of a device whose clock is moved by hand."""

    now = 0.0
    passed_until = math.inf

    def __init__(self) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = FakeEvent.now

    def query(self) -> bool:
        return self.time <= FakeEvent.passed_until

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000.0 * (end.time - self.time)


def test_on_a_device_time_is_what_lies_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent())
    device = DeviceSections()

    def at(seconds: float) -> Any:
        FakeEvent.now = seconds
        return device

    at(0.0).begin_step()
    at(1.0).begin_section("forward")
    waiting = at(2.0).wait("dp")
    FakeEvent.now = 2.5
    waiting()
    at(4.0).end()
    waiting = at(4.0).wait("world")
    FakeEvent.now = 5.0
    waiting()
    intervals = at(7.0).end_step()
    ready = device.mark()
    FakeEvent.passed_until = 6.9
    assert not ready()
    FakeEvent.passed_until = 7.0
    assert ready()
    found = device.read(intervals)
    assert found.sections == {"forward": pytest.approx(2.5)}
    assert found.waits == {"dp": pytest.approx(0.5), "world": pytest.approx(1.0)}
    assert found.compute == pytest.approx(5.5)
    made = len(device._free)
    at(8.0).begin_step()
    device.end_step()
    assert len(device._free) == made - 2  # they are used again


def test_a_record_waits_for_its_device(model: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent())
    meter = StepMeter(model)
    meter._device = meter.traffic.stream = DeviceSections()
    FakeEvent.now, FakeEvent.passed_until = 1.0, 0.0
    meter.begin_step(1)
    meter.end(1, 1, digests=False)
    assert meter.collect() == []
    FakeEvent.passed_until = 2.0
    assert [type(message) for message in meter.collect()] == [StepRecord]
    meter.close()
