"""What the training thread does with its peers: calls begun and ended, time spent inside them, who sent what.

``collective_hooks`` reports every Python call. Calls that C++ makes (DDP's reducer) pass no wrapper: they are
counted by the group's own sequence number. Of calls that NCCL coalesces, the one wait for all of them is not told
apart: they count as ended when the step commits.

**Begun and ended.** For each kind of group, a rank counts what it does in its own group of that kind:

* Collectives: begun when issued, ended when waited for (one of DDP's: when the backward pass has ended). All members of
  a group that is well have the same number between two calls; a lower one has not come so far.
* Point-to-point calls count per peer, each side its sends and receives, so the two ends of a link agree. The kind's
  number takes the peer with most of them: the inner stages of a pipeline, which have two neighbors, then stand where
  the outer ones stand. One is open only while the thread is inside it or waits for it: a send that runs beside the
  computation holds no rank up.

On a device the host runs ahead: there a wait has ended when the stream has passed it.

The numbers start from zero in every generation, on all ranks alike, and a committed step squares them: what was begun
before it has ended. A group counts for the innermost kind that has exactly its members; other groups count for none.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from mainstay.probes import torch_private
from mainstay.probes.core_types import GROUP_KINDS
from mainstay.recovery.sdk.clocks import ThreadClock
from mainstay.recovery.sdk.transfer_timer import TransferTimer

TRANSFERS: Final = ("send", "recv", "recv_anysource")
ARRIVED_BEFORE: Final = 50e-6
"""A wait for an ``irecv`` that takes less found the data there already: the time of its arrival is unknown."""
_INNERMOST_FIRST: Final = tuple(reversed(GROUP_KINDS))


@dataclass(slots=True)
class CallCount:
    """Of one group, or of one peer of one kind."""

    begun: int = 0
    ended: int = 0


@dataclass(slots=True, eq=False)
class TrackedGroup:
    """A process group as this rank sees it."""

    group: ProcessGroup
    kind: str | None
    ranks: tuple[int, ...]
    base: int
    """The group's sequence number when counting began."""
    counts_transfers: bool
    """gloo's sequence number goes up with sends and receives too, which are counted per peer."""
    tally: CallCount = field(default_factory=CallCount)
    transfers: int = 0
    foreign_ended: int = 0
    """Of the calls that C++ made, those that are known to be over."""

    def begun(self) -> int:
        return max(self.tally.begun, self._sequence())

    def ended(self) -> int:
        return self.tally.ended + self.foreign_ended

    def settle(self) -> None:
        """All that C++ has begun in here is over."""
        self.foreign_ended = max(0, self._sequence() - self.tally.begun)

    def square(self) -> None:
        self.settle()
        self.tally.ended = self.tally.begun

    def _sequence(self) -> int:
        return sequence_number(self.group) - self.base - (self.transfers if self.counts_transfers else 0)


def sequence_number(group: ProcessGroup) -> int:
    """Collectives of this group so far, whoever made them; 0 where the backend does not count."""
    try:
        return torch_private.sequence_number(group)
    except (RuntimeError, AttributeError):
        return 0


def _is_gloo(group: ProcessGroup) -> bool:
    with suppress(RuntimeError, KeyError, TypeError, ValueError):  # TypeError: torch 2.6, of a group it does not know
        return str(dist.get_backend(group)) == "gloo"
    return False


class GenerationOverError(RuntimeError):
    """A call between ranks was not begun, since not all ranks of the generation would take part any more."""


class Call(NamedTuple):
    """One that the training thread is inside, or that was begun and not yet waited for."""

    name: str
    kind: str | None
    peer: int | None
    begun: float
    """``time.perf_counter``; where the thread waits for the call: when it began to wait."""
    tally: CallCount
    tag: int = 0
    nbytes: int = 0

    def __str__(self) -> str:
        words = (self.name, self.kind or "other") if self.peer is None else (self.name, self.kind or "other", self.peer)
        return " ".join(map(str, words))


class DeviceStream(Protocol):
    """A device's stream, in which waiting happens."""

    def wait(self, kind: str | None) -> Callable[[], StreamWait]:
        """Call before a wait, the result after it."""


class StreamWait(NamedTuple):
    """A wait in a stream."""

    reached: Callable[[], bool]
    """Whether the stream has come to it."""
    passed: Callable[[], bool]
    """Whether it is over."""


class CallTracker:
    """All calls of one training thread. ``enter`` a generation and ``leave`` it; any thread may ask for the numbers."""

    def __init__(self, clock: ThreadClock) -> None:
        self.clock = clock
        self.thread = threading.get_ident()
        self.current: Call | None = None
        self.calls = 0
        """Calls begun. Only grows."""
        self.waited: dict[str | None, float] = {}
        """Kind -> seconds inside calls, on the thread's own clock. Only grows."""
        self.waited_total = 0.0
        self.spent = 0.0
        """Seconds of the thread in here, less those inside the calls. Only grows."""
        self.on_exchange: Callable[[Sequence[Any]], bool] | None = None
        """Called before a collective among replicas (a dp or world group) with the tensors that it sums, if it sums;
        forgotten when it gives False."""
        self.on_reduce_scatter: Callable[[Any], None] | None = None
        """Called with the input of every reduce-scatter: what FSDP is about to average."""
        self.stream: DeviceStream | None = None
        self._passing: deque[tuple[StreamWait, Call]] = deque()
        """Waits that the stream had not passed yet, oldest first."""
        self.links: TransferTimer | None = None
        self._barred = False
        self._crossed = False
        self._places: dict[int, TrackedGroup] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._peers: dict[tuple[str | None, int | None], CallCount] = {}
        self._open: dict[int, Call] = {}

    # Generations

    def enter(
        self,
        members: Mapping[str, Sequence[int]],
        groups: Sequence[ProcessGroup] = (),
        links: TransferTimer | None = None,
        *,
        crossed: bool = False,
    ) -> None:
        """Count from zero. ``members``: kind -> ranks of this rank's own group of that kind.

        ``crossed``: pipelines exchange micro-batches; such transfers count for no kind, as not all ranks have as many.
        """
        self.leave()
        self.links, self._crossed = links, crossed
        self._members = {kind: tuple(ranks) for kind, ranks in members.items() if len(ranks) > 1}
        for group in groups:
            self._place(group)

    def leave(self) -> None:
        """Release the groups: they must be able to end."""
        if self.links is not None:
            self.links.close()
        self.links, self.current, self.on_exchange = None, None, None
        self._places, self._peers, self._open = {}, {}, {}
        self._passing.clear()

    def bar(self, over: bool) -> None:
        """Whether the generation is over: no further call is begun then, so that messages under way can end.

        From any thread.
        """
        self._barred = over

    def square(self) -> None:
        """A step has committed: what was begun before has ended, also calls without a wait."""
        for place in self._places.values():
            place.square()
        self._open.clear()
        self._passing.clear()

    def settle(self) -> None:
        """A backward pass is over, and with it all that DDP's reducer did."""
        for place in self._places.values():
            place.settle()

    # Counters

    def numbers(self) -> tuple[dict[str, int], dict[str, int]]:
        """Calls begun and ended, by kind. More may begin meanwhile, so that ended never exceeds begun."""
        self._follow_stream()
        call = self.current
        ended = self._count(TrackedGroup.ended)
        begun = self._count(TrackedGroup.begun)
        most: dict[str, int] = {}
        for (kind, _), tally in list(self._peers.items()):
            if kind is not None:
                most[kind] = max(most.get(kind, 0), tally.begun)
        for kind, number in most.items():
            begun[kind] = begun.get(kind, 0) + number
            inside = call is not None and call.kind == kind and call.name in TRANSFERS
            ended[kind] = ended.get(kind, 0) + number - inside
        return begun, ended

    def status(self) -> Call | None:
        """The call that the thread, or its stream, is inside."""
        call = self.current
        if call is None:
            self._follow_stream()
            with suppress(IndexError):
                passing, opened = self._passing[0]
                if passing.reached():
                    return opened
        return call

    def _count(self, of: Callable[[TrackedGroup], int]) -> dict[str, int]:
        found = dict.fromkeys(self._members, 0)
        for place in list(self._places.values()):
            if place.kind is not None:
                found[place.kind] += of(place)
        return found

    def _follow_stream(self) -> None:
        with suppress(IndexError):  # the training thread may clear it
            while self._passing[0][0].passed():
                _, opened = self._passing.popleft()
                opened.tally.ended += 1

    # Calls; in the training thread

    def issue(self, name: str, original: Callable[..., Any], group: ProcessGroup, args: Any, kwargs: Any) -> Any:
        """A collective is begun."""
        entered = time.perf_counter()
        place = self._places.get(id(group)) or self._place(group)
        if self.on_exchange is not None and place.kind in _REPLICAS:
            again = self.on_exchange(args[0] if name.startswith("allreduce") else ())
            self.on_exchange = self.on_exchange if again else None
        if self.on_reduce_scatter is not None and place.kind in _REPLICAS and "reduce_scatter" in name:
            self.on_reduce_scatter(args[1] if len(args) > 1 else None)
        opened = Call(name, place.kind, None, time.perf_counter(), place.tally)
        # Since torch 2.7 NCCL makes a call without a wait in the stream itself, and gives no work for it.
        in_stream = not getattr(args[-1] if args else None, "asyncOp", True)
        return self._begin(opened, entered, functools.partial(original, group, *args, **kwargs), in_stream=in_stream)

    def exchange(self, name: str, original: Callable[..., Any], group: ProcessGroup, args: Any, kwargs: Any) -> Any:
        """A point-to-point call is begun: ``(tensors, peer's rank in the group, tag)``."""
        entered = time.perf_counter()
        place = self._places.get(id(group)) or self._place(group)
        peer = None
        if name != "recv_anysource" and len(args) > 1:
            peer = place.ranks[args[1]] if place.ranks else args[1]
        kind = place.kind if peer is None else self._kind_with(peer)
        tally = self._peers.setdefault((kind, peer), CallCount())
        place.transfers += 1
        tag = args[2] if peer is not None and len(args) > _TAG else 0
        nbytes = _nbytes(args[0]) if name == "recv" else 0
        opened = Call(name, kind, peer, time.perf_counter(), tally, tag, nbytes)
        if name == "send" and peer is not None and self.links is not None:
            self.links.sent(peer, tag, opened.begun)
        return self._begin(opened, entered, functools.partial(original, group, *args, **kwargs))

    def _begin(self, opened: Call, entered: float, begin: Callable[[], Any], *, in_stream: bool = False) -> Any:
        if self._barred:
            raise GenerationOverError(f"{opened.name} was not begun: the generation is over")
        self.calls += 1
        opened.tally.begun += 1
        passes = self.stream.wait(opened.kind) if in_stream and self.stream is not None else None
        self.current = opened
        self.spent += time.perf_counter() - entered
        try:
            work = begin()
        finally:
            self.current = None
        if work is not None:
            self._open[id(work)] = opened
        elif passes is None:
            opened.tally.ended += 1
        else:
            self._passing.append((passes(), opened))
        return work

    def wait(self, _: str, original: Callable[..., Any], work: Work, args: Any, kwargs: Any) -> Any:
        """A thread waits for a call; an unknown call belongs to no kind."""
        entered = time.perf_counter()
        call = self._open.pop(id(work), None) or _UNKNOWN
        after = self.stream.wait(call.kind) if self.stream is not None else None
        begun, delay = self.clock.read()
        self.current = Call(call.name, call.kind, call.peer, begun, call.tally)
        try:
            result = original(work, *args, **kwargs)
        finally:
            self.current = None
            now, since = self.clock.read()
            seconds = now - begun - (since - delay)
            self.count(call.kind, seconds)
        if after is None:
            call.tally.ended += 1
        else:
            self._passing.append((after(), call))
        if call.nbytes and call.peer is not None and self.links is not None:
            self.links.received(call.peer, call.tag, call.begun, now, call.nbytes, exact=seconds > ARRIVED_BEFORE)
        self.spent += time.perf_counter() - now + begun - entered
        return result

    @contextmanager
    def inside(self, name: str, kind: str) -> Iterator[None]:
        """A wait that torch makes outside its groups, as for a number that a collective leaves on a device."""
        begun = self.clock.own()
        self.current = Call(name, kind, None, time.perf_counter(), CallCount())
        try:
            yield
        finally:
            self.current = None
            self.count(kind, self.clock.own() - begun)

    def count(self, kind: str | None, seconds: float) -> None:
        """``seconds`` of waiting that passed no wrapper."""
        self.waited[kind] = self.waited.get(kind, 0.0) + seconds
        self.waited_total += seconds

    def _place(self, group: ProcessGroup) -> TrackedGroup:
        ranks: tuple[int, ...] = ()
        with suppress(RuntimeError, KeyError, TypeError, ValueError):  # a group that torch does not list
            ranks = tuple(dist.get_process_group_ranks(group))
        kind = next((k for k in _INNERMOST_FIRST if ranks and set(self._members.get(k, ())) == set(ranks)), None)
        place = TrackedGroup(group, kind, ranks, sequence_number(group), counts_transfers=_is_gloo(group))
        self._places[id(group)] = place
        return place

    def _kind_with(self, peer: int) -> str | None:
        kind = next((k for k in _INNERMOST_FIRST if peer in self._members.get(k, ())), None)
        return None if self._crossed and kind == "world" else kind


_TAG: Final = 2
"""Place of the tag among the arguments of ``send`` and ``recv``."""
_REPLICAS: Final = ("dp", "world")
_UNKNOWN: Final = Call("wait", None, None, 0.0, CallCount())


def _nbytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)
