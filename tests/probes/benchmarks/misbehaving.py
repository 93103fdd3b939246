"""Benchmarks that fail as real ones do on a faulty machine. Run as a program, this is a fork server that knows them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mainstay.probes.benchmarks import fork_server
from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.result import Better, Metric


class Misbehaving(Benchmark):
    name: ClassVar[str] = "misbehaving"
    together: ClassVar[bool] = True
    catches: ClassVar[str] = "nothing"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.SOFTWARE,)

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        how: str = "well"
        path: str = ""

    config: Config

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        return (Metric(name="speed", unit="B/s", better=Better.HIGHER),)

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del device, clock
        value = getattr(self, self.config.how)()
        return BenchmarkReadings(values={"speed": [1.0 if value is None else value]})

    def well(self) -> None: ...

    def hang(self) -> None:
        """Deaf to everything but SIGKILL, with a grandchild that is as deaf."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            Path(self.config.path).write_text(f"{os.getpid()} {child}")
        while True:
            time.sleep(60)

    def meet(self) -> None:
        """End only when three of us are running."""
        Path(self.config.path, str(os.getpid())).touch()
        while len(list(Path(self.config.path).iterdir())) < 3:
            time.sleep(0.01)

    def be_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        os._exit(7)

    def throw(self) -> None:
        raise RuntimeError("the link is down")

    def chatter(self) -> None:
        """Print as a C library would: straight to standard output."""
        os.write(1, b'{"result": "nonsense"}\n' * 3)

    def nan(self) -> float:
        return float("nan")

    def lose_a_rank(self) -> None:
        run_ranks(2, "gloo", _die_on_rank_1)


def _die_on_rank_1(rank: int) -> dict[str, Any]:
    import torch.distributed as dist

    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return {}


if __name__ == "__main__":
    fork_server.BENCHMARKS = {**fork_server.BENCHMARKS, Misbehaving.name: Misbehaving}  # type: ignore[misc]
    fork_server.main()
