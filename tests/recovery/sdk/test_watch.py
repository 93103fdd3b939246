"""Signals of plain DDP, FSDP2 and a pipeline written by hand, from real ranks over gloo."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mainstay
from tests.recovery.sdk.ranks import records, run_ranks, transfers

pytestmark = [pytest.mark.slow, pytest.mark.processes]
STEPS = 4
SLEEP = 0.1


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))


class Drowsy(torch.nn.Module):
    """Sleeps in its forward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x


def train(model: torch.nn.Module, rank: int, *, accumulate: int = 1) -> list[Any]:
    """STEPS steps; every record, and the 2-norms of the gradients after they were averaged."""
    found: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = mainstay.watch(model, optimizer, on_record=found.append)
    for step in run.steps(STEPS):
        with run.step() as report:
            optimizer.zero_grad()
            for part in range(accumulate):
                torch.manual_seed(1000 * step + 10 * part + rank)
                loss = model(torch.randn(8, 32)).square().mean()
                loss.backward()
            optimizer.step()
            report(loss)
    return found


def local_norms(rank: int, *, accumulate: int = 1) -> list[float]:
    """What ``train`` should say of the first step: the norm of this rank's gradients before any exchange."""
    model = network()
    for part in range(accumulate):
        torch.manual_seed(10 * part + rank)
        model(torch.randn(8, 32)).square().mean().backward()
    return [
        float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    ]


def ddp(rank: int) -> tuple[list[Any], list[float]]:
    model = torch.nn.Sequential(network(), Drowsy(SLEEP if rank == 1 else 0.0))
    found = train(DistributedDataParallel(model), rank)
    return found, local_norms(rank)


def test_ddp() -> None:
    answers = run_ranks(ddp, 2)
    for found, (norm,) in answers:
        taken = records(found)
        assert [record.epoch for record in taken] == [1, 2, 3, 4]
        assert taken[0].signals["gradient_norm"] == pytest.approx(norm, rel=1e-5)
        assert all(record.signals["nonfinite_values"] == 0.0 for record in taken)
        assert all(record.signals["step_phase"] == 1.0 for record in taken)
    fast, slow = (records(found) for found, _ in answers)
    assert all(record.signals["forward_seconds"] > SLEEP for record in slow)
    assert all(record.compute_time > SLEEP for record in slow)
    # The other one waits as long in DDP's reducer, which C++ does behind our back. That is no slowness of its own. What
    # else the host does may make it late too, but not in every step.
    assert min(record.signals["forward_seconds"] for record in fast) < SLEEP
    assert min(record.compute_time for record in fast) < SLEEP
    assert max(record.signals["dp_wait_seconds"] for record in fast) > SLEEP / 2
    assert min(record.signals["backward_seconds"] for record in fast) < SLEEP


def ddp_views(rank: int) -> list[Any]:
    return train(DistributedDataParallel(network(), gradient_as_bucket_view=True), rank)


def test_ddp_that_averages_in_place_tells_no_norm() -> None:
    for found in run_ranks(ddp_views, 2):
        assert all("gradient_norm" not in record.signals for record in records(found))
        assert all(record.signals["nonfinite_values"] == 0.0 for record in records(found))  # of the loss


def sharded(rank: int) -> tuple[list[Any], list[float]]:
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return train(model, rank), local_norms(rank)


def test_fsdp2() -> None:
    answers = run_ranks(sharded, 2)
    for found, (norm,) in answers:
        taken = records(found)
        assert len(taken) == STEPS
        assert taken[0].signals["gradient_norm"] == pytest.approx(norm, rel=1e-4)
        assert taken[1].signals["dp_wait_seconds"] > 0.0
        assert {"forward_seconds", "backward_seconds", "optimizer_seconds"} <= taken[1].signals.keys()


def pipeline(rank: int, stall: float) -> list[Any]:
    """Two stages, four micro-batches; rank 1's transfers are late by ``stall`` because rank 0 computes."""
    found: list[Any] = []
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = mainstay.watch(model, optimizer, on_record=found.append)
    for _ in run.steps(STEPS):
        with run.step():
            optimizer.zero_grad()
            for _ in range(4):
                if rank == 0:
                    time.sleep(stall)
                    dist.send(model(torch.randn(64, 32)).detach(), 1)
                else:
                    x = torch.empty(64, 32)
                    dist.recv(x, 0)
                    model(x).sum().backward()
            optimizer.step()
    return found


def test_a_late_sender_is_no_slow_link() -> None:
    first, second = run_ranks(pipeline, 2, SLEEP)
    assert transfers(first) == []
    taken = transfers(second)
    assert [record.nbytes for record in taken] == [{0: 4 * 64 * 32 * 4.0}] * STEPS
    assert 0.0 < min(record.seconds[0] for record in taken if record.seconds) < SLEEP / 2
    assert max(record.signals["communication_wait_seconds"] for record in records(second)) > SLEEP
    assert min(record.compute_time for record in records(second)) < SLEEP


def bits(rank: int, watched: bool) -> list[bytes]:
    model = DistributedDataParallel(network())
    if watched:
        train(model, rank, accumulate=2)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            for part in range(2):
                torch.manual_seed(1000 * step + 10 * part + rank)
                model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
    return [p.detach().numpy().tobytes() for p in model.parameters()] + [torch.rand(4).numpy().tobytes()]


def test_watching_changes_no_bit() -> None:
    assert run_ranks(bits, 2, True) == run_ranks(bits, 2, False)
