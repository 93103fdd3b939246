"""Gradients added up over pipelines of unlike depth: the same bits however the layers are cut."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist

from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.sdk.layer_accumulator import LayerGradientAccumulator
from mainstay.recovery.work_assignment import WorkAssignment
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]
TOTAL = 5
LAYERS = 6


class MeshPosition:
    """A rank of pipelines, with the layers that its stage has."""

    generation = 1

    def __init__(self, rank: int, stages: tuple[int, ...]) -> None:
        self.shape = MeshShape.from_stages(stages)
        depth, stage, _ = self.shape.cut(rank)
        self.dp_rank = self.shape.place(rank)[0]
        self.layers = range(LAYERS * stage // depth, LAYERS * (stage + 1) // depth)

    @property
    def world(self) -> dist.ProcessGroup:
        world = dist.group.WORLD
        assert world is not None
        return world

    def assignment(self, total: int) -> Mapping[int, tuple[int, ...]]:
        stages = self.shape.stages
        return WorkAssignment(replicas=tuple(range(len(stages))), shares=stages).micro_batches(total, len(stages))

    def parameters(self) -> dict[str, torch.Tensor]:
        return {f"layers.{n}": torch.zeros(3, n + 1, requires_grad=True) for n in self.layers}


def gradient(name: str, number: int, like: torch.Tensor) -> torch.Tensor:
    """Of one micro-batch: so unlike in size that the order of a sum shows."""
    source = torch.Generator().manual_seed(100 * number + int(name.rpartition(".")[2]))
    return torch.randn(like.shape, generator=source) * 10.0**number


def added_up(rank: int, stages: tuple[int, ...], canonical: bool) -> dict[str, bytes]:
    """Name -> bits after two steps, of which the second is kept."""
    mesh = MeshPosition(rank, stages)
    parameters = mesh.parameters()
    sums = LayerGradientAccumulator(mesh, parameters, TOTAL, canonical=canonical)
    for _ in range(2):
        sums.reset()
        for number in mesh.assignment(TOTAL)[mesh.dp_rank]:
            for name, parameter in parameters.items():
                parameter.grad = gradient(name, number, parameter)
            sums.accumulate(number)
        sums.all_reduce()
    return {name: p.grad.numpy().tobytes() for name, p in parameters.items() if p.grad is not None}


def whole(stages: tuple[int, ...], *, canonical: bool) -> dict[str, bytes]:
    """Of the whole model; all ranks that hold a tensor must agree."""
    found: dict[str, bytes] = {}
    for told in run_ranks(added_up, sum(stages), stages, canonical):
        for name, bits in told.items():
            assert found.setdefault(name, bits) == bits, name
    assert len(found) == LAYERS
    return found


def test_in_canonical_order_the_bits_do_not_depend_on_the_cut() -> None:
    one = whole((1,), canonical=True)
    for stages in ((3, 3), (3, 2), (2, 1, 1)):
        assert whole(stages, canonical=True) == one


def test_the_ordinary_sum_is_the_mean_of_all_micro_batches() -> None:
    for name, bits in whole((3, 2), canonical=False).items():
        number = int(name.rpartition(".")[2])
        like = torch.zeros(3, number + 1)
        mean = torch.frombuffer(bytearray(bits), dtype=torch.float32).view_as(like)
        torch.testing.assert_close(mean, sum((gradient(name, n, like) for n in range(TOTAL)), like) / TOTAL)


def wrong(rank: int, how: str) -> str:
    mesh = MeshPosition(rank, (2, 1) if how == "tied" else (1, 1))
    parameters = mesh.parameters()
    if how == "tied":
        parameters["embed"] = torch.zeros(2, requires_grad=True)
    elif how == "missing" and rank:
        del parameters["layers.3"]
    elif how == "unlike" and rank:
        parameters["layers.3"] = torch.zeros(7, requires_grad=True)
    sums = LayerGradientAccumulator(mesh, parameters, TOTAL)
    sums.reset()
    try:
        for number in mesh.assignment(TOTAL)[mesh.dp_rank]:
            sums.accumulate(number)
            if how == "twice":
                sums.accumulate(number)
        if how == "incomplete":
            sums.reset()
        sums.all_reduce()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("tied", "'embed' is in several stages of one pipeline"),
        ("missing", "'layers.3' is not the same in all pipelines: 12 elements in replica 0, 0 elements in replica 1"),
        ("unlike", "'layers.3' is not the same in all pipelines: 12 elements in replica 0, 7 elements in replica 1"),
        ("twice", "micro-batch 0 was computed twice in one step"),
        ("incomplete", "this rank was assigned micro-batches [0, 1, 2] and has computed []"),
    ],
)
def test_what_cannot_be_added_up_is_named(how: str, words: str) -> None:
    for told in run_ranks(wrong, 3 if how == "tied" else 2, how)[: 1 if how in {"twice", "incomplete"} else None]:
        assert words in told


def test_gradients_of_two_kinds_are_refused() -> None:
    both = {"a": torch.zeros(1, requires_grad=True), "b": torch.zeros(1, dtype=torch.float64, requires_grad=True)}
    with pytest.raises(ValueError, match=r"of one dtype.*float32.*float64"):
        LayerGradientAccumulator(MeshPosition(0, (1,)), both, 1)
