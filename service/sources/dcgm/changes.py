"""What happened between two scrapes, as far as an exporter lets one know.

The XID gauge keeps the last code for ever and misses repeats: a change of it is information and nothing more. The
exporter's own count in a sliding window (an optional collector) does say that an XID is new: where it rises there is
an event. What stands there at the first scrape of a target was before our time and is only noted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from mainstay.probes.core_types import EventKind, RecommendedAction
from mainstay.service.events.schemas import EventIn
from mainstay.service.sources.dcgm.frames import device_ids
from mainstay.service.sources.dcgm.parser import ScrapedGpu
from mainstay.service.sources.ids import content_id

SOURCE: Final = "dcgm"


@dataclass
class ScrapeState:
    """What the next scrape of a target is compared with; lives in its row, as JSON."""

    percent: bool = False
    """Utilization was above one: it comes in percent."""
    xids: dict[str, int] = field(default_factory=dict)
    """UUID → the gauge."""
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """UUID → XID → its count in the window."""
    nodes: list[str] = field(default_factory=list)
    """Nodes whose data it reported in its last answer."""
    answered_at: float = 0.0
    silent: bool = False
    """Whether its silence was told."""

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> ScrapeState:
        return cls(**copy.deepcopy({key: value for key, value in stored.items() if key in cls.__dataclass_fields__}))

    def keep(self, nodes: Sequence[str], cards: Sequence[ScrapedGpu], *, time: float) -> None:
        """Take what these cards say; a card that is missing this time is remembered."""
        self.nodes, self.answered_at, self.silent = list(nodes), time, False
        self.xids.update({card.uuid: card.last_xid for card in cards if card.last_xid is not None})
        self.counts.update({card.uuid: {str(k): v for k, v in card.xid_counts.items()} for card in cards})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def events(node: str, cards: Sequence[ScrapedGpu], before: ScrapeState, *, time: float) -> list[EventIn]:
    """Events of one node's cards, told at ``time``."""
    found: list[EventIn] = []
    for card, device in zip(cards, device_ids(cards), strict=True):
        fresh = _risen(card, before)
        found += [_xid(node, device, card, rise, time) for rise in fresh]
        if _changed(card, before) and not fresh:
            found.append(_notice(node, device, card, time))
    return found


def _risen(card: ScrapedGpu, before: ScrapeState) -> list[tuple[int, int]]:
    """(XID, how many more) for each whose count rose; none at the first sight of a card."""
    known = before.counts.get(card.uuid)
    if known is None:
        return []
    rises = ((code, count - known.get(str(code), 0.0)) for code, count in sorted(card.xid_counts.items()))
    return [(code, int(rise)) for code, rise in rises if rise >= 1.0]


def _changed(card: ScrapedGpu, before: ScrapeState) -> bool:
    known = before.xids.get(card.uuid)
    return known is not None and card.last_xid not in {None, 0, known}


def _xid(node: str, device: str, card: ScrapedGpu, rise: tuple[int, int], time: float) -> EventIn:
    code, times = rise
    text = f"seen {times} times more by the exporter"
    data = {"code": code, "source": SOURCE, "pci": card.pci, "text": text, "count": times}
    key = content_id(time, SOURCE, node, card.uuid, "xid", code, time)
    return EventIn(id=key, time=time, kind=EventKind.XID, node=node, device=device, data=data)


def _notice(node: str, device: str, card: ScrapedGpu, time: float) -> EventIn:
    data = {
        "source": SOURCE,
        "check": "last_xid",
        "fatal": False,
        "healthy": False,
        "severity": "info",
        "message": f"the last XID that the exporter knows is now {card.last_xid}; when it happened is not known",
        "recommended_action": RecommendedAction.NONE.value,
        "codes": [str(card.last_xid)],
    }
    key = content_id(time, SOURCE, node, card.uuid, "last_xid", card.last_xid, time)
    return EventIn(id=key, time=time, kind=EventKind.HEALTH_REPORT, node=node, device=device, data=data)


def silence(memory: ScrapeState, target: str, *, reason: str, time: float, cleared: bool) -> list[EventIn]:
    """That the exporter stopped answering for its nodes, or (``cleared``) that it answers again."""
    data = {"sampler": SOURCE, "reason": reason, "seconds": max(0.0, time - memory.answered_at), "cleared": cleared}
    return [
        EventIn(
            id=content_id(time, SOURCE, target, node, "silent", cleared, time),
            time=time,
            kind=EventKind.PROBE_UNRESPONSIVE,
            node=node,
            data=data if cleared else {key: value for key, value in data.items() if key != "cleared"},
        )
        for node in memory.nodes
    ]
