"""What a change of the state makes necessary. ``controller.job`` carries effects out, in their order."""

from __future__ import annotations

import msgspec

from mainstay.recovery.protocol.messages import FenceNode, StartRank


class _Effect(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


class ReplicateJobState(_Effect, frozen=True):
    """Launchers learn what is to be known when this coordinator dies, before any order that follows."""


class SendToLauncher(_Effect, frozen=True):
    node: str
    message: FenceNode | StartRank


Effect = ReplicateJobState | SendToLauncher
