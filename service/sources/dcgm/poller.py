"""Scraping due targets in a few threads, and feeding what they say as if a daemon of the node had sent it.

A node that has a daemon of its own is never fed from an exporter: two sources of one signal would contradict each
other. While a target answers, its node counts as speaking between two scrapes; from the first scrape that fails it
does not, so that it becomes unknown like any silent node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from mainstay.probes.core_types import validate_name
from mainstay.service.auth.tokens import Principal, Scope, TokenKind
from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.common.problem import ProblemError
from mainstay.service.events import service as events
from mainstay.service.events.schemas import EventIn
from mainstay.service.fleet import service as fleet
from mainstay.service.fleet.models import NodeRow
from mainstay.service.services import Services
from mainstay.service.sources import targets
from mainstay.service.sources.dcgm import changes, frames
from mainstay.service.sources.dcgm.changes import ScrapeState
from mainstay.service.sources.dcgm.fetch import FetchError, fetch
from mainstay.service.sources.dcgm.parser import ReadingError, ScrapedGpu, read
from mainstay.service.sources.models import DcgmTargetRow
from mainstay.service.sources.targets import ScrapeResult

_log: Final = logging.getLogger(__name__)
_QUEUED: Final = 4
"""Scrapes claimed for each thread: enough that none idles, few enough that none waits for long."""
_DURABLE_SECONDS: Final = 10.0
"""Longest wait for the group commit of a frame."""
_VOICE_INTERVALS: Final = 1.5
"""A target that is this many intervals late is no longer trusted to be speaking."""
_SILENT_FAILURES: Final = 3
"""After so many failures in a row the silence becomes an event: one or two are a restart of the exporter."""


class FeedError(Exception):
    """What the exporter told was not stored; the message says why."""


@dataclass
class Poller:
    """One process's share of the scraping. ``turn`` is called again and again by a background loop.

    Args:
        services: the running service.
        loop: the event loop on which frames are accepted.
    """

    services: Services
    loop: asyncio.AbstractEventLoop
    _pool: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)
    _running: dict[Future[ScrapeResult], DcgmTargetRow] = field(default_factory=dict, init=False, repr=False)
    _voices: dict[str, dict[str, float]] = field(default_factory=dict, init=False, repr=False)
    """Target → its nodes → until when they count as speaking."""
    _reported: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """Node → what was last reported of it."""

    def run_once(self) -> None:
        """Write down what ended, begin what is due, and speak for nodes whose exporter answers."""
        now = self.services.clock.now()
        self._settle()
        self._begin(now)
        for nodes in list(self._voices.values()):
            for node, until in list(nodes.items()):
                if now < until:
                    self.services.seen.note(node, now)

    def _settle(self) -> None:
        ended = [future for future in self._running if future.done()]
        if not ended:
            return
        outcomes = [future.result() for future in ended]
        for future in ended:
            del self._running[future]
        with self.services.database.session() as session:
            targets.settle(session, outcomes)

    def _begin(self, now: float) -> None:
        threads = self.services.settings.sources.scrape_threads
        room = threads * _QUEUED - len(self._running)
        if room <= 0:
            return
        with self.services.database.reading() as session:
            if not targets.any_due(session, now):
                return
        with self.services.database.session() as session:
            claimed = targets.claim(session, now, room)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dcgm-scrape")
        for target in claimed:
            self._running[self._pool.submit(self._scrape, target)] = target

    def _scrape(self, target: DcgmTargetRow) -> ScrapeResult:
        try:
            return self._feed_all(target)
        except (FetchError, ReadingError, FeedError) as error:
            told = str(error)
        except ProblemError as error:
            told = error.detail
        except ValidationError as error:
            told = f"what it says of its cards is not acceptable: {error.errors()[0]['msg']}"
        except (SQLAlchemyError, RuntimeError, FutureTimeoutError, asyncio.CancelledError) as error:
            told = f"not stored: {type(error).__name__}"
        self._voices.pop(target.id, None)
        _log.info("scraping %s failed: %s", target.url, told)
        return self._failed(target, told)

    def _failed(self, target: DcgmTargetRow, told: str) -> ScrapeResult:
        now, memory = self.services.clock.now(), ScrapeState.from_stored(target.memory)
        if memory.silent or target.failures + 1 < _SILENT_FAILURES:
            return ScrapeResult(target, now, told)
        memory.silent = True
        try:
            self._tell(changes.silence(memory, target.id, reason=told, time=now, cleared=False), now)
        except SQLAlchemyError:
            return ScrapeResult(target, now, told)  # the next failure tells it
        return ScrapeResult(target, now, told, memory=memory.as_json())

    def _feed_all(self, target: DcgmTargetRow) -> ScrapeResult:
        settings = self.services.settings.sources
        text = fetch(
            target.url,
            seconds=settings.scrape_seconds,
            max_bytes=settings.max_scrape_bytes,
            ca_file=settings.ca_file,
            policy=AddressPolicy.from_texts(settings.allowed_networks),
        )
        now = self.services.clock.now()
        memory = ScrapeState.from_stored(target.memory)
        cards, memory.percent = read(text, percent=memory.percent)
        by_node = _by_node(target, cards)
        self._check_nobody_else_speaks(target, by_node, now)
        for node, mine in by_node.items():
            self._feed(target, node, mine, memory, now)
        if memory.silent:
            self._tell(changes.silence(memory, target.id, reason="it answers again", time=now, cleared=True), now)
        memory.keep(list(by_node), cards, time=now)
        until = now + _VOICE_INTERVALS * target.interval_seconds + settings.scrape_seconds
        self._voices[target.id] = dict.fromkeys(by_node, until)
        stored = sum(len(card.values) for card in cards)
        return ScrapeResult(target, now, None, stored, memory.as_json())

    def _check_nobody_else_speaks(self, target: DcgmTargetRow, nodes: Iterable[str], now: float) -> None:
        """Two exporters of one node would report each other's cards away, in turns."""
        for other, voices in list(self._voices.items()):
            taken = next((node for node in nodes if other != target.id and now < voices.get(node, 0.0)), None)
            if taken is not None:
                raise FeedError(f"node {taken} is fed from another target: {other}")

    def _feed(
        self, target: DcgmTargetRow, node: str, cards: Sequence[ScrapedGpu], before: ScrapeState, now: float
    ) -> None:
        self._report(target, node, cards, now)
        body = frames.frame(node, cards, stream=f"dcgm-{target.id}", sequence=target.sequence, time=now)
        # The same endpoint as a daemon's, with a credential for this node only.
        principal = Principal(f"dcgm-{target.id}", TokenKind.NODE, "dcgm", frozenset({Scope.REPORT}), node=node)
        if self.loop.is_closed():
            raise FeedError("the service stops")
        accepted = asyncio.run_coroutine_threadsafe(self.services.ingest.accept(principal, body), self.loop)
        accepted.result(_DURABLE_SECONDS)
        self._tell(changes.events(node, cards, before, time=now), now)

    def _tell(self, told: Sequence[EventIn], now: float) -> None:
        if told:
            with self.services.database.session() as session:
                events.store(session, self.services.wakers, told, now=now)

    def _report(self, target: DcgmTargetRow, node: str, cards: Sequence[ScrapedGpu], now: float) -> None:
        said = frames.report(cards, host=cards[0].host or node, since=target.created_at)
        with self.services.database.reading() as session:
            row = session.get(NodeRow, node)
        if row is not None and row.version != frames.VERSION:
            raise FeedError(f"node {node} has a daemon of its own: it is not fed from an exporter")
        signature = said.model_dump_json(exclude={"started_at"})
        if row is None or self._reported.get(node) != signature:
            with self.services.database.session() as session:
                fleet.report(session, node, said, now=now)
            self._reported[node] = signature


def _by_node(target: DcgmTargetRow, cards: Sequence[ScrapedGpu]) -> dict[str, list[ScrapedGpu]]:
    found: dict[str, list[ScrapedGpu]] = {}
    for card in cards:
        name = target.node or card.host
        try:
            found.setdefault(validate_name(name, "node"), []).append(card)
        except ValueError as error:
            raise FeedError(f"no node is named for GPU {card.uuid}: {error}") from error
    return found
