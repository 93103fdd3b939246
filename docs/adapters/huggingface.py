"""transformers.Trainer: ``torchrun --nproc-per-node 2 huggingface.py --save OUT``."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments

import common


class Regression(nn.Module):
    """What the trainer wants of a model: a dict with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = common.build_model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(x)
        return {"loss": functional.mse_loss(out, labels), "logits": out}


class Fault(TrainerCallback):
    """Dies where the command line says."""

    def __init__(self, opts: common.Options) -> None:
        self._opts = opts

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        common.perhaps_die(state.global_step, self._opts)


def main() -> None:
    opts = common.options()
    arguments = TrainingArguments(
        output_dir=os.fspath(opts.save / "trainer"), max_steps=opts.steps, per_device_train_batch_size=4,
        learning_rate=1e-2, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
    )  # fmt: skip
    model = Regression()
    trainer = Trainer(model, arguments, train_dataset=common.Rows(40), callbacks=[Fault(opts)])
    trainer.train()
    common.write(model.named_parameters(), opts)


if __name__ == "__main__":
    main()
