"""``mainstay checkpoint pin|unpin|upload|download|rebuild``: keep steps, and move them between places."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from mainstay.recovery.checkpoint.catalog import LATEST, PINNED, find, runs
from mainstay.recovery.checkpoint.levels import UploadLevel, open_level
from mainstay.recovery.checkpoint.manifest import CheckpointError, remove_file, step_name
from mainstay.recovery.checkpoint.storage import CheckpointStorage
from mainstay.recovery.checkpoint.summary import CheckpointLevel, StepState, link, uploaded_step
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadProgress, UploadRequest
from mainstay.recovery.checkpoint_rebuild import rebuild_step

Runs = Annotated[Path, Parameter(help="Use this checkpoint directory, the --checkpoint-dir of a job.")]
RunId = Annotated[str, Parameter(help="Choose the run by its ID; latest: the newest with a complete step.")]
StepNumber = Annotated[int | None, Parameter(help="Choose the step; the default is the newest complete one.")]


def pin(directory: Runs, *, step: StepNumber = None, run: RunId = LATEST) -> int:
    """Pin a complete step: the job removes it neither here nor at the upload level."""
    return _set_pinned(directory, run, step, pinned=True)


def unpin(directory: Runs, *, step: StepNumber = None, run: RunId = LATEST) -> int:
    """Unpin a step: the job may remove it again, as --checkpoint-keep says."""
    return _set_pinned(directory, run, step, pinned=False)


def _set_pinned(directory: Path, wanted: str, step: int | None, *, pinned: bool) -> int:
    source = find(directory, wanted, step)
    run, epoch = source.run, source.manifest.epoch
    mark, state = run.step(epoch) / PINNED, run.upload_state(epoch)
    if pinned:
        mark.touch()
    else:
        remove_file(mark)
    if state is not None:
        storage, path = CheckpointStorage(state.url), f"{run.id}/{step_name(epoch)}/{PINNED}"
        if pinned:
            storage.put_bytes(path, b"")
        else:
            storage.delete([path])
    print(f"step {epoch} of run {run.id} is {'pinned' if pinned else 'not pinned'}")  # noqa: T201 - a command prints
    return 0


def upload(directory: Path, url: str) -> int:
    """Upload all complete steps of a directory that are not there yet; nothing is deleted there.

    From a node's own disk, upload its parts of the newest step: the step is complete once all nodes have done so.

    Args:
        directory: Upload from this checkpoint directory, the --checkpoint-dir of a job.
        url: Upload to this place: ``s3://BUCKET/PREFIX?endpoint=URL`` or a directory.
    """
    runs(directory)  # is it one?
    request = UploadRequest(directory=str(directory), url=url, job="", node=socket.gethostname(), policy=None)
    told, count = list[UploadProgress](), 0
    with open_level(url) as level:
        uploader = Uploader(level, request, told.append)
        while found := uploader.upload_next():
            print(f"step {found[1]} of run {found[0]} is uploaded", flush=True)  # noqa: T201 - a command prints
            count += 1
    if problems := dict.fromkeys(progress.problem for progress in told if progress.problem):
        raise CheckpointError("; ".join(problems))
    if not count:
        print(f"no more steps are complete at {url}: all are there, or parts of other nodes are not")  # noqa: T201
    return 0


def download(url: str, directory: Path, *, step: int | None = None, run: str = LATEST) -> int:
    """Download a complete step and the steps that it is built on, and check every file.

    Args:
        url: Read from this place: ``s3://BUCKET/PREFIX?endpoint=URL`` or a directory.
        directory: Write to this checkpoint directory; --resume can read it then.
        step: Choose the step; the default is the newest complete one.
        run: Choose the run by its ID; latest: the newest with a complete step.
    """
    with _existing_level(url) as level:
        source = level.find(run, step)
        nbytes = level.fetch(directory, source)
    text = f"step {source.manifest.epoch} of run {source.manifest.run}: {nbytes} bytes read"
    print(f"{text}; resume from it with --checkpoint-dir {directory} --resume latest")  # noqa: T201 - likewise
    return 0


def rebuild(directory: Path, *, step: int | None = None, run: str = LATEST) -> int:
    """Complete a step of nodes with disks of their own: verify all parts, decode lost ones from parity.

    Args:
        directory: Work in this directory. First copy into it what is left of the directories of all nodes.
        step: Choose the step; the default is the newest of which enough is left.
        run: Choose the run by its ID; latest: the newest.
    """
    manifest, decoded = rebuild_step(directory, run, step)
    text = f"step {manifest.epoch} of run {manifest.run} is complete; ranks from parity:"
    print(text, ", ".join(map(str, decoded)) or "none")  # noqa: T201 - a command prints
    return 0


def uploaded_rows(url: str, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows for ``ls`` of complete steps at ``url``; of those in ``listed``, only the levels change."""
    known = {(row["run"], row["step"]): row for row in listed if row.get("state") == StepState.COMPLETE}
    found = []
    with _existing_level(url) as level:
        for run in map(level.open_run, level.run_ids()):
            level.read_manifests(run, run.steps())
            manifests = list(run.complete())
            pinned = {m.epoch for m in manifests if (run.step(m.epoch) / PINNED).exists()}
            steps = link(uploaded_step(m, pinned=m.epoch in pinned) for m in manifests)
            for manifest, step in zip(reversed(manifests), steps, strict=True):
                row = known.get((run.id, step.step))
                if row is None:
                    shape = [manifest.dp, manifest.pp, manifest.tp]
                    found.append({"run": run.id, "job": manifest.job, "shape": shape} | msgspec.to_builtins(step))
                elif CheckpointLevel.UPLOAD not in row["levels"]:
                    row["levels"] = [*row["levels"], CheckpointLevel.UPLOAD.value]
    return found


def _existing_level(url: str) -> AbstractContextManager[UploadLevel]:
    """Open a level to read it: a directory that is not there is a wrong path."""
    if "://" not in url and not Path(url).is_dir():
        raise CheckpointError(f"{url} is not a directory")
    return open_level(url)
