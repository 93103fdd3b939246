"""Answers about a running job, from the rings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import DetectorStatus
from mainstay.detectors.entity_state import median
from mainstay.detectors.hang.detector import JobActivity
from mainstay.probes.core_types import GROUP_KINDS, StepPhase
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.incidents.detector_status import JobAccount
from mainstay.service.jobs.live_schemas import (
    DetectorStatusList,
    DetectorStatusRead,
    ProgressRead,
    ProgressState,
    RankProgress,
    SignalsRead,
    TransfersRead,
)
from mainstay.service.jobs.schemas import StepsRead
from mainstay.service.telemetry.pairs import PAIR_SIGNALS, PairStore
from mainstay.service.telemetry.progress import Latest
from mainstay.service.telemetry.steps import STEP_SIGNALS, StepStore, StepWindow

MAX_CELLS: Final = 1_000_000
"""Numbers in one answer: ten megabytes of JSON."""
MAX_PAIR_RANKS: Final = 256
"""Side of the largest matrix answered: 65,536 cells, more than a screen has room for."""
SILENT_SECONDS: Final = 10.0
"""Without a report in this time, the activity of a job is unknown (ranks send two reports per second)."""
STILL_SECONDS: Final = 3.0
"""Quiet for longer than a report and its way here take: it waits for something."""
_PULSES: Final[Mapping[JobActivity, ProgressState]] = {
    JobActivity.UNKNOWN: "unknown",
    JobActivity.MOVING: "moving",
    JobActivity.WAITING: "waiting",
    JobActivity.MASKED: "masked",
    JobActivity.HUNG: "hung",
}
Floats = NDArray[np.floating]


class UnknownRankSignalError(UnprocessableError):
    slug, title = "unknown-signal", "Unknown signal"


def signals(
    store: StepStore, job: str, *, names: str, ranks: Sequence[int] | None, start: int, stop: int | None, points: int
) -> SignalsRead:
    """Signals of every rank (or of ``ranks``), thinned by a stride to ``points`` steps and ``MAX_CELLS`` numbers.

    Raises:
        UnknownRankSignalError: a name is not a signal of ranks by step; it says which.
    """
    wanted = tuple(dict.fromkeys(name for name in names.split(",") if name))
    unknown = [name for name in wanted if name not in STEP_SIGNALS]
    if unknown or not wanted:
        which = f"{unknown[0][:128]!r} is not a signal of a rank's step" if unknown else "no signal is named"
        raise UnknownRankSignalError(f"{which}: those of source 'rank' in /v1/signals are")
    known = store.ranks(job)
    rows = list(range(known)) if ranks is None else sorted({rank for rank in ranks if rank < known})
    fit = max(1, MAX_CELLS // (len(wanted) * max(1, len(rows))))
    window = store.window(job, start, stop, points=min(points, fit), signals=wanted)
    rows = [row for row in rows if row < len(window.values)]
    return SignalsRead(
        steps=window.steps.tolist(),
        ranks=rows,
        signals={name: [nullable(line) for line in window.signal(name)[rows]] for name in wanted},
    )


def step_times(store: StepStore, job: str, *, start: int, stop: int | None, points: int) -> StepsRead:
    """Steps ``start`` up to but not including ``stop``, thinned by a stride to at most ``points``."""
    window = store.window(job, start, stop, points=points)
    return StepsRead(
        steps=window.steps.tolist(),
        ranks=list(range(len(window.values))),
        step_time_seconds=[nullable(row) for row in window.signal("step_time_seconds")],
        compute_time_seconds=[nullable(row) for row in window.signal("compute_time_seconds")],
        loss=nullable(_loss(window)),
    )


def _loss(window: StepWindow) -> NDArray[np.float64]:
    """The mean over the ranks that know it (those of the last stage); NaN where none does."""
    loss = window.signal("loss").astype(np.float64)
    known = np.isfinite(loss)
    total = np.where(known, loss, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    mean: NDArray[np.float64] = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def nullable(row: Floats) -> list[float | None]:
    # Six digits: float32 holds no more, and a chart shows fewer; a whole number stays exact.
    return [_number(value) for value in row.tolist()]


def _number(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return value if value.is_integer() else float(f"{value:.6g}")


def progress(
    latest: Latest | None, told: JobAccount, nodes: Mapping[int, str], *, hung: bool, now: float, limit: int
) -> ProgressRead:
    """Where all ranks are.

    Args:
        latest: the last words, None for a job that sends no progress.
        told: the status of each detector of the job.
        nodes: rank -> node.
        hung: whether a hang of the job is found and holds.
        now: Unix seconds.
        limit: ranks to list, those that lag most.
    """
    if latest is None:
        return ProgressRead(
            time=now, state="hung" if hung else "unknown", quiet_seconds=None, limit_seconds=None, phase=None,
            kinds=[], ranks=[], omitted=0,
        )  # fmt: skip
    account = told.find_status("hang")
    numbers = {} if account is None else account.numbers
    quiet = _known(numbers.get("quiet_seconds")) if "quiet_seconds" in numbers else _known(now - latest.moved_at)
    phase = _most_common(latest)
    ranks = _order(latest)
    listed = sorted(ranks[:limit])
    return ProgressRead(
        time=now,
        state=_state(latest, quiet, phase, told.activity, hung=hung, now=now),
        quiet_seconds=None if quiet is None else max(0.0, quiet),
        limit_seconds=_known(numbers.get("limit_seconds")),
        phase=phase,
        kinds=[
            kind for kind in GROUP_KINDS if f"{kind}_enqueued" in latest.values or f"{kind}_completed" in latest.values
        ],
        ranks=[_rank(latest, rank, nodes.get(rank), now) for rank in listed],
        omitted=len(ranks) - len(listed),
    )


def _state(
    latest: Latest, quiet: float | None, phase: int | None, activity: JobActivity | None, *, hung: bool, now: float
) -> ProgressState:
    """Return the activity from the detector if it reports one, else from the progress reports."""
    if hung:
        return "hung"
    if not (now - latest.heard < SILENT_SECONDS).any():  # NaN: told of, but never heard
        return "unknown"
    if activity is not None and activity is not JobActivity.UNKNOWN:
        return _PULSES[activity]
    if phase not in {None, StepPhase.TRAIN.value}:
        return "masked"
    if quiet is None:
        return "unknown"
    return "waiting" if quiet > STILL_SECONDS else "moving"


def _most_common(latest: Latest) -> int | None:
    phases = latest.values.get("progress_phase", np.empty(0))
    counted = Counter(phases[~np.isnan(phases)].astype(int).tolist())
    return min(counted, key=lambda phase: (-counted[phase], phase)) if counted else None


def _order(latest: Latest) -> list[int]:
    """Return the ranks that have reported, those that lag most first: fewest steps, longest call, oldest report."""
    heard = np.flatnonzero(~np.isnan(latest.heard))
    blank = np.full(len(latest.heard), np.nan)
    step = np.nan_to_num(latest.values.get("progress_step", blank)[heard], nan=-1.0)
    held = np.nan_to_num(latest.values.get("in_collective_seconds", blank)[heard], nan=0.0)
    ordered: list[int] = heard[np.lexsort((heard, latest.heard[heard], -held, step))].tolist()
    return ordered


def _rank(latest: Latest, rank: int, node: str | None, now: float) -> RankProgress:
    def value(name: str) -> float | None:
        return _known(float(latest.values[name][rank])) if name in latest.values else None

    def counts(what: str) -> dict[str, int]:
        found = {kind: value(f"{kind}_{what}") for kind in GROUP_KINDS}
        return {kind: int(count) for kind, count in found.items() if count is not None}

    return RankProgress(
        rank=rank,
        node=node,
        step=_whole(value("progress_step")),
        phase=_whole(value("progress_phase")),
        in_collective_seconds=value("in_collective_seconds"),
        age_seconds=max(0.0, now - float(latest.heard[rank])),
        enqueued=counts("enqueued"),
        completed=counts("completed"),
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def pairs(store: PairStore, job: str, *, steps: int) -> TransfersRead:
    """The matrix of transfers over the last ``steps`` steps."""
    last = store.last_step(job)
    window = store.window(job, max(0, (last or 0) + 1 - steps))
    if last is None or not window.pairs or not len(window.steps):
        return TransfersRead(first=None, last=None, ranks=[], seconds=[], bytes=[])
    seconds = median(np.moveaxis(window.values[:, PAIR_SIGNALS.index("transfer_seconds")], 0, -1))
    nbytes = median(np.moveaxis(window.values[:, PAIR_SIGNALS.index("transfer_bytes")], 0, -1))
    told = np.flatnonzero(~(np.isnan(seconds) & np.isnan(nbytes)))
    ranks = _slowest(window.pairs, seconds, told)
    row = {rank: i for i, rank in enumerate(ranks)}
    matrices = [np.full((len(ranks), len(ranks)), np.nan) for _ in range(2)]
    for place in told.tolist():
        source, target = window.pairs[place]
        if source in row and target in row:
            for matrix, values in zip(matrices, (seconds, nbytes), strict=True):
                matrix[row[source], row[target]] = values[place]
    return TransfersRead(
        first=int(window.steps[0]),
        last=int(window.steps[-1]),
        ranks=ranks,
        seconds=[nullable(line) for line in matrices[0]],
        bytes=[nullable(line) for line in matrices[1]],
    )


def _slowest(of: Sequence[tuple[int, int]], seconds: Floats, told: NDArray[np.intp]) -> list[int]:
    """The ranks of the pairs, ascending; of too many those of the slowest transfers."""
    chosen: set[int] = set()
    for place in told[np.argsort(-np.nan_to_num(seconds[told]), kind="stable")].tolist():
        more = chosen | set(of[place])
        if len(more) > MAX_PAIR_RANKS:
            break
        chosen = more
    return sorted(chosen)


def detector_status(accounts: Sequence[tuple[str, DetectorStatus]]) -> DetectorStatusList:
    return DetectorStatusList(
        detectors=[
            DetectorStatusRead(
                name=name,
                state=account.state,
                reason=account.reason,
                numbers={key: _known(float(value)) for key, value in account.numbers.items()},
            )
            for name, account in accounts
        ]
    )


def nodes_of(topology: Mapping[str, Any]) -> dict[int, str]:
    return {place["rank"]: place["node"] for place in topology["ranks"]}
