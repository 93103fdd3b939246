"""A change that no single signal shows is found; what all peers do, gaps, and the first hours raise nothing."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.host_anomaly import HostAnomalyDetector
from mainstay.probes.core_types import HOST_DEVICE, Severity

T0 = 1.7e9 // 60 * 60
SIGNALS = HostAnomalyDetector.signals
NODES, HOURS, FAULT = 8, 13, 12
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


def restarted(detector: HostAnomalyDetector) -> HostAnomalyDetector:
    """Another one that continues from what this one learned, through a file."""
    file, fresh = BytesIO(), HostAnomalyDetector()
    np.savez(file, **detector.learned())  # type: ignore[arg-type]
    with np.load(BytesIO(file.getvalue()), allow_pickle=False) as learned:
        fresh.restore_learned(dict(learned))
    return fresh


@pytest.mark.parametrize("minute", [240, 700, 723, 725, 750])
def test_a_restart_gives_the_findings_of_no_restart(minute: int) -> None:
    samples, detector = example(0), HostAnomalyDetector()
    found = detector.update(samples.part(0, minute))
    after = restarted(detector)
    assert found + after.update(samples.part(minute, HOURS * 60)) == findings_of(samples)


def test_hosts_that_come_back_one_by_one_continue_from_what_was_learned() -> None:
    samples, detector = example(0), HostAnomalyDetector()
    detector.update(samples.part(0, 300))
    after = restarted(detector)
    few = replace(samples, entities=samples.entities[2:], groups=samples.groups[2:], x=samples.x[:, :, 2:])
    after.update(few.part(300, 301))
    assert after.status().numbers == {"nodes": 6.0, "learned": 6.0, "tightened": 1.0}
    found = after.update(samples.part(301, HOURS * 60))
    assert [f.entity.node for f in found if f.active] == [f"n{BROKEN}"]
    assert after.holds(FindingKind.SIGNAL_OUTLIER, samples.entities[BROKEN]) is found[-1].active


@pytest.mark.parametrize(("name", "text"), [("signals", "other signals"), ("mean", "no field mean of shape")])
def test_what_another_release_learned_is_refused(name: str, text: str) -> None:
    detector = HostAnomalyDetector()
    detector.update(hosts(0, hours=1))
    learned = detector.learned()
    with pytest.raises(ValueError, match=text):
        HostAnomalyDetector().restore_learned(learned | {name: learned[name][1:]})


def with_gpus(samples: Samples) -> Samples:
    """The hottest, idlest, or slowest GPU of each host, which all do alike."""
    rng, names = np.random.default_rng(9), HostAnomalyDetector.gpu_signals
    usual = {"gpu_utilization_ratio": 0.97, "gpu_power_watts": 650.0, "gpu_sm_clock_hertz": 1.7e9}
    level = np.array([usual.get(name, 60.0) for name in names])[:, None]
    noise = rng.normal(0.0, 0.01, (len(samples.t), len(names), NODES))
    return replace(samples, signals=(*SIGNALS, *names), x=np.concatenate([samples.x, level * np.exp(noise)], axis=1))


def test_a_gpu_that_slows_down_is_named() -> None:
    samples = with_gpus(hosts(4))
    assert findings_of(samples) == []
    at = samples.signals.index("gpu_sm_clock_hertz")
    samples.x[FAULT * 60 :, at, BROKEN] *= 0.8
    begun = findings_of(samples)[0]
    assert begun.entity.node == f"n{BROKEN}"
    assert "gpu_sm_clock_hertz" in begun.evidence.summary
