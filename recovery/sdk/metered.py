"""A run that measures: what ``ProtectedRun`` and ``WatchedRun`` share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from mainstay.recovery.protocol.worker_messages import StepsTotal
from mainstay.recovery.sdk import collective_hooks
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.mesh import Mesh
from mainstay.recovery.sdk.meter import Sent, StepMeter
from mainstay.recovery.sdk.progress import ProgressThread
from mainstay.recovery.sdk.run import StepwiseRun, T, checked_phase, checked_section
from mainstay.recovery.sdk.transfer_timer import TransferTimer


class MeteredRun(StepwiseRun):
    """A run with a meter."""

    def __init__(self, mesh: Mesh | None, model: torch.nn.Module, replicas: int) -> None:
        super().__init__(mesh)
        self._meter = StepMeter(model, replicas=replicas)

    def report(self, *, loss: float | torch.Tensor | None = None) -> None:
        self._meter.loss = loss

    def workload(self, *, tokens: float | None = None, sequence_squares: float | None = None) -> None:
        self._meter.work(tokens, sequence_squares)

    def phase(self, phase: str) -> AbstractContextManager[None]:
        return self._meter.inside(checked_phase(phase))

    def section(self, name: str) -> AbstractContextManager[None]:
        return self._meter.sections.inside(checked_section(name))

    def data(self, loader: Iterable[T]) -> Iterator[T]:
        source = iter(loader)
        while True:
            try:
                batch = self._meter.wait_for_data(source)
            except StopIteration:
                return
            yield batch

    def _tell(self, link: LauncherClient, messages: Iterable[Sent]) -> None:
        """Give records to the launcher; what that takes is part of what measuring costs."""
        begun = time.perf_counter()
        for message in messages:
            link.send_if_free(message)
        self._meter.spent += time.perf_counter() - begun

    def _watch_calls(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on the meter hears of calls between ranks and of updates."""
        self._meter.hooks.on_optimizer(optimizer)
        collective_hooks.install()
        collective_hooks.watch(self._meter.traffic)

    @staticmethod
    def _transfer_timer(generation: int, rank: int) -> TransferTimer:
        job = os.environ.get("MAINSTAY_JOB") or f"port-{os.environ.get('MASTER_PORT', '')}-{os.getuid()}"
        return TransferTimer(job, generation, rank)


class WatchedRun(MeteredRun):
    """See ``mainstay.recovery.sdk.watch``: measures, and protects nothing."""

    def __init__(
        self,
        mesh: Mesh | None,
        link: LauncherClient | None,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        start: int,
        on_record: Callable[[Sent], None] | None,
    ) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        super().__init__(mesh, model, world if mesh is None else mesh.shape.dp)
        self._link, self._on_record, self._epoch = link, on_record, start
        self._generation = 1 if link is None or link.assignment is None else link.assignment.generation
        optimizer.register_step_pre_hook(lambda *_: self._meter.before_update())
        self._watch_calls(optimizer)
        if mesh is not None:
            members, groups = mesh.communicator.members, mesh.all_groups
        else:  # a job of plain DDP or FSDP: everybody is a replica, or holds a shard of one
            whole = dist.group.WORLD
            members, groups = {"dp": range(world)}, () if whole is None else (whole,)
        self._meter.traffic.enter(members, groups, self._transfer_timer(self._generation, rank))
        self._progress = None
        if link is not None:
            self._progress = ProgressThread(link, self._meter, lambda: (self._generation, self._epoch))

    def steps(self, total: int) -> Iterator[int]:
        if self._link is not None:
            self._link.send(StepsTotal(total=total))
        self._meter.training = True
        while self._epoch < total:
            before = self._epoch
            yield before
            if self._epoch == before:
                raise RuntimeError("run.steps yielded a step whose work was not done inside `with run.step():`")
        self._meter.training = False
        self._send(everything=True)

    def enter(self) -> None:
        self._meter.begin_step(self._epoch + 1)

    def leave(self, error: BaseException | None) -> bool:
        """An error passes through, and the step does not count."""
        if error is None:
            self._epoch += 1
            self._meter.end(self._generation, self._epoch, digests=False)
            self._send()
        return False

    def _send(self, *, everything: bool = False) -> None:
        messages = self._meter.collect(everything=everything)
        if self._link is not None:
            self._tell(self._link, messages)
        if self._on_record is not None:
            for message in messages:
                self._on_record(message)

    def close(self) -> None:
        """Take off all hooks and wrappers."""
        if self._progress is not None:
            self._progress.stop()
        collective_hooks.watch(None)
        collective_hooks.uninstall()
        self._meter.traffic.leave()
        self._meter.close()
