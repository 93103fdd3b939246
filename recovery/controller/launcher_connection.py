"""The coordinator's connection to one launcher, and what its heartbeats say about leases."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainstay.recovery.protocol.messages import CoordinatorHeartbeat, FromLauncher, ToLauncher
from mainstay.recovery.protocol.wire import MessageStream


@dataclass(eq=False, slots=True)
class LauncherConnection:
    """Times are those of the event loop's clock."""

    stream: MessageStream[FromLauncher] | None
    """None: it has not come to the coordinator that took over."""
    heard_at: float
    leased_until: float = 0.0
    """Until then it votes for no other coordinator."""
    ended: bool = False
    """Its launcher has ended for certain: it will never follow a coordinator again."""
    answered: int = 0
    """The newest beat that it has answered."""
    sent: dict[int, float] = field(default_factory=dict)
    """Beat that is not answered -> when it was sent."""

    def send(self, message: ToLauncher) -> None:
        if self.stream is not None:
            self.stream.send(message)

    def beat(self, now: float) -> None:
        """Send the next heartbeat."""
        number = self.answered + len(self.sent) + 1
        self.sent[number] = now
        self.send(CoordinatorHeartbeat(sequence=number, heard=self.answered))

    def renew(self, beat: int, lease: float) -> None:
        """It has answered ``beat``."""
        sent = self.sent.get(beat)
        if sent is not None:
            self.leased_until, self.answered = sent + lease, beat
            self.sent = {number: at for number, at in self.sent.items() if number > beat}

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
