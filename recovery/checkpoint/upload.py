"""Steps go from the local directory to the upload level: data first, the manifest last, each file checked.

The levels of DeepFreeze (Nicolae et al., CCGrid 2020) and VELOC: ranks write to the fast level and continue; a
process behind them copies what is there to the level that outlives the node. It may be killed at any point: what
is there already is compared and not sent again. Each node sends parts that its directory has: nodes that share one
divide a step among themselves. Whoever finds all parts of a step at the upload level writes the manifest.

At the upload level, ``RUN/step-N/files-R.gG.CHECK.json`` lists the files of the part of rank R in generation G whose
checksum is CHECK, with the digest of each. Each is the object ``NAME.CHECK``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_durably
from mainstay.recovery.checkpoint.catalog import (
    PINNED,
    GivenUpStepError,
    IncompleteStepError,
    PartName,
    RunDirectory,
    bases_of,
    runs,
)
from mainstay.recovery.checkpoint.file_errors import problem_line
from mainstay.recovery.checkpoint.levels import UploadLevel, files_name, object_name, open_level, part_files
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.load import checked
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    Manifest,
    RunInfo,
    part_name,
    step_name,
)
from mainstay.recovery.checkpoint.retention import CompleteStep, is_due, steps_to_keep
from mainstay.recovery.checkpoint.save import complete_parts, newest_parts, target_of
from mainstay.recovery.checkpoint.summary import note_uploaded
from mainstay.recovery.checkpoint.upload_state import (
    CLAIM,
    LEFT,
    UPLOAD,
    UPLOAD_STALE_SECONDS,
    UploadProgress,
    UploadRequest,
    UploadState,
    is_copy,
)

FILES_AT_ONCE: Final = 4
"""With 4 parts of 8 MiB each under way, that is 128 MiB of memory."""
NICE: Final = 15
"""Behind the process that writes to the local level."""
LOOK_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 15.0
"""After a problem: the client has tried for a minute by then."""
WAIT_SECONDS: Final = 15.0
"""Between looks at the upload level while steps wait for other nodes: a store asks money for each."""
END_SECONDS: Final = 600.0
"""To upload what is complete when the job has ended."""
_TOUCH_SECONDS: Final = 10.0


class Uploader:
    """Uploads the steps of a directory, one after the other, and deletes what the policy does not keep there."""

    def __init__(
        self, level: UploadLevel, request: UploadRequest, report: Callable[[UploadProgress], None] = lambda _: None
    ) -> None:
        """``report`` learns what changes."""
        self._level, self._storage, self._request = level, level.storage, request
        self._report, self._reported = report, UploadProgress()
        self.directory = request.directory
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._touched: dict[Path, float] = {}
        self._without: tuple[int, ...] = ()
        """Ranks whose nodes cannot upload."""
        self._damaged: set[tuple[str, int, tuple[PartFile, ...]]] = set()
        """Run, step, and parts that could not be read."""
        self._looked: dict[str, tuple[object, float]] = {}
        """Run -> what waited for other nodes when it was looked at, and when."""

    def report_changes(self, **changes: Any) -> None:
        """Report what is new: fields of ``UploadProgress``."""
        made = msgspec.structs.replace(self._reported, **changes)
        if made != self._reported:
            self._reported = made
            self._report(made)

    def upload_next(self, *, final: bool = False) -> tuple[str, int] | None:
        """Upload the newest step that waits; its run and number, or None if there is none for this node.

        Args:
            final: the job has ended: the newest step goes up, however short ago the one before it did.

        Raises:
            OSError: the directory cannot be read, or the store refused (``StorageError``).
        """
        for run, epoch, ended in self._waiting(final=final):
            files = tuple(run.parts(epoch))
            try:
                mine = self.upload_step(run, epoch, ended=ended)
            except (GivenUpStepError, IncompleteStepError, FileNotFoundError):
                continue  # given up, replaced, or removed, while it was read
            except CheckpointError as error:
                if tuple(run.parts(epoch)) == files:  # not written again meanwhile
                    self._damaged.add((run.id, epoch, files))
                    self.report_changes(problem=f"step {epoch} is passed over: {error}")
                return self.upload_next(final=final)
            if mine is not None:
                self._prune(run, mine=mine)
                return run.id, epoch
        return None

    def _prune(self, run: RunDirectory, *, mine: bool) -> None:
        policy = self._request.policy
        try:
            if policy is not None:
                note_uploaded(run, self._level.prune(run, policy if mine else None))
        except OSError as error:  # a store may allow no deletion
            self.report_changes(problem=problem_line(error, self.directory))

    def _waiting(self, *, final: bool) -> Iterator[tuple[RunDirectory, int, bool]]:
        """Steps that are to go up, the newest first, and whether no more parts of them will come.

        Of the run before this one, only the last: a process that was killed may have left it.
        """
        job, directory = self._request.job, Path(self.directory)
        known = [(run, _info(run)) for run in reversed(runs(directory))] if directory.is_dir() else []
        found = [(run, info) for run, info in known if not job or (info is not None and info.job == job)]
        for number, (run, info) in enumerate(found[:2] if job else found):
            self._level.put_run_info(run)  # also to report what the job has gone back from
            ended = final or number > 0 or not job
            states = self._states(run)
            look = (ended, [(state.epoch, state.time, run.parts(state.epoch)) for state in states])
            known_look, at = self._looked.get(run.id, (None, 0.0))
            if look == known_look and time.monotonic() - at < WAIT_SECONDS:
                continue
            every = 0 if ended or info is None else info.upload_every or 0
            self._without = () if info is None else info.upload_without or ()
            if states and not (run.step(states[-1].epoch) / MANIFEST).exists():
                epochs = self._waiting_parts(run, states, every, None if ended else info)
            else:
                epochs = self._waiting_steps(states[-1:] if job and number else states, states, every)
            for epoch in epochs:
                yield run, epoch, ended
            self._looked[run.id] = (look, time.monotonic())

    def _states(self, run: RunDirectory) -> list[CompleteStep]:
        """Steps that can be read, as retention sees them. What went to another place is not uploaded."""
        whole = [s for s in run.counted_steps() if (run.id, s.epoch, tuple(run.parts(s.epoch))) not in self._damaged]
        return [s if self._is_here(run, s) else msgspec.structs.replace(s, uploaded=False) for s in whole]

    def _is_here(self, run: RunDirectory, state: CompleteStep) -> bool:
        known = run.upload_state(state.epoch)
        return state.uploaded and (known is None or known.url == self._storage.url)

    def _waiting_steps(self, offered: Sequence[CompleteStep], states: Sequence[CompleteStep], every: int) -> list[int]:
        """Of ``offered``, complete steps that the policy keeps, are due, and are not there, the newest first."""
        policy = self._request.policy
        keep = steps_to_keep(states, policy) if policy else {state.epoch for state in states}
        waiting = (state for state in reversed(offered) if state.epoch in keep and not state.uploaded)
        return [state.epoch for state in waiting if is_due(state, states, every)]

    def _waiting_parts(
        self, run: RunDirectory, states: Sequence[CompleteStep], every: int, info: RunInfo | None
    ) -> Iterable[int]:
        """Steps of a directory in which none is complete, as on a disk of the node's own.

        A step is complete there when all nodes have sent their parts of it, so all nodes take the same: a node follows
        those that have begun a newer one. It begins with one itself when its last one is complete there, or may never
        be, because the job has formed again. What it sent before a node whose uploads fail can send too would be in
        vain. It does not go back to an older one, which nodes that are faster may remove, until the run has ended
        (``info`` None).
        """
        waiting = [state.epoch for state in states if not state.uploaded]
        begun = set(self._storage.children(run.id)[0]) if waiting else set()
        there = [epoch for epoch in waiting if step_name(epoch) in begun]
        if info is None:
            yield from sorted({*there, *waiting[-1:]}, reverse=True)
            return
        last = max((state.epoch for state in states if run.upload_state(state.epoch) is not None), default=None)
        current = next((epoch for epoch in reversed(there) if last is None or epoch >= last), None)
        if current is not None:
            yield current
        due = waiting and waiting[-1] != current and (last is None or waiting[-1] - last >= every)
        if due and (current is None or all(part.generation < info.generation for part in run.parts(current))):
            yield waiting[-1]

    def upload_step(self, run: RunDirectory, epoch: int, *, ended: bool = False) -> bool | None:
        """Upload the parts of a step that are not there yet, after the steps that it refers to.

        Args:
            run: the run of the step.
            epoch: its number.
            ended: no more parts of it will come.

        Returns:
            Whether this node has made the step complete there; None: it is not, other nodes still have to send parts.

        Raises:
            CheckpointError: the step was given up or replaced meanwhile, or refers to one that is not complete.
            OSError: a file cannot be read, or the store refused (``StorageError``).
        """
        manifest, step = _manifest(run, epoch), run.step(epoch)
        for base in bases_of(manifest) if manifest else ():
            state = run.complete_step(base)
            if state is None:
                raise IncompleteStepError(f"{step} refers to step {base}, which is not complete")
            if not self._is_here(run, state) and self.upload_step(run, base) is None:
                return None
        begun = time.monotonic()
        chosen = [(part.rank, part.generation) for part in newest_parts(run.parts(epoch), run.returns()).values()]
        own = manifest.checks if manifest else {name: run.part(epoch, *name).check for name in chosen}
        if not own:
            raise GivenUpStepError(f"{step} has no part that counts")
        there, _ = self._level.parts(run.id, epoch, own)
        missing = [p for p in own if there.get(p) != own[p] and not (p in there and is_copy(step, p))]
        if missing or run.upload_state(epoch) is None:
            self._level.put_run_info(run)  # before parts that were made after the job went back
            self._note(step, "")
        at = zlib.crc32(self._request.node.encode()) % (len(missing) or 1)  # nodes that share the directory begin apart
        self.report_changes(is_uploading=bool(missing))
        try:
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                sent = any(list(pool.map(lambda part: self._send(run, epoch, part), missing[at:] + missing[:at])))
        finally:
            self.report_changes(is_uploading=False)
        if sent or not missing:
            seconds = time.monotonic() - begun if sent else self._reported.seconds
            self.report_changes(problem="", can_send=True, seconds=seconds)
        mine = self._complete(run, epoch, own, ended=ended)
        if mine is None:
            with contextlib.suppress(OSError):
                os.utime(step / UPLOAD)  # it stays here, so that no newer one is begun
        return mine

    def _send(self, run: RunDirectory, epoch: int, name: PartName) -> bool:
        """Upload a part, unless another node does: data, description, then the list of both. Whether this one did."""
        claim = run.step(epoch) / CLAIM.format(*name)
        if not self._claim(claim, name[0]):
            return False
        step, place = run.step(epoch), f"{run.id}/{step_name(epoch)}"
        part, files, wait = run.part(epoch, *name), {}, partial(map, partial(self._wait, claim))
        try:
            for file, via in (part.file, lambda read: checked(run, part, wait(read))), (part_name(*name), wait):
                path = f"{place}/{object_name(file, part.check)}"
                files[file] = self._storage.put_file(path, step / file, via)
            if run.part(epoch, *name).check != part.check:
                raise IncompleteStepError(f"{step} was replaced while it was uploaded")
            self._storage.put_bytes(f"{place}/{files_name(*name, part.check)}", msgspec.json.encode(files))
        except OSError:
            claim.unlink(missing_ok=True)  # another node may have more luck
            raise
        return True

    def _claim(self, path: Path, rank: int) -> bool:
        """Whether this node is to send the part. Two that take over from one that was killed send the same."""
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            file.write(self._request.node)
            return True
        whose, me = path.read_text(), self._request.node
        waits = self._request.job and time.time() - path.stat().st_mtime < UPLOAD_STALE_SECONDS
        if waits and whose not in {"", me} and not (whose == LEFT and rank in self._without):
            return False
        path.write_text(self._request.node)
        return True

    def _complete(self, run: RunDirectory, epoch: int, own: dict[PartName, str], *, ended: bool) -> bool | None:
        """Write the manifest if all parts are there; see ``upload_step``. One that lacks parts of this node goes."""
        there, named = self._level.parts(run.id, epoch, own)
        path, made, mine = f"{run.id}/{step_name(epoch)}/{MANIFEST}", None, False
        with contextlib.suppress(*UNREADABLE):  # a damaged one is replaced
            made = msgspec.json.decode(self._storage.read(path), type=Manifest) if named else None
        if made is None or any(made.checks.get(part) != there.get(part) for part in own):
            raw, older = self._make_manifest(run, epoch, there, partial=ended and not named), made
            if raw is None:
                return None
            made, mine = msgspec.json.decode(raw, type=Manifest), True
            self._storage.put_bytes(path, raw)
            if (run.step(epoch) / PINNED).exists():
                self._storage.put_bytes(path.replace(MANIFEST, PINNED), b"")
            if not self._level.settle(made, older.checks if older else {}):
                return None
        self._note(run.step(epoch), (_manifest(run, epoch) or made).check)
        return mine

    def _make_manifest(
        self, run: RunDirectory, epoch: int, there: dict[PartName, str], *, partial: bool
    ) -> bytes | None:
        """The manifest of the local directory, if the parts that are there are those of just this one.

        Nodes with directories of their own have none, or one each, as at the end with replicas: then of all parts.
        """
        manifest, raw = _manifest(run, epoch), None
        checks = manifest.checks if manifest else {}
        same, partial = bool(checks) and checks.items() <= there.items(), partial and manifest is None
        others = not same or {rank for rank, _ in there} > {rank for rank, _ in checks}
        if others and complete_parts(target_of(run).config, part_files(epoch, there), partial=partial) is not None:
            raw = self._level.commit(run.id, epoch, there, partial=partial)
        return (run.step(epoch) / MANIFEST).read_bytes() if raw is None and same else raw

    def _note(self, step: Path, check: str) -> None:
        state = UploadState(self._storage.url, self._request.node, check)
        write_durably(step / UPLOAD, msgspec.json.encode(state))

    def _wait(self, claim: Path, piece: bytes) -> bytes:
        """Return ``piece`` when it may be sent, and show that the upload of a part and its step is alive."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + (len(piece) / self._request.rate if self._request.rate else 0.0)
            if now - self._touched.get(claim, 0.0) > _TOUCH_SECONDS:
                self._touched[claim] = now
                with contextlib.suppress(OSError):
                    os.utime(claim)
                    os.utime(claim.with_name(UPLOAD))
        time.sleep(start - now)
        return piece


def _manifest(run: RunDirectory, epoch: int) -> Manifest | None:
    with contextlib.suppress(IncompleteStepError):
        return run.manifest(epoch)
    return None


def _info(run: RunDirectory) -> RunInfo | None:
    with contextlib.suppress(CheckpointError):
        return run.info()
    return None


def follow(uploader: Uploader, ended: threading.Event) -> None:
    """Upload until the job has ended, and then what is complete."""
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
        except OSError as error:
            uploader.report_changes(problem=problem_line(error, uploader.directory), can_send=False)
            pause = AGAIN_SECONDS
        (threading.Event() if ended.is_set() else ended).wait(pause)


def main() -> int:
    """``python -m mainstay.recovery.checkpoint.upload``: an ``UploadRequest`` comes as a line on stdin.

    What changes goes to stdout, an ``UploadProgress`` a line. It ends when stdin has ended and what is complete is
    uploaded.
    """
    os.nice(max(0, NICE - os.nice(0)))  # that of the thread which started it is inherited
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=UploadRequest)
    ended = threading.Event()

    def listen() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock would be held at exit
            pass
        ended.set()

    def report(progress: UploadProgress) -> None:
        with contextlib.suppress(BrokenPipeError):  # the agent has ended
            print(msgspec.json.encode(progress).decode(), flush=True)  # noqa: T201 - the agent reads this line

    threading.Thread(target=listen, daemon=True).start()
    try:
        with open_level(request.url) as level:
            report(UploadProgress())  # what the process before this one said is over
            follow(Uploader(level, request, report), ended)
    except (ValueError, OSError) as error:
        report(UploadProgress(problem=str(error), can_send=False))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
