"""Groups that are left while peers wait in them, and groups that can no longer form: no rank waits for a time-out."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist

from mainstay.recovery.mesh_shape import GenerationRanks, MeshShape
from mainstay.recovery.sdk import sockets
from mainstay.recovery.sdk.abortable_gloo import WaitAbortedError
from mainstay.recovery.sdk.failures import StepAbortedError, is_communication_failure
from mainstay.recovery.sdk.process_groups import Communicator
from tests.recovery.sdk.ranks import Peer

pytestmark = [pytest.mark.slow, pytest.mark.processes]
WORLD = GenerationRanks.whole(MeshShape(dp=2, pp=2))


def form(rank: int, port: int, generation: int = 1) -> Communicator:
    communicator = Communicator(rank, WORLD, "gloo")
    communicator.form_with_server(generation, "127.0.0.1", port, lambda: False)
    return communicator


def stuck_in_a_collective(says: Connection, rank: int, port: int) -> None:
    """Waits for a peer that never comes; a fence after a second must end that."""
    communicator = form(rank, port)
    says.send("formed")
    threading.Timer(1.0, communicator.unblock_until_left, (2,)).start()
    tensor = torch.ones(4)
    try:
        if rank == 1:
            dist.recv(tensor, 0)
        else:
            dist.all_reduce(tensor)
    except RuntimeError as error:
        says.send(is_communication_failure(error))
    communicator.leave()
    says.send("left")
    time.sleep(60)


def idle(says: Connection, rank: int, port: int) -> None:
    form(rank, port)
    says.send("formed")
    time.sleep(60)


def test_a_fence_frees_whoever_is_stuck(store: int) -> None:
    """Rank 0 hangs, alive: no socket breaks, and only hanging up helps."""
    peers = [Peer(idle, 0, store), *(Peer(stuck_in_a_collective, rank, store) for rank in (1, 2, 3))]
    try:
        assert [peer.receive() for peer in peers] == ["formed"] * 4
        begun = time.monotonic()
        assert [peer.receive() for peer in peers[1:]] == [True] * 3
        assert [peer.receive() for peer in peers[1:]] == ["left"] * 3
        assert time.monotonic() - begun < 15.0  # gloo's own time-out is ten minutes
    finally:
        for peer in peers:
            peer.end()


def fenced_in_the_midst(says: Connection, rank: int, port: int, after: float) -> None:
    """Messages of many megabytes are under way when the fence comes; gloo would never tell who waits for the rest."""
    # On a loaded machine a message rests for longer than 60 ms. It is then cut, gloo forgets the call, and the process
    # ends, as another test shows. Here only the end of a message counts.
    sockets.BUSY_SECONDS = sockets.STANDS_SECONDS = 3.0  # type: ignore[misc]
    sockets.MOVES_SECONDS = 60.0  # type: ignore[misc]
    communicator = form(rank, port)
    communicator.inside = object  # another call with each look
    tensor = torch.ones(16 << 20)
    dist.barrier()
    threading.Timer(after, communicator.unblock_until_left, (2,)).start()
    with contextlib.suppress(RuntimeError):
        dist.broadcast(tensor, 0)
    communicator.leave()
    says.send("left")
    time.sleep(60)


@pytest.mark.parametrize("after", [0.02, 0.05, 0.08])
def test_a_fence_does_not_cut_messages(store: int, after: float) -> None:
    peers = [Peer(fenced_in_the_midst, rank, store, after) for rank in range(4)]
    try:
        assert [peer.receive(90.0) for peer in peers] == ["left"] * 4  # a call that was forgotten ends after 30 min
    finally:
        for peer in peers:
            peer.end()


def loses_its_peer(says: Connection, rank: int, port: int, after: float) -> None:
    communicator = form(rank, port)
    communicator.inside = lambda: "broadcast"
    tensor = torch.ones(64 << 20)
    dist.barrier()
    if rank == 0:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        threading.Timer(after + 0.2, communicator.unblock_until_left, (2,)).start()
    with contextlib.suppress(RuntimeError):
        while True:
            dist.broadcast(tensor, 0)
    communicator.leave()
    says.send("left")


def test_a_peer_that_dies_in_the_midst_of_a_message_holds_nobody_up(store: int) -> None:
    """gloo forgets what was half read: a process that is left inside ends, so that another can take its place."""
    peers = [Peer(loses_its_peer, rank, store, 0.1) for rank in range(4)]
    try:
        for peer in peers[1:]:
            assert peer.says.poll(20.0), "a rank waits for what never comes"
            with contextlib.suppress(EOFError):  # it has ended
                assert peer.says.recv() == "left"
    finally:
        for peer in peers:
            peer.end()


@pytest.mark.parametrize("stays", [True, False])
def test_a_process_that_cannot_leave_a_call_ends(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose connections are gone and that stays in the same call; not one that comes out and goes into the next."""
    monkeypatch.setattr("mainstay.recovery.sdk.process_groups.FORGOTTEN_TURNS", 4)
    communicator, looks, ended, over = Communicator(0, WORLD, "gloo"), list[object](), list[int](), threading.Event()
    communicator._current = 1

    def current_call() -> object:
        looks.append("all_reduce" if stays else object())
        if len(looks) == 12:
            communicator._current = 0  # it has left
            over.set()
        return looks[-1]

    def end(_pid: int, number: int) -> None:
        ended.append(number)
        communicator._current = 0
        over.set()

    communicator.inside = current_call
    monkeypatch.setattr("mainstay.recovery.sdk.process_groups.os.kill", end)
    communicator.unblock_until_left(2)
    assert over.wait(30.0)
    assert ended == ([signal.SIGKILL] if stays else [])


def cannot_form(says: Connection, rank: int, port: int) -> None:
    """Forming fails because a peer died after it had said where it listens; then a generation later it works."""
    communicator = Communicator(rank, WORLD, "gloo")
    threading.Timer(2.0, communicator.unblock_until_left, (2,)).start()
    try:
        communicator.form_with_server(1, "127.0.0.1", port, lambda: False)
    except RuntimeError:
        communicator.leave()
        says.send("free")
    communicator.form_with_server(2, "127.0.0.1", port, lambda: False)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    says.send(tensor.item())


def starts_to_form(says: Connection, rank: int, port: int) -> None:
    says.send("here")
    form(rank, port)


def test_a_peer_that_dies_while_groups_form(store: int) -> None:
    peers = [Peer(cannot_form, rank, store) for rank in (0, 1)]
    dying = Peer(starts_to_form, 3, store)
    try:
        assert dying.receive() == "here"
        time.sleep(0.5)  # it has published its address by now, and waits for rank 2
        dying.kill()
        peers.append(Peer(cannot_form, 2, store))
        assert [peer.receive() for peer in peers] == ["free"] * 3
        peers.append(Peer(lambda says: says.send(_sum(form(3, store, generation=2)))))
        assert [peer.receive() for peer in peers] == [4.0] * 4
    finally:
        for peer in [*peers, dying]:
            peer.end()


def counts_otherwise(says: Connection, rank: int, port: int) -> None:
    """A rank whose process, or the one that it was forked from, has failed to form groups before."""
    dist.distributed_c10d._world.group_count = rank
    says.send(_sum(form(rank, port)))


def test_earlier_failures_do_not_change_the_name_that_peers_meet_under(store: int) -> None:
    peers = [Peer(counts_otherwise, rank, store) for rank in range(4)]
    try:
        assert [peer.receive() for peer in peers] == [4.0] * 4
    finally:
        for peer in peers:
            peer.end()


def _sum(_: Communicator) -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return float(tensor.item())


def test_a_generation_that_is_over_is_not_waited_for(store: int) -> None:
    communicator = Communicator(0, WORLD, "gloo")
    with pytest.raises(WaitAbortedError):
        communicator.form_with_server(1, "127.0.0.1", store, lambda: True)
    communicator.leave()
    assert not communicator.unblock(9)


@pytest.mark.parametrize(
    ("error", "foreign"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1"), True),
        (RuntimeError("NCCL error: unhandled system error"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"), False),
        (ValueError("gloo"), False),
        (StepAbortedError("canceled"), False),  # known by its type, not by its words
    ],
)
def test_whose_failure_it_is(error: Exception, foreign: bool) -> None:
    assert is_communication_failure(error) is foreign
