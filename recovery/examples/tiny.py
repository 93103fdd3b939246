"""A tiny transformer in pipeline stages, its data and its schedule: what both example scripts train.

Everything random is a function of (seed, step, micro-batch), never of the rank or of what was drawn before. So a step
that is repeated anywhere computes the same bits.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from mainstay.probes.durable_files import new_file
from mainstay.recovery.examples.faults import Faults, add_faults
from mainstay.recovery.examples.journal import Journal, add_journal
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.pipeline_schedule import PipelinePass, numbered, schedule
from mainstay.recovery.sdk.gradient_accumulator import AssignedMesh, GradientAccumulator
from mainstay.recovery.work_assignment import WorkAssignment

VOCABULARY = 64
LENGTH = 64
MICRO_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    steps: int
    seed: int
    layers: int
    width: int
    batch: int
    per_pipeline: int
    """Micro-batches of each pipeline in each step, when all of them are there."""
    dp: int
    pp: int
    save: Path | None
    canonical: bool
    faults: Faults
    journal: Journal
    device: torch.device

    @property
    def micro_batches(self) -> int:
        """Of all pipelines in each step, however many are there."""
        return self.dp * self.per_pipeline


def options(words: Sequence[str] | None = None) -> Options:
    """Read the command line of an example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--layers", type=int, default=4, help="of all stages together")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4, help="sequences in a micro-batch")
    parser.add_argument(
        "--micro-batches", type=int, default=MICRO_BATCHES, dest="per_pipeline", help="of each pipeline in each step"
    )
    parser.add_argument("--dp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--save", type=Path, default=None, help="directory for the final parameters of every rank")
    parser.add_argument("--canonical", action="store_true", help="add gradients up in the order of micro-batches")
    add_faults(parser)
    add_journal(parser)
    return Options(**vars(parser.parse_args(words)), device=choose_device())


def choose_device() -> torch.device:
    """The GPU of this rank, or the processor where torch sees no GPU. Call it before process groups are formed.

    On a GPU it also asks torch for kernels that repeat bit by bit, so that a repeated step gives the same bits.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)  # NCCL takes the current one
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats only with a fixed workspace
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)  # their backward passes add up in any order
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


class Mesh(AssignedMesh, Protocol):
    """What the schedule needs to know of the ranks; ``mainstay.Mesh`` has it and more."""

    rank: int
    pp_rank: int

    @property
    def generation(self) -> int: ...

    def schedule(self, total: int) -> tuple[PipelinePass, ...]: ...


class PlainMesh:
    """The same from plain torch: rank = dp_rank * pp + pp_rank, as torchrun numbers them."""

    generation = 0

    def __init__(self, dp: int, pp: int) -> None:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        self._shape = MeshShape(dp=dp, pp=pp)
        self._assignment = WorkAssignment(replicas=tuple(range(dp)))
        self.rank = dist.get_rank()
        self.dp_rank, self.pp_rank = divmod(self.rank, pp)
        groups = [dist.new_group([d * pp + p for d in range(dp)]) for p in range(pp)]
        self.dp: dist.ProcessGroup = groups[self.pp_rank]

    def assignment(self, total: int) -> Mapping[int, tuple[int, ...]]:
        return self._assignment.micro_batches(total, len(self._assignment.replicas))

    def schedule(self, total: int) -> tuple[PipelinePass, ...]:
        tasks = schedule(self._assignment, total, self._shape, (self.dp_rank, self.pp_rank))
        return numbered(tasks, self.pp_rank, lambda dp, pp: self._shape.rank_of(dp=dp, pp=pp))


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 32)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = functional.dropout(functional.gelu(self.up(self.norm2(x))), 0.1, self.training)
        out: torch.Tensor = x + self.down(hidden)
        return out


class Stage(nn.Module):
    """One pipeline stage: the first one embeds, the last one predicts."""

    def __init__(self, opts: Options, stage: int) -> None:
        super().__init__()
        torch.manual_seed(opts.seed * 1000 + stage)  # the same in every replica
        self.first, self.last = stage == 0, stage == opts.pp - 1
        layers = opts.layers // opts.pp
        self.layers = (stage * layers, (stage + 1) * layers)
        """The first of the model that is here, and the one behind the last."""
        self.embed = nn.Embedding(VOCABULARY, opts.width) if self.first else None
        self.places = nn.Embedding(LENGTH, opts.width) if self.first else None
        self.blocks = nn.Sequential(*(Block(opts.width) for _ in range(layers)))
        self.head = nn.Linear(opts.width, VOCABULARY) if self.last else None
        self.faults = opts.faults
        self.to(opts.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.faults.in_forward()
        if self.embed is not None and self.places is not None:
            x = self.embed(x) + self.places(torch.arange(x.shape[1], device=x.device))
        x = self.blocks(x)
        return x if self.head is None else self.head(x)


def tokens(opts: Options, step: int, micro_batch: int) -> torch.Tensor:
    """int64 [batch, LENGTH + 1]: arithmetic sequences with some noise; made here, read from nowhere."""
    source = torch.Generator().manual_seed((opts.seed * 1_000_003 + step) * 1009 + micro_batch)
    start = torch.randint(VOCABULARY, (opts.batch, 1), generator=source)
    stride = torch.randint(1, 5, (opts.batch, 1), generator=source)
    noise = torch.rand((opts.batch, LENGTH + 1), generator=source) < 0.05
    wrong = torch.randint(VOCABULARY, (opts.batch, LENGTH + 1), generator=source)
    return torch.where(noise, wrong, (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY)


def batches(mesh: Mesh, step: int, opts: Options) -> Iterator[torch.Tensor]:
    """The micro-batches of this rank in one step, in the order of its forward passes."""
    for task in mesh.schedule(opts.micro_batches):
        if not task.backward:
            opts.faults.in_data()
            yield tokens(opts, step, task.micro_batch).to(opts.device)


def train_step(
    mesh: Mesh,
    stage: Stage,
    optimizer: torch.optim.Optimizer,
    step: int,
    opts: Options,
    *,
    data: Iterator[torch.Tensor] | None = None,
) -> torch.Tensor | None:
    """One step of every replica and stage; the mean loss where it is known (the last stage).

    ``data`` is what ``batches`` gives, where the caller wants to time it.
    """
    opts.faults.enter(mesh.rank, step)
    gradients = GradientAccumulator(mesh, stage.parameters(), opts.micro_batches, canonical=opts.canonical)
    gradients.reset()
    losses = _Pipeline(mesh, stage, step, opts, data or batches(mesh, step, opts)).run(gradients)
    opts.faults.before_exchange(stage)
    gradients.all_reduce(alone=opts.dp == 1 or opts.faults.skips_exchange())
    opts.faults.after_exchange(stage)
    opts.journal.write(
        rank=mesh.rank, generation=mesh.generation, step=step, layers=stage.layers, micro_batches=gradients.added,
        of=opts.micro_batches,
    )  # fmt: skip
    optimizer.step()
    opts.faults.after_update()
    return torch.stack(losses).mean() if losses else None


class _Pipeline:
    """This rank's passes of one step, as the mesh orders them: one forward, one backward."""

    def __init__(self, mesh: Mesh, stage: Stage, step: int, opts: Options, data: Iterator[torch.Tensor]) -> None:
        self.data = data
        self.tasks = mesh.schedule(opts.micro_batches)
        self.stage, self.step, self.opts = stage, step, opts
        self.losses: list[torch.Tensor] = []
        self.sent: list[tuple[dist.Work | None, torch.Tensor]] = []
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(self, gradients: GradientAccumulator) -> list[torch.Tensor]:
        for task in self.tasks:
            if task.backward:
                self.backward(task, gradients)
            else:
                self.forward(task)
        for work, _ in self.sent:
            if work is not None:
                work.wait()
        return self.losses

    def forward(self, task: PipelinePass) -> None:
        data = next(self.data)
        x = data[:, :-1] if task.source is None else self.receive(task.source).requires_grad_()
        # For dropout. torch.manual_seed is slower: it also seeds every kind of device that could be here.
        seed = (self.opts.seed * 1_000_003 + self.step) * 1009 + task.micro_batch
        torch.default_generator.manual_seed(seed)
        if self.opts.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        y = self.stage(x)
        if task.target is None:
            y = functional.cross_entropy(y.flatten(0, 1), data[:, 1:].flatten())
            self.losses.append(y.detach())
        else:
            self.send(y.detach(), task.target)
        self.held[task.micro_batch] = (x, y)

    def backward(self, task: PipelinePass, gradients: GradientAccumulator) -> None:
        x, y = self.held.pop(task.micro_batch)
        y.backward(None if task.source is None else self.receive(task.source))  # type: ignore[no-untyped-call]
        gradients.accumulate(task.micro_batch)
        if task.target is not None:
            assert x.grad is not None
            self.send(x.grad, task.target)

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        tensor = tensor.contiguous()
        self.sent.append((dist.isend(tensor, rank), tensor))

    def receive(self, rank: int) -> torch.Tensor:
        tensor = torch.empty(self.opts.batch, LENGTH, self.opts.width, device=self.opts.device)
        dist.recv(tensor, rank)
        return tensor


def report(loss: torch.Tensor | None) -> None:
    """Where the plain script tells its loss."""
    if loss is not None:
        print(f"loss {loss.item():.4f}", flush=True)  # noqa: T201 - an example prints


def save(mesh: Mesh, stage: Stage, opts: Options) -> None:
    """Write ``rank-R.npz``: the same parameters give the same bytes."""
    if opts.save is None:
        return
    opts.save.mkdir(parents=True, exist_ok=True)
    path = opts.save / f"rank-{mesh.rank}.npz"
    with new_file(path) as file:
        arrays = {name: parameter.detach().cpu().numpy() for name, parameter in stage.named_parameters()}
        np.savez(file, **arrays)  # type: ignore[arg-type]
