"""The process groups of one generation: formed together, left together, and left at once when a peer dies.

A dead peer's sockets tell only those who talk to it; others would wait for their time-out. So a rank that hears of a
failure hangs up on everyone (``unblock``), which wakes its own stuck collective and those of its peers within
milliseconds, but not in the midst of a message (``sockets`` says why). gloo's own ``abort`` does not: a pending
collective stays blocked until the group's time-out.

NCCL shows no rank that a peer is dead: its kernels wait until they are aborted, and then end as if they had succeeded,
with undefined results. An abort may itself hang (NVIDIA/nccl#1013, #1777): it has a thread of its own and a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from mainstay.probes.torch_private import abort_process_group, reset_group_count
from mainstay.recovery.mesh_shape import GenerationRanks
from mainstay.recovery.sdk.abortable_gloo import AbortableWait, WaitAbortedError
from mainstay.recovery.sdk.sockets import Connection, close_between_messages, close_now, connections

log = logging.getLogger("mainstay.sdk")

TIMEOUT: Final = timedelta(minutes=30)
"""The last resort for a collective that neither a dead peer nor a fence has ended. A fence ends it in milliseconds."""
STORE_TIMEOUT: Final = timedelta(seconds=60)

FORGOTTEN_TURNS: Final = 20
"""Looks, a twentieth of a second apart, at a training thread in one call though gloo has closed all its connections."""
STUCK_TURNS: Final = 100
"""The same where they are open still, or no TCP connections carry the call."""
ABORT_TURNS: Final = 400
"""The same at an abort of NCCL that does not return; on large jobs one takes seconds."""
SURVIVE_ERRORS: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "2"), "TORCH_NCCL_ENABLE_MONITORING": ("0",)}
"""Values with which torch's NCCL watchdog, and the thread that watches it, leave a process alive that can continue:
``_abort_process_group`` asks for the first; the second does not look at the first (pytorch/pytorch#155916)."""


@dataclass(eq=False, slots=True)
class GenerationGroups:
    """World, data-parallel, pipeline and tensor groups of this rank in one generation."""

    generation: int
    world: dist.ProcessGroup
    dp: dist.ProcessGroup
    pp: dist.ProcessGroup
    tp: dist.ProcessGroup
    ep: dist.ProcessGroup | None = None
    """Ranks among which experts are divided; None: the script did not ask."""
    expert_dp: dist.ProcessGroup | None = None
    """Ranks that hold the same experts."""


@dataclass(eq=False)
class Communicator:
    """Forms and leaves groups. ``unblock`` may be called from any thread; the rest belongs to the training thread."""

    rank: int
    """As torch numbers it in ``world``."""
    world: GenerationRanks
    backend: str
    ep: int | None = None
    """How many data-parallel ranks divide the experts among themselves; None: the script did not say."""
    groups: GenerationGroups | None = None
    inside: Callable[[], object | None] = lambda: None
    """The call between ranks in which the training thread is, the same object all the while; None: in none."""
    bar: Callable[[bool], object] = lambda _: None
    """Have the training thread begin no further call between ranks: True when a generation is over, False when the next
    one begins to form."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever changes or uses what follows: who ends one generation must never hit the next."""
    _current: int = 0
    """The generation that is formed or being formed; 0: none."""
    _sockets: set[Connection] = field(default_factory=set)
    _meeting: set[Connection] = field(default_factory=set)
    """Those of them to the store where ranks meet; the store keeps them until the generation is left."""
    _before: set[Connection] | None = None
    """The process's sockets when forming began; None while nothing is being formed."""
    _patience: AbortableWait = field(default_factory=AbortableWait)
    _abort: threading.Thread | None = None
    """Aborts the collectives of the generation; gloo needs none."""

    @property
    def on_device(self) -> bool:
        """Whether calls return before they are done, as with NCCL: errors and ends show later, or not at all."""
        return self.backend != "gloo"

    def form(self, generation: int, store: Store) -> None:
        """Meet the other ranks of ``generation`` through ``store``."""
        # torch forgets to start over when forming failed: a rank that failed more often than its peers, or was forked
        # from a process that did, would wait for them under another group name than theirs.
        reset_group_count()
        if self.on_device:
            _survive_errors()
        dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.world.size, timeout=TIMEOUT)
        self.groups = self._subgroups(generation)

    def form_with_server(
        self, generation: int, host: str, port: int, is_over: Callable[[], bool], part: str = ""
    ) -> None:
        """The same through a store server that outlives every rank; this generation's keys are its own.

        ``part`` names one of the worlds of a generation that is cut into several; ``rank`` is then the one in that.

        Every TCP socket that appears in this process meanwhile is taken to belong to the generation: while the
        training thread is in here, nothing else of a training script opens connections.

        Raises:
            WaitAbortedError: the generation is over.
            RuntimeError: a peer went away, or ``unblock`` was called.
        """
        with self._lock:
            self._current, self._before, self._patience = generation, connections(), AbortableWait()
            self.bar(False)
        try:
            server = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
            with self._lock:
                self._meeting = connections() - self._before
            if is_over():  # from here on ``unblock`` finds a socket to hang up
                raise WaitAbortedError(f"generation {generation} ended before it was formed")
            with self._patience.with_gloo():
                self.form(generation, PrefixStore(f"gen{generation}{part and '/'}{part}", server))
        finally:
            with self._lock:
                self._sockets, self._before = connections() - self._before, None

    def form_from_environment(self, generation: int) -> None:
        """As torchrun or a plain ``python`` wants it."""
        if "RANK" in os.environ:
            dist.init_process_group(self.backend)
            self.groups = self._subgroups(generation)
        else:
            self.form(generation, HashStore())

    @property
    def members(self) -> dict[str, Sequence[int]]:
        """Kind of group -> ranks of this rank's own, as torch numbers them in this generation."""
        world, rank = self.world, self.rank
        return {
            "world": range(world.size),
            "dp": world.dp_peers(rank),
            "pp": world.pp_peers(rank),
            "tp": world.tp_peers(rank),
        }

    def _subgroups(self, generation: int) -> GenerationGroups:
        world = dist.group.WORLD
        assert world is not None
        groups = {kind: self._subgroup(ranks, world) for kind, ranks in self.members.items()}
        return GenerationGroups(
            generation=generation, **groups, **self._expert_groups(self.world.dp_peers(self.rank), world)
        )

    def _expert_groups(self, peers: list[int], world: dist.ProcessGroup) -> dict[str, dist.ProcessGroup]:
        """Consecutive data-parallel ranks hold each expert once."""
        ep, place = self.ep, peers.index(self.rank)
        if ep is None:
            return {}
        first = place // ep * ep
        return {
            "ep": self._subgroup(peers[first : first + ep], world),
            "expert_dp": self._subgroup(peers[place % ep :: ep], world),
        }

    def _subgroup(self, ranks: Sequence[int], world: dist.ProcessGroup) -> dist.ProcessGroup:
        if len(ranks) == self.world.size:
            return world
        # Only the members meet: another pipeline's trouble is not ours to wait for.
        group = dist.new_group([*ranks], backend=self.backend, use_local_synchronization=True, timeout=TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        return group

    def leave(self) -> None:
        """Destroy this generation's groups; peers that wait for us get an error at once."""
        self.unblock(self._current + 1)
        if self._abort is not None:  # it would hit the next generation; ``unblock_until_left`` has its deadline
            self._abort.join()
        with self._lock:
            self._current, self._sockets, self.groups, self._abort = 0, set(), None, None
        if dist.is_initialized():
            # Errors of a broken group while it goes are about a generation that is over.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def unblock_until_left(self, fence: int) -> None:
        """``unblock`` again and again until the training thread is out: a socket may have been about to open.

        A peer that died in the midst of a message leaves a call behind that gloo has forgotten (see ``sockets``), and
        an abort of NCCL may hang. Nothing brings that thread back, so the process ends: another one takes its place in
        seconds, from the slot that it leaves. Turns are counted, not seconds: a process that was stopped meanwhile is
        not stuck.
        """

        def work() -> None:
            call, turns, aborting = None, 0, 0
            while self.unblock(fence):
                before, call = call, self.inside()
                turns = turns + 1 if call is not None and call is before else 0
                aborting = aborting + 1 if self.aborting else 0
                stuck = turns >= STUCK_TURNS or (turns >= FORGOTTEN_TURNS and not self.connected)
                if aborting >= ABORT_TURNS or (stuck and not aborting):
                    cannot = "abort its collectives" if aborting else f"leave {call}"
                    log.warning("rank %d cannot %s: its process ends", self.rank, cannot)
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.05)

        threading.Thread(target=work, name="mainstay-unblock", daemon=True).start()

    def unblock(self, fence: int) -> bool:
        """End every collective of a generation below ``fence`` that is stuck here; False when there is none such."""
        with self._lock:
            if not 0 < self._current < fence:
                return False
            self._patience.abort()
            self.bar(True)
            if self._before is not None:
                close_now(connections() - self._before)
            elif self.on_device:
                close_now(self._sockets)  # a communicator's first call meets its peers through the store
                self._begin_abort()
            else:
                close_between_messages(self._sockets, lambda: self.inside() is not None)
            return True

    def _begin_abort(self) -> None:
        """Once a generation: torch forgets the groups that it aborts."""
        if self._abort is None:
            self._abort = threading.Thread(target=_abort_quietly, name="mainstay-abort", daemon=True)
            self._abort.start()

    @property
    def aborting(self) -> bool:
        """Whether an abort has begun and not returned."""
        abort = self._abort
        return abort is not None and abort.is_alive()

    @property
    def connected(self) -> bool:
        """Whether gloo has a connection of the generation open; it closes each as soon as it sees its end.

        NCCL calls have no connection of this process: True.
        """
        with self._lock:
            return self.on_device or not (self._sockets - self._meeting).isdisjoint(connections())


def _abort_quietly() -> None:
    with contextlib.suppress(RuntimeError):  # about a generation that is over
        abort_process_group()


def _survive_errors() -> None:
    """Set ``SURVIVE_ERRORS``; torch reads them when it makes a group. A script's own setting is left, and named."""
    for name, values in SURVIVE_ERRORS.items():
        if os.environ.setdefault(name, values[0]) not in values:
            log.warning("%s=%s ends processes that could recover in place; unset it", name, os.environ[name])
