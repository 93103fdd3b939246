"""What a row of a localization holds of its state."""

from __future__ import annotations

from typing import Final

import msgspec

from mainstay.detectors.localize.model import LocalizationState, NodePair
from mainstay.probes.benchmarks.pair_protocol import PAIR


class Document(msgspec.Struct, frozen=True):
    """What ``LocalizationRow.document`` holds."""

    state: LocalizationState
    asked: tuple[NodePair, ...]
    """The round whose orders are out: another version of the planner would ask for others."""
    benchmark: str = PAIR


DOCUMENT: Final = msgspec.json.Decoder(Document)
"""Made at import: msgspec crashes where several threads are the first to decode a type."""
