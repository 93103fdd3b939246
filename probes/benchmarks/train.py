"""One training step of a small GPT, eager and compiled: what the parts do together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch
from mainstay.probes.torch_private import compile_in_process

if TYPE_CHECKING:
    import torch


class Train(Benchmark):
    """Forward, backward and AdamW over ``layers`` pre-norm blocks on ``batch`` sequences of ``tokens``.

    bfloat16 autocast on a GPU, float32 on a processor. ``step`` is one step; ``rate`` counts 6 operations a parameter
    and token, and 12 layers x width x tokens^2 for attention (Kaplan et al. 2020, section 2.1).
    """

    name: ClassVar[str] = "train"
    catches: ClassVar[str] = "slowness that shows only when arithmetic, memory, launches and allocation meet in a step"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.COMPUTE, Defect.GPU_MEMORY, Defect.HOST_CPU)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    together: ClassVar[bool] = True
    budget_share: ClassVar[float] = 3.0
    """A step is long: three budgets, so that a quick look sees a handful of them."""
    compiled: ClassVar[bool] = False
    gpu_sizes: ClassVar[Sizes] = {
        "layers": 24, "width": 1024, "heads": 16, "tokens": 1024, "batch": 8, "vocabulary": 32768,
    }  # fmt: skip
    """About 0.4 billion parameters: 20 to 200 ms a step on an H100."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        layers: int = 2
        width: int = 128
        heads: int = 4
        tokens: int = 128
        batch: int = 2
        vocabulary: int = 1024

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.heads < 1 or self.width % self.heads:
                raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        size = f"l{self.config.layers}_w{self.config.width}_t{self.config.tokens}_b{self.config.batch}"
        return (
            Metric(name=f"step_{size}", unit="s", better=Better.LOWER),
            Metric(name=f"rate_{size}", unit="FLOP/s", better=Better.HIGHER),
        )

    def expected_seconds(self, device: Device) -> float:
        del device
        return 3.0 + self.config.budget_seconds

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        step, rate = (metric.name for metric in self.metrics(device))
        work = one_step(self.config, device, compiled=self.compiled)
        seconds = Stopwatch(device, clock).repeat(work, self.config.budget_seconds)
        operations = self._operations()
        return BenchmarkReadings(values={step: seconds, rate: [operations / s for s in seconds]})

    def _operations(self) -> float:
        c = self.config
        parameters = 12 * c.layers * c.width**2 + c.vocabulary * c.width
        return c.batch * c.tokens * (6.0 * parameters + 12.0 * c.layers * c.width * c.tokens)


class TrainCompiled(Train):
    """The same step through ``torch.compile``: kernels that Inductor made, and the compiler that made them."""

    name: ClassVar[str] = "train_compiled"
    catches: ClassVar[str] = "a broken or slow compiler tool chain, and slowness of fused kernels that eager steps hide"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.SOFTWARE, Defect.COMPUTE, Defect.GPU_MEMORY)
    tier: ClassVar[SuiteTier] = SuiteTier.DEEP
    compiled: ClassVar[bool] = True

    def expected_seconds(self, device: Device) -> float:
        """A cold compilation takes one to two minutes."""
        return 120.0 + super().expected_seconds(device)


def one_step(config: Train.Config, device: Device, *, compiled: bool = False) -> Callable[[], Any]:
    """A seeded model, optimizer and batch; the function makes one step and returns the loss."""
    import torch

    torch.manual_seed(1)
    model = model_of(config).to(device.label)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.kind == "cuda")
    tokens = torch.randint(0, config.vocabulary, (config.batch, config.tokens + 1)).to(device.label)
    run: Callable[..., Any] = model
    if compiled:
        compile_in_process()  # a pool of compilers would outlive this process
        run = torch.compile(model)

    def step() -> Any:
        with torch.autocast(device.kind, torch.bfloat16, enabled=device.kind == "cuda"):
            logits = run(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    first = float(step().detach())
    expected = math.log(config.vocabulary)
    if not abs(first - expected) < 0.2 * expected:
        raise RuntimeError(f"the loss of an untrained model is {first:.3f}, not about {expected:.3f}")
    return step


def model_of(config: Train.Config) -> torch.nn.Module:
    """Embedding, pre-norm causal blocks, tied output layer: small initial weights, so that the first loss is known."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = config.width
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, width = x.shape
            parts = self.mixed(self.before(x)).view(b, t, 3, config.heads, width // config.heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, width))
            out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
            return out

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(config.vocabulary, config.width)
            self.places = nn.Embedding(config.tokens, config.width)
            self.blocks = nn.ModuleList(Block() for _ in range(config.layers))
            self.last = nn.LayerNorm(config.width)
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits: torch.Tensor = self.last(x) @ self.embedding.weight.T
            return logits

    return Model()
