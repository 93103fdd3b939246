"""Train on every sample once in each epoch, in one order, with failures and with any number of replicas.

``mainstay run --nproc-per-node 2 --dp 2 --checkpoint-interval 9 --checkpoint-dir DIR docs/examples/resumable_data.py``,
and later the same with ``--nproc-per-node 3 --dp 3 --resume latest``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import mainstay

MICRO_BATCHES = 6
"""Of the whole job in each step."""


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Points of a line with noise; a sample depends on its index alone."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = torch.randn(1, generator=torch.Generator().manual_seed(index))
        return {"id": torch.tensor(index), "x": torch.tensor([index / 100]), "y": 3.0 * index / 100 + 0.1 * noise}


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    gradients: mainstay.GradientAccumulator,
    batches: Iterable[tuple[int, dict[str, torch.Tensor]]],
) -> None:
    gradients.reset()
    for number, batch in batches:
        nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        gradients.accumulate(number)
    gradients.all_reduce()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="processes of each rank's loader")
    parser.add_argument("--save", type=Path, default=None, help="file for the final parameters")
    opts = parser.parse_args()
    mesh = mainstay.init()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    gradients = mainstay.GradientAccumulator(mesh, model.parameters(), MICRO_BATCHES, canonical=True)
    dataset = Samples()
    sampler = mainstay.ResumableSampler(len(dataset), batch_size=2, micro_batches=MICRO_BATCHES, seed=7)
    loader = DataLoader(
        dataset, batch_sampler=sampler.batch_sampler, num_workers=opts.workers, persistent_workers=opts.workers > 0
    )
    run = mainstay.attach(model, optimizer, extra={"data": sampler})
    for _ in run.steps(opts.steps):
        with run.step():
            train_step(model, optimizer, gradients, sampler.step(loader, mesh.micro_batches(MICRO_BATCHES)))
    if opts.save is not None and mesh.rank == 0:
        torch.save(model.state_dict(), opts.save)


if __name__ == "__main__":
    main()
