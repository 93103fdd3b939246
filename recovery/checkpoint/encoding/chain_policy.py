"""Which base the next step is written against: pure functions over measured sizes.

Of the last full step and the step before, the cheaper base is taken each time. Where both cost the same, this is the
intermittent policy of Check-N-Run (NSDI'22, section 4.1): a new full step once that is predicted to pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_LINKS: Final = 64
"""Files that a restore opens at once."""


@dataclass(frozen=True, slots=True)
class Link:
    """One written step."""

    epoch: int
    nbytes: int
    base: int | None = None
    """Its epoch; None for a full step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCosts:
    """What a restore costs, and how long it may take."""

    read_bytes_per_second: float
    """With decoding."""
    max_restore_seconds: float
    link_seconds: float = 0.0
    """What a file of the chain costs beyond its bytes."""

    def restore_seconds(self, chain: Sequence[int]) -> float:
        """Seconds to read files of these bytes."""
        return sum(chain) / self.read_bytes_per_second + len(chain) * self.link_seconds


def chain_of(cycle: Sequence[Link], epoch: int) -> list[int]:
    """Bytes of the files that a restore of ``epoch`` reads, the full step first.

    Raises:
        KeyError: a base is not in ``cycle``.
    """
    by_epoch = {link.epoch: link for link in cycle}
    link, found = by_epoch[epoch], [by_epoch[epoch].nbytes]
    while link.base is not None:
        link = by_epoch[link.base]
        found.append(link.nbytes)
    return found[::-1]


def choose_base(cycle: Sequence[Link], costs: ChainCosts, *, since_full: int, since_previous: int) -> int | None:
    """The epoch to write the next step against; None: write it in full.

    A difference is chosen only if its restore stays within the limit. A full step is due once the next difference costs
    at least as much as the steps since the last full one did on average: with sizes that grow, this is the least
    average cost, and the predictor of Check-N-Run (1 + S_1 + ... + S_i <= (i + 1) S_i).

    Args:
        cycle: the steps since the last full one, which is the first; empty: there is none.
        costs: of a restore.
        since_full: predicted bytes of the next step against the last full one: what changed, times the ratio that the
            encoding reached so far.
        since_previous: the same against the step before.
    """
    if not cycle:
        return None
    first, last = cycle[0].epoch, cycle[-1].epoch
    chains = {first: [cycle[0].nbytes, since_full]}
    chains.setdefault(last, [*chain_of(cycle, last), since_previous])
    within = [
        (chain[-1], base)
        for base, chain in chains.items()
        if costs.restore_seconds(chain) <= costs.max_restore_seconds and len(chain) <= MAX_LINKS
    ]
    nbytes, best = min(within, default=(0, None))
    return None if nbytes * len(cycle) >= sum(link.nbytes for link in cycle) else best


def pays_full(cycle: Sequence[Link], alone: int) -> bool:
    """Whether to begin another cycle like this one, instead of steps without a base, of ``alone`` bytes each."""
    return len(cycle) > 1 and sum(link.nbytes for link in cycle) < len(cycle) * alone
