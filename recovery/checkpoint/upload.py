"""Steps go from the local directory to the upload level: data first, the manifest last, each file checked.

The levels of DeepFreeze (Nicolae et al., CCGrid 2020) and VELOC: ranks write to the fast level and continue; a
process behind them copies what is complete to the level that outlives the node. It may be killed at any point: what
is there already is compared and not sent again. Of nodes that share a directory, each uploads other steps.

At the upload level, ``RUN/step-N/files-CHECK.json`` lists the files of the manifest whose checksum is CHECK, with the
digest of each.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.durable_files import write_durably
from mainstay.recovery.checkpoint.catalog import UPLOAD, RunDirectory, UploadState, bases_of, runs
from mainstay.recovery.checkpoint.levels import UploadLevel, files_name, open_level, part_of
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    METADATA,
    CheckpointError,
    Manifest,
    RunInfo,
    problem_line,
    step_name,
)
from mainstay.recovery.checkpoint.retention import CompleteStep, RetentionPolicy, steps_to_keep
from mainstay.recovery.checkpoint.storage import MissingObjectError
from mainstay.recovery.checkpoint.summary import note_uploaded

FILES_AT_ONCE: Final = 4
"""With 4 parts of 8 MiB each under way, that is 128 MiB of memory."""
NICE: Final = 15
"""Behind the process that writes to the local level."""
LOOK_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 15.0
"""After a problem: the client has tried for a minute by then."""
END_SECONDS: Final = 600.0
"""To upload what is complete when the job has ended."""
_TOUCH_SECONDS: Final = 10.0


class UploadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process uploads."""

    directory: str
    url: str
    job: str
    """Of its last two runs; empty: all runs of any job."""
    node: str
    policy: RetentionPolicy | None
    """What is kept at the upload level; None: everything."""
    rate: float = 0.0
    """Bytes per second; 0: no limit."""


class Uploader:
    """Uploads the steps of a directory, one after the other, and deletes what the policy does not keep there."""

    def __init__(self, level: UploadLevel, request: UploadRequest) -> None:
        self._level, self._storage, self._request = level, level.storage, request
        self.directory = request.directory
        self._lock = threading.Lock()
        self._free_at = self._touched = 0.0

    def upload_next(self, *, final: bool = False) -> tuple[str, int] | None:
        """Upload the newest step that waits; its run and number, or None if there is none for this node.

        Args:
            final: the job has ended: the newest step goes up, however short ago the one before it did.

        Raises:
            OSError: the directory cannot be read, or the store refused (``StorageError``).
        """
        for run, epoch in self._waiting(final=final):
            with contextlib.suppress(CheckpointError, FileNotFoundError):  # given up, or removed, while it was read
                if self.upload_step(run, epoch):
                    if self._request.policy is not None:
                        note_uploaded(run, self._level.prune(run, self._request.policy))
                    return run.id, epoch
        return None

    def _waiting(self, *, final: bool) -> Iterator[tuple[RunDirectory, int]]:
        """Complete steps that the policy keeps, that are due, and that are not there, the newest first.

        Of the run before this one, only the last: a process that was killed may have left it.
        """
        job, policy, directory = self._request.job, self._request.policy, Path(self.directory)
        known = [(run, _info(run)) for run in reversed(runs(directory))] if directory.is_dir() else []
        found = [(run, info) for run, info in known if not job or (info is not None and info.job == job)]
        for number, (run, info) in enumerate(found[:2] if job else found):
            self._level.put_run_info(run)  # also to report what the job has gone back from
            states = [state for epoch in run.steps() if (state := run.complete_step(epoch)) is not None]
            keep = steps_to_keep(states, policy) if policy else {state.epoch for state in states}
            every = 0 if final or number or not job or info is None else info.upload_every or 0
            for state in reversed(states[-1:] if job and number else states):
                if state.epoch in keep and not state.uploaded and _is_due(state, states, every):
                    yield run, state.epoch

    def upload_step(self, run: RunDirectory, epoch: int) -> bool:
        """Upload what is not there yet of a complete step, after the steps that it refers to; False: another node does.

        Raises:
            CheckpointError: the step is not complete, or was given up or replaced meanwhile.
            OSError: a file cannot be read, or the store refused (``StorageError``).
        """
        manifest, step, place = run.manifest(epoch), run.step(epoch), f"{run.id}/{step_name(epoch)}"
        found = run.upload_state(epoch)
        if found is not None and found.node != self._request.node and run.is_uploading(epoch):
            return False
        for base in bases_of(manifest):
            state = run.complete_step(base)
            if state is None:
                raise CheckpointError(f"{step} refers to step {base}, which is not complete")
            if not state.uploaded and not self.upload_step(run, base):
                return False
        begun = time.monotonic()
        self._note(step, "")
        raw = (step / MANIFEST).read_bytes()
        with contextlib.suppress(MissingObjectError):
            if self._storage.read(f"{place}/{MANIFEST}") != raw:  # files of one name would change under it
                self._storage.delete([f"{place}/{MANIFEST}"])
        names = step_files(step, manifest)
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            send = lambda name: self._storage.put_file(f"{place}/{name}", step / name, lambda n: self._wait(step, n))  # noqa: E731
            files = dict(zip(names, pool.map(send, names), strict=True))
        if run.manifest(epoch).check != manifest.check:
            raise CheckpointError(f"{step} was replaced while it was uploaded")
        self._storage.put_bytes(f"{place}/{files_name(manifest)}", msgspec.json.encode(files))
        self._storage.put_bytes(f"{place}/{MANIFEST}", raw)
        self._note(step, manifest.check, time.monotonic() - begun)
        return True

    def _note(self, step: Path, check: str, seconds: float = 0.0) -> None:
        state = UploadState(self._storage.url, self._request.node, check, seconds)
        write_durably(step / UPLOAD, msgspec.json.encode(state))

    def _wait(self, step: Path, nbytes: int) -> None:
        """Return when ``nbytes`` may be sent, and show that the upload of ``step`` is alive."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + (nbytes / self._request.rate if self._request.rate else 0.0)
            if now - self._touched > _TOUCH_SECONDS:
                self._touched = now
                with contextlib.suppress(OSError):
                    os.utime(step / UPLOAD)
        time.sleep(start - now)


def step_files(step: Path, manifest: Manifest) -> list[str]:
    """Files of a complete step but its manifest: those of its parts, and those of the step as a whole.

    Parts that the manifest does not name are of a generation that counts no more.
    """
    parts = {None, *((part.rank, part.generation) for part in manifest.parts)}
    names = {path.name for path in step.iterdir() if path.name == METADATA or not path.name.startswith(".")}
    return sorted(name for name in names - {MANIFEST} if part_of(name) in parts)


def _is_due(state: CompleteStep, states: Sequence[CompleteStep], every: int) -> bool:
    """Whether ``every`` epochs lie between the step and the last one that is there, or is on its way."""
    others = (other for other in states if other is not state and (other.uploaded or other.uploading))
    return not every or state.pinned or all(state.epoch - other.epoch >= every for other in others)


def _info(run: RunDirectory) -> RunInfo | None:
    with contextlib.suppress(CheckpointError):
        return run.info()
    return None


def follow(uploader: Uploader, ended: threading.Event, report: Callable[[str], None]) -> None:
    """Upload until the job has ended, and then what is complete. ``report`` learns of problems; empty: all is well."""
    deadline = float("inf")
    while time.monotonic() < deadline:
        final = ended.is_set()
        if final:
            deadline = min(deadline, time.monotonic() + END_SECONDS)
        pause = 0.0
        try:
            if uploader.upload_next(final=final) is None:
                if final:
                    return
                pause = LOOK_SECONDS
            report("")
        except OSError as error:
            report(problem_line(error, uploader.directory))
            pause = AGAIN_SECONDS
        (threading.Event() if ended.is_set() else ended).wait(pause)


def main() -> int:
    """``python -m mainstay.recovery.checkpoint.upload``: an ``UploadRequest`` comes as a line on stdin.

    Problems go to stdout, a line each. It ends when stdin has ended and what is complete is uploaded.
    """
    os.nice(NICE)
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=UploadRequest)
    ended = threading.Event()

    def listen() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock would be held at exit
            pass
        ended.set()

    def report(problem: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the agent has ended
            print(problem, flush=True)  # noqa: T201 - the agent reads this line

    threading.Thread(target=listen, daemon=True).start()
    try:
        with open_level(request.url) as level:
            follow(Uploader(level, request), ended, report)
    except (ValueError, OSError) as error:
        report(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
