"""Benchmarks that run an external program: dcgmi, nccl-tests, nvbandwidth, perftest, where they are installed.

Each runs the program and reads what it printed with a pure function, ``read``, so that a log of another node can be
read too. Invariant: a program that failed, ended early or printed something else raises with its own last words;
nothing is made up for what it did not say. They are optional: a machine that lacks one is not judged by it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from mainstay.probes.benchmarks.base import Benchmark, Device, Effort, SuiteTier

_LONGEST_SECONDS = 1500.0
"""No program is waited for longer; the suite's time-out usually comes first."""
_REPEATS = {SuiteTier.QUICK: 1, SuiteTier.STANDARD: 1, SuiteTier.DEEP: 3}


class ExternalToolBenchmark(Benchmark):
    """A benchmark around programs that a machine need not have."""

    optional: ClassVar[bool] = True
    each_device: ClassVar[bool] = False
    programs: ClassVar[tuple[str, ...]]
    """Executables that it needs, all of them."""
    run_seconds: ClassVar[float]
    """What one run of the whole takes on eight GPUs."""

    gpus: ClassVar[bool] = True
    """It tests GPUs: without any there is nothing to run."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        folder: str = ""
        """Where the programs lie; empty: wherever PATH leads."""
        repeats: int = 1

    config: Config

    def tuned(self, effort: Effort) -> Self:
        return type(self)(replace(self.config, repeats=_REPEATS[effort.tier]))

    def expected_seconds(self, device: Device) -> float:
        idle = self.gpus and device.kind != "cuda"
        return self.set_up_seconds if idle else self.run_seconds * max(1, self.config.repeats)

    def where(self, device: Device) -> str:
        del device
        return "cuda" if self.gpus else "host"

    def supported(self, device: Device) -> tuple[bool, str]:
        if self.gpus and device.kind != "cuda":
            return False, f"{self.programs[0]} tests NVIDIA GPUs, and here are none"
        return self.installed()

    def installed(self) -> tuple[bool, str]:
        """Whether all programs are there; if not, which is missing."""
        missing = [name for name in self.programs if self._path(name) is None]
        return not missing, f"{', '.join(missing)} is not installed (not in {self.config.folder or 'PATH'})"

    def _path(self, program: str) -> str | None:
        return shutil.which(program, path=self.config.folder or None)

    def command(self, program: str, *options: str) -> list[str]:
        """The command line.

        Raises:
            FileNotFoundError: the program is gone.
        """
        path = self._path(program)
        if path is None:
            raise FileNotFoundError(f"{program} is not installed")
        return [path, *options]

    def output(self, program: str, *options: str, failure_is_an_answer: bool = False) -> str:
        """What the program printed on standard output.

        Raises:
            RuntimeError: it ended with another status than 0 (unless that is an answer too) or not in time.
        """
        command = self.command(program, *options)
        try:
            done = subprocess.run(
                command,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LONGEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{program} did not end within {_LONGEST_SECONDS:.0f} s") from None
        said = done.stdout.decode(errors="replace")
        if done.returncode != 0 and not (failure_is_an_answer and said.strip()):
            raise RuntimeError(
                f"{program} ended with status {done.returncode}: {last_error_line(done.stderr, done.stdout)}"
            )
        return said


def clean_environment() -> dict[str, str]:
    """Our environment, without a language: numbers are printed with points."""
    return os.environ | {"LC_ALL": "C"}


def last_error_line(*streams: bytes) -> str:
    """The last line of the first stream that has one."""
    for stream in streams:
        if lines := [line for line in stream.decode(errors="replace").splitlines() if line.strip()]:
            return lines[-1].strip()[:300]
    return "it said nothing"


def rdma_devices(root: Path = Path("/sys/class/infiniband")) -> dict[str, bool]:
    """RDMA devices of this machine → whether one of their ports is active."""
    if not root.is_dir():
        return {}
    states = {one.name: [state.read_text() for state in one.glob("ports/*/state")] for one in root.iterdir()}
    return {name: any("ACTIVE" in state for state in found) for name, found in sorted(states.items())}
