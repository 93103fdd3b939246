"""The agent keeps the process that uploads checkpoints (``mainstay.recovery.checkpoint.upload``), and says how it does.

A process of its own: a store that hangs must not hold up the agent, nor the process that writes. It outlives the agent
until what is complete is uploaded.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from typing import Final

import msgspec

from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint.upload_state import UploadProgress, UploadRequest

_SUBJECT: Final = "checkpoint upload"
_AGAIN_SECONDS: Final = 10.0


class CheckpointUpload(PeriodicThread):
    """Starts the process, and starts it again if it is killed."""

    def __init__(self, store: ArenaStore, request: UploadRequest) -> None:
        super().__init__("mainstay-upload")
        self._store, self._request = store, request
        self.process: subprocess.Popen[bytes] | None = None
        self.progress = UploadProgress()
        self._started = 0.0

    def run_once(self) -> float:
        process = self.process
        if process is not None and process.poll() is None:
            return 1.0
        if process is not None:
            self._end_input()
            if not self.progress.problem:
                problem = f"its process ended with exit code {process.returncode}"
                self._note(UploadProgress(problem=problem, can_send=False))
            if time.monotonic() - self._started < _AGAIN_SECONDS:
                return _AGAIN_SECONDS
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainstay.recovery.checkpoint.upload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # what is complete goes up also after Ctrl-C
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: the next turn starts another
            self.process.stdin.write(msgspec.json.encode(self._request) + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self._listen, args=(self.process,), name="mainstay-upload-log", daemon=True).start()
        return 1.0

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._note(msgspec.json.decode(line, type=UploadProgress))

    def _note(self, progress: UploadProgress) -> None:
        since = (self.progress.since or time.time()) if progress.problem else 0.0
        self.progress = msgspec.structs.replace(progress, since=since)
        self._store.degraded.report(_SUBJECT, progress.problem)

    def stop(self) -> None:
        """Let the process end when what is complete is uploaded."""
        super().stop()
        self._end_input()

    def _end_input(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):  # it was killed before it read its request
                self.process.stdin.close()
