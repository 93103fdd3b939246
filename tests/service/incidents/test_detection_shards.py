"""Shards of detection together find what one process finds, and each part of detection has one shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.detectors.base import Feed
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.registry import ARRAY_DETECTORS
from mainstay.probes.core_types import Severity
from mainstay.service.incidents.detection_shards import SHARDS, WHOLE, shards
from tests.service.incidents.sharded_run import GeneratedRun, detectors_of

FLEET = [name for name, detector in ARRAY_DETECTORS.items() if detector.feed is Feed.DEVICES]
COUNTS = st.integers(1, 16)


@pytest.mark.slow
def test_any_number_of_shards_finds_the_same() -> None:
    seen = set[str]()
    for seed in range(2):
        run = GeneratedRun(seed)
        whole = run.evaluate(1)
        seen |= detectors_of(whole)
        for count in (2, 8):
            assert run.evaluate(count) == whole, f"seed {seed}, {count} shards"
    assert seen >= {"heartbeat", "throttle", "straggler", "hang"}


@given(COUNTS)
def test_each_detector_of_the_fleet_has_one_shard(count: int) -> None:
    for name in FLEET:
        assert sum(shard.has_detector(name) for shard in shards(count)) == 1, name


@given(COUNTS, st.text(min_size=1))
def test_each_job_and_each_finding_has_one_shard(count: int, job: str) -> None:
    assert sum(shard.has_job(job) for shard in shards(count)) == 1
    for name, entity in (("straggler", Entity(job=job, rank=1)), ("outlier", Entity(node="n1", device="gpu0"))):
        finding = Finding(
            kind=FindingKind.STRAGGLER, entity=entity, time=1.0, severity=Severity.WARNING, detector=name,
            confidence=1.0, evidence=Evidence(summary="It is slow."),
        )  # fmt: skip
        (one,) = [shard for shard in shards(count) if shard.has_finding(finding)]
        assert one.has_job(job) if name == "straggler" else one.has_detector(name)


def test_one_process_runs_everything() -> None:
    assert all(WHOLE.has_detector(name) for name in FLEET)
    assert WHOLE.has_job("any")


def test_each_shard_of_a_service_has_detectors_of_the_fleet() -> None:
    held = Counter(shard.lease for name in FLEET for shard in shards(SHARDS) if shard.has_detector(name))
    assert set(held) == {"detection", "detection-1", "detection-2", "detection-3"}
