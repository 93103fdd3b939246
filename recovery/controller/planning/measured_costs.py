"""What recoveries cost in this job: each one made, and each transfer an agent timed, corrects the planner's constants.

Smoothed, because one recovery on a busy machine says little of the next: the first few count alike, later ones as a
moving average in which the newest has the weight ``_WEIGHT``. Rates are averaged as seconds a byte, which is what adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from mainstay.recovery.agent.messages import TransferRates
from mainstay.recovery.cost_model.failure_cost import MEASURED
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RestoreSource

_WEIGHT: Final = 0.25
_LEAST_SECONDS: Final = 0.001
_SPAWN_COLD_S: Final = 0.3
"""A process without a standby also comes from the warm fork server; only its first backward pass is still to come."""


@dataclass(eq=False, slots=True)
class MeasuredCosts:
    """``costs`` is what the planner prices with now."""

    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Constant -> how often it was seen, and its average: a coordinator that takes over continues with it."""

    def learn(
        self,
        ranks: Iterable[RankMember],
        ended: dict[str, float],
        acted_at: float,
        generation: int,
        *,
        cold: bool = False,
    ) -> None:
        """From a recovery. ``ended`` holds the Unix time at which each phase ended; ``cold``: no standby was warm."""
        # A phase teaches a price only if it took place: each condition asks whether one did.
        ranks = list(ranks)
        decided, resumed = ended["decide"] if "decide" in ended else ended["fence"], ended["regroup"]
        joins = [r.joined_at for r in ranks if r.joined == generation]
        joined = max([decided, *joins])
        restoring = max((r.resumed.seconds for r in ranks if r.resumed), default=0.0)
        if "save" not in ended:  # else others were fenced before it
            self._add("fence_s", max(_LEAST_SECONDS, ended["fence"] - acted_at))
        if joins:  # without a new process, nothing is learned of what one takes
            self._add("spawn_cold_s" if cold else "spawn_warm_s", max(_LEAST_SECONDS, joined - decided))
        self._add("regroup_s", max(_LEAST_SECONDS, resumed - joined - restoring))
        # Only from a rank's own slot is it the copy alone that takes time.
        own = [r.resumed for r in ranks if r.resumed and r.resumed.source is RestoreSource.LOCAL_SLOT]
        slowest = max((vote.seconds / vote.nbytes for vote in own if vote.nbytes and vote.seconds), default=0.0)
        if slowest:
            self._add("copy_s_a_byte", slowest)

    def learn_first_step(self, seconds: float, step_s: float) -> None:
        """The first step after a recovery took so long, and an ordinary one at the same rate takes ``step_s``."""
        self._add("warm_up_s", max(_LEAST_SECONDS, seconds - step_s))

    @property
    def warm_up_s(self) -> float:
        """Of the first step after a recovery, beyond an ordinary one."""
        return self.seen.get("warm_up_s", (0, MEASURED.warm_up_s))[1]

    def costs(self, measured: Iterable[TransferRates]) -> MachineCosts:
        """Constants that this job measured, the slowest node's where agents did; defaults for the others."""
        made = MachineCosts(spawn_cold_s=_SPAWN_COLD_S)
        known = {name: value for name, (_, value) in self.seen.items() if name != "warm_up_s"}
        copy = known.pop("copy_s_a_byte", None)
        rates = list(measured)
        return replace(
            made,
            **known,
            copy_Bps=1.0 / copy if copy else made.copy_Bps,
            net_Bps=min((r.net for r in rates if r.net), default=made.net_Bps),
            xor_Bps=min((r.xor for r in rates if r.xor), default=made.xor_Bps),
            disk_Bps=min((r.disk_read for r in rates if r.disk_read), default=made.disk_Bps),
        )

    def _add(self, name: str, value: float) -> None:
        count, old = self.seen.get(name, (0, 0.0))
        weight = max(_WEIGHT, 1.0 / (count + 1))
        self.seen[name] = (count + 1, old + weight * (value - old))
