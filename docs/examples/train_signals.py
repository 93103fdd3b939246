"""``train.py`` with all that the SDK can be told about a run: data, workload, evaluation. All of it is optional."""

from __future__ import annotations

import torch

import mainstay
from mainstay.recovery.examples import tiny

EVALUATE_EVERY = 25


def main() -> None:
    opts = tiny.options()
    mesh = mainstay.init(dp=opts.dp, pp=opts.pp)
    stage = tiny.Stage(opts, mesh.pp_rank)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    run = mainstay.attach(stage, optimizer)
    for step in run.steps(opts.steps):
        with run.step() as report:
            data = run.data(tiny.batches(mesh, step, opts))
            sequences = opts.batch * opts.per_pipeline
            run.workload(tokens=sequences * tiny.LENGTH, sequence_squares=sequences * tiny.LENGTH**2)
            report(tiny.train_step(mesh, stage, optimizer, step, opts, data=data))
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            with run.phase("evaluate"), torch.no_grad():
                stage(_evaluation(stage, opts))
    tiny.save(mesh, stage, opts)


def _evaluation(stage: tiny.Stage, opts: tiny.Options) -> torch.Tensor:
    """Input of this stage alone: an example has no validation set."""
    if stage.first:
        return torch.zeros(opts.batch, tiny.LENGTH, dtype=torch.int64, device=opts.device)
    return torch.zeros(opts.batch, tiny.LENGTH, opts.width, device=opts.device)


if __name__ == "__main__":
    main()
