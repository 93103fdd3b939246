"""What the SDK does where calls are asynchronous, aborts may hang, and dead peers show nowhere: as with NCCL.

``bench.lib_nccl_like`` says what it imitates; each rank here is a forked process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench import lib_nccl_like
from mainstay.recovery.mesh_shape import GenerationRanks, MeshShape
from mainstay.recovery.sdk import process_groups
from mainstay.recovery.sdk.call_tracker import CallTracker
from mainstay.recovery.sdk.clocks import ThreadClock
from mainstay.recovery.sdk.failures import StepAbortedError, is_communication_failure
from mainstay.recovery.sdk.process_groups import Communicator
from mainstay.recovery.sdk.protected import ProtectedRun
from tests.recovery.sdk.ranks import Peer

pytestmark = [pytest.mark.slow, pytest.mark.processes]
WORLD = GenerationRanks.whole(MeshShape(dp=2, pp=1))


@pytest.fixture
def start(store: int) -> Iterator[Callable[..., Peer]]:
    """Starts a rank that does what it is given: ``work(says, rank, port)``."""
    peers: list[Peer] = []

    def start_peer(work: Callable[..., None], rank: int) -> Peer:
        peers.append(Peer(work, rank, store))
        return peers[-1]

    yield start_peer
    for peer in peers:
        peer.end()


def form(rank: int, port: int, generation: int = 1) -> Communicator:
    lib_nccl_like.register()
    communicator = Communicator(rank, WORLD, lib_nccl_like.NAME)
    communicator.form_with_server(generation, "127.0.0.1", port, lambda: False)
    return communicator


def met(rank: int, port: int, generation: int = 1) -> Communicator:
    """Formed, and the communicator has made its first call."""
    communicator = form(rank, port, generation)
    dist.barrier()
    return communicator


def run_of(communicator: Communicator) -> Any:
    """As much of a protected run as votes."""
    run = ProtectedRun.__new__(ProtectedRun)
    run._ballot = torch.ones(1, dtype=torch.int32)
    run._link = SimpleNamespace(fence=0)  # type: ignore[assignment]
    run._epoch = 7
    run._meter = SimpleNamespace(traffic=CallTracker(ThreadClock()))  # type: ignore[assignment]
    assert communicator.groups is not None
    run.mesh = SimpleNamespace(communicator=communicator, generation=1, world=communicator.groups.world)  # type: ignore[assignment]
    return run


def fence(run: Any, communicator: Communicator) -> None:
    """As the thread that hears the launcher does."""
    run._link.fence = 2
    communicator.unblock_until_left(2)


def idle(says: Connection, rank: int, port: int) -> None:
    met(rank, port)
    says.send("met")
    time.sleep(120)


def votes(says: Connection, rank: int, port: int) -> None:
    communicator = met(rank, port)
    run = run_of(communicator)
    says.send("met")
    gradient = torch.ones(4)
    threading.Timer(1.0, fence, (run, communicator)).start()
    dist.all_reduce(gradient)
    try:
        run._vote()
        says.send("won")
    except StepAbortedError as error:
        says.send(str(error))
    says.send((int(run._ballot), bool(gradient.isnan().all())))
    communicator.leave()
    says.send(dist.is_initialized())


def test_an_aborted_vote_counts_for_nothing(start: Callable[..., Peer]) -> None:
    """The peer never votes. Its silence ends with an abort, and then the ballot is still 1, the gradient undefined."""
    peers = [start(votes, 0), start(idle, 1)]
    assert [peer.receive() for peer in peers] == ["met", "met"]
    assert peers[0].receive() == "step 7 was canceled: the membership is changing"
    assert peers[0].receive() == (1, True)
    assert peers[0].receive() is False, "the groups are left"


def updates(says: Connection, rank: int, port: int) -> None:
    """The vote is won; then the optimizer has a collective of its own, as one that shards its state does."""
    communicator = met(rank, port)
    run = run_of(communicator)
    run._vote()
    says.send("voted")
    run._require_whole_update()
    says.send("nothing to wait for")
    if rank == 1:
        time.sleep(120)
    parameter = torch.ones(4)
    run._meter.traffic.calls += 1  # what the hooks count
    dist.all_reduce(parameter)
    threading.Timer(1.0, fence, (run, communicator)).start()
    try:
        run._require_whole_update()
        says.send("whole")
    except StepAbortedError as error:
        says.send(str(error))
    says.send(bool(parameter.isnan().all()))


def test_an_update_that_was_cut_short_is_not_committed(start: Callable[..., Peer]) -> None:
    peers = [start(updates, 0), start(updates, 1)]
    assert [peer.receive() for peer in peers] == ["voted", "voted"]
    assert [peer.receive() for peer in peers] == ["nothing to wait for"] * 2
    assert peers[0].receive() == "the update of step 7 was cut short: the membership is changing"
    assert peers[0].receive() is True


def leaves_late(says: Connection, rank: int, port: int) -> None:
    """The fence finds no call to end at first, and is looked at many times until the training thread leaves."""
    failed: list[object] = []
    threading.excepthook = lambda hook: failed.append(hook.exc_value)
    for generation in (1, 2):
        communicator = met(rank, port, generation)
        communicator.unblock_until_left(generation + 1)
        until = time.monotonic() + 30.0
        while dist.is_initialized() and time.monotonic() < until:  # the abort makes torch forget the groups
            time.sleep(0.01)
        for _ in range(3):
            communicator.unblock(generation + 1)
        communicator.leave()
    says.send([str(error) for error in failed])
    communicator = met(rank, port, 3)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    says.send(int(tensor))


def test_a_second_look_at_an_aborted_generation_ends_nothing(start: Callable[..., Peer]) -> None:
    """torch refuses to abort groups that it has forgotten; and the next generation is not aborted by the last one."""
    peers = [start(leaves_late, rank) for rank in (0, 1)]
    assert [peer.receive() for peer in peers] == [[], []]
    assert [peer.receive() for peer in peers] == [2, 2]


def cannot_abort(says: Connection, rank: int, port: int) -> None:
    os.environ["NCCL_LIKE_ABORT"] = "hang"
    process_groups.ABORT_TURNS = 10
    communicator = met(rank, port)
    says.send("met")
    run = run_of(communicator)
    threading.Timer(0.5, fence, (run, communicator)).start()
    dist.all_reduce(torch.ones(4))
    run._vote()


def test_a_process_whose_abort_hangs_ends(start: Callable[..., Peer]) -> None:
    """Another one takes its place. The thread that sees to that waits for no lock that the abort holds."""
    peers = [start(cannot_abort, 0), start(idle, 1)]
    assert [peer.receive() for peer in peers] == ["met", "met"]
    assert os.waitstatus_to_exitcode(os.waitpid(peers[0].pid, 0)[1]) == -signal.SIGKILL


def loses_a_peer(says: Connection, rank: int, port: int) -> None:
    os.environ["NCCL_LIKE_PEERS"] = "seen"
    communicator = met(rank, port)
    says.send("met")
    if rank == 1:
        time.sleep(120)
    dist.all_reduce(torch.ones(4))
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        time.sleep(0.05)
        try:
            dist.all_reduce(torch.ones(4), async_op=True)
        except dist.DistBackendError as error:
            says.send(is_communication_failure(error))
            break
    time.sleep(0.5)  # five looks of the watchdog
    communicator.leave()
    says.send("left")


def test_the_watchdog_leaves_a_survivor_alive(start: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error shows at the next call. As torch has it without ``SURVIVE_ERRORS``, the process would end there."""
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    peers = [start(loses_a_peer, 0), start(loses_a_peer, 1)]
    assert [peer.receive() for peer in peers] == ["met", "met"]
    peers[1].kill()
    assert peers[0].receive() is True
    assert peers[0].receive() == "left"


def test_a_script_that_wants_the_watchdog_to_end_it_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    process_groups._survive_errors()
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert [record.getMessage() for record in caplog.records] == [
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=3 ends processes that could recover in place; unset it"
    ]
