"""Counting calls between ranks: exact numbers, from real groups of one process and from stand-ins for the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, HashStore, ProcessGroup, Work

from mainstay.recovery.sdk import collective_hooks
from mainstay.recovery.sdk.call_tracker import CallTracker, GenerationOverError, StreamWait
from mainstay.recovery.sdk.clocks import ThreadClock


@pytest.fixture
def world() -> Iterator[ProcessGroup]:
    """A gloo group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def traffic() -> Iterator[CallTracker]:
    found = CallTracker(ThreadClock())
    collective_hooks.install()
    collective_hooks.watch(found)
    yield found
    collective_hooks.watch(None)
    collective_hooks.uninstall()


class FakeWork:
    """Waits for a given time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def wait(self) -> bool:
        time.sleep(self.seconds)
        return True


def begin_call(traffic: CallTracker, name: str, peer: int, work: Any, *, tag: int = 0) -> Any:
    """A point-to-point call with ``peer``."""
    group: Any = object()
    return traffic.exchange(name, lambda *_: work, group, ([torch.zeros(4)], peer, tag), {})


def end(traffic: CallTracker, work: Any) -> None:
    traffic.wait("wait", lambda w: w.wait(), work, (), {})


def test_wrappers_come_and_go() -> None:
    before = {name: ProcessGroup.__dict__[name] for name in ("allreduce", "send", "recv", "barrier")}
    waited = Work.__dict__["wait"]
    collective_hooks.install()
    collective_hooks.install()
    assert ProcessGroup.__dict__["allreduce"] is not before["allreduce"]
    assert collective_hooks.uninstall()
    assert not collective_hooks.uninstall()
    assert {name: ProcessGroup.__dict__[name] for name in before} == before
    assert Work.__dict__["wait"] is waited


def test_collectives_count_in_the_innermost_kind_of_their_members(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic.enter({"world": [0], "dp": [0]}, (world,))
    assert traffic.numbers() == ({}, {})  # a group of one has no peer to wait for
    traffic._members = {"dp": (0,), "world": (0,)}  # as if it had
    traffic._places.clear()
    tensor = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    work = dist.all_reduce(tensor, async_op=True)
    assert traffic.numbers() == ({"dp": 5, "world": 0}, {"dp": 4, "world": 0})
    assert work is not None
    work.wait()
    assert traffic.numbers() == ({"dp": 5, "world": 0}, {"dp": 5, "world": 0})
    assert traffic.waited["dp"] > 0.0
    assert traffic.waited_total == pytest.approx(sum(traffic.waited.values()))


def test_calls_that_nobody_waits_for_end_with_the_step(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic._members = {"world": (0,)}
    traffic._place(world)
    dist.all_reduce(torch.ones(1), async_op=True)
    assert traffic.numbers() == ({"world": 1}, {"world": 0})
    traffic.square()
    assert traffic.numbers() == ({"world": 1}, {"world": 1})
    traffic.enter({"world": [0, 1]})
    assert traffic.numbers() == ({"world": 0}, {"world": 0})


def test_what_python_did_not_see_is_counted_too(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic._members = {"dp": (0,)}
    traffic._place(world)
    dist.all_reduce(torch.ones(1))
    collective_hooks.watch(None)
    dist.all_reduce(torch.ones(1))  # as DDP's reducer does it
    collective_hooks.watch(traffic)
    assert traffic.numbers() == ({"dp": 2}, {"dp": 1})
    traffic.settle()
    assert traffic.numbers() == ({"dp": 2}, {"dp": 2})


def test_other_threads_are_left_alone(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic._members = {"world": (0,)}
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
    thread.start()
    thread.join()
    assert traffic.waited_total == 0.0
    assert traffic.numbers() == ({"world": 0}, {"world": 0})


def test_a_member_that_has_no_group_object_is_left_in_peace(traffic: CallTracker) -> None:
    traffic.enter({"pp": [0, 1, 2]})
    work = begin_call(traffic, "recv", 0, None)
    assert work is None
    assert traffic.numbers() == ({"pp": 1}, {"pp": 1})


def test_the_two_ends_of_a_link_agree_and_inner_stages_stand_where_outer_ones_stand(traffic: CallTracker) -> None:
    numbers = []
    for calls in (
        [("send", 1), ("send", 1), ("recv", 1), ("recv", 1)],
        [("recv", 0), ("send", 2), ("recv", 2), ("send", 0)] * 2,
        [("recv", 1), ("recv", 1), ("send", 1), ("send", 1)],
    ):
        traffic.enter({"pp": [0, 1, 2]})
        for name, peer in calls:
            work = FakeWork()
            end(traffic, begin_call(traffic, name, peer, work))
        numbers.append(traffic.numbers())
    assert numbers == [({"pp": 4}, {"pp": 4})] * 3


def test_a_send_beside_the_computation_holds_nobody_up(traffic: CallTracker) -> None:
    traffic.enter({"pp": [0, 1]})
    work = begin_call(traffic, "send", 1, FakeWork())
    assert traffic.numbers() == ({"pp": 1}, {"pp": 1})
    seen: list[Any] = []
    work.wait = lambda: seen.append((traffic.numbers(), str(traffic.status())))
    end(traffic, work)
    assert seen == [(({"pp": 1}, {"pp": 0}), "send pp 1")]
    assert traffic.status() is None


def test_the_call_under_way_is_named_and_its_time_counted(traffic: CallTracker) -> None:
    traffic.enter({"pp": [0, 1], "world": [0, 1, 2, 3]})
    work = begin_call(traffic, "recv", 0, FakeWork(0.02))
    end(traffic, work)
    assert traffic.waited["pp"] >= 0.01
    stranger = begin_call(traffic, "recv", 3, FakeWork())
    assert traffic.numbers()[0] == {"pp": 1, "world": 1}
    end(traffic, stranger)


def test_where_pipelines_cross_transfers_between_them_count_for_none(traffic: CallTracker) -> None:
    """Not all ranks have such: whoever has none would seem to lag behind."""
    traffic.enter({"pp": [0, 1], "world": [0, 1, 2, 3]}, crossed=True)
    for peer in (0, 3):
        end(traffic, begin_call(traffic, "recv", peer, FakeWork()))
    assert traffic.numbers() == ({"pp": 1, "world": 0}, {"pp": 1, "world": 0})
    traffic.enter({"pp": [0, 1], "world": [0, 1, 2, 3]})
    end(traffic, begin_call(traffic, "recv", 3, FakeWork()))
    assert traffic.numbers()[0] == {"pp": 0, "world": 1}


def test_gradients_are_looked_at_before_replicas_meet(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic._members = {"tp": (0,)}
    seen: list[int] = []

    def exchange(tensors: Sequence[Any]) -> bool:
        seen.append(len(tensors))
        return len(seen) < 2

    traffic.on_exchange = exchange
    traffic._place(world)
    dist.all_reduce(torch.ones(1))  # of a tensor-parallel group: part of the model
    assert seen == []
    traffic._places.clear()
    traffic._members = {"dp": (0,)}
    dist.broadcast(torch.ones(1), 0)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    assert seen == [0, 1]


class FakeStream:
    """A device with a given progress."""

    def __init__(self) -> None:
        self.reached = self.passed = 0
        self.waits = 0

    def wait(self, _: str | None) -> Callable[[], StreamWait]:
        def after() -> StreamWait:
            self.waits += 1
            number = self.waits
            return StreamWait(lambda: self.reached >= number, lambda: self.passed >= number)

        return after


def test_on_a_device_a_wait_ends_when_the_stream_has_passed_it(world: ProcessGroup, traffic: CallTracker) -> None:
    stream = FakeStream()
    traffic.stream = stream
    traffic._members = {"dp": (0,)}
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert traffic.numbers() == ({"dp": 3}, {"dp": 0})
    assert traffic.status() is None  # the stream still computes
    stream.reached, stream.passed = 2, 1
    assert str(traffic.status()) == "allreduce dp"
    assert traffic.numbers() == ({"dp": 3}, {"dp": 1})
    traffic.square()
    assert traffic.numbers() == ({"dp": 3}, {"dp": 3})


def test_a_call_that_the_stream_makes_itself_ends_when_the_stream_has_passed_it(
    world: ProcessGroup, traffic: CallTracker
) -> None:
    """NCCL gives no work for a call that is not asynchronous: it has not ended when it returns."""
    stream = FakeStream()
    traffic.stream = stream
    traffic._members = {"dp": (0,)}
    opts = AllreduceOptions()
    opts.asyncOp = False
    assert traffic.issue("allreduce", lambda *_: None, world, ([torch.ones(1)], opts), {}) is None
    assert traffic.numbers() == ({"dp": 1}, {"dp": 0})
    stream.reached = 1
    assert str(traffic.status()) == "allreduce dp"
    stream.passed = 1
    assert traffic.numbers() == ({"dp": 1}, {"dp": 1})


def test_a_group_written_in_python_is_counted_once(traffic: CallTracker) -> None:
    """torchft's groups are such: they replace the methods of ``ProcessGroup`` and call another group."""

    class Wrapper(ProcessGroup):
        def __init__(self) -> None:
            super().__init__(0, 1)
            self.inner = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=20))

        def allreduce(self, tensors: Any, opts: Any = None) -> Work:
            return self.inner.allreduce(tensors, opts)

    collective_hooks.uninstall()
    collective_hooks.install()
    group = Wrapper()
    group.allreduce([torch.ones(1)], AllreduceOptions()).wait()
    assert traffic.calls == 1


def test_an_unknown_wait_belongs_to_no_kind(traffic: CallTracker) -> None:
    end(traffic, FakeWork())
    assert list(traffic.waited) == [None]


def test_when_the_generation_is_over_no_call_is_begun(world: ProcessGroup, traffic: CallTracker) -> None:
    traffic.enter({"world": [0]}, [world])
    traffic.bar(True)
    with pytest.raises(GenerationOverError, match="allreduce was not begun"):
        dist.all_reduce(torch.ones(1))
    assert traffic.current is None
    traffic.bar(False)
    dist.all_reduce(torch.ones(1))
