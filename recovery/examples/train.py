"""Train a tiny transformer, data parallel x pipeline, protected: ``mainstay run --nproc-per-node 4 train.py``."""

from __future__ import annotations

import torch

import mainstay
from mainstay.recovery.examples import tiny


def main() -> None:
    opts = tiny.options()
    mesh = mainstay.init(dp=opts.dp, pp=opts.pp)
    stage = tiny.Stage(opts, mesh.pp_rank)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    run = mainstay.attach(stage, optimizer)
    for step in run.steps(opts.steps):
        with run.step() as report:
            report(tiny.train_step(mesh, stage, optimizer, step, opts))
    tiny.save(mesh, stage, opts)


if __name__ == "__main__":
    main()
