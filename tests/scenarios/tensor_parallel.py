"""A feed-forward network whose blocks are cut as in Megatron-LM (Shoeybi et al. 2019), at any (dp, tp); float64.

It writes parameters and moments of every rank after each step, and again when a run starts from a restored step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import mainstay
from mainstay.recovery.sdk.mesh import Mesh

LAYERS, WIDTH, HIDDEN, BATCH, MICRO_BATCHES = 2, 8, 16, 4, 4
SHARDING = {"blocks.*.up.weight": 0, "blocks.*.up.bias": 0, "blocks.*.down.weight": 1}


class _Copy(torch.autograd.Function):
    """The same on all tensor-parallel ranks; their gradients are added."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
        ctx.mesh = mesh
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = gradients[0].contiguous()
        dist.all_reduce(total, group=ctx.mesh.tp)
        return total, None


class _Sum(torch.autograd.Function):
    """Partial sums of all tensor-parallel ranks are added; each gets the gradient of the sum."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=mesh.tp)
        return total

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return gradients[0], None


class Block(nn.Module):
    """The first product is cut by columns of its output, the second by rows of its input."""

    def __init__(self, mesh: Mesh, layer: int) -> None:
        super().__init__()
        self.mesh = mesh
        torch.manual_seed(100 + layer)
        up, down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH, bias=False)
        tp, place = mesh.shape.tp, mesh.tp_rank
        self.up, self.down = nn.Linear(WIDTH, HIDDEN // tp), nn.Linear(HIDDEN // tp, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.up.weight.copy_(up.weight.chunk(tp, 0)[place])
            self.up.bias.copy_(up.bias.chunk(tp, 0)[place])
            self.down.weight.copy_(down.weight.chunk(tp, 1)[place])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.up(_Copy.apply(self.norm(x), self.mesh)))
        return x + _Sum.apply(self.down(hidden), self.mesh)


class Model(nn.Module):
    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(mesh, layer) for layer in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def loss_of(model: Model, step: int, micro_batch: int) -> torch.Tensor:
    """float64 []: of data that are a function of both numbers."""
    source = torch.Generator().manual_seed(step * MICRO_BATCHES + micro_batch)
    data = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=source)
    return functional.mse_loss(model(data), data.roll(1, 1))


def write(directory: Path, mesh: Mesh, model: Model, optimizer: torch.optim.Optimizer, name: str) -> None:
    """``NAME-dpD-tpT-rankR.npz``: tensors as they are on this rank."""
    arrays = {}
    for key, parameter in model.named_parameters():
        arrays[f"param.{key}"] = parameter.detach().numpy()
        arrays |= {f"optim.{key}.{kind}": value.numpy() for kind, value in optimizer.state[parameter].items()}
    path = directory / f"{name}-dp{mesh.shape.dp}-tp{mesh.shape.tp}-rank{mesh.rank}.npz"
    new = path.with_suffix(f".{os.getpid()}.new")
    with new.open("wb") as file:
        np.savez(file, **arrays)
    new.replace(path)


def main() -> None:
    steps, directory = int(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    mesh = mainstay.init()
    model = Model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    gradients = mainstay.GradientAccumulator(mesh, model.parameters(), MICRO_BATCHES)
    run = mainstay.attach(model, optimizer, {"schedule": schedule}, names={}, sharding=SHARDING)
    begun = False
    for step in run.steps(steps):
        with run.step() as report:
            if Path(os.environ.get("PACED_WHILE_FILE", "")).is_file():
                time.sleep(0.4)
            if not begun:
                write(directory, mesh, model, optimizer, f"start-{step}")
                begun = True
            gradients.reset()
            for number in mesh.micro_batches(MICRO_BATCHES):
                loss = loss_of(model, step, number)
                loss.backward()
                gradients.accumulate(number)
            gradients.all_reduce()
            optimizer.step()
            schedule.step()
            write(directory, mesh, model, optimizer, f"after-{step + 1}")
            report(loss)


if __name__ == "__main__":
    main()
