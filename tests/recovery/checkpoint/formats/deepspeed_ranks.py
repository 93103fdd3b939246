"""A rank of DeepSpeed on the CPU: trains and saves with each stage, or loads what we wrote, and continues."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}

import deepspeed
import deepspeed.comm.torch
import torch
import torch.distributed as dist

# Else a faster all-reduce is compiled first. The attribute deepspeed.comm.torch is torch itself.
vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(7, 13)
        self.n = torch.nn.LayerNorm(13)
        self.b = torch.nn.Linear(13, 5, bias=False)
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(torch.relu(self.n(self.a(x)))) * self.scale
        return out


def model_of() -> Model:
    torch.manual_seed(0)
    return Model()


def optimizer_of(model: torch.nn.Module, *, one_group: bool) -> torch.optim.Optimizer:
    """One group for stage 3: DeepSpeed's own loader gives all groups the options of the first there."""
    if one_group:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "lr": 3e-3}], lr=1e-2)


def data_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def engine_of(stage: int, *, half: bool, universal: bool) -> Any:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": half},
        "checkpoint": {"load_universal": universal},
    }
    model = model_of()
    optimizer = optimizer_of(model, one_group=stage == 3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def steps(engine: Any) -> list[float]:
    losses = []
    for step in range(engine.global_steps, engine.global_steps + 3):
        data = data_of(step, dist.get_rank())
        loss = engine(data.to(next(engine.module.parameters()).dtype)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


CASES = {"zero1": (1, False), "half2": (2, True), "zero3": (3, False)}


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
    deepspeed.init_distributed("gloo", dist_init_required=False)
    losses = {}
    for name, (stage, half) in CASES.items():
        for form in ("theirs",) if what == "save" else ("same", "universal"):
            engine = engine_of(stage, half=half, universal=form == "universal")
            if what == "save":
                steps(engine)
                engine.save_checkpoint(folder / name, client_state={"note": 5})
            else:
                path, client = engine.load_checkpoint(folder / f"{name}-{form}")
                assert path is not None
                assert client["note"] == 5
            losses[f"{name}-{form}"] = steps(engine)
            engine.destroy()
    (folder / f"losses-{what}-{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
