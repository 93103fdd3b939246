"""What PyTorch's flight recorder holds of this rank, small enough for one message.

It is read in a thread of its own while the training thread is inside a collective that does not end.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from mainstay.probes import torch_private
from mainstay.recovery.protocol.worker_messages import FlightRecorderDump

NEWEST: Final = 256
"""Completed calls that are kept, the newest; open ones are kept all. A pipeline step has some tens of calls a rank."""
MAX_BYTES: Final = 64 * 1024
"""Of a compressed dump: a Unix socket with message boundaries carries some 200 KB at once."""


def dump(request: int) -> FlightRecorderDump:
    """Answer ``request``, with the reason where torch has recorded nothing or too much."""
    try:
        content = zlib.compress(_newest(torch_private.flight_recorder()))
    except (torch_private.UnsupportedTorchError, RuntimeError, ValueError) as error:
        return FlightRecorderDump(request=request, content=b"", problem=str(error)[:500])
    if len(content) > MAX_BYTES:
        problem = f"{len(content)} bytes are more than the {MAX_BYTES} of one message"
        return FlightRecorderDump(request=request, content=b"", problem=problem)
    return FlightRecorderDump(request=request, content=content)


def _newest(recorded: bytes) -> bytes:
    told: dict[str, Any] = json.loads(recorded)
    entries = told.get("entries", [])
    recent = len(entries) - NEWEST
    # gloo names no members of its groups
    if not any(group.get("ranks", "[]") != "[]" for group in told.get("pg_config", {}).values()):
        groups = torch_private.process_groups().items()
        told["pg_config"] = {name: {"name": name, "desc": desc, "ranks": ranks} for name, (desc, ranks) in groups}
    ended = [bool(e.get("retired") or e.get("state") == "completed") for e in entries]
    told["entries"] = [e for n, e in enumerate(entries) if n >= recent or not ended[n]]
    return json.dumps(told, separators=(",", ":")).encode()
