"""Training, forward pass, and inference of five model families, as SuperBench's model benchmarks run them.

Each family loads a device in its own way: a dense decoder mostly matrix products, an encoder long rows without a mask,
a convolutional network memory and cuDNN, a recurrent network many small kernels in a row. So a card, driver, or library
that is slow for one of them only is seen. A mixture of experts needs several ranks: ``expert_parallel``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_PHASES = ("inference", "forward", "train")


class ModelBenchmark(Benchmark):
    """Seconds of ``inference`` (no graph), ``forward`` (with the graph for gradients), and ``train`` (a whole step).

    bfloat16 autocast on a GPU, float32 on a processor; AdamW; seeded weights and one seeded batch. An untrained model
    whose loss is not about log(classes) is an error and no measurement.
    """

    tier: ClassVar[SuiteTier] = SuiteTier.DEEP
    together: ClassVar[bool] = True
    set_up_seconds: ClassVar[float] = 5.0
    defects: ClassVar[tuple[Defect, ...]] = (Defect.COMPUTE, Defect.GPU_MEMORY, Defect.SOFTWARE)

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        layers: int = 2
        width: int = 64
        heads: int = 4
        length: int = 32
        """Tokens of a sequence, or pixels of a side."""
        batch: int = 2
        classes: int = 128
        """Tokens of the vocabulary, or classes of images."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.heads < 1 or self.width % (2 * self.heads):
                raise ValueError(f"width {self.width} must be a multiple of twice the heads ({self.heads})")

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        c = self.config
        size = f"l{c.layers}_w{c.width}_n{c.length}_b{c.batch}"
        return tuple(Metric(name=f"{phase}_{size}", unit="s", better=Better.LOWER) for phase in _PHASES)

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """The model on the processor. It maps ``inputs`` to logits with ``classes`` in the last axis."""

    def inputs(self) -> torch.Tensor:
        """[batch, length] token IDs; families without tokens override it."""
        import torch

        c = self.config
        return torch.randint(0, c.classes, (c.batch, c.length))

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        import torch

        torch.manual_seed(1)
        works = self._works(self.model().to(device.label), self.inputs().to(device.label), device)
        watch = Stopwatch(device, clock)
        seconds = {name: watch.repeat(work, self.config.budget_seconds) for name, work in works.items()}
        names = [metric.name for metric in self.metrics(device)]
        return BenchmarkReadings(values={name: seconds[phase] for name, phase in zip(names, _PHASES, strict=True)})

    def _works(self, model: torch.nn.Module, inputs: torch.Tensor, device: Device) -> dict[str, Callable[[], Any]]:
        """Phase -> one call of it; the training step comes last, since it changes the weights."""
        import torch

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.kind == "cuda")
        precision = torch.autocast(device.kind, torch.bfloat16, enabled=device.kind == "cuda")

        def forward() -> torch.Tensor:
            with precision:
                logits = model(inputs)
            logits = logits.flatten(0, -2).float()
            targets = torch.arange(len(logits), device=logits.device) % self.config.classes
            return torch.nn.functional.cross_entropy(logits, targets)

        def infer() -> torch.Tensor:
            with torch.inference_mode(), precision:
                return torch.as_tensor(model(inputs))

        def train() -> None:
            forward().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        first, expected = float(forward().detach()), math.log(self.config.classes)
        if not abs(first - expected) < 0.2 * expected:
            raise RuntimeError(f"the loss of an untrained model is {first:.3f}, not about {expected:.3f}")
        return {"inference": infer, "forward": forward, "train": train}

    def head(self, width: int) -> torch.nn.Module:
        """The layer to logits, with small weights, so that the loss of an untrained model is known."""
        from torch import nn

        layer = nn.Linear(width, self.config.classes, bias=False)
        nn.init.normal_(layer.weight, std=0.002)
        return layer


class ModelLlama(ModelBenchmark):
    """A dense decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023)."""

    name: ClassVar[str] = "model_llama"
    catches: ClassVar[str] = "slow matrix products and attention kernels in the shapes of a language model"
    gpu_sizes: ClassVar[Sizes] = {
        "layers": 8, "width": 4096, "heads": 32, "length": 2048, "batch": 1, "classes": 32000,
    }  # fmt: skip
    """Eight layers of Llama 2 7B: 26 GB with AdamW."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        from mainstay.probes.benchmarks.model_layers import decoder_layer

        c = self.config
        layers = (decoder_layer(c.width, c.heads, max(1, c.heads // 4), c.length) for _ in range(c.layers))
        return nn.Sequential(nn.Embedding(c.classes, c.width), *layers, nn.RMSNorm(c.width), self.head(c.width))


class ModelBert(ModelBenchmark):
    """An encoder that sees whole sequences: post-norm layers with GELU (Devlin et al. 2019)."""

    name: ClassVar[str] = "model_bert"
    catches: ClassVar[str] = "slow encoder kernels: attention without a mask, layer norm, wide linear layers"
    gpu_sizes: ClassVar[Sizes] = {
        "layers": 24, "width": 1024, "heads": 16, "length": 512, "batch": 32, "classes": 30522,
    }  # fmt: skip
    """BERT large."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        c = self.config
        layer = nn.TransformerEncoderLayer(c.width, c.heads, 4 * c.width, 0.0, "gelu", batch_first=True)
        encoder = nn.TransformerEncoder(layer, c.layers, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(c.classes, c.width), encoder, self.head(c.width))


class ModelResnet(ModelBenchmark):
    """A convolutional network of bottleneck blocks in four stages (He et al. 2016); ``layers`` is of each stage."""

    name: ClassVar[str] = "model_resnet"
    catches: ClassVar[str] = "slow convolutions: cuDNN, memory layout, and memory bandwidth in batch norm"
    gpu_sizes: ClassVar[Sizes] = {"layers": 4, "width": 64, "heads": 1, "length": 224, "batch": 128, "classes": 1000}
    """About ResNet-50: 48 convolutions in blocks."""

    def model(self) -> torch.nn.Module:
        from torch import nn

        from mainstay.probes.benchmarks.model_layers import bottlenecks

        c = self.config
        return nn.Sequential(
            nn.Conv2d(3, c.width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(c.width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            *bottlenecks(c.width, c.layers),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            self.head(32 * c.width),
        )

    def inputs(self) -> torch.Tensor:
        import torch

        c = self.config
        return torch.randn(c.batch, 3, c.length, c.length)


class ModelLstm(ModelBenchmark):
    """A recurrent network: one small kernel waits for the one before, so launches and clocks decide."""

    name: ClassVar[str] = "model_lstm"
    catches: ClassVar[str] = "slow chains of small kernels: launch latency, clocks at low load, cuDNN"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_CPU, Defect.COMPUTE, Defect.SOFTWARE)
    gpu_sizes: ClassVar[Sizes] = {
        "layers": 8, "width": 1024, "heads": 1, "length": 256, "batch": 128, "classes": 1000,
    }  # fmt: skip

    def model(self) -> torch.nn.Module:
        from torch import nn

        from mainstay.probes.benchmarks.model_layers import recurrent

        c = self.config
        return nn.Sequential(nn.Embedding(c.classes, c.width), recurrent(c.width, c.layers), self.head(c.width))
