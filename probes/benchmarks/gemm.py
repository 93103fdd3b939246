"""Dense matrix multiply per number format: the arithmetic rate of a device, and whether it repeats bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Sizes
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric
from mainstay.probes.benchmarks.timing import Stopwatch
from mainstay.probes.torch_private import fp8_matmul, int8_matmul

if TYPE_CHECKING:
    import torch

_WIDE = ("fp64", "fp32")
_NARROW = ("bf16", "fp16", "fp8", "int8")
_FORMATS: dict[str, tuple[str, ...]] = {"cpu": (*_WIDE, *_NARROW), "cuda": (*_WIDE, "tf32", *_NARROW)}
_REPEATS = 5
"""Products compared bit by bit with the first; they are not timed."""


class Gemm(Benchmark):
    """n x n times n x n; 2 n^3 operations. tf32 is fp32 with the tensor cores' short mantissa allowed, fp8 is e4m3.

    Processors without native support emulate the narrow formats a hundred times slower, so their size is smaller there.
    Each format also has a ``_repeat`` metric: 1 for a product with the same bits as the first, 0 for another. The same
    kernel on the same operands adds in the same order, so another bit is a wrong bit.
    """

    name: ClassVar[str] = "gemm"
    catches: ClassVar[str] = "slow or throttled compute: clocks, power, heat, tensor cores of one number format"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.COMPUTE, Defect.THERMAL, Defect.NUMERICS)
    together: ClassVar[bool] = True
    gpu_sizes: ClassVar[Sizes] = {"size": 8192, "narrow_size": 8192}
    """A GEMM of n = 8192 takes 1 to 50 ms of an H100."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        size: int = 1024
        """n for fp64 and fp32 (and tf32)."""
        narrow_size: int = 256
        """n for bf16, fp16, fp8 and int8."""

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        formats = _FORMATS[device.kind]
        rates = (
            Metric(name=self._metric(kind), unit="OP/s" if kind == "int8" else "FLOP/s", better=Better.HIGHER)
            for kind in formats
        )
        repeats = (Metric(name=self._metric(kind) + "_repeat", unit="", better=Better.EQUAL) for kind in formats)
        return (*rates, *repeats)

    def expected_seconds(self, device: Device) -> float:
        return self.set_up_seconds + 1.5 * self.config.budget_seconds * len(_FORMATS[device.kind])

    def _size(self, kind: str) -> int:
        return self.config.narrow_size if kind in _NARROW else self.config.size

    def _metric(self, kind: str) -> str:
        return f"{kind}_n{self._size(kind)}"

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        readings = BenchmarkReadings()
        watch = Stopwatch(device, clock)
        for kind in _FORMATS[device.kind]:
            name = self._metric(kind)
            operations = 2.0 * self._size(kind) ** 3
            try:
                work = multiply(kind, self._size(kind), device)
                seconds = watch.repeat(work, self.config.budget_seconds)
            except (RuntimeError, NotImplementedError) as error:  # a format that this device or build lacks
                readings.problems[name] = readings.problems[name + "_repeat"] = str(error).splitlines()[0]
                continue
            readings.values[name] = [operations / s for s in seconds]
            readings.values[name + "_repeat"] = same_bits(work, _REPEATS)
        return readings


def multiply(kind: str, shape: int | tuple[int, int, int], device: Device) -> Callable[[], torch.Tensor]:
    """The product of two seeded matrices in a number format, as a function without arguments.

    Args:
        kind: a number format of ``gemm``.
        shape: n for n x n times n x n; (m, k, n) for m x k times k x n.
        device: where the matrices are.
    """
    import torch

    m, k, n = (shape, shape, shape) if isinstance(shape, int) else shape
    if device.kind == "cuda":
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    random, sizes = torch.Generator().manual_seed(n), ((m, k), (k, n))
    if kind == "int8":
        left, right = (
            torch.randint(-100, 100, size, generator=random, dtype=torch.int8).to(device.label) for size in sizes
        )
        return lambda: int8_matmul(left, right)
    left, right = (torch.randn(size, generator=random).to(device.label) for size in sizes)
    if kind == "fp8":
        return _scaled(left, right)
    dtypes = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
    left, right = (matrix.to(dtypes.get(kind, torch.float32)) for matrix in (left, right))
    return lambda: left @ right


def _scaled(left: torch.Tensor, right: torch.Tensor) -> Callable[[], torch.Tensor]:
    """e4m3 times e4m3 into bf16, with scales of one; the second operand is column-major, as cuBLASLt wants it."""
    import torch

    first = left.to(torch.float8_e4m3fn)
    second = right.t().contiguous().to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=left.device)
    return lambda: fp8_matmul(first, second, scale=one, out=torch.bfloat16)


def same_bits(work: Callable[[], torch.Tensor], repeats: int) -> list[float]:
    """1.0 for each repetition that gives the bits of the first, 0.0 for each that does not; the first included."""
    first = work().clone()
    return [1.0, *(same_as(first, work()) for _ in range(repeats))]


def same_as(first: torch.Tensor, other: torch.Tensor) -> float:
    """1.0 if both hold the same bits, else 0.0."""
    import torch

    return float(torch.equal(_bits(first), _bits(other)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: a NaN must equal itself, and -0 not +0."""
    import torch

    return tensor.contiguous().view(torch.uint8)
