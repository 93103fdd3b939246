"""Gradients averaged over micro-batches: the same bits whoever computed them, in canonical order."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist

from mainstay.recovery.sdk.gradient_accumulator import GradientAccumulator
from mainstay.recovery.work_assignment import WorkAssignment
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]
TOTAL = 6


class Positions:
    """A mesh of replicas only, of which some take part."""

    def __init__(self, rank: int, assignment: WorkAssignment, dp: int) -> None:
        self._assignment, self._dp = assignment, dp
        self.dp_rank = assignment.replicas[rank]

    @property
    def dp(self) -> dist.ProcessGroup:
        world = dist.group.WORLD
        assert world is not None
        return world

    def assignment(self, total: int) -> Mapping[int, tuple[int, ...]]:
        return self._assignment.micro_batches(total, self._dp)


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.Linear(33, 1))


def backward(net: torch.nn.Module, number: int) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number)) * 10.0**number
    net(x).square().mean().backward()


def gradients(rank: int, assignment: WorkAssignment, canonical: bool) -> list[bytes]:
    """Of all parameters after one step."""
    net, mesh = model(), Positions(rank, assignment, 3)
    sums = GradientAccumulator(mesh, net.parameters(), TOTAL, canonical=canonical)
    sums.reset()
    for number in mesh.assignment(TOTAL)[mesh.dp_rank]:
        backward(net, number)
        sums.accumulate(number)
    sums.all_reduce()
    return [p.grad.numpy().tobytes() for p in net.parameters() if p.grad is not None]


ASSIGNMENTS = [
    WorkAssignment(replicas=(0, 1, 2)),
    WorkAssignment(replicas=(0, 2)),
    WorkAssignment(replicas=(1,)),
    WorkAssignment(replicas=(0, 1), shares=(5.0, 1.0)),
]


def test_in_canonical_order_the_bits_do_not_depend_on_who_computed_what() -> None:
    found = [run_ranks(gradients, len(assignment.replicas), assignment, True) for assignment in ASSIGNMENTS]
    alike = {b"".join(ranks) for ranks_of in found for ranks in ranks_of}
    assert len(alike) == 1
    assert len(found[0][0]) == 4


def test_the_ordinary_sum_weighs_by_micro_batches() -> None:
    net = model()
    for number in range(TOTAL):
        backward(net, number)
    for assignment in ASSIGNMENTS[:2]:
        for told in run_ranks(gradients, len(assignment.replicas), assignment, False):
            for bits, parameter in zip(told, net.parameters(), strict=True):
                assert parameter.grad is not None
                mean = torch.frombuffer(bytearray(bits), dtype=torch.float32).view_as(parameter)
                # Another order of adding up rounds otherwise, by some units in the last place.
                torch.testing.assert_close(mean, parameter.grad / TOTAL, rtol=1e-5, atol=1e-6)


def wrong(rank: int, how: str) -> str:
    net, mesh = model(), Positions(rank, WorkAssignment(replicas=(0, 1)), 2)
    sums = GradientAccumulator(mesh, net.parameters(), 2, canonical=True)
    sums.reset()
    backward(net, rank)
    sums.accumulate(rank)
    try:
        if how == "twice":
            sums.accumulate(rank)
        else:
            mesh.dp_rank = 1 - rank
            sums.all_reduce()
    except ValueError as error:
        return str(error)
    return ""


def test_a_micro_batch_that_is_doubled_or_missing_is_named() -> None:
    assert run_ranks(wrong, 2, "twice") == [f"micro-batch {n} was computed twice in one step" for n in range(2)]
    told = run_ranks(wrong, 2, "missing")
    assert told == [f"this rank was assigned micro-batches [{1 - n}] and has computed [{n}]" for n in range(2)]
