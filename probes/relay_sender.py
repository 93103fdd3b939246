"""From a relay's spool to the service: frames of many nodes in one bundle, in order, and each bundle as it was first.

A retry sends the same bytes under the same number. A later process sends its bundles under another stream, since it may
put the frames together in another way; the service knows a frame by its own numbers.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final

import msgspec

from mainstay.probes.bundle import MAX_SPREAD_SECONDS, MAX_SUBJECTS, encode_bundle, pack
from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.frame import Frame, FrameError, decode
from mainstay.probes.ids import uuid7
from mainstay.probes.shipper import Shipper
from mainstay.probes.spool import Entry, Spool
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport

_NOT_YET: Final = frozenset({"wrong-rack", "unknown-subject"})
"""Problems of a frame whose node is in none of the relay's racks, or not registered: true of each node that has not
sent its report, which goes to the service by another way."""
_NOT_YET_SECONDS: Final = 120.0
"""How old such a frame gets before it is set aside."""
_BATCH: Final = 512
"""Frames taken from the spool at once: several bundles, so that each can hold the same nodes again."""
_CUT_OFF: Final = frozenset({0, 401, 403, 404})
"""No answer, or one that concerns the relay alone: nodes may have more luck than it."""

Member = tuple[Entry, Frame]


class _RejectedFrame(msgspec.Struct):
    subject: str
    slug: str
    detail: str


class _Rejections(msgspec.Struct):
    rejected: tuple[_RejectedFrame, ...] = ()


class BundleSender(Shipper):
    """Drains a relay's spool of frames.

    Args:
        spool: holds encoded frames.
        transport: the service, with the relay's token.
        catalogs: of every frame in the spool.
        relay: the relay's name.
        gather: seconds that frames wait for those of other nodes.
        on_refused: called with the name of a node whose frames the service does not take from this relay.
        backoff: waits after failures.
    """

    def __init__(
        self,
        spool: Spool,
        transport: Transport,
        catalogs: CatalogStore,
        *,
        relay: str,
        gather: float,
        on_refused: Callable[[str], None],
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(spool, batch=_BATCH, gather=gather, backoff=backoff)
        self.bundles = 0
        """Sent and acknowledged."""
        self.refused: Counter[str] = Counter()
        """Frames that the service refused, by problem slug."""
        self.cut_off_since: float | None = None
        """Monotonic seconds since when the service does not answer this relay, or not let it in."""
        self._transport = transport
        self._catalogs = catalogs
        self._relay = relay
        self._on_refused = on_refused
        self._life = uuid7()
        self._sequence = 0
        self._groups: dict[str, int] = {}
        self._entries: Sequence[Entry] = ()
        self._ready: deque[_Prepared] = deque()

    def deliver(self, entries: Sequence[Entry]) -> None:
        if entries is not self._entries:
            self._ready.extend(_Prepared(members) for members in self._arrange(entries))
            self._entries = entries
        try:
            while self._ready:
                self._send(self._ready[0])
        except RetryableError as error:
            lost = error.status in _CUT_OFF
            self.cut_off_since = (self.cut_off_since or time.monotonic()) if lost else None
            raise
        self.cut_off_since, self._entries = None, ()

    def _arrange(self, entries: Sequence[Entry]) -> Iterator[list[Member]]:
        """Members of one bundle each; the frames of a node stay in order, and a node stays with the same others."""
        together: defaultdict[tuple[int, int, str, float, int], list[Member]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for entry in entries:
            try:
                frame = decode(entry.payload)
            except FrameError as error:
                self._set_aside(entry, "invalid-frame", str(error))
                continue
            group = self._groups.setdefault(frame.subject, len(self._groups) // MAX_SUBJECTS)
            together[seen[frame.subject], group, frame.catalog, frame.dt, frame.samples].append((entry, frame))
            seen[frame.subject] += 1
        for _, members in sorted(together.items(), key=itemgetter(0)):
            yield from _split_by_time(members)

    def _send(self, prepared: _Prepared) -> None:
        """Send the first bundle; of a rejected one each half becomes a bundle, so that one frame costs no other."""
        try:
            answer = self._catalogs.send_announced(
                lambda: self._post(prepared), self._transport.put_catalog, lambda: prepared.members[0][1].catalog
            )
        except RejectedError as error:
            middle = len(prepared.members) // 2
            if not middle:
                entry, frame = prepared.members[0]
                self._refuse(entry, frame, error.slug, str(error))
            self._ready.popleft()
            if middle:
                self._ready.extendleft(map(_Prepared, (prepared.members[middle:], prepared.members[:middle])))
            return
        # If the disk is full, a refused frame cannot wait, and all is sent again: as a bundle that the service lacks.
        prepared.body = b""
        by_subject = {frame.subject: (entry, frame) for entry, frame in prepared.members}
        for refused in answer.rejected:
            if refused.subject in by_subject:
                self._refuse(*by_subject[refused.subject], refused.slug, refused.detail)
        self._ready.popleft()
        self.bundles += 1

    def _post(self, prepared: _Prepared) -> _Rejections:
        if not prepared.body:
            self._sequence += 1
            prepared.encode(self._relay, self._life, self._sequence)
        try:
            answer = self._transport.request(
                "POST", "/telemetry/bundles", content=prepared.body, content_type="application/msgpack"
            )
        except RetryableError as error:
            if error.slug in _NOT_YET:  # about every member, not about this relay
                raise RejectedError(str(error), status=error.status, slug=error.slug) from error
            raise
        try:
            return msgspec.json.decode(answer.data, type=_Rejections) if answer.data else _Rejections()
        except UNREADABLE as error:
            raise RetryableError(f"the answer to a bundle is not JSON: {error}", status=answer.status) from error

    def _refuse(self, entry: Entry, frame: Frame, slug: str, detail: str) -> None:
        if slug in _NOT_YET:
            self._on_refused(frame.subject)
            if time.time() - frame.t0 < _NOT_YET_SECONDS:
                self.spool.append(entry.payload)  # its turn comes again
                return
        self._set_aside(entry, slug, f"{slug}: {frame.subject} {frame.sequence}: {detail}")

    def _set_aside(self, entry: Entry, slug: str, reason: str) -> None:
        self.refused[slug or "rejected"] += 1
        self.spool.set_aside(entry, reason)


class _Prepared:
    """Frames that go together; encoded once, since a retry must send the same bytes."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.body = b""

    def encode(self, relay: str, stream: str, sequence: int) -> None:
        frames = [frame for _, frame in self.members]
        try:
            self.body = encode_bundle(pack(frames, relay=relay, stream=stream, sequence=sequence))
        except FrameError as error:
            raise RejectedError(str(error), slug="invalid-frame") from error


def _split_by_time(members: list[Member]) -> Iterator[list[Member]]:
    members.sort(key=lambda member: member[1].t0)
    first = 0
    for place, (_, frame) in enumerate(members):
        if frame.t0 - members[first][1].t0 > MAX_SPREAD_SECONDS:
            yield members[first:place]
            first = place
    yield members[first:]
