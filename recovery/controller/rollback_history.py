"""Which snapshots belong to the job's own past, and what its parameters were there.

A job that goes back repeats steps, and may make them differently: a faulty device is gone, a data loader is repaired.
Slots and files of the steps that were given up carry the same epochs as the new ones, so an epoch alone does not say
what state it is. The generation in which a snapshot was committed does: a job that went back to epoch E in generation
g holds nothing of a later epoch that is older than g. Agents forget such slots on request; files stay, an
agent may not have heard, and a rank that has not come as far the second time must not be given what it held the first.
"""

from __future__ import annotations

from typing import Final

_REMEMBERED: Final = 256
"""Epochs whose digests are kept."""


class RollbackHistory:
    """One a job. ``record_rollback`` receives every return before any rank does."""

    def __init__(self) -> None:
        self._returns: list[tuple[int, int]] = []
        """(epoch, generation), both rising: a return to an earlier epoch says all that the later ones said."""
        self._digests: dict[int, dict[int, int]] = {}
        """Epoch -> rank -> digest of its parameters."""

    @property
    def returns(self) -> tuple[tuple[int, int], ...]:
        """(epoch, generation) of what the job has gone back from, as ``mainstay.recovery.checkpoint`` keeps it."""
        return tuple(self._returns)

    def record_rollback(self, epoch: int, generation: int) -> None:
        """The job begins again at ``epoch``, in ``generation``."""
        while self._returns and self._returns[-1][0] >= epoch:
            self._returns.pop()
        self._returns.append((epoch, generation))
        for later in [e for e in self._digests if e > epoch]:
            del self._digests[later]

    def holds(self, epoch: int, generation: int) -> bool:
        """Whether a snapshot of ``epoch``, committed in ``generation``, is of the past that the job has now."""
        return all(epoch <= to or generation >= since for to, since in self._returns)

    def note(self, rank: int, epoch: int, digest: int) -> None:
        """A rank has told the digest of its parameters as it committed ``epoch``; the first word counts."""
        self._digests.setdefault(epoch, {}).setdefault(rank, digest)
        for old in sorted(self._digests)[:-_REMEMBERED]:
            del self._digests[old]

    def remember(self, epoch: int, digests: dict[int, int]) -> None:
        """What all have restored, once it is known to be right: a rank may have taken a replica's state."""
        self._digests.pop(epoch, None)
        for rank, digest in digests.items():
            self.note(rank, epoch, digest)

    def digest_diverged(self, epoch: int, digests: dict[int, int]) -> set[int]:
        """Ranks whose parameters at ``epoch`` are not those that they once had there, as far as that is known."""
        known = self._digests.get(epoch, {})
        return {rank for rank, digest in digests.items() if known.get(rank, digest) != digest}
