"""Where the other launchers of a job are, kept on each node: one that is started again finds whoever coordinates now.

Only a job that takes nodes back (``--on-loss`` other than ``wait``) has use for it. Without the file, or where nobody
at those doors knows an elected coordinator, a launcher begins as always: at ``--rdzv-endpoint``.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from recovery.deal import OnLoss
from recovery.launcher.door import Answer, Inquiry, ask
from recovery.launcher.legacy import Testament
from recovery.launcher.options import RunOptions

log = logging.getLogger("mainstay.launcher")

FILE: Final = "neighbours.json"
"""In ``--state-dir``."""
MAX_BYTES: Final = 1 << 20


class Neighbours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Doors of a job's other launchers, ``host:port`` each."""

    job: str
    doors: tuple[str, ...]
    promised: int
    """The newest term that this node's launcher has voted for or followed: an older one has it no more."""


def keep(options: RunOptions, testament: Testament, promised: int) -> None:
    """Write down where the others are, as the coordinator says; on a full disk without, and it is said."""
    if options.on_loss is OnLoss.WAIT:
        return
    doors = tuple(e.door for e in testament.electors if e.door and e.node != options.node)
    path = options.state_dir / FILE
    new = path.with_suffix(".new")
    try:
        options.state_dir.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(Neighbours(job=options.job, doors=doors, promised=promised)))
        new.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: a launcher that is started again may not find this job: %s", path, error)


async def coordinator(options: RunOptions) -> tuple[str, int] | None:
    """Where the job is coordinated that this node was part of; None: nobody says so.

    Takes two seconds at most, however many do not answer.
    """
    if options.on_loss is OnLoss.WAIT or (known := _read(options.state_dir / FILE)) is None or known.job != options.job:
        return None
    question = Inquiry(token=options.token, job=options.job, term=0)
    heard = await asyncio.gather(*(ask(door, question) for door in known.doors))
    told = [a for a in heard if isinstance(a, Answer) and a.coordinator and a.term >= known.promised]
    if not told:
        return None
    host, _, port = max(told, key=lambda answer: answer.term).coordinator.rpartition(":")
    if not port.isdigit():
        return None
    log.warning("job %s goes on and is coordinated at %s:%s now: this node joins it again", options.job, host, port)
    return host, int(port)


def _read(path: Path) -> Neighbours | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Neighbours)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s is not read: %s", path, error)
        return None
