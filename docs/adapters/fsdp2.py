"""FSDP2, and HSDP with ``--replicas``: ``torchrun --nproc-per-node 4 fsdp2.py --save OUT``."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import common


def main() -> None:
    opts = common.options()
    dist.init_process_group("gloo")
    replicas, world = int(os.environ.get("REPLICAS", "1")), dist.get_world_size()
    shape, names = ((replicas, world // replicas), ("replicate", "shard")) if replicas > 1 else ((world,), ("shard",))
    model = common.build_model()
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(opts.steps):
        common.train_step(model, optimizer, step, opts)
    parts = [(name, p.to_local()) for name, p in model.named_parameters() if isinstance(p, DTensor)]
    common.write(parts, opts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
