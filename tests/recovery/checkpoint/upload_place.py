"""A job's directory and an upload level behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadRequest


class Place:
    """An upload level below a job's directory."""

    def __init__(self, job: Any, url: str) -> None:
        self.job, self.url = job, url

    def request(self, **changes: Any) -> UploadRequest:
        request = UploadRequest(
            directory=str(self.job.directory), url=self.url, job="job", node="n", policy=RetentionPolicy(last=2)
        )
        return msgspec.structs.replace(request, **changes)

    def upload(self, **changes: Any) -> list[int]:
        """Upload all that waits."""
        with open_level(self.url, retry_seconds=1.0) as level:
            uploader = Uploader(level, self.request(**changes))
            return [found[1] for found in iter(uploader.upload_next, None)]

    def complete(self) -> list[int]:
        """Steps that claim to be complete there."""
        with open_level(self.url) as level:
            run = level.open_run(self.job.run_id)
            level.read_manifests(run, run.steps())
            return [manifest.epoch for manifest in reversed(list(run.complete()))]

    def check(self, directory: Path, epoch: int) -> None:
        """Download and verify a step, every byte."""
        with open_level(self.url) as level:
            level.fetch(directory, level.find(self.job.run_id, epoch))
        source = find(directory, self.job.run_id, epoch)
        for entry in source.manifest.parts:
            verify_part(source.run, source.run.part(epoch, entry.rank, entry.generation))


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
