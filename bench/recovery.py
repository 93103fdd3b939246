"""Everything that is claimed of recovery from memory, in one table: runs the benches of the parts one after the other.

``python -m bench.recovery [--json FILE] [--quick] [--only a,b] [--seconds LIMIT]``: about an hour and a half, quick a
quarter of an hour. Each part can be run alone (``make bench-kill_matrix``…) and keeps its own results; a part that
cannot run here, or not within the limit, is a row with the reason. ``--quick`` makes fewer runs where a part allows it,
and keeps nothing of those.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.detect import part
from bench.report import RESULTS, Row, publish

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "kill_matrix": ("--quick",),  # SIGKILL at random points, live: counts
    "placement": (),  # every set of lost nodes decoded; GEMINI's formula
    "snapshot_overhead": ("--quick",),  # one snapshot an iteration, beside other ways to save
    "snapshot_path": (),  # copy, digest, transfer, as ratios to memcpy and raw TCP
    "coding": (),  # XOR, Reed-Solomon, decode, as ratios to memcpy
    "host_memory": ("--quick",),  # tmpfs and RSS against the formula
    "recovery_time": ("--quick",),  # SIGKILL to the next step, beside a full restart
    "control_plane": ("--quick",),  # coordinator, partition, failures within failures, hangs
    "migration": ("--quick",),  # how long training stands still while a rank moves
    "extra_copies": ("--quick",),  # the newest step of a node that was warned of and lost
    "reshape": ("--quick",),  # another (dp, pp), beside a stop and a resume
    "coordinator": (),  # processor time of a step record among 16,384 ranks
    "simulated_jobs": ("--events", "100000"),  # rules of a job under random faults, in simulated time
    "transport": (),  # what encryption costs snapshots and messages
    "bit_flips": (),  # flipped bits in all that is kept
    "restore_paths": ("--quick",),  # predicted and measured seconds
    "strategy_predictions": ("--quick",),  # the same of every way that is carried out, and that no sample is lost
    "protocol_fuzz": ("--quick",),  # hostile frames
    "checkpoints": ("--gib", "1"),  # beside fio, torch.save, and dcp
    "checkpoint_parity": ("--gib", "0.5"),  # two of eight disks decoded, beside cp
    "checkpoint_faults": ("--points", "100", "--stride", "20"),  # writers killed at random moments, disks that refuse
}
"""Bench -> what makes it quick; nothing: it is quick, or knows no other way."""
_LIMIT_SECONDS: Final = 2400.0
"""The longest part, the kill matrix, begins no job after half an hour."""


def left_out(name: str, why: str) -> Row:
    return Row(claim=f"bench.{name}", figure=None, unit="", target="runs", holds=None, kind="live", note=why)


def rows(names: Sequence[str], seconds: float, *, quick: bool) -> Iterator[Row]:
    """Of the parts in ``names``, as long as ``seconds`` last."""
    until = time.monotonic() + seconds
    for name in names:
        left = until - time.monotonic()
        if left <= 0.0:
            yield left_out(name, f"could not run: {seconds:.0f} s were over")
            continue
        yield from part(name, *(PARTS[name] if quick else ()), limit=min(left, _LIMIT_SECONDS))
        print(f"bench.{name}: done", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the whole table."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery")
    parser.add_argument("--json", type=Path, default=RESULTS / "recovery.json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer runs where a part allows it")
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help="these parts")
    parser.add_argument("--seconds", type=float, default=7200.0, help="for all parts together")
    given = parser.parse_args(argv)
    names = given.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is none of {', '.join(PARTS)}")
    publish("recovery", list(rows(names, given.seconds, quick=given.quick)), given.json)


if __name__ == "__main__":
    main()
