"""A rank of FSDP2: trains, saves with torch.distributed.checkpoint, continues; or loads, and continues likewise."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.LayerNorm(13), torch.nn.Linear(13, 5, bias=False))


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "lr": 3e-3}], lr=1e-2)


def data_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[float]:
    losses = []
    for step in range(first, first + 3):
        loss = model(data_of(step, dist.get_rank())).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    model = model_of()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer_of(model)
    if what == "save":
        steps(model, optimizer, 0)
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save({**parts, "step": 3}, checkpoint_id=folder / "theirs")
    else:
        state: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=folder / "ours")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses = steps(model, optimizer, 3)
    (folder / f"losses-{what}-{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
