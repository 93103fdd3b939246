"""Who holds the same parts of distributed tensors, from their meshes and placements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from mainstay.recovery.memory import dtensor


class Mesh:
    """A device mesh at one of its coordinates."""

    def __init__(self, coordinate: list[int] | None, ranks: Any = ((0, 1), (2, 3), (4, 5))) -> None:
        self.mesh, self._coordinate = torch.tensor(ranks), coordinate

    def get_coordinate(self) -> list[int] | None:
        return self._coordinate


class Distributed:
    """What ``replicas`` and ``local`` ask of a ``DTensor``."""

    def __init__(self, mesh: Mesh, *placements: Any) -> None:
        self.device_mesh, self.placements = mesh, placements

    def to_local(self) -> torch.Tensor:
        return torch.ones(2)

    def detach(self) -> Distributed:
        return self


@pytest.mark.parametrize(
    ("placements", "coordinate", "ranks"),
    [
        ((Replicate(), Shard(0)), [1, 1], [1, 3, 5]),
        ((Shard(0), Replicate()), [1, 1], [2, 3]),
        ((Replicate(), Replicate()), [1, 1], [1, 2, 3, 4, 5]),
        ((Shard(0), Shard(1)), [1, 1], [3]),
        ((Replicate(), Shard(0)), None, []),
    ],
)
def test_replicas_stand_at_the_same_place_of_the_sharded_dimensions(
    placements: tuple[Any, ...], coordinate: list[int] | None, ranks: list[int]
) -> None:
    tensors: Any = [torch.ones(2), Distributed(Mesh(coordinate), *placements)]
    assert dtensor.replicas(tensors) == ranks, "rank 0 asks where nothing is initialized"


def test_all_tensors_have_to_have_the_same_replica() -> None:
    rows, columns = (Distributed(Mesh([1, 1]), *p) for p in ((Replicate(), Shard(0)), (Shard(0), Replicate())))
    tensors: Any = [rows, torch.ones(1), columns]
    assert dtensor.replicas(tensors) == [3]
    assert dtensor.replicas([torch.ones(1)]) == []


@pytest.mark.parametrize(
    ("placements", "ranks", "cut"),
    [
        ((Replicate(), Shard(0)), [1, 3, 5], False),  # HSDP: replicas of its groups
        ((Replicate(), Shard(0)), [2, 3], True),
        ((Shard(0), Replicate()), [1, 3, 5], True),  # FSDP2
        ((Shard(0), Replicate()), [3, 9], False),  # tensor parallelism: the replica is in another mesh
    ],
)
def test_what_is_cut_among_ranks(placements: tuple[Any, ...], ranks: list[int], *, cut: bool) -> None:
    tensors: Any = [torch.ones(2), Distributed(Mesh([1, 1]), *placements)]
    assert dtensor.is_cut_among(tensors, ranks) is cut
    assert not dtensor.is_cut_among(tensors[:1], ranks)


def test_an_ordinary_tensor_is_its_own_part() -> None:
    plain, spread = torch.ones(3), Distributed(Mesh([0, 0]), Replicate(), Shard(0))
    whole: Any = spread
    assert dtensor.local(plain) is plain
    assert dtensor.wrapper_of(plain)(plain) is plain
    assert dtensor.local(whole).shape == (2,)
    assert dtensor.is_distributed(whole)
    assert not dtensor.is_distributed(plain)
