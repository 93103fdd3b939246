"""Layers of the model benchmarks. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


class _Decoder(nn.Module):
    """Pre-norm attention and SwiGLU on [batch, length, width]."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, width: int, heads: int, key_heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        inner = 8 * width // 3
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * key_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        angle = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions of [batch, heads, length, size] (Su et al. 2021, eq. 34)."""
        even, odd = x[..., 0::2], x[..., 1::2]
        parts = (even * self.cosine - odd * self.sine, even * self.sine + odd * self.cosine)
        return torch.stack(parts, dim=-1).flatten(-2).to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        normed = self.before(x)
        query = self.query(normed).view(b, t, self.heads, self.size).transpose(1, 2)
        key, value = self.key_value(normed).view(b, t, 2, self.key_heads, self.size).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(
            self._rotate(query), self._rotate(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, width))
        normed = self.between(x)
        y: torch.Tensor = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return y


def decoder_layer(width: int, heads: int, key_heads: int, length: int) -> nn.Module:
    """A layer of Llama on [batch, length, width]; ``key_heads`` share keys and values among ``heads``."""
    return _Decoder(width, heads, key_heads, length)


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions beside a shortcut, four times as wide at the end."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_convolution(before, width, 1, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1, 1),
        )  # fmt: skip
        same = before == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def _convolution(before: int, after: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


def bottlenecks(width: int, blocks: int) -> Iterator[nn.Module]:
    """Four stages of ``blocks`` bottleneck blocks on [batch, width, side, side]; ends with 32 x width channels."""
    before = width
    for stage in range(4):
        for block in range(blocks):
            inner = width << stage
            yield _Bottleneck(before, inner, 2 if stage and not block else 1)
            before = 4 * inner


class _Recurrent(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.cells(x)[0]
        return hidden


def recurrent(width: int, layers: int) -> nn.Module:
    """LSTM layers on [batch, length, width] that give the hidden state of every position."""
    return _Recurrent(width, layers)
