"""A real job for a check: ``mainstay run`` with the tiny example, seen from outside through its state directory."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mainstay.probes.decoding import read_if_whole
from mainstay.recovery.accept_gpu.contract import CheckSettings
from mainstay.recovery.job_request import JOB_FILE

T = TypeVar("T")

MOST_RANKS: Final = 8
_EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "train.py"
_PACE_MS: Final = 100
"""A paced step lasts two of these and computes little, so that a fault comes in the midst of a run."""
_POLL_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 150.0
"""For anything that is waited for: seldom as long as the deadline of the check, which cannot say what the log says."""
_END_SECONDS: Final = 15.0


class TrainingJobError(RuntimeError):
    """The job did not do what was waited for; the message says what its log said last."""


class TrainingJob:
    """One job, from its start; a context manager: leaving it ends the job.

    Training is paced until ``finish``. A rank hangs while the file ``hang`` is there.

    Args:
        settings: of the check; one rank for each GPU, at most ``MOST_RANKS``, or two on processors.
        name: of the job's folder below that of the check.
        steps: that it trains.
        paced: False: train as fast as possible.
    """

    def __init__(self, settings: CheckSettings, name: str, *, steps: int, paced: bool = True) -> None:
        self.ranks = ranks_of(settings)
        self.folder = Path(settings.folder) / name
        self.folder.mkdir()
        self.hang = self.folder / "hang"
        self._pace = self.folder / "paced"
        if paced:
            self._pace.touch()
        faults = [f"sleep:rank={rank},ms={_PACE_MS},file={self._pace}" for rank in range(self.ranks)]
        faults.append(f"hang:rank={self.ranks - 1},file={self.hang}")
        words: list[object] = [
            "--nproc-per-node", self.ranks, "--job-id", "accept-gpu", "--node-name", "node-0",
            "--state-dir", self.folder / "state", _EXAMPLE,
            "--dp", self.ranks, "--pp", 1, "--steps", steps, "--width", 64, "--layers", 2, "--batch", 1,
            "--micro-batches", 2, "--save", self.folder / "saved", "--faults", ";".join(faults),
        ]  # fmt: skip
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mainstay", "run", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(on_gpu=settings.on_gpu),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pids(self) -> dict[int, int | None]:
        """Rank -> process id, in the newest report of the job."""
        return {one["rank"]: one["pid"] for one in self._state().get("topology", {}).get("ranks", [])}

    def step(self) -> int:
        """Committed steps."""
        return int(self._state().get("last_step") or 0)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Events so far, of all kinds or of these."""
        try:
            lines = (self.folder / "state" / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be half written
        return [event for event in found if not kinds or event["kind"] in kinds]

    def wait_for(self, what: str, happened: Callable[[], T]) -> T:
        """Poll until ``happened`` gives something true, and return that.

        Raises:
            TrainingJobError: not in time, or the job ended first.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := happened()):
            code = self._process.poll()
            if (code is not None and not (found := happened())) or time.monotonic() > deadline:
                how = "did not come in time" if code is None else f"did not come: the job ended with code {code}"
                raise TrainingJobError(f"{what} {how}: {self._last_words()}")
            if found:
                break
            time.sleep(_POLL_SECONDS)
        return found

    def kill(self, rank: int) -> float:
        """Send SIGKILL to the process of ``rank``; returns the Unix time."""
        pid = self.wait_for(f"a process of rank {rank}", lambda: self.pids().get(rank))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return time.time()

    def finish(self) -> dict[str, bytes]:
        """Let the steps that are left be fast, wait for the end, and return the final weights of each rank.

        Raises:
            TrainingJobError: the job did not end well.
        """
        self._pace.unlink(missing_ok=True)
        try:
            code = self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TrainingJobError(f"the job did not end: {self._last_words()}") from error
        if code:
            raise TrainingJobError(f"the job ended with code {code}: {self._last_words()}")
        return {file.name: file.read_bytes() for file in sorted((self.folder / "saved").glob("*.npz"))}

    def _state(self) -> dict[str, Any]:
        return read_if_whole(self.folder / "state" / JOB_FILE, dict[str, Any]) or {}

    def _environment(self, *, on_gpu: bool) -> dict[str, str]:
        shared = self.folder / "shm"
        shared.mkdir()
        environment = {**os.environ, "MAINSTAY_JOB_TOKEN": secrets.token_hex(16), "MAINSTAY_SHM_DIR": str(shared)}
        if not on_gpu:
            return environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        # Ring: more than two ranks add up in the same order in every generation.
        return {"NCCL_ALGO": "Ring"} | environment

    def _last_words(self) -> str:
        lines = [line for line in (self.folder / "log").read_text(errors="replace").splitlines() if line.strip()]
        kinds = ", ".join(event["kind"] for event in self.events()[-6:])
        return f"last events {kinds or 'none'}; log: {' | '.join(lines[-3:])[-600:] or 'empty'}"


def ranks_of(settings: CheckSettings) -> int:
    """How many ranks a job has."""
    return min(settings.device.count, MOST_RANKS) if settings.on_gpu else 2
