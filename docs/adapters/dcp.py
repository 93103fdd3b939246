"""FSDP2 and torch.distributed.checkpoint: ``torchrun --nproc-per-node 2 dcp.py --save OUT``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import common


class App:
    """The job's state as torch.distributed.checkpoint wants it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = state["step"]
        torch.set_rng_state(state["random"])


def main() -> None:
    opts = common.options()
    dist.init_process_group("gloo")
    model = common.build_model()
    fully_shard(model)
    app = App(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    storage = checkpoint.FileSystemWriter(opts.save / "checkpoint")
    while app.step < opts.steps:
        common.train_step(app.model, app.optimizer, app.step, opts)
        app.step += 1
        checkpoint.save({"app": app}, storage_writer=storage)
    parts = [(name, p.to_local()) for name, p in model.named_parameters() if isinstance(p, DTensor)]
    common.write(parts, opts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
