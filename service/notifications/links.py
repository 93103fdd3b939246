"""Links in messages: one click acknowledges incidents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mainstay.service.common.signed_links import SignedLink


@dataclass(frozen=True, kw_only=True)
class AcknowledgeLink(SignedLink):
    """Acknowledges the incidents of a group."""

    purpose: ClassVar[str] = "acknowledge"
    group: str
    receiver: str
    """Who got it: named in the timeline of the incidents."""
