"""Train a tiny transformer, data parallel x pipeline: ``torchrun --nproc-per-node 4 train_plain.py``."""

from __future__ import annotations

import torch

from mainstay.recovery.examples import tiny
from mainstay.recovery.examples.tiny import report


def main() -> None:
    opts = tiny.options()
    mesh = tiny.PlainMesh(dp=opts.dp, pp=opts.pp)
    stage = tiny.Stage(opts, mesh.pp_rank)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    for step in range(opts.steps):
        report(tiny.train_step(mesh, stage, optimizer, step, opts))
    tiny.save(mesh, stage, opts)


if __name__ == "__main__":
    main()
