"""The way of a snapshot from a device to host memory: how fast it is, and whether a copy is ever torn.

The same objects as in a training process: ``TrainerState`` names the tensor and marks the stream, ``SnapshotWriter``
copies it into an ``Arena``, into memory registered with CUDA or through pinned buffers.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckFigure, CheckResult, CheckSettings
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter

if TYPE_CHECKING:
    from mainstay.recovery.memory.state import TrainerState

_TENSOR = "param.weight"
_ROUNDS = 7
_FEWEST_SNAPSHOTS = 10
_LEAST_BYTES = 1 << 20
_GENERATION = 1
_BURN = {"cuda": 4096, "cpu": 64}
"""Width of the matrices whose products stand for forward and backward: milliseconds on a GPU."""


class SnapshotCheck(AcceptanceCheck):
    """Snapshots of one large tensor on each device, idle for the speed and under writes for consistency."""

    name: ClassVar[str] = "snapshot"
    proves: ClassVar[str] = "snapshots of a device are never torn"
    deadline_seconds: ClassVar[float] = 300.0

    def run(self, settings: CheckSettings) -> CheckResult:
        # Two slots in memory, and as much again for the others who use it.
        size = min(settings.state_bytes, shutil.disk_usage(settings.folder).free // 4) // 4096 * 4096
        if size < _LEAST_BYTES:
            return self.result(["shared memory is full: make /dev/shm larger (in a container: --shm-size)"], "")
        figures: list[CheckFigure] = [CheckFigure("size of a snapshot", size, "B")]
        problems: list[str] = []
        total = 0
        for label in settings.labels:
            trial = SnapshotTrial(label, size, Path(settings.folder))
            figures += trial.speeds()
            problems += trial.problems
            taken, torn = trial.hunt(settings.seconds)
            total += taken
            problems += [f"{label}: the snapshot of step {step} is torn" for step in torn[:3]]
            trial.close()
        figures.append(CheckFigure("snapshots under writes", total, ""))
        devices = ", ".join(settings.labels)
        return self.result(problems, f"None of {total} snapshots under writes is torn, on {devices}.", figures)


class SnapshotTrial:
    """One tensor on one device, and an arena for its snapshots.

    Args:
        label: torch's name of the device.
        size: bytes of the tensor, a multiple of 4096.
        folder: for the arena, in memory.
    """

    def __init__(self, label: str, size: int, folder: Path) -> None:
        import torch  # noqa: PLC0415 - the process that only lists checks needs no torch

        from mainstay.recovery.memory.state import TrainerState  # noqa: PLC0415 - it imports torch

        self.label, self.size = label, size
        self.on_gpu = label != "cpu"
        if self.on_gpu:
            torch.cuda.set_device(torch.device(label))
        model = torch.nn.Module()
        self.weight = torch.nn.Parameter(torch.zeros(size // 4, device=label), requires_grad=False)
        model.register_parameter("weight", self.weight)
        self.state: TrainerState = TrainerState(model, None)
        width = _BURN["cuda" if self.on_gpu else "cpu"]
        self._matrix = torch.ones(width, width, device=label)
        self._product = torch.empty_like(self._matrix)
        self.arena = Arena.create(folder / "snapshot.arena", rank=0, layout=self.state.layout, slots=2)
        self.writer = SnapshotWriter(self.arena, self.state)
        self.step = 0
        self.problems: list[str] = []

    def speeds(self) -> list[CheckFigure]:
        """Bytes per second of a plain copy and of a snapshot: on a GPU through pinned buffers, then registered."""
        import torch  # noqa: PLC0415 - see above

        host = torch.empty(self.size // 4, pin_memory=self.on_gpu)

        def plain() -> None:
            host.copy_(self.weight, non_blocking=self.on_gpu)
            if self.on_gpu:
                torch.cuda.synchronize()

        found = [self._speed("torch copy_ to pinned memory" if self.on_gpu else "torch copy_", plain)]
        if self.on_gpu:
            found.append(self._speed("snapshot through pinned buffers", self.snapshot))
        self.state.mapped(self.arena.data)
        if self.state.pinned is not None and not self.state.pinned.complete:
            self.problems.append(f"{self.label}: CUDA did not register all snapshot memory (see ulimit -l)")
        found.append(self._speed("snapshot into registered memory" if self.on_gpu else "snapshot", self.snapshot))
        return found

    def snapshot(self) -> None:
        """Take one of the next step and wait until it is committed."""
        self.step += 1
        self.writer.start(self.step, _GENERATION)
        self.writer.wait()

    def hunt(self, seconds: float) -> tuple[int, list[int]]:
        """Write the tensor on a stream and take a snapshot after each write, as training does, for ``seconds``.

        Each write fills the tensor with its step. It is queued behind other work, so it is under way when the snapshot
        begins, and a copy that does not wait for it holds the step before, or parts of both.

        Returns:
            How many snapshots were committed, each compared whole, and the steps of those that are torn.
        """
        taken, torn, end = 0, [], time.monotonic() + seconds
        with self._stream():
            while time.monotonic() < end or taken < _FEWEST_SNAPSHOTS:
                self.step, taken = self.step + 1, taken + 1
                self._write()
                self.writer.start(self.step, _GENERATION)
                self._burn()  # the device computes what does not change the tensor
                self.writer.wait()
                slot = self.arena.slot_bytes(self.arena.find(self.step).slot)
                if not bool((self.arena.layout.views(slot)[_TENSOR] == self.step).all()):
                    torn.append(self.step)
        return taken, torn

    def close(self) -> None:
        """Unregister the memory, then remove it."""
        self.writer.close()
        if self.state.pinned is not None:
            self.state.pinned.close()
        self.arena.path.unlink()

    def _write(self) -> None:
        self._burn()
        self.weight.fill_(float(self.step))

    def _burn(self) -> None:
        import torch  # noqa: PLC0415 - see above

        for _ in range(4):
            torch.mm(self._matrix, self._matrix, out=self._product)

    def _stream(self) -> AbstractContextManager[object]:
        import torch  # noqa: PLC0415 - see above

        cuda: Any = torch.cuda  # some of its functions carry no types
        stream: AbstractContextManager[object] = cuda.stream(cuda.Stream()) if self.on_gpu else nullcontext()
        return stream

    def _speed(self, name: str, work: Callable[[], None]) -> CheckFigure:
        work()
        seconds = []
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
        return CheckFigure(f"{self.label}: {name}", self.size / statistics.median(seconds), "B/s")
