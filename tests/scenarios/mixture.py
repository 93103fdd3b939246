"""Trains a small mixture of experts on a mesh with expert-parallel groups: ``mixture.py STEPS DIRECTORY EP KIND``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import mainstay
from mainstay.recovery.sdk.mesh import Mesh
from tests.recovery.checkpoint.experts import (
    BATCH,
    Model,
    Tensors,
    Topology,
    data,
    distribute,
    fill,
    sharding,
    state_tensors,
)


def write(path: Path, tensors: Tensors) -> None:
    new = path.with_suffix(f".{os.getpid()}.new")
    with new.open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in tensors.items()})
    new.replace(path)


def train(mesh: Mesh, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
    model.group = mesh.ep  # a recovery replaces the groups
    optimizer.zero_grad()
    x = data(step).chunk(mesh.shape.dp)[mesh.dp_rank]
    ((model(x) - x.roll(1, 1)).square().sum() / BATCH).backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(gradient, group=mesh.expert_dp if ".experts." in name else mesh.dp)
    optimizer.step()


def main() -> None:
    steps, directory, ep, kind = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    mesh = mainstay.init(ep=ep)
    topology = Topology(mesh.shape, ep, kind == "named")
    model = Model(topology, mesh.rank).double()
    fill(model, topology, mesh.rank)
    if kind == "dtensor":
        rows = [[*range(first, first + ep)] for first in range(0, mesh.world_size, ep)]
        groups = [mesh.expert_dp, mesh.ep]  # another process that takes this rank's place forms no others
        names = ("replicas", "ep")
        distribute(model, DeviceMesh.from_group(groups, "cpu", mesh=torch.tensor(rows), mesh_dim_names=names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    cut = None if kind == "dtensor" else sharding(topology, mesh.rank, model)
    run = mainstay.attach(model, optimizer, names=model.prefixes(), sharding=cut)
    begun = False
    for step in run.steps(steps):
        with run.step():
            if Path(os.environ.get("PACED_WHILE_FILE", "")).is_file():
                time.sleep(0.2)
            if not begun:
                write(directory / f"start-{step}-rank{mesh.rank}.npz", state_tensors(model, optimizer))
                begun = True
            train(mesh, model, optimizer, step)
    write(directory / f"end-rank{mesh.rank}.npz", state_tensors(model, optimizer))


if __name__ == "__main__":
    main()
