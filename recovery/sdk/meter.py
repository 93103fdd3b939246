"""What a rank measures of itself in each step: the record that its launcher gets. Costs a small part of a percent.

``compute_time_seconds`` is what the rank needed for itself: the block of the step less waiting for peers, for data, for
the snapshot and (on a CPU) for a core. A sleep in a forward pass counts, as a slow device would; a busy neighbour does
not. On a GPU it is the same between CUDA events; the record of a step leaves once the device has passed it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from probes.words import GROUP_KINDS, StepPhase
from recovery.launcher.messages import StepRecord, Transfers
from recovery.sdk.clocks import Collections, ThreadClock
from recovery.sdk.hooks import Hooks
from recovery.sdk.sections import SECTIONS, DeviceSections, Sections
from recovery.sdk.traffic import Traffic
from recovery.sdk.values import (
    DIGEST_EVERY,
    Stride,
    device_digest,
    fold,
    gradient_norm,
    local,
    norm_of,
    sane,
    tensors_digest,
)

WARM_UP_STEPS: Final = 5
"""First steps of a process that are called warm-up: allocators, caches and lazy connections settle in them."""
_MOST_PENDING: Final = 64
"""Steps whose records wait for the device. More means that nobody takes them."""

Sent = StepRecord | Transfers


@dataclass(slots=True)
class _Draft:
    """A record whose numbers may still be on the device."""

    generation: int
    epoch: int
    step_time: float
    compute_time: float
    snapshot_blocked: float
    end_ns: int
    signals: dict[str, float]
    loss: float | torch.Tensor | None
    norm: torch.Tensor | None
    summed: torch.Tensor | None
    digest: int | None
    buffers: int | None
    parameters: int | torch.Tensor | None
    transfers: Transfers | None
    waits: dict[str | None, float]
    elsewhere: float
    """Seconds of the block that the host waited for data and for the snapshot."""
    intervals: list[Any] = field(default_factory=list)
    ready: Callable[[], bool] = lambda: True


class _Exchange(Enum):
    """Who averages gradients over replicas, so where they are last seen as the rank's own."""

    SCRIPT = "script"  # before its first collective among replicas, or before the update if there is one replica
    BUCKETS = "buckets"  # DDP: gradients are copied to buckets, and stay as they are until the backward pass has ended
    VIEWS = "views"  # DDP whose gradients are views of its buckets: they are averaged under our eyes, nothing is told
    SHARDED = "sharded"  # FSDP2: the input of each reduce-scatter


def _exchange_of(model: torch.nn.Module) -> _Exchange:
    if isinstance(model, DistributedDataParallel):
        return _Exchange.VIEWS if model.gradient_as_bucket_view else _Exchange.BUCKETS
    return _Exchange.SHARDED if any(isinstance(m, FSDPModule) for m in model.modules()) else _Exchange.SCRIPT


class StepMeter:
    """One at a time: ``begin``, ``end`` when the step has committed, ``take`` what can be sent.

    All but ``take`` and ``phase`` belongs to the training thread.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        traffic: Traffic | None = None,
        replicas: int = 1,
    ) -> None:
        self._model = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._replicas = replicas
        self.clock = ThreadClock() if traffic is None else traffic.clock
        self.traffic = Traffic(self.clock) if traffic is None else traffic
        self.collections = Collections()
        self.collections.install()
        self._device = DeviceSections() if any(p.is_cuda for p in self._parameters) else None
        self.sections = Sections(self.clock, self.traffic, self._device)
        self.hooks = Hooks(model, self.sections, self.traffic, self.clock)
        self.hooks.before_hidden_wait, self.hooks.after_backward = self._before_hidden_exchange, self._after_backward
        self.traffic.stream = self._device
        self.loss: float | torch.Tensor | None = None
        self.blocked = 0.0
        self.training = False
        """Whether steps are being made: not while groups form and state is restored."""
        self._stride = Stride()
        self._exchange = _exchange_of(model)
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
        self._norms: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []
        self.traffic.on_exchange = self.traffic.on_reduce_scatter = None

    def begin(self, epoch: int = 0) -> None:
        """The block of the step that will be ``epoch`` begins."""
        self._drop()
        self.loss, self.blocked, self._data_inside = None, 0.0, 0.0
        self._epoch = epoch
        self._norm_seconds = 0.0
        self._inside = True
        self._waited = dict(self.traffic.waited)
        self._waited_total = self.traffic.waited_total
        self._begun = time.perf_counter()
        self._delay = self.clock.delay()
        if self._last_commit is None:
            self._last_delay, self._last_gc = self._delay, self.collections.seconds
        if self._device is not None:
            self._device.begin_step()
        if self._exchange is _Exchange.SHARDED and self._stride.due(epoch):
            self.traffic.on_reduce_scatter = self._scattered

    def _before_hidden_exchange(self) -> None:
        """The last gradient is there, and DDP has not put the averages in their place."""
        wrapper = self._model
        if not (self._inside and self._stride.due(self._epoch)):
            return
        if self._exchange is _Exchange.BUCKETS and wrapper.require_backward_grad_sync:
            self._take_norm()

    def _after_backward(self) -> None:
        """Gradients are there. Just before replicas exchange them they are this rank's own."""
        if self._exchange is _Exchange.SCRIPT and self._inside and self._replicas > 1:
            self.traffic.on_exchange = self._exchanging if self._stride.due(self._epoch) else self._summing

    def before_update(self) -> None:
        """Before ``optimizer.step``, before any vote."""
        self.traffic.on_exchange = None
        if self._exchange is _Exchange.SCRIPT and self._replicas == 1 and self._stride.due(self._epoch):
            self._take_norm()

    def _exchanging(self, _: Sequence[Any]) -> bool:
        self._take_norm()
        return False

    def _summing(self, tensors: Sequence[Any]) -> bool:
        """A step without a norm: whether what replicas exchange is finite costs a tenth of it where it is one tensor.

        A sick value must be seen in the step in which it appears: a step later all replicas have it.
        """
        self._sums += [t.sum() for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
        return True

    def _take_norm(self) -> None:
        begun = time.perf_counter()
        norm = gradient_norm(self._parameters)
        self._norms = [] if norm is None else [norm]
        self._norm_seconds += time.perf_counter() - begun

    def _scattered(self, flat: Any) -> None:
        """FSDP is about to average ``flat``: this rank's own gradients of some layers."""
        begun = time.perf_counter()
        tensors = flat if isinstance(flat, list) else [flat]
        norm = norm_of([t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()])
        if norm is not None:
            self._norms.append(norm)
        self._norm_seconds += time.perf_counter() - begun

    def end(self, generation: int, epoch: int, *, digests: bool) -> None:
        """The step just became ``epoch``; with ``digests`` of the model as it is now. ``take`` gives its record."""
        now, delay = time.perf_counter(), self.clock.delay()
        since, since_delay = self._begun, self._delay
        if self._last_commit is not None:
            since, since_delay = self._last_commit, self._last_delay
        waited = self.traffic.waited_total - self._waited_total
        compute = now - self._begun - (delay - self._delay) - waited - self._data_inside - self.blocked
        signals = self._signals(delay - since_delay)
        norm = norm_of(self._norms) if len(self._norms) > 1 else next(iter(self._norms), None)
        summed = torch.stack([s.float() for s in self._sums]).sum() if self._sums else None
        digest = tensors_digest(self._model.parameters()) if digests else None
        intervals = [] if self._device is None else self._device.end_step()
        draft = _Draft(
            generation=generation,
            epoch=epoch,
            step_time=now - since,
            compute_time=max(0.0, compute),
            snapshot_blocked=self.blocked,
            end_ns=time.time_ns(),
            signals=signals,
            loss=_on_host(self.loss),
            norm=_on_host(norm),
            summed=_on_host(summed),
            digest=digest,
            buffers=tensors_digest(self._model.buffers()) if digests else None,
            parameters=_on_host(self._parameters_digest(epoch, digest)),
            transfers=self._transfers(generation, epoch),
            waits=self._waits(),
            elsewhere=self._data_inside + self.blocked,
            intervals=intervals,
        )
        if self._device is not None:
            draft.ready = self._device.mark()
        self._drafts.append(draft)
        if norm is not None:
            self._stride.learn(self._norm_seconds, now - since)
        self._last_commit, self._last_delay, self._last_gc = now, delay, self.collections.seconds
        self._inside, self._data, self._seen, self._workload = False, 0.0, None, {}
        self._steps += 1
        self.traffic.square()

    def _signals(self, delay: float) -> dict[str, float]:
        seconds = self.sections.take()
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
        return tensors_digest(local(self._model.parameters()))

    def _transfers(self, generation: int, epoch: int) -> Transfers | None:
        if self.traffic.links is None:
            return None
        seconds, nbytes = self.traffic.links.cut()
        if not nbytes:
            return None
        return Transfers(generation=generation, epoch=epoch, end_ns=time.time_ns(), seconds=seconds, nbytes=nbytes)

    # Records

    def take(self, *, everything: bool = False) -> list[Sent]:
        """What is complete, oldest first; ``everything``: wait for the rest. From any thread."""
        sent: list[Sent] = []
        with self._taking:
            while self._drafts and (everything or self._is_due()):
                sent += self._finish(self._drafts.popleft())
        return sent

    def _is_due(self) -> bool:
        return self._drafts[0].ready() or len(self._drafts) > _MOST_PENDING

    def _finish(self, draft: _Draft) -> list[Sent]:
        signals, waits, compute = draft.signals, draft.waits, draft.compute_time
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
        loss, norm = _number(draft.loss), _number(draft.norm)
        known = [value for value in (loss, norm, _number(draft.summed)) if value is not None]
        if known:
            signals["nonfinite_values"] = float(not all(map(sane, known)))
        if norm is not None:
            signals["gradient_norm"] = norm
        if draft.parameters is not None:
            signals["parameters_digest"] = fold(int(draft.parameters))
        record = StepRecord(
            generation=draft.generation,
            epoch=draft.epoch,
            step_time=draft.step_time,
            compute_time=compute,
            snapshot_blocked=draft.snapshot_blocked,
            end_ns=draft.end_ns,
            loss=loss if loss is not None and sane(loss) else None,
            digest=draft.digest,
            buffers=draft.buffers,
            signals={name: value for name, value in signals.items() if sane(value)},
        )
        return [record] if draft.transfers is None else [record, draft.transfers]

    def close(self) -> None:
        self.collections.remove()
        self.hooks.remove()


def _on_host(value: Any) -> Any:
    """A number, or a copy under way to the host: nobody waits for it until the step's last event has passed."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if not value.is_cuda:
        return value.item()
    return torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value.reshape(()), non_blocking=True)


def _number(value: float | torch.Tensor | None) -> float | None:
    return None if value is None else float(value)
