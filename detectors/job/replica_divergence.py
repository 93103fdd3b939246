"""Ranks that should hold the same parameters and do not, or whose gradients are unlike their replicas'.

Data-parallel replicas step with the same averaged gradients, so that digests of their parameters agree bit for bit at
every step; one that differs has computed, stored or received something wrong, and the majority says which (a replica
hash, the cheapest test for silent corruption). Ranks of other tensor or pipeline places differ by design, and so do
replicas whose parameters are sharded over dp: where digests never agreed, there is no finding.

A local gradient norm that departs from its replicas' and stays away is a weaker sign of the same: data may differ too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.entity_state import NORMAL_MAD, EntityState, append_rows, median

Groups = list[npt.NDArray[np.intp]]
_QUORUM = 3
"""Replicas from which on a majority exists."""
LEARN = 20
"""Steps of a rank's usual departure from its replicas."""
SKIP = 5
CLIP, DRIFT, BEGIN, END, CAP = 4.0, 1.0, 12.0, 3.0, 15.0
"""CUSUM: exp(2k(h + 1.17k)) / 2k^2 = 1.3e11 rank-steps to a false alarm (Siegmund)."""
FLOOR = 0.05
"""Least noise of a log gradient norm: batches differ."""
LEAST = float(np.log(2.0))
"""Least departure said: twice or half of the replicas' norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestComparison:
    """What one step's digests say."""

    odd: Bools
    """[R] in the minority, or one of two that disagree."""
    even: Bools
    """[R] agrees with a majority of its replicas (or with all)."""
    split: Bools
    """[R] ``odd`` without a majority against it."""


class DigestTracker:
    """Parameter digests of groups of replicas."""

    def __init__(self) -> None:
        self.compared = 0
        """Comparisons of groups so far."""
        self.agreed = 0
        """Of these, how many found a majority that agrees."""

    def judge(self, digest: Floats, groups: Groups, trusted: Bools) -> DigestComparison:
        """One step's digests.

        Args:
            digest: [R], NaN where none was made.
            groups: rows of each group of replicas.
            trusted: [R] members of groups whose digests once agreed; updated here.
        """
        size = len(digest)
        odd, even, split = (np.zeros(size, dtype=np.bool_) for _ in range(3))
        for members in groups:
            told = members[np.isfinite(digest[members])]
            if len(told) < 2:
                continue
            self.compared += 1
            _, which, counts = np.unique(digest[told], return_inverse=True, return_counts=True)
            best = int(np.argmax(counts))
            major = 2 * counts[best] > len(told)
            if major:
                self.agreed += 1
                trusted[members] = True
                even[told[which == best]] = True
                odd[told[which != best]] = True
            elif trusted[told].all():
                odd[told] = split[told] = True
        return DigestComparison(odd=odd, even=even, split=split)


def declare(rows: EntityState) -> EntityState:
    """Fields of the gradient-norm test and of trust in digests."""
    rows.field("trusted", fill=False, dtype=np.bool_)
    rows.field("departed", np.nan, np.float64, (LEARN,)).field("departure", np.nan).field("norms", 0, np.int64)
    rows.field("off_score", 0.0).field("off_side", 0.0).field("off_now", np.nan, np.float64, (5,))
    return rows.field("off", fill=False, dtype=np.bool_)


def watch_norms(rows: EntityState, norms: Floats, groups: Groups) -> npt.NDArray[np.intp]:
    """Take one step's gradient norms; returns the rows whose state changed (``rows["off"]``)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        x = np.where(norms > 0.0, np.log(norms), np.nan)
    apart = np.full_like(x, np.nan)
    for members in groups:
        told = members[np.isfinite(x[members])]
        if len(told) >= _QUORUM:
            apart[told] = x[told] - float(median(x[told]))
    known = np.isfinite(apart)
    rows["norms"] = rows["norms"] + known
    fresh = known & np.isnan(rows["departure"]) & (rows["norms"] > SKIP)
    append_rows(rows["departed"], apart, fresh)
    ready = fresh & np.isfinite(rows["departed"][0])
    if ready.any():
        rows["departure"][ready] = median(rows["departed"][:, ready].T)
    judged = known & np.isfinite(rows["departure"]) & ~ready
    if not judged.any():
        return np.zeros(0, np.intp)
    return _score(rows, apart - rows["departure"], judged)


def _score(rows: EntityState, r: Floats, judged: Bools) -> npt.NDArray[np.intp]:
    calm = judged & ~rows["off"] & (rows["off_score"] < BEGIN / 2)
    append_rows(rows["departed"], r + rows["departure"], calm)
    memory = rows["departed"] - rows["departure"]
    own = NORMAL_MAD * median(np.abs(memory.T))
    noise = np.maximum(np.fmax(own, float(median(own))), FLOOR)
    side = np.where(rows["off_score"] > 0.0, rows["off_side"], np.sign(r))  # it is off to one side, not to both
    moved = np.clip(rows["off_score"] + np.clip(side * r / noise, -CLIP, CLIP) - DRIFT, 0.0, CAP)
    rows["off_score"] = np.where(judged, moved, rows["off_score"])
    rows["off_side"] = np.where(judged, side, rows["off_side"])
    append_rows(rows["off_now"], r, judged)
    shown = np.abs(median(rows["off_now"].T)) >= LEAST
    begins = judged & ~rows["off"] & (rows["off_score"] >= BEGIN) & shown
    ends = judged & rows["off"] & (rows["off_score"] <= END)
    rows["off"] = (rows["off"] | begins) & ~ends
    return np.flatnonzero(begins | ends)
