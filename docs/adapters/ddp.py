"""DistributedDataParallel: ``torchrun --nproc-per-node 2 ddp.py --save OUT``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import common


def main() -> None:
    opts = common.options()
    dist.init_process_group("gloo")
    train(opts)
    # The model is gone by now. DDP's reducer would hold the last reference to the process group otherwise, and wait for
    # gloo's threads with the interpreter's lock, for which one of them may wait (torch 2.13).
    dist.destroy_process_group()


def train(opts: common.Options) -> None:
    model = DistributedDataParallel(common.build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(opts.steps):
        common.train_step(model, optimizer, step, opts)
    common.write(model.module.named_parameters(), opts)


if __name__ == "__main__":
    main()
