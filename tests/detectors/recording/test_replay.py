"""A replay joins hosts to their devices by the second, tells who was heard when and lets time pass between events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Feed, Samples
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.recording import replay
from mainstay.detectors.recording.in_memory import InMemoryRecording
from mainstay.detectors.recording.model import FleetInfo
from mainstay.probes.core_types import Event, EventKind, Severity
from mainstay.probes.signals import SignalSource

NAN = float("nan")


def chunk(times: list[float], values: list[list[float]], *nodes: str | None, device: str = "host") -> Samples:
    """[time][node] values of one signal."""
    return Samples(
        entities=tuple(Entity(node=node, device=device) for node in nodes), groups=("",) * len(nodes),
        signals=("uptime_seconds",), t=np.array(times), x=np.array(values, np.float32)[:, None],
    )  # fmt: skip


class Chunks(InMemoryRecording):
    def __init__(self, **chunks: list[Samples]) -> None:
        super().__init__(fleet=FleetInfo())
        self.chunks = {SignalSource(name): each for name, each in chunks.items()}

    def devices(self, source: SignalSource) -> Iterator[Samples]:
        return iter(self.chunks.get(source, ()))


def test_a_devices_second_is_looked_up_at_its_host() -> None:
    hosts = [chunk([1.0, 2.0], [[1.0, 10.0], [2.0, 20.0]], "a", "b"), chunk([3.0, 5.0], [[3.0], [5.0]], "a")]
    lookup = replay._Lookup(Chunks(host=hosts), SignalSource.HOST, ("uptime_seconds", "memory_used_bytes"))
    found = lookup.at(np.array([2.0, 3.0, 4.0]), ["a", "b", "c", None, "a"])
    assert found.shape == (3, 2, 5)
    np.testing.assert_equal(found[:, 0].tolist(), [[2, 20, NAN, NAN, 2], [3, NAN, NAN, NAN, 3], [NAN] * 5])
    assert np.isnan(found[:, 1]).all()
    assert lookup.at(np.zeros(0), ["a"]).shape == (0, 2, 1)
    np.testing.assert_equal(lookup.at(np.array([5.0, 6.0]), ["a"])[:, 0].tolist(), [[5.0], [NAN]])
    assert [held.t.tolist() for held in lookup._held] == [[3.0, 5.0]], "what is over is not held"
    assert np.isnan(lookup.at(np.array([7.0]), ["a"])).all()


def test_a_host_is_read_no_further_than_its_devices() -> None:
    hosts = [chunk([float(k)], [[float(k)]], "a") for k in range(5)]
    lookup = replay._Lookup(Chunks(host=hosts), SignalSource.HOST, ("uptime_seconds",))
    lookup.at(np.array([0.0, 1.0]), ["a"])
    assert [held.t.tolist() for held in lookup._held] == [[0.0], [1.0]]
    lookup.at(np.array([1.0, 2.0]), ["a"])
    assert [held.t.tolist() for held in lookup._held] == [[1.0], [2.0]]


def test_the_worst_of_a_nodes_gpus_stands_beside_its_host() -> None:
    values = [[[50.0, 61.0, 40.0], [90.0, 70.0, 80.0]]]  # [time][signal][GPU]
    gpus = Samples(
        entities=(Entity(node="a", device="g0"), Entity(node="a", device="g1"), Entity(node="b", device="g0")),
        groups=("",) * 3, signals=("gpu_temperature_celsius", "gpu_power_watts"), t=np.array([1.0]),
        x=np.array(values, np.float32),
    )  # fmt: skip
    signals = ("gpu_power_watts", "gpu_temperature_celsius", "gpu_sm_clock_hertz")
    lookup = replay._Lookup(Chunks(gpu=[gpus]), SignalSource.GPU, signals)
    found = lookup.at(np.array([1.0, 2.0]), ["b", "a", "c"])
    np.testing.assert_equal(found[0].tolist(), [[80, 70, NAN], [40, 61, NAN], [NAN] * 3])
    assert np.isnan(found[1]).all()


def test_nodes_are_heard_while_any_device_of_theirs_says_something() -> None:
    heard: list[tuple[float, dict[str, float]]] = []

    class Beats:
        def update(self, samples: Samples) -> list[Any]:
            assert samples.signals == ("last_beat", "last_other")
            assert samples.groups == ("fleet",) * len(samples.entities)
            assert np.isnan(samples.x[0, 1]).all()
            nodes = [str(entity.node) for entity in samples.entities]
            heard.append((float(samples.t[0]), dict(zip(nodes, samples.x[0, 0].tolist(), strict=True))))
            return []

    hosts = [chunk([1.0, 2.0], [[1.0, NAN, 1.0], [NAN, 1.0, 1.0]], "b", "a", None), chunk([4.0], [[1.0]], "a")]
    made, beats = Chunks(host=hosts, gpu=[chunk([1.0, 3.0], [[NAN], [1.0]], "b", device="gpu0")]), Beats()
    detector: Any = beats
    assert replay._beats(made, detector) == []
    assert heard == [
        (1.0, {"b": 1.0}), (2.0, {"a": 2.0, "b": 1.0}), (3.0, {"a": 2.0, "b": 3.0}), (4.0, {"a": 4.0, "b": 3.0}),
    ]  # fmt: skip


def stub(name: str, feed: Feed, signals: tuple[str, ...], host: tuple[str, ...] = ()) -> tuple[type, list[Any]]:
    """A detector that writes down which signals it is given and says one finding that ends at once."""
    given: list[Any] = []

    def update(_self: Any, samples: Samples) -> list[Finding]:
        given.append(samples.signals)
        about = Finding(kind=FindingKind.XID, entity=Entity(node=name), time=float(samples.t[0]), detector=name,
                        severity=Severity.INFO, confidence=1.0, evidence=Evidence(summary="x"))  # fmt: skip
        return [replace(about, active=False), about]

    body = {"name": name, "feed": feed, "signals": signals, "host_signals": host, "gpu_signals": (), "update": update}
    return type(name, (), body), given


def test_each_detector_is_given_the_devices_whose_signals_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "narrow": stub("narrow", Feed.DEVICES, ("gpu_power_watts",)),
        "wide": stub("wide", Feed.DEVICES, ("gpu_ecc_corrected_total",)),
        "beside": stub("beside", Feed.DEVICES, ("gpu_power_watts",), ("uptime_seconds", "gpu_temperature_celsius")),
        "host": stub("host", Feed.DEVICES, ("cpu_utilization_ratio",)),
        "ranks": stub("ranks", Feed.STEPS, ("gpu_power_watts",)),
        "heartbeat": stub("heartbeat", Feed.DEVICES, ("gpu_power_watts",)),
    }
    monkeypatch.setattr(replay, "ARRAY_DETECTORS", {name: kind for name, (kind, _) in kinds.items()})
    monkeypatch.setattr(replay, "EVENT_DETECTORS", {})
    gpu = replace(chunk([1.0], [[1.0]], "a", device="g"), signals=("gpu_power_watts",))
    made = Chunks(gpu=[gpu, replace(gpu, t=np.array([2.0]))])
    assert [(f.detector, f.active) for f in replay.replay(made, ["narrow", "wide", "host", "ranks"])] == [
        ("narrow", True),
        ("narrow", False),
    ] * 2, "what begins stands before what ends"
    assert [f.time for f in replay.replay(made, ["narrow"])] == [1.0, 1.0, 2.0, 2.0]
    replay.replay(made, ["narrow", "beside"])
    both = ("gpu_power_watts", "uptime_seconds")
    assert kinds["beside"][1] == [both] * 2, "with what the host alone measures"
    assert kinds["narrow"][1] == [("gpu_power_watts",)] * 4 + [both] * 2
    assert {name for name, (_, given) in kinds.items() if given} == {"narrow", "beside"}
    assert {f.detector for f in replay.replay(made)} == {"narrow", "beside", "heartbeat"}
    assert kinds["heartbeat"][1] == [("last_beat", "last_other")] * 2


@dataclass
class Log:
    """An event detector that writes down what it hears."""

    heard: list[float | str] = field(default_factory=list)

    def update(self, events: list[Event]) -> list[Any]:
        self.heard += [event.id for event in events]
        return []

    def advance_clock(self, now: float) -> list[Any]:
        self.heard.append(now)
        return []


@pytest.mark.parametrize(
    ("times", "heard"),
    [
        ([], []),
        ([0.0, 10.0], ["0.0", "10.0"]),  # the second is at ten: no look comes before
        ([0.0, 10.5, 31.0], ["0.0", 10.0, "10.5", 20.0, 30.0, "31.0"]),
    ],
)
def test_time_passes_in_tens_of_seconds_between_events(times: list[float], heard: list[float | str]) -> None:
    log, events = Log(), [Event(id=str(time), time=time, kind=EventKind.XID, node="a", data={}) for time in times]
    detectors: Any = [log]
    assert replay._events(events, detectors) == []
    assert log.heard == heard
