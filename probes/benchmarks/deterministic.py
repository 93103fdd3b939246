"""The same seeded computation must give the same bits: within a run, and on every machine of a cohort."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Effort, Kind, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric

if TYPE_CHECKING:
    import torch

_REPEATS = {SuiteTier.QUICK: 5, SuiteTier.STANDARD: 100, SuiteTier.DEEP: 1000}
_SECONDS: dict[Kind, float] = {"cpu": 0.02, "cuda": 0.02}
"""One repetition, stated generously."""


class Deterministic(Benchmark):
    """A few training steps of a small transformer block in float32, repeated from the same seed.

    The fingerprint is the first 48 bits of the SHA-256 of the final parameters: an integer that a float64 holds.
    One thread, a fixed cuBLAS workspace (set by ``isolation``) and no operation that adds by atomics, so that neither
    the number of cores nor a race decides an order of additions. What is left to differ is the device. Compare
    SuperBench's deterministic mode (2026-03, #731).
    """

    name: ClassVar[str] = "deterministic"
    catches: ClassVar[str] = "silent data corruption: arithmetic or memory that gives wrong bits without an error"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.NUMERICS,)
    together: ClassVar[bool] = True
    gpu_sizes: ClassVar[Sizes] = {"width": 512}

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        threads: int = 1
        width: int = 128
        steps: int = 4
        repeats: int = 5

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.repeats < 2:
                raise ValueError(f"repeats must be at least 2 to compare anything, not {self.repeats}")

    config: Config

    def tuned(self, effort: Effort) -> Self:
        """The chance to see a rare wrong bit grows with the repetitions."""
        return type(self)(replace(self.config, repeats=_REPEATS[effort.tier]))

    def expected_seconds(self, device: Device) -> float:
        return self.set_up_seconds + self.config.repeats * _SECONDS[device.kind]

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        return (Metric(name=self._metric(), unit="", better=Better.EQUAL),)

    def _metric(self) -> str:
        return f"fingerprint_w{self.config.width}_s{self.config.steps}"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del clock
        digests = [self._digest(device) for _ in range(self.config.repeats)]
        prints = [float(int(digest[:12], 16)) for digest in digests]
        return BenchmarkReadings(values={self._metric(): prints}, digest=digests[0])

    def _digest(self, device: Device) -> str:
        import torch

        random = torch.Generator().manual_seed(20240601)
        width = self.config.width
        made = [torch.randn(width, width, generator=random) / width**0.5 for _ in range(4)]
        weights = [w.to(device.label).requires_grad_() for w in made]
        tokens = torch.randn(64, width, generator=random).to(device.label)
        for _ in range(self.config.steps):
            gradients = torch.autograd.grad(_loss(tokens, weights), weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=0.1)
        digest = hashlib.sha256()
        for weight in weights:
            digest.update(weight.detach().cpu().numpy().tobytes())
        return digest.hexdigest()


def _loss(tokens: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Attention over 64 tokens and a feed-forward layer; the loss is the mean square of what comes out."""
    import torch

    query, key, value, forward = weights
    scores = (tokens @ query) @ (tokens @ key).T / tokens.shape[1] ** 0.5
    mixed = tokens + torch.softmax(scores, dim=-1) @ (tokens @ value)
    return (torch.nn.functional.gelu(mixed) @ forward).square().mean()
