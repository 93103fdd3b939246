"""The flight recorders of all ranks at a hang: which collective holds the job up, and who has not entered it.

All ranks are asked when a hang is found, and their answers go into the analysis of ``mainstay analyze-hang``. The
result is a ``flight_recorder`` event, which the service shows with the incident. A stopped rank cannot answer, so the
result names whose dump is missing, and is certain only where none is.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Final

from mainstay.detectors.hang.analysis import HangDiagnosis, diagnose
from mainstay.detectors.hang.flight_recorder import Dump, DumpError, decode, dumps_of
from mainstay.probes.core_types import EventKind
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.protocol.messages import DumpFlightRecorders
from mainstay.recovery.protocol.worker_messages import FlightRecorderDump

ANSWER_SECONDS: Final = 1.5
"""Ranks answer within milliseconds, and culprits are fenced 2 s after a hang is found."""
MOST_ASKED: Final = 1024
"""Ranks: their answers are a few KB each."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of one dump, decompressed."""
_MOST_NAMED: Final = 32
"""Ranks in one event."""


class FlightRecorderCollector:
    """One a coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._request = 0
        self._answers: dict[int, FlightRecorderDump] = {}

    def add_answer(self, rank: int, answer: FlightRecorderDump) -> None:
        """Keep a rank's answer; one to an older request comes too late."""
        if answer.request == self._request:
            self._answers[rank] = answer

    async def diagnose(self, reason: str, suspects: Collection[int]) -> None:
        """Ask all ranks, wait a bounded time, and report what the answers show.

        Args:
            reason: why the job is taken to hang.
            suspects: ranks that are asked in any case.
        """
        job, generation = self._job, self._job.state.generation
        others = [rank.number for rank in job.members.present if rank.number not in suspects]
        asked = {*suspects, *others[: MOST_ASKED - len(suspects)]}
        self._request, self._answers = self._request + 1, {}
        job.ask_ranks(asked, lambda ranks: DumpFlightRecorders(request=self._request, ranks=ranks))
        await job.until(lambda: asked <= self._answers.keys(), ANSWER_SECONDS)
        answers = dict(self._answers)
        found, problems = await asyncio.to_thread(_analyze, answers)
        if found is None:
            log.info("no flight recorder: %s", next(iter(problems.values()), "no rank answered"))
            return
        missing = sorted((asked | set(found.doubts.missing)) - set(found.ranks))
        log.warning("HANG flight recorder of %d of %d ranks: %s", len(found.ranks), len(asked), found.summary)
        data = _event_data(found, missing, problems)
        job.event(EventKind.FLIGHT_RECORDER, {"reason": reason, **data}, generation=generation)


def _analyze(answers: Mapping[int, FlightRecorderDump]) -> tuple[HangDiagnosis | None, dict[int, str]]:
    """What the dumps show, None without any; and rank -> why its dump cannot be used."""
    dumps: dict[int, Dump] = {}
    problems: dict[int, str] = {}
    for rank, answer in sorted(answers.items()):
        if answer.problem:
            problems[rank] = answer.problem
            continue
        try:
            dumps |= dumps_of(decode(_decompress(answer.content)), rank)
        except (DumpError, zlib.error) as error:
            problems[rank] = str(error)
    return (diagnose(dumps) if dumps else None), problems


def _decompress(content: bytes) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(content, _MOST_BYTES)
    if not stream.eof:
        raise DumpError(f"cut short, or more than {_MOST_BYTES} bytes")
    return data


def _event_data(found: HangDiagnosis, missing: list[int], problems: Mapping[int, str]) -> dict[str, Any]:
    return {
        "summary": found.summary,
        "kind": found.kind,
        "certain": found.kind is not None and found.sure and not missing,
        "culprits": [
            {"rank": c.rank, "group": c.group, "reason": c.reason, "last_call": c.last_call}
            for c in found.culprits[:_MOST_NAMED]
        ],
        "ranks_read": len(found.ranks),
        "ranks_missing": missing[:_MOST_NAMED],
        "problem": next(iter(problems.values()), ""),
    }
