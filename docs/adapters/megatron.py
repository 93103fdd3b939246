"""A loop in the manner of Megatron-LM's ``pretrain``: ``torchrun --nproc-per-node 2 megatron.py --save OUT``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import common


class Chunk(nn.Module):
    """One pipeline stage's part, with gradients averaged by hand, as Megatron's own DDP does."""

    def __init__(self) -> None:
        super().__init__()
        self.module = common.build_model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def average_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Over the data-parallel group, before the update."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main() -> None:
    opts = common.options()
    dist.init_process_group("gloo")
    model = [Chunk()]
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=1e-2)
    optimizer.register_step_pre_hook(average_gradients)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    iteration = 0
    while iteration < opts.steps:
        common.train_step(model[0], optimizer, iteration, opts)
        scheduler.step()
        iteration += 1
    common.write(model[0].named_parameters(), opts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
