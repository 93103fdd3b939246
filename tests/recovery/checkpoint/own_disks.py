"""A job whose nodes have a disk each, and an upload level behind them: rank N runs on node N."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.manifest import Manifest, Return
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadProgress
from tests.recovery.checkpoint.upload_place import Place

KEEP = RetentionPolicy(last=2, pending=4)


class OwnDisks:
    """The disks of the nodes of ``place.job``."""

    def __init__(self, place: Place, home: Path, **config: Any) -> None:
        self.place, self.job = place, place.job
        self.count = self.job.dp * self.job.pp
        self._disks = [home / f"disk-{node}" for node in range(self.count)]
        self.config = config
        """What the coordinator says otherwise."""
        self.urls = [place.url] * self.count
        """Of the upload level, as each node reaches it."""
        self.progress = [UploadProgress()] * self.count
        """What each node said of its uploads last."""

    def run(self, node: int) -> RunDirectory:
        return RunDirectory(self._disks[node] / self.job.run_id)

    def target(self, node: int, generation: int = 1, returns: tuple[Return, ...] = ()) -> save.WriteTarget:
        config = msgspec.structs.replace(self.job.target(generation, returns).config, **self.config)
        return save.WriteTarget(self._disks[node], "job", config)

    def write(
        self, node: int, epoch: int, generation: int = 1, returns: tuple[Return, ...] = (), *, final: bool = False
    ) -> None:
        """As the process does that writes; ``final``: the last save."""
        target = self.target(node, generation, returns)
        save.begin_step(target)
        self.job.write(node, epoch, target, generation)
        save.commit(target, epoch, partial=final)
        target.run.prune(KEEP, returns)

    def write_all(self, epoch: int, generation: int = 1, returns: tuple[Return, ...] = ()) -> None:
        for node in range(self.count):
            self.write(node, epoch, generation, returns)

    def upload(self, node: int, *, final: bool = False, **changes: Any) -> list[int]:
        """All that waits on the node; the steps that are complete then."""
        request = self.place.request(directory=str(self._disks[node]), node=f"n{node}", **changes)

        def note(progress: UploadProgress) -> None:
            self.progress[node] = progress

        with open_level(self.urls[node], retry_seconds=1.0) as level:
            uploader = Uploader(level, request, note)
            return [found[1] for found in iter(lambda: uploader.upload_next(final=final), None)]

    def upload_all(self) -> list[list[int]]:
        return [self.upload(node) for node in range(self.count)]

    def manifest(self, epoch: int) -> Manifest:
        """Of the step at the upload level."""
        with open_level(self.place.url) as level:
            return level.find(self.job.run_id, epoch).manifest

    def parts(self, epoch: int) -> list[tuple[int, int]]:
        """(rank, generation) of its parts."""
        return [(part.rank, part.generation) for part in self.manifest(epoch).parts]
