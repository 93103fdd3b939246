"""Small training jobs whose state a checkpoint holds: an embedding table, and a transformer in two precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import nn

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout

SEED: Final = 20
ROWS, WIDTH, TOUCHED = 40_000, 64, 0.05
"""The embedding table, and the share of its rows that each step touches."""
VOCABULARY, MODEL, LAYERS, TOKENS, BATCH = 512, 128, 3, 32, 16


class Job(Protocol):
    """A training job with its state by name."""

    def step(self, number: int) -> float:
        """Train one step on the data of ``number``; its loss."""

    def held_out(self) -> float:
        """The loss on data that no step sees."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state itself, not copies."""


def layout_of(job: Job) -> Layout:
    """The layout of the slots of a job."""
    return Layout.build({n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in job.tensors().items()})


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def slot_of(job: Job, layout: Layout) -> Bytes:
    """A copy of the state: uint8 [layout.nbytes]."""
    slot, state = np.zeros(layout.nbytes, np.uint8), job.tensors()
    for spec in layout.tensors:
        slot[spec.offset : spec.offset + spec.nbytes] = _bytes_of(state[spec.name])
    return slot


def restore(job: Job, layout: Layout, slot: Bytes) -> None:
    """Put a slot back into the state."""
    state = job.tensors()
    for spec in layout.tensors:
        _bytes_of(state[spec.name])[:] = slot[spec.offset : spec.offset + spec.nbytes]


def _optimizer_state(names: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"optim.{name}.{key}": value
        for name, parameter in names.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


class EmbeddingJob:
    """A click predictor: a table with sparse Adam, of which a step touches a twentieth, and two dense layers."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        nn.init.normal_(self.table.weight, std=0.05)
        self.hidden = torch.randn(ROWS)
        self.sparse: Any = torch.optim.SparseAdam(list(self.table.parameters()), lr=1e-2)
        self.adam = torch.optim.Adam(self.dense.parameters(), lr=1e-3)

    def _loss(self, seed: int, rows: int) -> torch.Tensor:
        random = np.random.default_rng([SEED, seed])
        chosen = torch.from_numpy(random.choice(ROWS, rows, replace=False).reshape(-1, 4))
        clicked = (self.hidden[chosen].sum(dim=1) > 0).float()
        scores = self.dense(self.table(chosen).sum(dim=1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(scores, clicked)

    def step(self, number: int) -> float:
        loss = self._loss(number, int(ROWS * TOUCHED))
        self.sparse.zero_grad()
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        self.sparse.step()
        self.adam.step()
        return loss.item()

    def held_out(self) -> float:
        with torch.no_grad():
            return self._loss(10**6, ROWS).item()

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {"table.weight": self.table.weight, **dict(self.dense.named_parameters(prefix="dense"))}
        return {
            **{f"param.{name}": tensor for name, tensor in named.items()},
            **_optimizer_state(named, self.sparse),
            **_optimizer_state(named, self.adam),
        }


class _Transformer(nn.Module):
    """A causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, MODEL), nn.Embedding(TOKENS, MODEL)
        layer = nn.TransformerEncoderLayer(MODEL, 4, 4 * MODEL, dropout=0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(MODEL, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.tokens(text) + self.places.weight, mask=self.mask, is_causal=True)
        return self.head(hidden)  # type: ignore[no-any-return]


def _text(lines: int) -> torch.Tensor:
    """Lines of a language in which the next token depends on the last one."""
    random = np.random.default_rng(SEED)
    table = random.dirichlet(np.full(VOCABULARY, 0.02), VOCABULARY).cumsum(axis=1)
    text = np.empty((lines, TOKENS + 1), np.int64)
    text[:, 0] = random.integers(0, VOCABULARY, lines)
    for place in range(TOKENS):
        draw = random.random(lines)[:, None]
        text[:, place + 1] = np.minimum((table[text[:, place]] < draw).sum(axis=1), VOCABULARY - 1)
    return torch.from_numpy(text)


class DenseJob:
    """A transformer with AdamW, in float32 or in bfloat16 with a float32 master copy."""

    def __init__(self, *, mixed: bool = False) -> None:
        torch.manual_seed(SEED)
        self.model: Any = _Transformer()
        self.mixed = mixed
        named: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        if mixed:
            self.masters = {name: tensor.detach().clone() for name, tensor in named.items()}
            self.model.bfloat16()
        else:
            self.masters = named
        self.optimizer = torch.optim.AdamW(list(self.masters.values()), lr=1e-3, betas=(0.9, 0.999))
        self.text = _text(4096)

    def _loss(self, lines: torch.Tensor) -> torch.Tensor:
        guessed = self.model(lines[:, :-1]).float().flatten(0, 1)
        return nn.functional.cross_entropy(guessed, lines[:, 1:].flatten())

    def step(self, number: int) -> float:
        chosen = np.random.default_rng([SEED, number]).integers(0, len(self.text) - 512, BATCH)
        loss = self._loss(self.text[torch.from_numpy(chosen)])
        self.model.zero_grad()
        torch.autograd.backward(loss)
        if self.mixed:
            for name, tensor in self.model.named_parameters():
                self.masters[name].grad = tensor.grad.float()
        self.optimizer.step()
        if self.mixed:
            with torch.no_grad():
                for name, tensor in self.model.named_parameters():
                    tensor.copy_(self.masters[name])
        return loss.item()

    def held_out(self) -> float:
        with torch.no_grad():
            return math.fsum(self._loss(lines).item() for lines in torch.split(self.text[-512:], 64)) / 8

    def tensors(self) -> dict[str, torch.Tensor]:
        own = {f"param.{name}": tensor for name, tensor in self.model.named_parameters()}
        masters = {f"optim.{name}.master": t for name, t in self.masters.items()} if self.mixed else {}
        return {**own, **masters, **_optimizer_state(self.masters, self.optimizer)}
