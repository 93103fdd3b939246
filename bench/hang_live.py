"""A hang, live: SIGSTOP on a rank of a real job, and the clock stops when the service's API names it.

Each time a fresh job, because a hang that ends teaches the detector of that job what a long pause is. Beside the time
in the API stands that of the coordinator's own watch, which needs no service.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.lib_health_live import quantile
from bench.report import Row, publish
from tests.scenarios.sick.site import Site, serving, training

RANKS: Final = 4
DEVICE_MS: Final = 25
HANGS: Final = ("noncomm_hang", "comm_hang", "collective_mismatch")
_WAIT_S: Final = 60.0
"""A hang that no detector reported by then counts as found then."""
_POLL_S: Final = 0.02
_CALM_S: Final = 5.0
"""Trained on after the period is learned, in which the detector may blame no rank."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One stopped rank."""

    api: float | None
    """Seconds until the API named any rank."""
    coordinator: float | None
    right: bool
    early: int
    """Findings before there was a hang."""


def trial(here: Site, victim: int, chance: random.Random) -> Trial:
    """Wait until the job's period is learned, stop a rank, and see who is blamed."""
    here.until(lambda: here.account("hang").get("state") == "active", 180.0, "a learned period")
    time.sleep(_CALM_S + chance.random())
    early = len(here.findings(*HANGS, active=None))
    stopped_at, began = time.time(), here.stop(victim)
    seconds: float | None = None
    while time.monotonic() - began < _WAIT_S:
        if here.findings(*HANGS):
            seconds = time.monotonic() - began
            break
        time.sleep(_POLL_S)
    time.sleep(2.0)  # what is corrected by late reports is corrected by now
    dumps = [event["time"] for event in here.job.events("stack_dump") if event["time"] > stopped_at]
    blamed = {(f["kind"], f["entity"]["rank"]) for f in here.findings(*HANGS)}
    own = min(dumps) - stopped_at if dumps else None
    return Trial(seconds, own, blamed == {("noncomm_hang", victim)}, early)


def run(count: int, seed: int) -> list[Trial]:
    """``count`` jobs, one after the other, in front of one service."""
    chance = random.Random(seed)
    faults = ";".join(f"sleep:rank={rank},ms={DEVICE_MS}" for rank in range(RANKS))
    words = ("--steps", 100_000, "--width", 64, "--layers", 2, "--batch", 2, "--dp", 2, "--pp", 2, "--faults", faults)
    found = []
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as stack:
        for number in range(count):
            victim = chance.randrange(RANKS)
            with training(stack, *words, ranks=RANKS, name=f"job-{number}", options=("--on-hang", "report")) as here:
                found.append(trial(here, victim, chance))
            print(f"rank {victim} stopped: {found[-1]}", flush=True)
    return found


def rows(trials: Sequence[Trial]) -> list[Row]:
    size = len(trials)
    api = [_WAIT_S if t.api is None else t.api for t in trials]
    own = [_WAIT_S if t.coordinator is None else t.coordinator for t in trials]
    note = f"SIGSTOP, {RANKS} ranks, from {min(api):.1f} to {max(api):.1f} s; other work ran on the machine"
    made = [
        Row(
            claim=f"Hang to finding in the API, p{share * 100:.0f}", figure=round(quantile(api, share), 2), unit="s",
            target=f"<= {target:g}", holds=quantile(api, share) <= target, kind="live", n=size, note=note,
        )
        for share, target in ((0.5, 6.0), (0.95, 10.0))
    ]  # fmt: skip
    made.append(
        Row(
            claim="Hang to the coordinator's own alarm with stacks, p50", figure=round(quantile(own, 0.5), 2), unit="s",
            target="<= 6", holds=quantile(own, 0.5) <= 6.0, kind="live", n=size, note=f"slowest {max(own):.1f} s",
        )
    )  # fmt: skip
    right, early = sum(t.right for t in trials), sum(t.early for t in trials)
    made.append(
        Row(
            claim="Right rank, and no other, blamed for the hang", figure=right, unit=f"of {size}",
            target=f"{size}", holds=right == size, kind="live", n=size,
        )
    )  # fmt: skip
    made.append(
        Row(
            claim="Hangs said before there was one", figure=early, unit="findings", target="0", holds=early == 0,
            kind="live", n=size,
        )
    )  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--count", type=int, default=6, help="jobs; each takes half a minute")
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    publish("hang_live", rows(run(options.count, options.seed)), options.json)


if __name__ == "__main__":
    main()
