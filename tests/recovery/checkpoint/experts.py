"""A small mixture of experts (float64) whose experts are divided among ranks of any (dp, pp, tp, ep).

``ep`` consecutive data-parallel ranks hold each expert once. Experts are one tensor that is cut along its first
dimension ("stacked"), or modules of their own of which a rank has every ``ep``-th ("named"). The first block has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import Manifest
from mainstay.recovery.checkpoint.reshape import gather, needed, sources
from mainstay.recovery.memory.global_slices import Sharding
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.worker_messages import RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.snapshot_session import SnapshotSession

LAYERS, WIDTH, HIDDEN, EXPERTS, BATCH, TOP = 2, 4, 8, 4, 8, 2
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Topology:
    shape: MeshShape
    ep: int
    named: bool

    def ep_rank(self, rank: int) -> int:
        return self.shape.place(rank)[0] % self.ep


class _Gather(torch.autograd.Function):
    """Rows of all ranks of a group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        rows = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, x.contiguous(), group=group)
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _own_sum(gradients[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    """This rank's rows of the sum over a group."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _own_sum(y, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Gather.forward(ctx, gradients[0], ctx.group), None


def _own_sum(rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = rows.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()


class Expert(nn.Module):
    def __init__(self, tp: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(WIDTH, HIDDEN // tp))
        self.down = nn.Parameter(torch.zeros(HIDDEN // tp, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.up) @ self.down


class Stacked(nn.Module):
    def __init__(self, count: int, tp: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(count, WIDTH, HIDDEN // tp))
        self.down = nn.Parameter(torch.zeros(count, HIDDEN // tp, WIDTH))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        pieces = [p.to_local() if hasattr(p, "to_local") else p for p in (self.up, self.down)]
        return [torch.tanh(x @ up) @ down for up, down in zip(*pieces, strict=True)]


class Mixture(nn.Module):
    """Every expert computes every token; the gates of those that are not among the best are 0."""

    def __init__(self, topology: Topology, rank: int) -> None:
        super().__init__()
        ep, tp = topology.ep, topology.shape.tp
        place = topology.ep_rank(rank)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.mine = [*range(place, EXPERTS, ep)]
        if topology.named:
            self.experts: nn.Module = nn.ModuleDict({str(number): Expert(tp) for number in self.mine})
        else:
            self.experts = Stacked(EXPERTS // ep, tp)
            self.mine = [*range(EXPERTS)][place * EXPERTS // ep :][: EXPERTS // ep]

    def forward(self, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        gates = functional.softmax(self.router(x), -1)
        gates = torch.where(gates >= gates.topk(TOP).values[:, -1:], gates, 0.0)
        if group is not None:
            x, gates = _Gather.apply(x, group), _Gather.apply(gates, group)
        if isinstance(self.experts, nn.ModuleDict):
            made = [expert(x) for expert in self.experts.values()]
        else:
            made = self.experts(x)
        y = torch.stack([gates[:, [e]] * one for e, one in zip(self.mine, made, strict=True)]).sum(0)
        return y if group is None else _Scatter.apply(y, group)


class Model(nn.Module):
    """The blocks of a stage; the first and the last stage share an embedding."""

    def __init__(self, topology: Topology, rank: int) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = None
        """Of the ranks that divide the experts among themselves, where there are several."""
        _, stage, _ = topology.shape.place(rank)
        self.first = LAYERS * stage // topology.shape.pp
        last = LAYERS * (stage + 1) // topology.shape.pp
        self.blocks = nn.ModuleList(
            Mixture(topology, rank) if layer else nn.Linear(WIDTH, WIDTH) for layer in range(self.first, last)
        )
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + (block(x, self.group) if isinstance(block, Mixture) else block(x))
        return x @ self.embed.weight

    def prefixes(self) -> dict[str, str]:
        """Names of modules here -> in the whole model."""
        return {f"blocks.{index}": f"blocks.{self.first + index}" for index in range(len(self.blocks))}


def whole_name(name: str, model: Model) -> str:
    return name.replace("blocks.0", f"blocks.{model.first}", 1) if model.first else name


def sharding(topology: Topology, rank: int, model: Model) -> Sharding:
    """As a script declares it; a stage without experts has nothing to declare."""
    if model.first + len(model.blocks) < LAYERS:
        return {}
    if topology.named:
        return {"*.experts.*.up": 1, "*.experts.*.down": 0}
    place = (0, topology.ep_rank(rank), topology.ep)
    return {"*.experts.up": [place, 2], "*.experts.down": [place, 1]}


def piece(topology: Topology, rank: int, name: str, whole: Tensors) -> torch.Tensor:
    """What ``rank`` holds of ``name`` in the whole model: by hand, not by the code under test."""
    tensor, (_, _, tp) = whole[name], topology.shape.place(rank)
    if ".experts." not in name or not tensor.dim():
        return tensor
    if not topology.named:
        tensor = tensor.chunk(topology.ep)[topology.ep_rank(rank)]
    return tensor.chunk(topology.shape.tp, -1 if ".up" in name else -2)[tp]


def fill(model: Model, topology: Topology, rank: int, seed: int = 0) -> None:
    """Parameters that depend on the seed and their names in the whole model."""
    whole = dict(Model(Topology(MeshShape(dp=1, pp=1), 1, topology.named), 0).double().named_parameters())
    for number, name in enumerate(sorted(whole)):
        source = torch.Generator().manual_seed(1_000 * seed + number)
        nn.init.uniform_(whole[name], -0.5, 0.5, generator=source)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(piece(topology, rank, whole_name(name, model), whole))


def distribute(model: Model, mesh: DeviceMesh) -> None:
    """Make ``DTensor`` of stacked experts, on a mesh of (replicas, ep)."""
    for block in model.blocks:
        for name, tensor in [*block.experts.named_parameters()] if isinstance(block, Mixture) else ():
            made = DTensor.from_local(tensor.detach(), mesh, [Replicate(), Shard(0)], run_check=False)
            setattr(block.experts, name, nn.Parameter(made))


def state_tensors(model: Model, optimizer: torch.optim.Optimizer) -> Tensors:
    """Live tensors by their names in the whole model: parameters, and ``PARAMETER:KEY`` of AdamW."""
    found: Tensors = {}
    for local, parameter in model.named_parameters():
        name = whole_name(local, model)
        found[name] = parameter.detach()
        found |= {f"{name}:{key}": value for key, value in optimizer.state[parameter].items()}
    return {name: t.to_local() if hasattr(t, "to_local") else t for name, t in found.items()}


def data(step: int) -> torch.Tensor:
    """float64 [BATCH, WIDTH], the same for all ranks."""
    return torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def load(run: RunDirectory, manifest: Manifest, state: TrainerState, shape: MeshShape, rank: int) -> None:
    """Restore ``rank`` of a job of ``shape``, as the coordinator orders it and the rank carries it out."""
    parts = sources(manifest, shape, rank)
    order = RestoreOrder(
        epoch=manifest.epoch, source=RestoreSource.DISK, from_rank=parts[0][0], directory=str(run.path.parent),
        run=run.id, part=parts[0][1], parts=parts if needed(manifest, shape, rank) else (),
    )  # fmt: skip
    session = cast(Any, SimpleNamespace(_rank=rank, sharded=None, _whole=state))
    found = SnapshotSession._parts(session, order) or parts[:1]  # its own slot, which the agent reads as it is
    state.load(gather(run, manifest.epoch, found, state.layout, state.slices, stages=shape.pp))
