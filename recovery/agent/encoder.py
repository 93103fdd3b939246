"""The thread that protects epochs: for each pending one, this node's part; then, once all is there, the publication.

Members only ever ask each other what they have, so a restarted or late agent simply asks again. An epoch is published
once every group of the job has all that protects it: then it is pinned in the trainers' arenas and the one before it
may go. Until then both stay, so there is always one epoch that every rank can come back to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from mainstay.recovery import protection_scheme
from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import Group
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.parity_store import ParityRowKey
from mainstay.recovery.agent.peer_messages import ProtectedState, ReadProtected, ReadRow, RowState
from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.agent.protection_work import History, ProtectionTask, ProtectionWork, answer_copies, work_for
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.records import NO_EPOCH, Word
from mainstay.recovery.protection_scheme import SchemeKind

SOON: Final = 0.005
LATER: Final = 0.1
"""How often to ask again: at first, and when it drags on."""
IDLE: Final = 1.0
_PATIENCE: Final = 8
"""Turns that a member may be late before it is worth a word: about half a second."""

logger = logging.getLogger("mainstay.agent")


def answer_row(node: AgentNode, request: ReadRow) -> RowState:
    if protection_scheme.parse(node.store.config.scheme).kind is SchemeKind.COPIES:
        return answer_copies(node.store, request)
    try:
        row = node.rows.find(ParityRowKey(request.ranks, request.place), request.epoch, check=request.check)
    except (AgentError, ArenaError):
        return RowState(present=False, digests=())
    return RowState(present=True, digests=row.digests, parity=row.parity)


class ParityEncoder(PeriodicThread):
    """Works on the oldest pending epoch of every local rank. ``kick`` it when something was committed."""

    def __init__(self, node: AgentNode) -> None:
        super().__init__("mainstay-parity")
        self._node = node
        self._store = node.store
        self._drags = 0
        self._configured = 0
        self._configuring = threading.Lock()
        """Held to change the groups, and to publish under those that hold."""
        self._whole: dict[int, tuple[int, History]] = {}
        """Rank -> the newest epoch that its group has all of, and since when."""
        self._settled: set[tuple[int, History, int]] = set()
        """(epoch, history, group) of other groups that have said that they have all."""

    def configure(self, groups: tuple[Group, ...], every: int, text: str, generation: int) -> None:
        """See ``AgentClient.configure_parity``. The same again changes nothing; otherwise all is looked at again.

        Raises:
            ValueError: ``every`` below 1 with a group, a rank that stands twice, or an unknown scheme.
        """
        _check_groups(groups, every, text)
        with self._configuring:
            if self._store.change(groups=groups, every=every, scheme=text, generation=generation):
                self._configured += 1
                for _, arena in self._store.all():
                    arena.set_word(Word.PARITY_EVERY, 0)
                    arena.set_word(Word.PARITY_EPOCH, NO_EPOCH)
                    arena.set_word(Word.PARITY_FLOOR, NO_EPOCH)
        self.pin()
        self.wake()

    def pin(self) -> None:
        """Tell each rank's writer which epochs get protected; ranks that nothing protects are left alone."""
        config = self._store.config
        for rank, arena in self._store.all():
            arena.set_word(Word.PARITY_EVERY, config.every if config.group_of(rank) else 0)

    def again(self, rank: int, epoch: int) -> None:
        """What is kept here for a protected epoch of a rank was damaged and is gone: the epoch is pending once more."""
        with self._store.lock(rank):
            arena = self._store.arena(rank)
            arena.set_word(Word.PARITY_FLOOR, min(arena.word(Word.PARITY_FLOOR), epoch - 1))
        self.wake()

    def answer(self, request: ReadProtected) -> ProtectedState:
        """Whether the group of a rank here has all that protects an epoch."""
        if not self._store.has(request.rank) or self._store.config.generation < request.generation:
            return ProtectedState(complete=False, given_up=False)
        arena = self._store.arena(request.rank)
        epoch, history = self._whole.get(request.rank, (NO_EPOCH, None))
        whole = epoch >= request.epoch and history == self._history()
        complete = whole or arena.word(Word.PARITY_EPOCH) >= request.epoch
        return ProtectedState(
            complete=complete, given_up=not complete and arena.word(Word.PARITY_FLOOR) >= request.epoch
        )

    def run_once(self) -> float:
        """One look at every rank; seconds until the next."""
        outcomes = [self._try(task) for task in self._tasks()]
        late = not all(outcomes)
        self._drags = self._drags + 1 if late else 0
        if late:
            return min(LATER, SOON * 1.5 ** min(self._drags, _PATIENCE))
        return SOON if outcomes else IDLE

    def _history(self) -> History:
        return self._configured, self._store.discards

    def _tasks(self) -> list[ProtectionTask]:
        history, config = self._history(), self._store.config  # in the order of ``configure``: never old groups alone
        pending = [(rank, arena, _oldest_pending(arena)) for rank, arena in self._store.all()]
        return [
            ProtectionTask(rank, arena, epoch, config.group_of(rank), protection_scheme.parse(config.scheme), history)
            for rank, arena, epoch in pending
            if epoch is not None and config.group_of(rank)
        ]

    def _try(self, task: ProtectionTask) -> bool:
        """Whether the epoch is settled."""
        why: object = "a member has not got so far"
        try:
            with ExitStack() as stack:
                if self._settle(task, work_for(self._node, task, stack)):
                    return True
        except (AgentError, ArenaError, OSError, ValueError) as error:
            why = error
        if self._drags > _PATIENCE:
            self._store.degraded[task.subject] = f"epoch {task.epoch}: {why}"
        return False

    def _settle(self, task: ProtectionTask, share: ProtectionWork) -> bool:
        """Whether the epoch is settled: all of it everywhere, or given up."""
        if share.is_superseded():
            return self._decide(task, lambda: self._give_up(task, "was overwritten before it had parity"))
        if not share.ready():
            return False
        share.make()
        if not share.everywhere():
            return False
        self._whole[task.rank] = (task.epoch, task.history)
        given_up, all_groups = self._other_groups(task)
        if given_up:
            return self._decide(task, lambda: self._give_up(task, "was given up by another group"))
        return all_groups and self._decide(task, lambda: self._publish(task, share))

    def _decide(self, task: ProtectionTask, settle: Callable[[], None]) -> bool:
        """Carry out ``settle``, unless the groups have changed or the job has gone back since the task was made.

        Those make the epoch pending again: what was asked before says nothing of it, and to settle it for good would
        leave the other members waiting for this one.
        """
        with self._store.lock(task.rank), self._configuring:
            if task.history != self._history():
                return False
            settle()
            return True

    def _other_groups(self, task: ProtectionTask) -> tuple[bool, bool]:
        """Whether one of the job's other groups has given the epoch up, and whether all of them have it."""
        config, complete = self._store.config, True
        for number, group in enumerate(config.groups):
            key = (task.epoch, task.history, number)
            if len(group) < 2 or any(m.rank == task.rank for m in group) or key in self._settled:
                continue
            # Members of one group ask different members of the others, so that no member is asked by all.
            member = group[task.place % len(group)]
            with self._node.peer(member.endpoint, config.generation) as peer:
                wanted = ReadProtected(rank=member.rank, epoch=task.epoch, generation=config.generation)
                state = peer.call(wanted, ProtectedState)
            if state.given_up:
                return True, False
            complete = complete and state.complete
            if state.complete:
                self._settled.add(key)
        return False, complete

    def _publish(self, task: ProtectionTask, share: ProtectionWork) -> None:
        """First keep the new epoch, then let the old one go."""
        share.complete()
        task.arena.set_word(Word.PARITY_EPOCH, task.epoch)
        task.arena.set_word(Word.PARITY_FLOOR, task.epoch)
        self._settled = {key for key in self._settled if key[0] >= task.epoch}
        self._store.degraded.pop(task.subject, None)

    def _give_up(self, task: ProtectionTask, why: str) -> None:
        self._store.degraded[task.subject] = f"epoch {task.epoch} {why}"
        logger.error("rank %d: epoch %d got no parity: it %s", task.rank, task.epoch, why)
        task.arena.set_word(Word.PARITY_FLOOR, task.epoch)


def _oldest_pending(arena: Arena) -> int | None:
    pins = arena.pins()
    if not pins.parity_every:
        return None
    epochs = (r.epoch for r in arena.records() if r.committed)
    return min((e for e in epochs if e > pins.parity_floor and e % pins.parity_every == 0), default=None)


def _check_groups(groups: tuple[Group, ...], every: int, text: str) -> None:
    protection_scheme.parse(text)
    if groups and every < 1:
        raise ValueError(f"parity every {every} epochs: at least 1")
    if any(len(group) > protection_scheme.MAX_GROUP + protection_scheme.MAX_COPIES for group in groups):
        raise ValueError(f"a group has more than {protection_scheme.MAX_GROUP} members")
    ranks = [member.rank for group in groups for member in group]
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"a rank stands twice in the parity groups: {ranks}")
