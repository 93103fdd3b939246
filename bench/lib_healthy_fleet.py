"""False alarms on a simulated healthy fleet: every detector of devices over GPUs, hour after hour.

``python -m bench.lib_healthy_fleet --gpus 5000 --hours 24 --seed 1`` prints one JSON object. Simulated: what is in the
telemetry is described in ``tests/detectors/healthy.py``; a finding is a false alarm by construction.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.report import Row
from mainstay.detectors.base import Feed
from mainstay.detectors.finding import Finding
from mainstay.detectors.registry import ARRAY_DETECTORS
from mainstay.probes.core_types import Severity
from tests.detectors.healthy import SIGNALS, healthy_chunks

_ROOT = Path(__file__).resolve().parents[1]
_CHUNK = 60
_TOLD = 20


@dataclass
class Alarms:
    """Findings about a fleet in which nothing was broken."""

    gpus: int
    hours: float
    seed: int
    evict: int = 0
    warn: int = 0
    info: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    detect_seconds: float = 0.0
    """Processor time of the detectors alone."""
    told: list[str] = field(default_factory=list)

    def count_finding(self, finding: Finding) -> None:
        if not finding.active:
            return
        if finding.recommended_action.evicts and finding.severity is not Severity.INFO:
            self.evict += 1
        elif finding.severity is not Severity.INFO:
            self.warn += 1
        else:
            self.info += 1
            return
        self.kinds[finding.kind] = self.kinds.get(finding.kind, 0) + 1
        if len(self.told) < _TOLD:
            self.told.append(f"{finding.kind} {finding.entity.key}: {finding.evidence.summary}")


def watch(gpus: int, hours: float, seed: int) -> Alarms:
    """Run every array detector that reads any of a GPU's signals."""
    alarms = Alarms(gpus, hours, seed)
    classes = [cls for cls in ARRAY_DETECTORS.values() if cls.feed is Feed.DEVICES and set(cls.signals) & set(SIGNALS)]
    detectors = [cls() for cls in classes]
    for samples in healthy_chunks(gpus, int(hours * 3600), seed, chunk=_CHUNK):
        began = time.process_time()
        found = [finding for detector in detectors for finding in detector.update(samples)]
        alarms.detect_seconds += time.process_time() - began
        for finding in found:
            alarms.count_finding(finding)
    return alarms


def in_processes(gpus: int, hours: float, processes: int) -> Alarms:
    """The same over several processes, each with its own part of the fleet and its own seed."""
    share = gpus // processes // 8 * 8
    command = [sys.executable, "-m", "bench.lib_healthy_fleet", "--gpus", str(share), "--hours", str(hours), "--seed"]
    running = [subprocess.Popen([*command, str(seed)], cwd=_ROOT, stdout=subprocess.PIPE) for seed in range(processes)]
    total = Alarms(share * processes, hours, processes)
    kinds: Counter[str] = Counter()
    for process in running:
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a part of the simulation ended with code {process.returncode}")
        part = Alarms(**json.loads(out))
        total.evict, total.warn, total.info = total.evict + part.evict, total.warn + part.warn, total.info + part.info
        total.detect_seconds += part.detect_seconds
        total.told += part.told
        kinds.update(part.kinds)
    total.kinds = dict(kinds)
    return total


def rows(gpus: int, hours: float, processes: int) -> list[Row]:
    """The two claims, as rates per 10,000 GPUs and 24 h."""
    alarms = in_processes(gpus, hours, processes)
    scale = alarms.gpus / 10_000 * hours / 24
    cost = alarms.detect_seconds / (hours * 3600) * 10_000 / alarms.gpus * 1e3
    told = "; ".join(alarms.told) or "no findings"
    note = f"{told}. Information, which opens nothing: {alarms.info / scale:.0f}"
    return [
        Row(
            claim=f"Evict-grade false alarms per 10,000 GPUs x 24 h ({alarms.gpus:,} GPUs, {hours:g} h)",
            figure=alarms.evict / scale, unit="findings", target="<= 0.1", holds=alarms.evict / scale <= 0.1,
            kind="simulated", n=alarms.evict,
        ),
        Row(
            claim="Warn-grade false alarms, the same",
            figure=alarms.warn / scale, unit="findings", target="<= 2", holds=alarms.warn / scale <= 2,
            kind="simulated", n=alarms.warn, note=note,
        ),
        Row(
            claim="Detectors' processor time for a second of 10,000 GPUs",
            figure=cost, unit="ms", target="", holds=None, kind="simulated", n=int(hours * 3600),
        ),
    ]  # fmt: skip


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lib_healthy_fleet")
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    print(json.dumps(asdict(watch(asked.gpus, asked.hours, asked.seed))))


if __name__ == "__main__":
    main(sys.argv[1:])
