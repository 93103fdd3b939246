"""A change that no single signal shows is found; what all peers do, gaps, and the first hours raise nothing."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.host_anomaly import HostAnomalyDetector
from mainstay.probes.core_types import HOST_DEVICE, Severity

T0 = 1.7e9 // 60 * 60
SIGNALS = HostAnomalyDetector.signals
NODES, HOURS, FAULT = 8, 7, 6
BROKEN = 2


def hosts(seed: int, *, hours: int = HOURS, nodes: int = NODES) -> Samples:
    """One sample a minute; a load of each node's own drives all signals."""
    rng = np.random.default_rng(seed)
    minutes = hours * 60
    load = np.zeros((minutes, nodes))
    for k in range(1, minutes):
        load[k] = 0.8 * load[k - 1] + rng.normal(0.0, 0.1, nodes)
    x = np.empty((minutes, len(SIGNALS), nodes))
    for s, name in enumerate(SIGNALS):
        noise = rng.normal(0.0, 0.02, load.shape)
        x[:, s] = 0.4 + 0.2 * load + noise if name.endswith("_ratio") else np.exp(8.0 + 2.0 * load + 2.0 * noise)
    x[:, SIGNALS.index("uptime_seconds")] = 1e6
    return Samples(
        entities=tuple(Entity(node=f"n{n}", device=HOST_DEVICE) for n in range(nodes)),
        groups=("gpu/EPYC",) * nodes,
        signals=SIGNALS,
        t=T0 + 60.0 * np.arange(minutes, dtype=np.float64),
        x=x,
    )


def uncoupled(samples: Samples, *, start: int = FAULT * 60, minutes: int = 60) -> Samples:
    """One node's traffic no longer goes with its load: its values are those of an earlier hour, all usual ones."""
    at = SIGNALS.index("network_receive_bytes_total")
    usual = samples.x[start - minutes - 90 : start - 90, at, BROKEN]
    samples.x[start : start + minutes, at, BROKEN] = usual
    return samples


def example(seed: int) -> Samples:
    return uncoupled(hosts(seed))


def findings_of(samples: Samples) -> list[Finding]:
    return HostAnomalyDetector().update(samples)


@pytest.mark.parametrize("seed", range(3))
def test_a_change_that_no_signal_shows_alone_is_found_with_the_signal(seed: int) -> None:
    samples = example(seed)
    at = SIGNALS.index("network_receive_bytes_total")
    series = np.log(samples.x[:, at, BROKEN])
    assert series[FAULT * 60 :].max() <= series[: FAULT * 60].max()
    begun, *rest = findings_of(samples)
    assert (begun.kind, begun.severity) == (FindingKind.SIGNAL_OUTLIER, Severity.INFO)
    assert begun.entity.node == f"n{BROKEN}"
    assert T0 + FAULT * 3600 < begun.time <= T0 + FAULT * 3600 + 1800
    assert "network_receive_bytes_total" in begun.evidence.summary
    assert {f.entity.node for f in rest} == {f"n{BROKEN}"}
    assert not rest[-1].active


def test_a_load_that_all_peers_change_is_none() -> None:
    samples = hosts(1)
    samples.x[FAULT * 60 :, :-1] *= 1.4
    assert findings_of(samples) == []


def test_the_same_change_of_one_node_is_one() -> None:
    samples = hosts(1)
    samples.x[FAULT * 60 :, :-1, BROKEN] *= 1.4
    assert {f.entity.node for f in findings_of(samples)} == {f"n{BROKEN}"}


def test_it_learns_before_it_judges() -> None:
    detector = HostAnomalyDetector()
    assert detector.status().state is DetectorState.IDLE
    early = uncoupled(hosts(0, hours=5), start=170)
    assert detector.update(early.part(0, 240)) == []
    assert detector.status().state is DetectorState.LEARNING
    detector.update(early.part(240, 300))
    assert detector.status().state is DetectorState.ACTIVE


def test_a_node_that_boots_or_sends_nothing_is_not_judged() -> None:
    samples = example(0)
    samples.x[FAULT * 60 :, SIGNALS.index("uptime_seconds"), BROKEN] = 60.0
    assert findings_of(samples) == []


def test_a_signal_that_no_node_has_changes_nothing() -> None:
    samples = example(0)
    samples.x[:, SIGNALS.index("disk_read_bytes_total")] = np.nan
    assert [f.entity.node for f in findings_of(samples) if f.active] == [f"n{BROKEN}"]


def test_many_changes_in_a_row_tighten_the_threshold() -> None:
    detector = HostAnomalyDetector()
    detector.update(example(0))
    assert detector.status().numbers["tightened"] > 1.5
