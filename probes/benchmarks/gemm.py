"""Dense matrix multiply per number format: the arithmetic rate of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from probes.benchmarks.base import Benchmark, Clock, Device, Kind, Readings
from probes.benchmarks.defects import Defect
from probes.benchmarks.result import Better, Metric
from probes.benchmarks.timing import Stopwatch

if TYPE_CHECKING:
    import torch

_WIDE = ("fp64", "fp32")
_NARROW = ("bf16", "fp16", "int8")
_FORMATS: dict[str, tuple[str, ...]] = {"cpu": (*_WIDE, *_NARROW), "cuda": (*_WIDE, "tf32", *_NARROW)}


class Gemm(Benchmark):
    """n x n times n x n; 2 n^3 operations. tf32 is fp32 with the tensor cores' short mantissa allowed.

    Processors without native support emulate the narrow formats a hundred times slower, hence their smaller size there.
    """

    name: ClassVar[str] = "gemm"
    catches: ClassVar[str] = "slow or throttled compute: clocks, power, heat, tensor cores of one number format"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.COMPUTE, Defect.THERMAL)
    together: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        size: int = 1024
        """n for fp64 and fp32 (and tf32)."""
        narrow_size: int = 256
        """n for bf16, fp16 and int8."""

    config: Config

    @classmethod
    def sized(cls, kind: Kind) -> Self:
        """A GEMM of n = 8192 takes 1 to 50 ms of an H100."""
        return cls(cls.Config(size=8192, narrow_size=8192) if kind == "cuda" else cls.Config())

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=self._metric(kind), unit="OP/s" if kind == "int8" else "FLOP/s", better=Better.HIGHER)
            for kind in _FORMATS[device.kind]
        )

    def _size(self, kind: str) -> int:
        return self.config.narrow_size if kind in _NARROW else self.config.size

    def _metric(self, kind: str) -> str:
        return f"{kind}_n{self._size(kind)}"

    def measure(self, device: Device, clock: Clock) -> Readings:
        readings = Readings()
        watch = Stopwatch(device, clock)
        for kind in _FORMATS[device.kind]:
            operations = 2.0 * self._size(kind) ** 3
            try:
                seconds = watch.repeat(self._work(kind, device), self.config.budget_seconds)
            except (RuntimeError, NotImplementedError) as error:  # a format that this device or build lacks
                readings.problems[self._metric(kind)] = str(error).splitlines()[0]
                continue
            readings.values[self._metric(kind)] = [operations / s for s in seconds]
        return readings

    def _work(self, kind: str, device: Device) -> Callable[[], torch.Tensor]:
        import torch

        n = self._size(kind)
        if device.kind == "cuda":
            torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        random = torch.Generator().manual_seed(n)
        if kind == "int8":
            left, right = (
                torch.randint(-100, 100, (n, n), generator=random, dtype=torch.int8).to(device.label) for _ in "lr"
            )
            return lambda: torch._int_mm(left, right)  # noqa: SLF001 - torch has no public int8 multiply
        dtypes = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = dtypes.get(kind, torch.float32)
        left, right = (torch.randn(n, n, generator=random).to(device.label, dtype) for _ in "lr")
        return lambda: left @ right
