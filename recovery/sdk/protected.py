"""The run under a launcher: votes, saves, and after a fence leaves, meets again, restores and repeats the step."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from mainstay.recovery.agent.errors import FailureKind
from mainstay.recovery.checkpoint.manifest import DamagedError
from mainstay.recovery.memory.global_slices import DeclaredSlices, Sharding
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    CollectiveFailed,
    RankDone,
    Ready,
    Regroup,
    Resumed,
    StepFailed,
    StepRecord,
    StepsTotal,
    Transfers,
)
from mainstay.recovery.sdk import collective_hooks
from mainstay.recovery.sdk.failures import StepAbortedError, is_communication_failure, transient
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.mesh import Mesh
from mainstay.recovery.sdk.meter import Sent
from mainstay.recovery.sdk.metered import MeteredRun
from mainstay.recovery.sdk.numerics import whole_digest
from mainstay.recovery.sdk.progress import ProgressThread
from mainstay.recovery.sdk.replica_check import optimizer_digest, require_equal
from mainstay.recovery.sdk.shard_gather import PartError
from mainstay.recovery.sdk.snapshot_session import RestoreError, SnapshotSession
from mainstay.recovery.sdk.speed_check import measure_speed
from mainstay.recovery.sdk.step_replay import StepReplay

log = logging.getLogger("mainstay.sdk")

_FENCE_SECONDS = 20.0
"""How long to wait for an explanation after a collective failed. A death is fenced within a second; when no rank
explains the failure, it is the script's own."""


class ProtectedRun(MeteredRun):
    """See ``TrainingRun``; the same loop, with the other ranks' failures survived."""

    def __init__(
        self,
        mesh: Mesh,
        link: LauncherClient,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Any] | None,
        *,
        names: Mapping[str, str] | None = None,
        sharding: Sharding | None = None,
        told: bool = False,
        retry: Iterable[type[Exception]] = (),
    ) -> None:
        super().__init__(mesh, model, mesh.shape.dp)
        self._transient = transient(retry)
        self.mesh: Mesh = mesh
        assert link.assignment is not None
        self._link = link
        self._model = model
        self._adapts, self._cuts = told and names is not None, sharding is not None
        cut = DeclaredSlices(sharding or {}, mesh.tp_rank, mesh.shape.tp)
        state = TrainerState(model, optimizer, extra, names, cut)
        self._optimizer_digest = partial(optimizer_digest, state, optimizer)
        state.pace(lambda: self._meter.traffic.current is not None)
        peers = mesh.shape.dp_peers(mesh.rank)
        self._protection = SnapshotSession(link.assignment, mesh.generation, state, replicas=peers, stages=mesh.stages)
        self._epoch = 0
        fresh = mesh.order is None or mesh.order.restore is None
        self._live: int | None = 0 if fresh else None
        self._newest = 0
        self._voted = False
        self._progress: ProgressThread | None = None
        self._digests_left = 0
        self._replay: StepReplay | None = None
        """Steps are made to compare them, and count for nothing."""
        self._generation = mesh.generation
        """The last one that was formed, for the thread that reports progress."""
        self._ballot = torch.ones(1, dtype=torch.int32, device="cuda" if mesh.communicator.backend == "nccl" else "cpu")
        self._calls_at_vote = 0
        """Calls between ranks that this thread had begun when the vote was counted."""
        optimizer.register_step_pre_hook(self._before_update)
        self._watch_calls(optimizer)
        mesh.communicator.inside = lambda: self._meter.traffic.current
        mesh.communicator.bar = self._meter.traffic.bar
        self._tell_attached()

    @property
    def protected(self) -> bool:
        return not self._protection.problem

    # The loop

    def steps(self, total: int) -> Iterator[int]:
        self._link.send(StepsTotal(total=total))
        self._begin()
        while True:
            while self._epoch < total or self._replay is not None:
                if self._fenced:
                    self._recover()
                    continue
                yield from self._offer(self._epoch)
            if self._finish():
                return

    def _begin(self) -> None:
        """First entry of this process: a fresh start, or the replacement of a lost rank."""
        order = self.mesh.order
        assert order is not None
        self._enter_generation()
        if self._progress is None:
            self._progress = ProgressThread(self._link, self._meter, lambda: (self._generation, self._epoch))
        self._protection.enter(order.generation)
        if not self._resume(order):
            self._recover()

    def _finish(self) -> bool:
        """Whether all ranks hold the last epoch, saved. False after a recovery: there may be steps to repeat."""
        try:
            self._protection.settle()
            self._vote()
        except RuntimeError as error:
            if not self._on_failure(error):
                raise
            self._recover()
            return False
        self._meter.training = False
        self._send_records(everything=True)
        self._link.send(RankDone(epoch=self._epoch))
        return True

    # One step

    def enter(self) -> None:
        super().enter()
        self._voted = False
        self._meter.begin_step(self._epoch + 1)

    def leave(self, error: BaseException | None) -> bool:
        """The block ends; True swallows ``error``."""
        if error is None:
            try:
                self._commit()
            except RuntimeError as failure:
                if not self._on_failure(failure):
                    raise
            return True
        return isinstance(error, Exception) and self._on_failure(error)

    def _before_update(self, *_: object) -> None:
        """Before ``optimizer.step``: the last snapshot is safe, and every rank of the generation can commit."""
        self._require_inside()
        if self._replay is not None:
            self._replay.before_update()
        elif not self._voted:
            self.mesh.require_schedule()
            self._meter.before_update()
            self._meter.blocked += self._protection.settle()
            self._check_replicas()
            self._vote()
            self._voted = True
            self._live = None  # until the block ends: an update that is cut short leaves no usable tensors

    def _check_replicas(self) -> None:
        """Before the first step of all: the replicas hold all that this rank leaves for them to save."""
        if self._protection.sharded is not None and self._epoch == 0:
            require_equal(self._optimizer_digest(), self._model.parameters(), self.mesh.dp, self._ballot.device)

    def _vote(self) -> None:
        """Agree with all ranks of the generation.

        Raises:
            StepAbortedError: this rank or another one has been told to stop.
            RuntimeError: a peer is gone.
        """
        self._ballot.fill_(0 if self._fenced else 1)
        dist.all_reduce(self._ballot, dist.ReduceOp.MIN, group=self.mesh.world)
        # An aborted vote looks like one that all have won, and so do the gradients before it: every abort follows a
        # fence, so look at that again.
        if not self._read_ballot() or self._fenced:
            raise StepAbortedError(f"step {self._epoch} was canceled: the membership is changing")
        self._calls_at_vote = self._meter.traffic.calls

    def _read_ballot(self) -> bool:
        """Whether all have won, once everything that this rank has queued on its device is done."""
        traffic = self._meter.traffic
        with traffic.inside("vote", "world") if self.mesh.communicator.on_device else nullcontext():  # the host waits
            return bool(self._ballot.item())

    def _require_whole_update(self) -> None:
        """After the update: a collective of the optimizer that was aborted leaves undefined parameters, and no error.

        Raises:
            StepAbortedError: the generation is over, and there was such a collective.
        """
        if self.mesh.communicator.on_device and self._meter.traffic.calls != self._calls_at_vote:
            self._read_ballot()
            if self._fenced:
                raise StepAbortedError(f"the update of step {self._epoch} was cut short: the membership is changing")

    def _commit(self) -> None:
        if self._replay is not None:
            self._rehearse(self._replay)
            return
        if not self._voted:  # no update in this step, as when a scaler skips it; it counts all the same
            self._meter.blocked += self._protection.settle()
            self._vote()
        self._require_whole_update()
        self._epoch += 1
        self._live = self._newest = self._epoch
        digests = self._digests_left > 0
        self._digests_left -= digests
        if self._link.agent_back.is_set():
            self._link.agent_back.clear()
            self._protection.open()
            self._tell_attached()
        self._protection.save(self._epoch)
        optimizer = self._optimizer_digest() if digests else None
        self._meter.end(self.mesh.generation, self._epoch, digests=digests, optimizer=optimizer)
        self._send_records()
        if request := self._link.take_speed_request():
            self._link.send(measure_speed(request, self._ballot.device))

    def _rehearse(self, replay: StepReplay) -> None:
        """A step of a replay has been made: continue, begin again from the same state, or tell and wait for a fence."""
        self._epoch += 1
        if not replay.after_step():
            return
        failure = ""
        if not replay.over:
            self.mesh.play(replay.role)
            try:
                self._protection.restore(replay.restore)
            except RestoreError as error:
                failure = str(error)
            self._epoch = replay.restore.epoch
        if failure or replay.over:
            self._link.send(replay.build_report(failure))
            self._link.wait_fence(self.mesh.generation, None)

    def _send_records(self, *, everything: bool = False) -> None:
        self._tell(self._link, map(self._numbered, self._meter.collect(everything=everything)))

    def _numbered(self, message: Sent) -> Sent:
        """With what the meter does not know: the assignment, and peers numbered as in the whole job."""
        if isinstance(message, StepRecord):
            return msgspec.structs.replace(message, micro_batches=self.mesh.assigned, routed=self.mesh.routed)
        if not isinstance(message, Transfers) or self.mesh.communicator.world.size == self.mesh.world_size:
            return message
        number_of = self.mesh.number_of
        seconds = {number_of(peer): value for peer, value in message.seconds.items()}
        nbytes = {number_of(peer): value for peer, value in message.nbytes.items()}
        return msgspec.structs.replace(message, seconds=seconds, nbytes=nbytes)

    # Failure of others

    @property
    def _fenced(self) -> bool:
        return self._link.fence > self.mesh.generation

    def _on_failure(self, error: Exception) -> bool:
        """Whether the generation is left and the step made again; else ``error`` is the script's own."""
        foreign = isinstance(error, StepAbortedError) or is_communication_failure(error) or self._fenced
        again = foreign or isinstance(error, self._transient)
        if again:
            generation = self.mesh.generation
            if not self._fenced:
                self._link.send((self._trouble if foreign else self._raised)(generation, error))
                # Peers that wait for us must not wait for their time-out.
                self.mesh.communicator.unblock(generation + 1)
            again = bool(self._link.wait_fence(generation, _FENCE_SECONDS))
        return again

    @staticmethod
    def _trouble(generation: int, error: Exception) -> CollectiveFailed:
        return CollectiveFailed(generation=generation, reason=str(error)[:500])

    def _raised(self, generation: int, error: Exception) -> StepFailed:
        log.warning("rank %d makes step %d again: %r", self.mesh.rank, self._epoch, error, exc_info=error)
        return StepFailed(generation=generation, error=f"{type(error).__name__}: {error}"[:500])

    def _recover(self) -> None:
        """Leave the generation that is over, and be part of the next one that holds."""
        self._meter.training = False
        while True:
            self._meter.traffic.leave()
            self.mesh.communicator.leave()
            generation = self._link.fence
            self._link.send(Ready(generation=generation, live_epoch=self._live, newest_epoch=self._newest))
            order = self._link.wait_regroup(generation)
            if order is not None and self.mesh.follow(order):
                self._enter_generation()
                self._protection.enter(order.generation)
                if self._resume(order):
                    return
                self._link.wait_fence(order.generation, None)

    def _resume(self, order: Regroup) -> bool:
        """Put the state of the ordered epoch in place and vote for it."""
        self._digests_left = order.digest_steps
        self._meter.restart()
        self._meter.training = order.replay_request is None
        restore = order.restore
        if restore is None:
            changed = None if self._live == 0 else ValueError(f"its tensors are of step {self._live}, not of the start")
            if changed is None:
                self._protection.save(0)
            self._link.send(_resumed(order, 0.0, 0, changed))
            return changed is None
        begun = time.perf_counter()
        self._live = None
        try:
            nbytes = self._protection.restore(restore)
        except RestoreError as error:
            self._link.send(_resumed(order, time.perf_counter() - begun, 0, error))
            return False
        self._epoch = self._newest = restore.epoch
        if order.replay_request is None:
            self._live = restore.epoch
            if not self._protection.holds(restore.epoch):
                self._protection.save(restore.epoch)
        else:  # tensors that a replay has used are no valid state: the next generation restores
            self._replay = StepReplay(order, self._model)
            self.mesh.play(self._replay.role)
        seconds = time.perf_counter() - begun
        self._link.send(_resumed(order, seconds, nbytes, digest=whole_digest(self._model.parameters())))
        return True

    def _enter_generation(self) -> None:
        mesh = self.mesh
        self._generation, self._replay = mesh.generation, None
        if mesh.order is not None and mesh.order.replay_request is not None:
            collective_hooks.watch(None)  # the groups of a replay are not counted
            return
        collective_hooks.watch(self._meter.traffic)
        links = self._transfer_timer(mesh.generation, mesh.communicator.rank)
        self._meter.traffic.enter(mesh.communicator.members, mesh.all_groups, links, crossed=mesh.crossed)

    def _tell_attached(self) -> None:
        guard = self._protection
        self._link.send(
            Attached(
                state_bytes=guard.state_bytes,
                slots=guard.slots,
                protected=self.protected,
                reason=guard.problem[:500],
                adapts=self._adapts,
                cuts=self._cuts,
            )
        )


def _resumed(
    order: Regroup, seconds: float, nbytes: int, failure: Exception | None = None, *, digest: int | None = None
) -> Resumed:
    return Resumed(
        generation=order.generation,
        epoch=order.restore.epoch if order.restore else 0,
        source=order.restore.source if order.restore else None,
        seconds=seconds,
        nbytes=nbytes,
        ok=failure is None,
        reason="" if failure is None else str(failure)[:500],
        digest=digest,
        blame=failure.rank if isinstance(failure, PartError) else None,
        damaged=isinstance(failure, DamagedError) or getattr(failure, "kind", None) is FailureKind.DAMAGED,
    )
