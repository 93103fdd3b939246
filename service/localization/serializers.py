"""API responses of fault localizations: rounds with their pairs, and the verdict with its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, cast

from mainstay.detectors.localize.model import PairResult
from mainstay.service.common.db import AnySession
from mainstay.service.localization.document import DOCUMENT
from mainstay.service.localization.models import LocalizationRow, LocalizationRunState, LocalizationTaskRow, SideState
from mainstay.service.localization.schemas import (
    LocalizationRead,
    LocalizationSummary,
    PairBenchmark,
    PairRead,
    RoundRead,
    VerdictRead,
)
from mainstay.service.localization.service import by_position, sides_of


def read(session: AnySession, row: LocalizationRow) -> LocalizationRead:
    """Everything of one."""
    document = DOCUMENT.decode(row.document)
    past: dict[int, list[PairRead]] = defaultdict(list)
    for result in document.state.results:
        past[result.round].append(_past(result))
    rounds = [RoundRead(number=number, pairs=pairs) for number, pairs in sorted(past.items())]
    if row.state == LocalizationRunState.RUNNING:
        sides = sides_of(session, row.id, row.round)
        rounds.append(RoundRead(number=row.round, pairs=_present(sides)))
    return LocalizationRead(
        **LocalizationSummary.model_validate(row).model_dump(),
        benchmark=cast("PairBenchmark", document.benchmark),
        rounds=rounds,
        verdict=None if row.verdict is None else VerdictRead.model_validate(row.verdict),
    )


def _past(result: PairResult) -> PairRead:
    return PairRead(
        a=result.a.node,
        b=result.b.node,
        nics=[result.a.nic, result.b.nic],
        via=result.via,
        state=result.outcome.value,
        bandwidth=result.bandwidth,
        note=result.note,
    )


def _present(sides: Sequence[LocalizationTaskRow]) -> list[PairRead]:
    """The round that is under way: of each pair the side that listens, and whether it is at work."""
    found = []
    for both in by_position(sides):
        fetched = all(side.state != SideState.QUEUED for side in both)
        state: Literal["waiting", "measuring"] = "measuring" if fetched else "waiting"
        nics = [str(side.order.get("nic", "")) for side in both]
        found.append(PairRead(a=both[0].node, b=both[0].peer, nics=nics, via="", state=state, bandwidth={}, note=""))
    return found
