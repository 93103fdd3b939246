"""Matrix products in the shapes of real layers: what square ones of a round size do not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.gemm import multiply
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

LAYERS: dict[str, tuple[float, float]] = {
    "qkv": (1.0, 1.25),
    "attention_out": (1.0, 1.0),
    "gate_up": (1.0, 7.0),
    "down": (3.5, 1.0),
    "vocabulary": (1.0, 15.65625),
}
"""Layer -> inputs and outputs over the width, as in Llama 3 70B (Meta 2024, table 3): width 8192, 8 key-value heads of
128, inner width 28672, and the vocabulary of 128256 tokens of the published model."""


class LayerGemm(Benchmark):
    """[tokens, inputs] times [inputs, outputs] for each layer of a language model; 2 x tokens x inputs x outputs.

    bfloat16 on a GPU, float32 on a processor. A library chooses another kernel for each shape, so one of them can be
    slow where square products are as fast as ever.
    """

    name: ClassVar[str] = "layer_gemm"
    catches: ClassVar[str] = "slow or wrongly chosen kernels for the shapes of real layers"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.COMPUTE, Defect.SOFTWARE, Defect.THERMAL)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    together: ClassVar[bool] = True
    gpu_sizes: ClassVar[Sizes] = {"width": 8192, "tokens": 4096}

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        width: int = 256
        tokens: int = 256

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        size = f"{_format(device)}_w{self.config.width}_t{self.config.tokens}"
        return tuple(Metric(name=f"{layer}_{size}", unit="FLOP/s", better=Better.HIGHER) for layer in LAYERS)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        readings, watch, tokens = BenchmarkReadings(), Stopwatch(device, clock), self.config.tokens
        for metric, (inner, outer) in zip(self.metrics(device), LAYERS.values(), strict=True):
            shape = (tokens, int(inner * self.config.width), int(outer * self.config.width))
            seconds = watch.repeat(multiply(_format(device), shape, device), self.config.budget_seconds)
            readings.values[metric.name] = [2.0 * shape[0] * shape[1] * shape[2] / s for s in seconds]
        return readings


def _format(device: Device) -> str:
    return "bf16" if device.kind == "cuda" else "fp32"
