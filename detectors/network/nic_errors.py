"""Error counters of network ports against those of their peers: minutes with errors, not errors, are counted.

Errors come in bursts, so their number is no evidence of how often something goes wrong; the number of *errored
minutes* is (telephony has judged lines by errored seconds since ITU-T G.826). Of each port and counter two things are
asked, at the end of each minute:

* **creeping**: has it had more errored minutes than its peers, by more than chance makes of it? Minutes are remembered
  with a half-life of hours. ``z = 2 (sqrt(n + 3/8) - sqrt(m + 3/8))`` is normal for a Poisson count ``n`` with mean
  ``m`` (Anscombe 1948); ``m`` is what a port near the bad end of its peers would have had. A decayed count varies less
  than a Poisson count of its mean, so that z errs on the quiet side.
* **acute**: does it have so many errors a second, minute after minute, that other monitors call it a fault outright,
  and ten times as many as its peers near the bad end?

Both are relative: what a whole fleet shows, its adapters' generation or a congested fabric, is no adapter's fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Array, Bools, Floats
from mainstay.detectors.entity_state import EntityState

MINUTE = 60.0
CALM, INFO, WARNING = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NicErrorRule:
    """What makes a counter worth a word, and whose fault it is."""

    text: str
    acute: float
    """Errors a second, over a minute, from which other monitors speak."""
    hourly: float = np.inf
    """Errors an hour from which a creeping counter is a warning; below it stays information."""
    own: bool = False
    """Whether it blames the port or its cable; what a remote end or a busy fabric may cause is never a warning."""


RULES: dict[str, NicErrorRule] = {
    # 120 an hour is the bit error rate of 1e-12 that InfiniBand allows a lane; NVSentinel warns from 10 a second.
    "nic_symbol_errors_total": NicErrorRule(text="symbol errors", acute=10.0, hourly=120.0, own=True),
    # NVSentinel: 5 a minute. Each stops traffic for milliseconds, so that ten an hour are felt by no job yet.
    "nic_link_recoveries_total": NicErrorRule(text="link recoveries", acute=5 / MINUTE, hourly=10.0, own=True),
    "nic_receive_errors_total": NicErrorRule(text="receive errors", acute=10.0, hourly=120.0, own=True),
    # NVSentinel: fatal at the first, which drains healthy nodes. Each is a burst beyond a threshold of the hardware's
    # own, that is about as grave as a recovery.
    "nic_local_integrity_errors_total": NicErrorRule(
        text="local integrity errors", acute=5 / MINUTE, hourly=10.0, own=True
    ),
    "nic_buffer_overruns_total": NicErrorRule(text="buffer overruns", acute=5 / MINUTE, hourly=10.0, own=True),
    # What follows is felt here but mostly made in another place: a full fabric, a dead peer, a slow receiver.
    "nic_transmit_discards_total": NicErrorRule(text="discarded packets", acute=100.0),
    "nic_ack_timeouts_total": NicErrorRule(text="acknowledgement time-outs", acute=1.0),
    "nic_out_of_sequence_total": NicErrorRule(text="packets out of sequence", acute=100.0),
    "nic_rnr_retries_total": NicErrorRule(text="receiver-not-ready retries", acute=1.0),
    "nic_slow_restarts_total": NicErrorRule(text="slow restarts", acute=10.0),
}
NAMES = tuple(RULES)
_ACUTE = np.array([rule.acute for rule in RULES.values()])
_HOURLY = np.array([rule.hourly for rule in RULES.values()])
_OWN = np.array([rule.own for rule in RULES.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class NicErrorThresholds:
    """When a difference between peers is none of chance."""

    half_life_minutes: float = 360.0
    """Memory of errored minutes: a fault that shows four times an hour is seen within a shift, and yesterday's is not
    held against a port that was cleaned."""
    z_on: float = 6.0
    """1e-9 a test for Poisson counts: 10,000 ports x 10 counters x 1,440 minutes are 1.4e8 tests a day. A port whose
    peers have none is named at its 13th errored minute."""
    z_off: float = 3.0
    """Below, its peers have about as many."""
    times_peers: float = 5.0
    """And so many times the errored minutes of the bad end of its peers: cables differ by such factors in health."""
    acute_times_peers: float = 10.0
    acute_minutes: int = 2
    """Of the last three. All three where there are no peers to compare with, and where the port is not to blame: jobs
    that end make their peers wait for a minute or two."""
    least_peers: int = 8
    """Ports with a reading below which there is no comparison."""
    tail: float = 0.05
    """The bad end: a twentieth of the peers, and at least two, may be worse than the reference."""
    calm_minutes: int = 60
    """Minutes without an error that end it: one that creeps at four an hour is not over after a quarter of an hour."""


def fields(rows: EntityState, drawn: int) -> EntityState:
    """The memory of the counters, [counter, port]."""
    lead = (len(NAMES),)
    for name in ("now", "bad", "watched", "total", "z"):
        rows.field(name, 0.0, np.float64, lead)
    rows.field("read", fill=False, dtype=np.bool_, lead=lead)
    rows.field("acute", 0, np.uint8, lead).field("calm", 0, np.int32, lead).field("level", CALM, np.int8, lead)
    return rows.field("minutes", np.nan, np.float32, (drawn, *lead))


def collect(rows: EntityState, rates: Floats, lines: npt.NDArray[np.intp], seconds: Floats, judged: Bools) -> None:
    """Add one sample to the running minutes.

    Args:
        rows: the memory.
        rates: [line, port] errors a second since the reading before; NaN where nothing was read.
        lines: which counters the lines are.
        seconds: [port] how long ago that reading was.
        judged: [port] whose errors count: not those of ports that train.
    """
    valid = (rates == rates) & judged  # noqa: PLR0124 - cheaper than isnan: true unless NaN
    if not valid.any():
        return
    rows["now"][lines] += np.where(valid, rates, 0.0) * seconds
    rows["read"][lines] |= valid


def fold(
    rows: EntityState, c: int, groups: Sequence[npt.NDArray[np.intp]], limits: NicErrorThresholds, at: int
) -> None:
    """End the minute of counter ``c``: judge it, and begin the next.

    Args:
        rows: the memory.
        c: counter.
        groups: rows of each group of peers.
        limits: when to speak.
        at: where in the ring of drawn minutes this one goes.
    """
    read, errors = rows["read"][c].copy(), rows["now"][c].copy()
    rows["minutes"][at, c] = np.where(read, errors / MINUTE, np.nan)
    rows["read"][c], rows["now"][c] = False, 0.0
    if not read.any():
        return
    errored = read & (errors > 0.5)
    for name, new in (("bad", errored), ("watched", read), ("total", errors)):
        rows[name][c] = np.where(read, rows[name][c] * 0.5 ** (1.0 / limits.half_life_minutes) + new, rows[name][c])
    rows["calm"][c] = np.where(errored, 0, rows["calm"][c] + read)
    if not (errored | (rows["level"][c] > CALM) | (rows["acute"][c] > 0)).any():
        return
    share = rows["bad"][c] / np.maximum(rows["watched"][c], 1.0)
    ends, loudest = _bad_end(share, read, groups, limits), _bad_end(errors, read, groups, limits)
    rows["z"][c] = np.where(read, _excess(rows["bad"][c], ends * rows["watched"][c]), rows["z"][c])
    minute = _Minute(read, errored, errors, ends * rows["watched"][c], loudest)
    _decide(rows, c, minute, limits)


def _bad_end(values: Floats, read: Bools, groups: Sequence[npt.NDArray[np.intp]], limits: NicErrorThresholds) -> Floats:
    """[port]: the value near the bad end of its peers; NaN where there are too few."""
    found = np.full(len(values), np.nan)
    for members in groups:
        peers = values[members][read[members]]
        if len(peers) >= limits.least_peers:
            place = len(peers) - 1 - max(2, int(np.ceil(limits.tail * len(peers))))
            found[members] = np.partition(peers, place)[place]
    return found


def _excess(count: Floats, expected: Floats) -> Floats:
    return 2.0 * (np.sqrt(count + 0.375) - np.sqrt(expected + 0.375))


@dataclass(frozen=True, slots=True)
class _Minute:
    """One minute of one counter, [port]."""

    read: Bools
    errored: Bools
    errors: Floats
    expected: Floats
    """Errored minutes that a port near the bad end of its peers would remember."""
    loudest: Floats
    """Errors of such a port in this minute."""


def _decide(rows: EntityState, c: int, minute: _Minute, limits: NicErrorThresholds) -> None:
    read, errored, errors, expected, loudest = (
        minute.read, minute.errored, minute.errors, minute.expected, minute.loudest,
    )  # fmt: skip
    before: Array = rows["level"][c].copy()
    z, alone = rows["z"][c], np.isnan(loudest)
    with np.errstate(invalid="ignore"):
        loud = errors / MINUTE >= _ACUTE[c]
        loud &= alone | (errors >= limits.acute_times_peers * loudest)
        creeping = errored & (z >= limits.z_on) & (rows["bad"][c] >= limits.times_peers * expected)
        like_peers = z < limits.z_off
    rows["acute"][c] = np.where(read, ((rows["acute"][c] << 1) | loud) & 7, rows["acute"][c])
    minutes = np.bitwise_count(rows["acute"][c])
    acute = errored & (minutes >= (np.where(alone, 3, limits.acute_minutes) if _OWN[c] else 3))
    hourly = rows["total"][c] / np.maximum(rows["watched"][c], 1.0) * MINUTE
    warned = bool(_OWN[c]) & (acute | (creeping & (hourly >= _HOURLY[c])))
    level = np.maximum(before, np.where(warned, WARNING, np.where(creeping | acute, INFO, CALM)))
    over = read & (before > CALM) & ((rows["calm"][c] >= limits.calm_minutes) | (like_peers & (minutes == 0)))
    rows["level"][c] = np.where(over, CALM, level)
    for name in ("bad", "total", "watched"):  # what is over is not held against it again
        rows[name][c][over] = 0.0
