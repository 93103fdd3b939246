"""Lightning: ``torchrun --nproc-per-node 2 lightning_fit.py --save OUT``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn import functional

import common


class Batches:
    """A loader that knows how far it is, as torchdata's StatefulDataLoader does."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for index in range(self._next, self._count):
            self._next = index + 1
            yield common.batch(index, common.rank())
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Regression(LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, opts: common.Options) -> None:
        super().__init__()
        self._opts = opts
        self.body = common.build_model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        common.perhaps_die(self.global_step, self._opts)
        x, y = batch
        return functional.mse_loss(self.body(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    opts = common.options()
    seed_everything(3)
    model = Regression(opts)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_steps=opts.steps,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp",
        **quiet,
    )
    trainer.fit(model, Batches(8))
    common.write(model.named_parameters(), opts)


if __name__ == "__main__":
    main()
