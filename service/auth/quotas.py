"""What one token may send. A node's own token has a smaller quota than one that speaks for many nodes or ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstay.service.auth.tokens import Principal, TokenKind
from mainstay.service.common.quota import Quota
from mainstay.service.settings import QuotaSettings


@dataclass
class TokenQuotas:
    """The quotas of every token, by its id."""

    settings: QuotaSettings
    _node_events: Quota = field(init=False, repr=False)
    _events: Quota = field(init=False, repr=False)
    _entities: Quota = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = self.settings
        self._node_events = Quota("events", limits.node_events_per_second, limits.node_events_burst)
        self._events = Quota("events", limits.events_per_second, limits.events_burst)
        self._entities = Quota("new nodes and jobs", limits.entities_per_second, limits.entities_burst)

    def charge_events(self, principal: Principal, count: int) -> None:
        """Charge events.

        Raises:
            QuotaExceededError: the token has sent too many.
        """
        quota = self._node_events if principal.kind is TokenKind.NODE else self._events
        quota.charge(principal.token_id, count)

    def charge_entity(self, principal: Principal) -> None:
        """Charge a node or a job that is new.

        Raises:
            QuotaExceededError: the token has announced too many.
        """
        self._entities.charge(principal.token_id, 1)
