"""What a rank measures of itself in each step: the record that its launcher gets. Costs a small part of a percent.

``compute_time_seconds`` is what the rank needed for itself: the block of the step less waiting for peers, for data, for
the snapshot and (on a CPU) for a core. A sleep in a forward pass counts, as a slow device would; a busy neighbor does
not. On a GPU it is the same between CUDA events; the record of a step leaves once the device has passed it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import torch

from mainstay.probes.core_types import GROUP_KINDS, StepPhase
from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers
from mainstay.recovery.sdk.call_tracker import CallTracker
from mainstay.recovery.sdk.clocks import Collections, ThreadClock
from mainstay.recovery.sdk.gradients import Gradients
from mainstay.recovery.sdk.hooks import Hooks
from mainstay.recovery.sdk.measurement_budget import MeasurementBudget
from mainstay.recovery.sdk.numerics import DIGEST_EVERY, device_digest, fold, is_sendable, tensors_digest
from mainstay.recovery.sdk.sections import SECTIONS, DeviceSections, Sections

WARM_UP_STEPS: Final = 5
"""First steps of a process that are called warm-up: allocators, caches and lazy connections settle in them."""
_MOST_PENDING: Final = 64
"""Steps whose records wait for the device. More means that no reader takes them."""

Sent = StepRecord | Transfers


@dataclass(slots=True)
class _Draft:
    """A record whose numbers may still be on the device."""

    record: StepRecord
    loss: float | torch.Tensor | None
    norm: torch.Tensor | None
    summed: torch.Tensor | None
    parameters: int | torch.Tensor | None
    transfers: Transfers | None
    waits: dict[str | None, float]
    elsewhere: float
    """Seconds of the block that the host waited for data and for the snapshot."""
    intervals: list[Any] = field(default_factory=list)
    ready: Callable[[], bool] = lambda: True


class StepMeter:
    """One at a time: ``begin``, ``end`` when the step has committed, ``take`` what can be sent.

    All but ``take`` and ``phase`` belongs to the training thread.
    """

    def __init__(self, model: torch.nn.Module, *, replicas: int = 1) -> None:
        self._model = model
        self.clock = ThreadClock()
        self.traffic = CallTracker(self.clock)
        self.collections = Collections()
        self.collections.install()
        self.gradients = Gradients(model, self.traffic, replicas)
        self.budget = MeasurementBudget()
        self.spent = 0.0
        """Seconds of the training thread in here so far; ``hooks`` and ``traffic`` count their own."""
        self._device = DeviceSections() if self.gradients.on_device else None
        self.sections = Sections(self.traffic, self._device)
        self.hooks = Hooks(model, self.sections, self.traffic)
        self.hooks.before_hidden_wait = self.gradients.before_hidden_exchange
        self.hooks.after_backward = self.gradients.after_backward
        self.traffic.stream = self._device
        self.loss: float | torch.Tensor | None = None
        self.blocked = 0.0
        self.training = False
        """Whether steps are being made: not while groups form and state is restored."""
        self._spent_before = 0.0
        self._phase: StepPhase | None = None
        self._seen: StepPhase | None = None
        self._steps = 0
        self._workload: dict[str, float] = {}
        self._drafts: deque[_Draft] = deque()
        self._taking = threading.Lock()
        self.restart()

    # What the script does

    @property
    def phase(self) -> StepPhase:
        """What the rank is doing at the moment."""
        if self._phase is not None:
            return self._phase
        return StepPhase.TRAIN if self.training and self._steps >= WARM_UP_STEPS else StepPhase.WARM_UP

    @contextmanager
    def inside(self, phase: StepPhase) -> Iterator[None]:
        before, self._phase = self._phase, phase
        self._seen = phase
        try:
            yield
        finally:
            self._phase = before

    def work(self, tokens: float | None, sequence_squares: float | None) -> None:
        for name, value in (("tokens", tokens), ("sequence_squares", sequence_squares)):
            if value is not None:
                self._workload[name] = self._workload.get(name, 0.0) + float(value)

    def wait_for_data(self, source: Iterator[Any]) -> Any:
        """The next of ``source``; raises StopIteration as it does."""
        begun, waited = self.clock.own(), self.traffic.waited_total
        try:
            return next(source)
        finally:
            seconds = max(0.0, self.clock.own() - begun - (self.traffic.waited_total - waited))
            self._data += seconds
            self._data_inside += seconds if self._inside else 0.0

    # Steps

    def restart(self) -> None:
        """The next step does not follow a commit: time without training is not step time."""
        self._last_commit: float | None = None
        self._last_delay = self._last_gc = 0.0
        self._data = self._data_inside = 0.0
        self._inside = False
        self._workload = {}
        self._seen = None
        self._drop()

    def _drop(self) -> None:
        self.sections.drop()
        self.hooks.drop()
        self.gradients.drop()

    def begin_step(self, epoch: int = 0) -> None:
        """The block of the step that will be ``epoch`` begins."""
        entered = time.perf_counter()
        self._drop()
        self.loss, self.blocked, self._data_inside = None, 0.0, 0.0
        self._epoch = epoch
        self._inside = True
        self._waited = dict(self.traffic.waited)
        self._waited_total = self.traffic.waited_total
        self._begun, self._delay = time.perf_counter(), self.clock.read()[1]
        if self._last_commit is None:
            self._last_delay, self._last_gc = self._delay, self.collections.seconds
        if self._device is not None:
            self._device.begin_step()
        self.gradients.begin_step(due=self.budget.due(epoch))
        self.spent += time.perf_counter() - entered

    def before_update(self) -> None:
        """Before ``optimizer.step``, before any vote."""
        begun = time.perf_counter()
        self.gradients.before_update()
        self.spent += time.perf_counter() - begun

    def end(self, generation: int, epoch: int, *, digests: bool, optimizer: int | None = None) -> None:
        """The step just became ``epoch``; with ``digests`` of the model as it is now, and that of its optimizer.

        ``collect`` gives its record.
        """
        now, delay = time.perf_counter(), self.clock.read()[1]
        since, since_delay = self._begun, self._delay
        if self._last_commit is not None:
            since, since_delay = self._last_commit, self._last_delay
        waited = self.traffic.waited_total - self._waited_total
        compute = now - self._begun - (delay - self._delay) - waited - self._data_inside - self.blocked
        signals = self._signals(delay - since_delay) | self._own_cost(now - since)
        norm, summed = self.gradients.norm(), self.gradients.summed()
        digest = tensors_digest(self._model.parameters()) if digests else None
        intervals = [] if self._device is None else self._device.end_step()
        record = StepRecord(
            generation=generation,
            epoch=epoch,
            step_time=now - since,
            compute_time=max(0.0, compute),
            snapshot_blocked=self.blocked,
            end_ns=time.time_ns(),
            digest=digest,
            buffers=tensors_digest(self._model.buffers()) if digests else None,
            optimizer=optimizer,
            signals=signals,
        )
        draft = _Draft(
            record,
            loss=_on_host(self.loss),
            norm=_on_host(norm),
            summed=_on_host(summed),
            parameters=_on_host(self._parameters_digest(epoch, digest)),
            transfers=self._transfers(generation, epoch),
            waits=self._waits(),
            elsewhere=self._data_inside + self.blocked,
            intervals=intervals,
        )
        if self._device is not None:
            draft.ready = self._device.mark()
        self._drafts.append(draft)
        self._last_commit, self._last_delay, self._last_gc = now, delay, self.collections.seconds
        self._inside, self._data, self._seen, self._workload = False, 0.0, None, {}
        self._steps += 1
        self.traffic.square()
        self.spent += time.perf_counter() - now

    def _own_cost(self, step: float) -> dict[str, float]:
        """What was spent since the last call, and what is thinned for it."""
        total = self.spent + self.hooks.spent + self.traffic.spent
        spent, self._spent_before = total - self._spent_before, total
        norm = self.gradients.seconds if self.gradients.seconds > 0.0 else None
        self.budget.learn(step, spent, norm)
        return {"measuring_seconds": spent, "measured_every": float(self.budget.every)}

    def _signals(self, delay: float) -> dict[str, float]:
        seconds = self.sections.collect()
        phase = self._seen or (StepPhase.WARM_UP if self._steps < WARM_UP_STEPS else StepPhase.TRAIN)
        signals = {f"{name}_seconds": seconds[name] for name in SECTIONS if name in seconds}
        signals["data_wait_seconds"] = self._data
        signals["gc_seconds"] = self.collections.seconds - self._last_gc
        signals["step_phase"] = float(phase)
        if self.clock.knows_delay:
            signals["run_delay_seconds"] = max(0.0, delay)
        return signals | self._workload

    def _waits(self) -> dict[str | None, float]:
        return {kind: total - self._waited.get(kind, 0.0) for kind, total in self.traffic.waited.items()}

    def _parameters_digest(self, epoch: int, whole: int | None) -> int | torch.Tensor | None:
        """Of the same making on all ranks at one epoch: the rule looks at nothing that a rank has alone."""
        if epoch % DIGEST_EVERY:
            return whole
        if self._device is not None:
            return device_digest(self._model.parameters())
        return tensors_digest(self._model.parameters())

    def _transfers(self, generation: int, epoch: int) -> Transfers | None:
        if self.traffic.links is None:
            return None
        seconds, nbytes = self.traffic.links.cut()
        if not nbytes:
            return None
        return Transfers(generation=generation, epoch=epoch, end_ns=time.time_ns(), seconds=seconds, nbytes=nbytes)

    # Records

    def collect(self, *, everything: bool = False) -> list[Sent]:
        """What is complete, oldest first; ``everything``: wait for the rest. From any thread."""
        begun, sent = time.perf_counter(), list[Sent]()
        with self._taking:
            while self._drafts and (everything or self._drafts[0].ready() or len(self._drafts) > _MOST_PENDING):
                sent += self._finish(self._drafts.popleft())
        if threading.get_ident() == self.traffic.thread:
            self.spent += time.perf_counter() - begun
        return sent

    def _finish(self, draft: _Draft) -> list[Sent]:
        signals, waits, compute = draft.record.signals, draft.waits, draft.record.compute_time
        if self._device is not None:
            if not draft.ready():
                self._device.synchronize()
            on_device = self._device.read(draft.intervals)
            waits = on_device.waits
            # While the host waited the device was idle, unless it still had a section to work on.
            compute = max(on_device.compute - draft.elsewhere, sum(on_device.sections.values()))
            signals |= {f"{name}_seconds": seconds for name, seconds in on_device.sections.items()}
        # Differences of clocks: a wait of nothing may come out a hair below it.
        waits = {kind: max(0.0, seconds) for kind, seconds in waits.items()}
        signals["communication_wait_seconds"] = sum(waits.values())
        signals |= {f"{kind}_wait_seconds": waits[kind] for kind in GROUP_KINDS if kind in waits}
        loss = _number(draft.loss)
        signals |= _numeric_signals(draft, loss)
        record = msgspec.structs.replace(
            draft.record,
            compute_time=compute,
            loss=loss if loss is not None and is_sendable(loss) else None,
            signals={name: value for name, value in signals.items() if is_sendable(value)},
        )
        return [record] if draft.transfers is None else [record, draft.transfers]

    def close(self) -> None:
        self.collections.remove()
        self.hooks.remove()


def _numeric_signals(draft: _Draft, loss: float | None) -> dict[str, float]:
    """The signals that report a numeric anomaly, as far as the step has them."""
    norm, signals = _number(draft.norm), dict[str, float]()
    known = [value for value in (loss, norm, _number(draft.summed)) if value is not None]
    if known:
        signals["nonfinite_values"] = float(not all(map(is_sendable, known)))
    if norm is not None:
        signals["gradient_norm"] = norm
    if draft.parameters is not None:
        signals["parameters_digest"] = fold(int(draft.parameters))
    return signals


def _on_host(value: Any) -> Any:
    """A number, or a copy under way to the host: no thread waits for it until the step's last event has passed."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if not value.is_cuda:
        return value.item()
    return torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value.reshape(()), non_blocking=True)


def _number(value: float | torch.Tensor | None) -> float | None:
    return None if value is None else float(value)
