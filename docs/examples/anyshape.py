"""Train a tiny transformer to the same bits at any (dp, pp), also with pipelines of unlike depth, and change that.

``mainstay run --nproc-per-node 4 --dp 2 --pp 2 docs/examples/anyshape.py``, and while it runs
``mainstay job reshape JOB --dp 1 --pp 4`` or ``--stages 2,1``.
Canonical mode: random numbers are functions of (seed, step, micro-batch, layer), and gradients are added in the order
of the micro-batches, wherever they were computed. It costs as many times the traffic as there are micro-batches.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import mainstay
from mainstay.recovery.examples.journal import Journal, add_journal
from mainstay.recovery.examples.tiny import LENGTH, VOCABULARY, Block
from mainstay.recovery.sdk.layer_accumulator import LayerGradientAccumulator
from mainstay.recovery.sdk.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    steps: int
    seed: int
    layers: int
    width: int
    batch: int
    micro_batches: int
    pause: float
    save: Path | None
    journal: Journal


def options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--layers", type=int, default=4, help="of all stages together")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2, help="sequences in a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="of the whole job in each step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
    parser.add_argument("--save", type=Path, default=None, help="directory for the final parameters of the model")
    add_journal(parser)
    return Options(**vars(parser.parse_args()))


class Stage(nn.Module):
    """Some layers in a row; the first stage embeds, the last one predicts. Each layer has the same weights anywhere."""

    def __init__(self, opts: Options, stage: int, stages: int) -> None:
        super().__init__()
        cuts = [opts.layers * n // stages for n in range(stages + 1)]
        self.seed, self.begin = opts.seed, cuts[stage]
        self.layers = (cuts[stage], cuts[stage + 1])
        self.first, self.last = stage == 0, stage == stages - 1
        torch.manual_seed(opts.seed * 1000)
        self.embed = nn.Embedding(VOCABULARY, opts.width) if self.first else None
        self.places = nn.Embedding(LENGTH, opts.width) if self.first else None
        self.blocks = nn.ModuleList(self._block(opts, layer) for layer in range(cuts[stage], cuts[stage + 1]))
        torch.manual_seed(opts.seed * 1000 + 999)
        self.head = nn.Linear(opts.width, VOCABULARY) if self.last else None

    @staticmethod
    def _block(opts: Options, layer: int) -> Block:
        torch.manual_seed(opts.seed * 1000 + 1 + layer)
        return Block(opts.width)

    @property
    def names(self) -> dict[str, str]:
        """Module here -> module in the whole model."""
        return {f"blocks.{i}": f"blocks.{self.begin + i}" for i in range(len(self.blocks))}

    def whole_parameters(self) -> dict[str, nn.Parameter]:
        """Name in the whole model -> parameter."""
        return {self._whole(name): parameter for name, parameter in self.named_parameters()}

    def _whole(self, name: str) -> str:
        for here, whole in self.names.items():
            if name.startswith(f"{here}."):
                return whole + name[len(here) :]
        return name

    def forward(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        if self.embed is not None and self.places is not None:
            x = self.embed(x) + self.places(torch.arange(x.shape[1]))
        for number, block in enumerate(self.blocks):
            torch.manual_seed(seed * 101 + self.begin + number)  # dropout
            x = block(x)
        return x if self.head is None else self.head(x)


def gradients_of(
    mesh: Mesh, stage: Stage, gradients: LayerGradientAccumulator, step: int, opts: Options
) -> torch.Tensor:
    """One step of all stages and replicas; float32 []: the mean loss of this replica (zero before the last stage)."""
    time.sleep(opts.pause)
    gradients.reset()
    numbers = mesh.micro_batches(opts.micro_batches)
    held = [_forward(mesh, stage, step * opts.micro_batches + number, opts) for number in numbers]
    for number, (x, y) in zip(numbers, held, strict=True):
        _backward(mesh, stage, x, y, opts)
        gradients.accumulate(number)
    gradients.all_reduce()
    opts.journal.write(
        rank=mesh.rank, generation=mesh.generation, step=step, layers=stage.layers, micro_batches=numbers,
        of=opts.micro_batches,
    )  # fmt: skip
    return torch.stack([y.detach() for _, y in held]).mean() if stage.last else torch.zeros(())


def _forward(mesh: Mesh, stage: Stage, number: int, opts: Options) -> tuple[torch.Tensor, torch.Tensor]:
    data = _tokens(opts, number)
    x = data[:, :-1] if stage.first else _receive(mesh, -1, opts).requires_grad_()
    y = stage(x, opts.seed * 1_000_003 + number)
    if stage.last:
        return x, functional.cross_entropy(y.flatten(0, 1), data[:, 1:].flatten())
    dist.send(y.detach().contiguous(), _neighbor(mesh, 1))
    return x, y


def _backward(mesh: Mesh, stage: Stage, x: torch.Tensor, y: torch.Tensor, opts: Options) -> None:
    y.backward(None if stage.last else _receive(mesh, 1, opts))  # type: ignore[no-untyped-call]
    if x.grad is not None:
        dist.send(x.grad.contiguous(), _neighbor(mesh, -1))


def _tokens(opts: Options, number: int) -> torch.Tensor:
    """int64 [batch, LENGTH + 1]: arithmetic sequences."""
    source = torch.Generator().manual_seed(opts.seed * 1_000_003 + number)
    start = torch.randint(VOCABULARY, (opts.batch, 1), generator=source)
    stride = torch.randint(1, 5, (opts.batch, 1), generator=source)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def _receive(mesh: Mesh, stages: int, opts: Options) -> torch.Tensor:
    tensor = torch.empty(opts.batch, LENGTH, opts.width)
    dist.recv(tensor, _neighbor(mesh, stages))
    return tensor


def _neighbor(mesh: Mesh, stages: int) -> int:
    return mesh.rank_of(dp=mesh.dp_rank, pp=mesh.pp_rank + stages)


def save(mesh: Mesh, stage: Stage, opts: Options) -> None:
    """Write ``stage-R.npz`` with the names of the whole model."""
    if opts.save is None:
        return
    opts.save.mkdir(parents=True, exist_ok=True)
    path = opts.save / f"stage-{mesh.rank}.npz"
    new = path.with_suffix(f".{os.getpid()}.new")
    arrays = {name: parameter.detach().numpy() for name, parameter in stage.whole_parameters().items()}
    with new.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    new.replace(path)


def main() -> None:
    opts = options()
    torch.set_num_threads(1)  # sums of more threads may round otherwise
    mesh = mainstay.init()
    stage = Stage(opts, mesh.pp_rank, mesh.stages)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    gradients = mainstay.LayerGradientAccumulator(mesh, stage.whole_parameters(), opts.micro_batches, canonical=True)
    run = mainstay.attach(stage, optimizer, names=stage.names)
    for step in run.steps(opts.steps):
        with run.step() as report:
            loss = gradients_of(mesh, stage, gradients, step, opts)
            optimizer.step()
            report(loss)
    save(mesh, stage, opts)


if __name__ == "__main__":
    main()
