"""A mixture-of-experts layer whose experts lie on several ranks: two all-to-all exchanges around small products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.rank_benchmark import RankBenchmark, backend_of, slowest, timed
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric

if TYPE_CHECKING:
    import torch

_PARTS = ("exchange", "inference", "train")


class ExpertParallel(RankBenchmark):
    """Seconds of the slowest rank for ``exchange`` (tokens there and back), ``inference``, and a ``train`` step.

    Each expert takes its best ``tokens / experts`` tokens of every rank (expert choice; Zhou et al. 2022, section 3.2),
    so all experts work alike: an uneven load would be a property of the batch, not of the machine.
    """

    name: ClassVar[str] = "expert_parallel"
    catches: ClassVar[str] = "a link or a GPU that slows down the all-to-all of a mixture of experts"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.GPU_LINK, Defect.COMPUTE, Defect.GPU_MEMORY)
    tier: ClassVar[SuiteTier] = SuiteTier.DEEP
    gpu_sizes: ClassVar[Sizes] = {"width": 4096, "inner": 14336, "tokens": 8192}
    """The width and inner width of an expert of Mixtral 8x7B."""

    @dataclass(frozen=True, kw_only=True)
    class Config(RankBenchmark.Config):
        width: int = 64
        inner: int = 128
        tokens: int = 256
        """Of each rank."""

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        c = self.config
        size = f"{backend_of(device)}_w{c.width}_i{c.inner}_t{c.tokens}"
        return tuple(Metric(name=f"{part}_{size}", unit="s", better=Better.LOWER) for part in _PARTS)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        backend, world = backend_of(device), self.world(device)
        answers = run_ranks(world, backend, lambda rank: self._rank(rank, world, backend, clock))
        names = [metric.name for metric in self.metrics(device)]
        return BenchmarkReadings(
            values={name: slowest(answers, part) for name, part in zip(names, _PARTS, strict=True)}
        )

    def _rank(self, rank: int, world: int, backend: str, clock: Clock) -> dict[str, Any]:
        where = f"cuda:{rank}" if backend == "nccl" else "cpu"
        works = _works(self.config, rank, world, where)
        return {part: timed(work, where, self.config.budget_seconds, clock) for part, work in works.items()}


def _works(config: ExpertParallel.Config, rank: int, world: int, where: str) -> dict[str, Callable[[], Any]]:
    """One expert a rank. Part -> one call of it; the training step comes last, since it changes the weights."""
    import torch

    torch.manual_seed(rank)
    dtype = torch.bfloat16 if where != "cpu" else torch.float32
    capacity = max(1, config.tokens // world)
    tokens = torch.randn(config.tokens, config.width, dtype=dtype, device=where)
    router, up, down = (
        torch.nn.Linear(before, after, bias=False, dtype=dtype, device=where)
        for before, after in ((config.width, world), (config.width, config.inner), (config.inner, config.width))
    )
    weights = [*router.parameters(), *up.parameters(), *down.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    exchange = _exchange()

    def layer() -> torch.Tensor:
        weight, chosen = router(tokens).softmax(dim=-1).topk(capacity, dim=0)  # [capacity, world]
        sent = tokens[chosen.T.flatten()]
        done = exchange(down(torch.nn.functional.silu(up(exchange(sent)))))
        return torch.zeros_like(tokens).index_add(0, chosen.T.flatten(), done * weight.T.flatten()[:, None])

    def there_and_back() -> torch.Tensor:
        return torch.as_tensor(exchange(exchange(tokens[: capacity * world])))

    def infer() -> torch.Tensor:
        with torch.inference_mode():
            return layer()

    def train() -> None:
        layer().square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if not torch.equal(there_and_back(), tokens[: capacity * world]):
        raise RuntimeError(f"all-to-all over {world} ranks gave rank {rank} other tokens than it had sent")
    return {"exchange": there_and_back, "inference": infer, "train": train}


def _exchange() -> Callable[[torch.Tensor], torch.Tensor]:
    """All-to-all in equal parts, with its gradient: the same exchange the other way."""
    import torch
    import torch.distributed as dist

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            del ctx
            out = torch.empty_like(x)
            dist.all_to_all_single(out, x.contiguous())
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return Exchange.forward(ctx, gradients[0])

    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Exchange.apply(x)  # type: ignore[no-untyped-call]
        return result

    return apply
