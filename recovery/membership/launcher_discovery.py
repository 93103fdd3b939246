"""Where the other launchers of a job are, kept on each node: one that is started again finds whoever coordinates now.

Only a job that takes nodes back (``--nnodes MIN:MAX``, or ``--on-loss`` other than ``wait``) uses it. Without the file,
or where no launcher at those election endpoints knows an elected coordinator, a launcher begins as
always: at ``--rdzv-endpoint``.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.data_dir import private_directory
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_json
from mainstay.recovery.membership.election_server import CoordinatorQuery, ElectionReply, send_election_request
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.coordinator_state import CoordinatorState
from mainstay.recovery.work_assignment import LossPolicy

log = logging.getLogger("mainstay.launcher")

FILE: Final = "known_launchers.json"
"""In ``--state-dir``."""
MAX_BYTES: Final = 1 << 20


class KnownLaunchers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Election endpoints of a job's other launchers, ``host:port`` each."""

    job: str
    endpoints: tuple[str, ...]
    voted_term: int
    """The newest term that this node's launcher has voted for or followed: an older one has it no more."""


def keep(options: RunOptions, coordinator_state: CoordinatorState, promised: int) -> None:
    """Write down where the others are, as the coordinator says; on a full disk it logs the failure."""
    if not _takes_nodes_back(options):
        return
    election_endpoints = tuple(
        e.election_endpoint for e in coordinator_state.electors if e.election_endpoint and e.node != options.node
    )
    path = options.state_dir / FILE
    try:
        private_directory(options.state_dir)
        write_json(path, KnownLaunchers(job=options.job, endpoints=election_endpoints, voted_term=promised))
    except OSError as error:
        log.warning("%s cannot be written: a launcher that is started again may not find this job: %s", path, error)


async def find_coordinator(options: RunOptions) -> tuple[str, int] | None:
    """Where the job is coordinated that this node was part of; None: no launcher knows.

    Takes two seconds at most, however many do not answer.
    """
    if not _takes_nodes_back(options) or (known := _read(options.state_dir / FILE)) is None or known.job != options.job:
        return None
    question = CoordinatorQuery(job=options.job, term=0)
    heard = await asyncio.gather(*(send_election_request(e, question, options.control_tls) for e in known.endpoints))
    told = [a for a in heard if isinstance(a, ElectionReply) and a.coordinator and a.term >= known.voted_term]
    if not told:
        return None
    host, _, port = max(told, key=lambda answer: answer.term).coordinator.rpartition(":")
    if not port.isdigit():
        return None
    log.warning("job %s continues and is coordinated at %s:%s now: this node joins it again", options.job, host, port)
    return host, int(port)


def _takes_nodes_back(options: RunOptions) -> bool:
    return options.spare_nodes > 0 or options.on_loss is not LossPolicy.WAIT


def _read(path: Path) -> KnownLaunchers | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=KnownLaunchers)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        log.warning("%s is not read: %s", path, error)
        return None
