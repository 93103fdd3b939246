"""A standalone agent: one that no launcher of ours started. Where it is found, and how a rank comes to a generation.

``mainstay agent --job NAME`` stays on a node while torchrun (or anything else) starts and restarts the ranks. It writes
``session.json`` beside its arenas, so a rank of the job finds it without a line of configuration. The ranks number
their generations: they ask their agents for the lowest one alive and agree on the next (``sdk.standalone``).
"""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.agent.client import greet
from mainstay.recovery.agent.errors import ProtocolError
from mainstay.recovery.agent.messages import Hello
from mainstay.recovery.agent.shm_lifecycle import default_root, node_directory, own_directory

NEWEST: Final = (1 << 62) - 1
"""A generation that no fence has reached: who only asks may always ask."""
_ASK_SECONDS: Final = 10.0
ADDRESS_FILE: Final = "standalone.json"
"""In the directory of a standalone agent: where it is."""
_TOKEN: Final = "agent-token"  # noqa: S105 - the name of a file
_NOT_A_JOB: Final = "none"
"""What torchrun calls a run without a name."""


class AgentAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the agent of one node of one job is."""

    job: str
    node: str
    socket: str
    endpoint: str
    """``host:port`` for agents and ranks of other nodes."""

    def lowest_alive(self) -> int:
        """The lowest generation that this agent still listens to.

        Raises:
            AgentGoneError, ProtocolError: it does not answer, or not as an agent does.
        """
        sock, welcome = greet(self.socket, Hello(job=self.job, generation=NEWEST), _ASK_SECONDS)
        sock.close()
        return welcome.generation


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """``MAINSTAY_NODE``, or this host's name with what a path may not carry made into dashes."""
    return environ.get("MAINSTAY_NODE") or re.sub(r"[^A-Za-z0-9_.-]", "-", platform.node()) or "node"


def job_name(environ: Mapping[str, str] = os.environ) -> str:
    """``MAINSTAY_JOB``, or the id that was given to torchrun (``--rdzv-id``); empty: this process is of no job."""
    job = environ.get("MAINSTAY_JOB") or environ.get("TORCHELASTIC_RUN_ID") or ""
    return "" if job == _NOT_A_JOB else job


def find_agent(environ: Mapping[str, str] = os.environ) -> AgentAddress | None:
    """The standalone agent of this process's job on this node; None where there is none.

    Raises:
        ProtocolError: its file is damaged.
        ValueError: a job or node name that may not become a path.
    """
    job = job_name(environ)
    if not job:
        return None
    path = node_directory(default_root(), job, node_name(environ)) / ADDRESS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentAddress)
    except OSError:
        return None
    except UNREADABLE as error:
        raise ProtocolError(f"{path} is damaged: {error}") from error


def own_token(directory: Path) -> Path:
    """The token file of a standalone agent that was given none: made once, for this user alone.

    Nodes that copy from each other need the same token: give them one with ``--token-file``.
    """
    path = own_directory(directory) / _TOKEN
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path
