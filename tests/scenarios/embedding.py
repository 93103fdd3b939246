"""A table of which each step touches a few rows; ``PACED_WHILE_FILE`` makes steps slow as long as it is there."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

import mainstay

ROWS, TOUCHED = 4000, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--dp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1, help="stages with a table each, which have nothing to exchange")
    parser.add_argument("--pause", type=float, default=0.05)
    opts = parser.parse_args()
    mesh = mainstay.init(dp=opts.dp, pp=opts.pp)
    torch.manual_seed(1 + mesh.pp_rank)  # replicas compute the same
    table = nn.Embedding(ROWS, 32, sparse=True)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=1e-2)
    run = mainstay.attach(table, optimizer)
    for _ in run.steps(opts.steps):
        with run.step() as report:
            optimizer.zero_grad()
            rows = torch.randint(ROWS, (TOUCHED,))  # of torch's generator, which a restore brings back
            loss = (table(rows).sum(dim=1) - 1.0).square().mean()
            torch.autograd.backward(loss)
            optimizer.step()
            if Path(os.environ["PACED_WHILE_FILE"]).exists():
                time.sleep(opts.pause)
            report(loss)
    if opts.save and mesh.dp_rank == 0:
        state = optimizer.state[table.weight]
        saved = opts.save if mesh.pp_rank == 0 else opts.save.with_suffix(f".{mesh.pp_rank}.pt")
        torch.save({"table": table.weight.detach(), "sum": state["sum"]}, saved)


if __name__ == "__main__":
    main()
