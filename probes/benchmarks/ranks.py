"""Local ranks: real processes that join one ``torch.distributed`` group, on this machine or across two.

Invariant: a rank that dies is an error that names it, never a shorter list of answers. Ranks are forked, so torch is
imported once; they stay in the caller's process group, so whoever ends that group ends them too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RankWork = Callable[[int], dict[str, Any]]
"""Rank -> a JSON object. Runs inside the joined process group."""


def run_ranks(
    world: int, backend: str, work: RankWork, own: range | None = None, meeting: str = ""
) -> list[dict[str, Any]]:
    """Fork ``world`` ranks, join them over ``backend`` (``gloo`` or ``nccl``), return their answers in rank order.

    The caller must not have touched a GPU: a driver's state does not survive a fork. If other ranks run on another
    node, ``own`` are those of this one, and ``meeting`` is where all meet (``tcp://HOST:PORT``).

    Raises:
        RuntimeError: names the ranks that failed, each with its last words.
    """
    with tempfile.TemporaryDirectory(prefix="mainstay-ranks-") as folder:
        own = own or range(world)
        where = meeting or f"file://{Path(folder, 'store')}"
        ranks = [_fork(partial(_joined, rank, world, backend, work, own=own, meeting=where)) for rank in own]
        try:
            answers = [_understood(said) for said in _listen([pipe for _, pipe in ranks])]
        finally:
            _end([pid for pid, _ in ranks])
    failures = [
        f"rank {rank} of {world} {said['error']}" for rank, said in zip(own, answers, strict=True) if "error" in said
    ]
    if failures:
        raise RuntimeError(f"{backend}: {'; '.join(failures)}")
    return answers


def _fork(joined: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Start one rank. Returns its pid and the end of the pipe that its answer comes out of."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(reader)
    try:
        answer = joined()
    except Exception as error:  # noqa: BLE001 - boundary: the parent reports every error of a rank
        traceback.print_exc(file=sys.stderr)
        answer = {"error": f"failed: {type(error).__name__}: {error}".splitlines()[0]}
    with os.fdopen(writer, "w") as pipe:
        pipe.write(json.dumps(answer))
    os._exit(0)


def _joined(rank: int, world: int, backend: str, work: RankWork, *, own: range, meeting: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if len(own) == world:  # over loopback: the machine's name may resolve to nothing, or to a network not tested here
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if backend == "nccl":
        torch.cuda.set_device(rank - own.start)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // len(own)))
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world)
    try:
        return work(rank)
    finally:
        dist.destroy_process_group()


def _listen(pipes: list[int]) -> list[bytes]:
    """What each rank said, to the end of its pipe.

    A rank that fails leaves its peers waiting in a collective for good, so after the first failure the others get half
    a second to say what they saw.
    """
    said = dict.fromkeys(pipes, b"")
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    still, patience = set(pipes), None
    while still:
        ready = poll.poll(patience)
        if not ready:
            break
        for pipe, _ in ready:
            piece = os.read(pipe, 1 << 16)
            said[pipe] += piece
            if not piece:
                poll.unregister(pipe)
                still.remove(pipe)
                patience = 500 if "error" in _understood(said[pipe]) else patience
    for pipe in pipes:
        os.close(pipe)
    return list(said.values())


def _understood(said: bytes) -> dict[str, Any]:
    """A rank's answer; one that said nothing, or was cut off, was killed (or still waits for the one that was)."""
    try:
        answer: dict[str, Any] = json.loads(said)
    except json.JSONDecodeError:
        return {"error": "gave no answer: killed, or waiting for one that was"}
    return answer


def _end(pids: list[int]) -> None:
    for pid in pids:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
