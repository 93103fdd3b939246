"""What a Prometheus reads: base units, no series for what is not known, and few enough of them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainstay.probes.core_types import HealthState
from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.ids import uuid7
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource, catalog
from mainstay.service.exposition.page import FleetPage
from mainstay.service.exposition.table import exposed
from mainstay.service.fleet.directory import Fleet as Directory
from mainstay.service.fleet.directory import FleetDevice, FleetNode
from mainstay.service.telemetry.ring import TelemetryRing
from tests.service.exposition.fleet import Fleet, uuid_of

ALL = (SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)


@pytest.fixture
def fleet(service: Any, report: dict[str, Any]) -> Fleet:
    return Fleet(service, report)


def scrape(service: Any) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Metric name → labels → value; fails on a series that stands twice, as a Prometheus would."""
    answer = service.client("").get("/metrics")
    assert answer.status_code == 200
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} stands twice"
            found[sample.name][labels] = sample.value
    return found


def value(page: dict[str, Any], name: str, **labels: str) -> float | None:
    return page.get(name, {}).get(tuple(sorted(labels.items())))


GPU0 = {"gpu_uuid": uuid_of("n1", 0)}


def test_units_are_base_units(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    fleet.send(
        "n1",
        gpu0={
            "gpu_temperature_celsius": 65.5, "gpu_power_watts": 700, "gpu_utilization_ratio": 0.87,
            "gpu_memory_used_bytes": 8 * 2**30, "gpu_sm_clock_hertz": 1.98e9, "gpu_recovery_action": 1,
            "gpu_energy_millijoules_total": 91_234_567_890, "gpu_ecc_corrected_total": 2**60 + 1,
            "gpu_throttle_power_brake_nanoseconds_total": 2_500_000_000,
        },
        host={"memory_used_ratio": 0.25, "network_receive_bytes_total": 12},
        **{"nic:mlx5_0:1": {"nic_link_up": 1, "nic_rate_bits_per_second": 4e11, "nic_receive_bytes_total": 7}},
    )  # fmt: skip
    page = scrape(service)
    expected = {
        "mainstay_gpu_temperature_celsius": 65.5, "mainstay_gpu_power_watts": 700,
        "mainstay_gpu_utilization_ratio": pytest.approx(0.87),
        "mainstay_gpu_memory_used_bytes": pytest.approx(8 * 2**30),
        "mainstay_gpu_sm_clock_hertz": 1.98e9, "mainstay_gpu_recovery_action": 1,
        "mainstay_gpu_energy_joules_total": 91_234_567.89, "mainstay_gpu_throttle_power_brake_seconds_total": 2.5,
        "mainstay_gpu_ecc_corrected_total": 2**60 + 1, "mainstay_gpu_memory_bytes": 80 * 2**30,
    }  # fmt: skip
    assert {name: value(page, name, **GPU0) for name in expected} == expected
    assert value(page, "mainstay_host_memory_used_ratio", node="n1") == 0.25
    assert value(page, "mainstay_host_network_receive_bytes_total", node="n1") == 12
    port = {"node": "n1", "port": "mlx5_0:1"}
    assert value(page, "mainstay_nic_rate_bits_per_second", **port) == 4e11
    assert value(page, "mainstay_nic_receive_bytes_total", **port) == 7


def test_unknown_is_absent_and_never_zero(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    fleet.send("n1", gpu0={"gpu_power_watts": 1}, gpu1={})
    page = scrape(service)
    assert value(page, "mainstay_gpu_power_watts", **GPU0) == 1
    assert len(page["mainstay_gpu_power_watts"]) == 1
    assert "mainstay_gpu_temperature_celsius" not in page
    assert "mainstay_gpu_energy_joules_total" not in page
    assert "mainstay_host_load_1m" not in page


def test_counters_are_the_totals_that_were_read_and_do_not_fall(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    read = []
    for total in (1000, 1000, 4500, None, 9000):
        fleet.send("n1", gpu0={} if total is None else {"gpu_energy_millijoules_total": total})
        read.append(value(scrape(service), "mainstay_gpu_energy_joules_total", **GPU0))
    assert read == [1.0, 1.0, 4.5, 4.5, 9.0]


def test_a_slow_signal_stays_between_two_readings(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    fleet.send("n1", at=time.time() - 20, gpu0={"gpu_remap_pending": 1, "gpu_power_watts": 5})
    fleet.send("n1", gpu0={"gpu_power_watts": 6})
    page = scrape(service)
    assert value(page, "mainstay_gpu_remap_pending", **GPU0) == 1
    assert value(page, "mainstay_gpu_power_watts", **GPU0) == 6


def test_stale_values_and_devices_vanish(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    old = time.time() - 70
    fleet.send(
        "n1", at=old, gpu0={"gpu_power_watts": 5, "gpu_energy_millijoules_total": 4}, gpu1={"gpu_power_watts": 5}
    )
    assert "mainstay_gpu_power_watts" not in scrape(service)
    fleet.send("n1", gpu1={"gpu_temperature_celsius": 40})
    page = scrape(service)
    assert list(page["mainstay_gpu_temperature_celsius"]) == [(("gpu_uuid", uuid_of("n1", 1)),)]
    assert "mainstay_gpu_power_watts" not in page
    assert "mainstay_gpu_energy_joules_total" not in page
    assert list(page["mainstay_gpu_info"].values()) == [1]


def test_who_a_gpu_is_stands_apart(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    fleet.send("n1", gpu0={"gpu_power_watts": 5})
    fleet.job("train", [("n1", "gpu0"), ("n1", "gpu0"), ("n1", None), ("gone", "gpu0")])
    page = scrape(service)
    assert all(set(dict(labels)) == {"gpu_uuid"} for labels in page["mainstay_gpu_power_watts"])
    (info,) = page["mainstay_gpu_info"]
    assert dict(info) == {
        "gpu_uuid": uuid_of("n1", 0), "node": "n1", "device": "gpu0", "model": "H100", "serial": "s-n1-0",
        "pci": "0000:17:00.0", "driver": "",
    }  # fmt: skip
    assert [dict(labels) for labels in page["mainstay_job_gpu_info"]] == [{"job": "train", **GPU0}]


def test_odd_labels_are_escaped(service: Any, fleet: Fleet) -> None:
    fleet.node("n1", model='a "b" \\ c\nd')
    fleet.send("n1", gpu0={"gpu_power_watts": 5})
    (info,) = scrape(service)["mainstay_gpu_info"]
    assert dict(info)["model"] == 'a "b" \\ c\nd'


def test_a_card_in_two_places_is_told_once(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    fleet.node("n2", like="n1")
    fleet.send("n1", gpu0={"gpu_power_watts": 5})
    fleet.send("n2", gpu0={"gpu_power_watts": 6})
    assert len(scrape(service)["mainstay_gpu_power_watts"]) == 1


def test_a_new_card_and_a_new_job_are_on_the_next_page(service: Any, fleet: Fleet) -> None:
    """Labels are kept from page to page, but not longer than they are right."""
    fleet.node("n1", model="A100")
    for uuids, model, job in (([0], "A100", "first"), ([0, 1], "H200", "second")):
        fleet.node("n1", model=model)
        fleet.send("n1", **{f"gpu{card}": {"gpu_power_watts": 5} for card in uuids})
        fleet.job(job, [("n1", f"gpu{card}") for card in uuids])
        page = scrape(service)
        cards = {uuid_of("n1", card) for card in uuids}
        assert {dict(labels)["gpu_uuid"] for labels in page["mainstay_gpu_power_watts"]} == cards
        assert {dict(labels)["model"] for labels in page["mainstay_gpu_info"]} == {model}
        assert cards == {
            dict(labels)["gpu_uuid"] for labels in page["mainstay_job_gpu_info"] if dict(labels)["job"] == job
        }


def test_the_state_of_a_node_is_one_of_all(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    page = scrape(service)
    states = {dict(labels)["state"]: held for labels, held in page["mainstay_node_state"].items()}
    assert set(states) == {state.value for state in HealthState}
    assert sorted(states.values()) == [*[0.0] * (len(states) - 1), 1.0]


def test_xids_are_labels_with_a_count_and_a_time(service: Any, fleet: Fleet) -> None:
    fleet.node("n1")
    now = time.time()
    items = [
        {"id": uuid7(), "time": now - age, "kind": "xid", "node": "n1", "device": "gpu0", "data": {"code": code}}
        for code, age in ((79, 90), (79, 30), (31, 20))
    ]  # fmt: skip
    assert service.client().post("/v1/events", json={"items": items}).status_code == 200
    page = scrape(service)
    assert value(page, "mainstay_xid_events_total", xid="79", **GPU0) == 2
    assert value(page, "mainstay_xid_events_total", xid="31", **GPU0) == 1
    assert value(page, "mainstay_xid_events_created", xid="79", **GPU0) == pytest.approx(now - 90)
    assert value(page, "mainstay_xid_last_seen_timestamp_seconds", xid="79", **GPU0) == pytest.approx(now - 30)
    assert not [name for name in page if "xid" in name and 79.0 in page[name].values()]


def test_findings_and_targets_are_counted(service: Any, fleet: Fleet) -> None:
    page = scrape(service)
    assert {dict(labels)["state"] for labels in page["mainstay_dcgm_targets"]} == {"ok", "failing", "new"}


def everything(source: SignalSource) -> dict[str, float]:
    return {name: 1 for name, signal in SIGNALS.items() if signal.source is source}


def test_at_most_sixty_series_a_gpu(service: Any, fleet: Fleet) -> None:
    """With every signal there is. Hosts and ports are counted apart: they do not multiply with the cards."""
    fleet.node("n1", cards=8)
    devices = {f"gpu{n}": everything(SignalSource.GPU) for n in range(8)}
    fleet.send("n1", host=everything(SignalSource.HOST), **{"nic:mlx5_0:1": everything(SignalSource.NIC)}, **devices)
    fleet.job("train", [("n1", f"gpu{n}") for n in range(8)])
    page = scrape(service)
    series = Counter(dict(labels).get("gpu_uuid") for found in page.values() for labels in found)
    cards = [series[uuid_of("n1", n)] for n in range(8)]
    assert set(cards) == {cards[0]}
    assert 45 <= cards[0] <= 60
    ports = sum("port" in dict(labels) for found in page.values() for labels in found)
    assert ports == sum(1 for s in SIGNALS.values() if s.source is SignalSource.NIC)


def test_names_are_derived_and_unique() -> None:
    metrics = [metric for source in ALL for wide in (False, True) for metric in exposed(source, wide=wide)]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        assert metric.name.startswith("mainstay_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not metric.name.endswith(("_nanoseconds_total", "_millijoules_total"))
    assert not {
        "mainstay_gpu_throttle_reasons",
        "mainstay_gpu_fabric_health_mask",
        "mainstay_gpu_nvlink_worst_link",
    } & set(names)


@pytest.mark.parametrize(
    ("off", "gone"),
    [
        ("gpus", "mainstay_gpu_"),
        ("hosts", "mainstay_host_"),
        ("ports", "mainstay_nic_"),
        ("nodes", "mainstay_node_state"),
    ],
)
def test_each_part_can_be_switched_off(start: Any, report: dict[str, Any], off: str, gone: str) -> None:
    service = start(exposition={off: False})
    fleet = Fleet(service, report)
    fleet.node("n1")
    fleet.send("n1", gpu0={"gpu_power_watts": 5}, host={"load_1m": 1}, **{"nic:mlx5_0:1": {"nic_link_up": 1}})
    page = scrape(service)
    parts = ("mainstay_gpu_", "mainstay_host_", "mainstay_nic_", "mainstay_node_state")
    assert {part for part in parts if any(name.startswith(part) for name in page)} == {*parts} - {gone}


def test_the_service_answers_while_a_large_page_is_written(service: Any, fleet: Fleet, monkeypatch: Any) -> None:
    """The page is written in a thread: other requests do not wait for it."""
    import threading

    begun, go_on = threading.Event(), threading.Event()

    def slow(_page: Any) -> Iterator[bytes]:
        begun.set()
        assert go_on.wait(20)
        yield b""

    monkeypatch.setattr(FleetPage, "parts", slow)
    asking = threading.Thread(target=service.client("").get, args=("/metrics",))
    asking.start()
    assert begun.wait(10)
    assert service.client("").get("/healthz").status_code == 200
    go_on.set()
    asking.join(20)


def test_a_page_costs_python_next_to_nothing_for_each_line(service: Any) -> None:
    """While Python computes, every other request waits: its part of a page is a matter of families, not of devices.

    A string made for each line would be ten operations for each.
    """
    operations = {}
    for nodes in (50, 400):
        page = _page_of(service, nodes)
        lines = b"".join(page.parts()).count(b"\n")
        assert lines > 350 * nodes
        operations[nodes] = _operations(lambda page=page: list(page.parts()))
    assert operations[400] - operations[50] < 0.2 * 350 * 350


def _page_of(service: Any, nodes: int) -> FleetPage:
    ring = TelemetryRing(60)
    for samples in _many(nodes):
        ring.write(samples)
    fleet = Directory({f"node{n:04}": _node(f"node{n:04}") for n in range(nodes)}, 1)
    directory = SimpleNamespace(current=lambda _session: fleet)
    parts = {name: getattr(service.services, name) for name in ("settings", "clock", "database")}
    return FleetPage(SimpleNamespace(ring=ring, fleet=directory, **parts))  # type: ignore[arg-type]


def _node(name: str) -> FleetNode:
    given: dict[str, Any] = dict.fromkeys((each.name for each in fields(FleetNode)), "")
    cards = tuple(
        FleetDevice(f"gpu{n}", name, n, "gpu", "H100", "s", f"GPU-{name}-{n}", 80 * 2**30, True, None, {})
        for n in range(8)
    )
    return FleetNode(**(given | {"name": name, "state": "healthy", "all_devices": cards}))


def _operations(work: Callable[[], object]) -> int:
    """How many operations of Python's interpreter ``work`` takes."""
    count = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _many(nodes: int) -> Iterator[Any]:
    from mainstay.service.telemetry.catalogs import compile_catalog
    from mainstay.service.telemetry.frame_batch import join

    made = catalog(SignalSource.GPU)
    compiled = compile_catalog(made)
    values = np.full((8, len(made.narrow), 1), 0.5, "<f4").tobytes()
    wide = np.full((8, len(made.wide), 1), 10**12, "<i8").tobytes()
    assert WIDE_MISSING < 0
    for node in range(nodes):
        frame = Frame(
            version=1, subject=f"node{node:04}", axis=Axis.TIME, stream="s", sequence=1, t0=float(int(time.time())),
            dt=1.0, catalog=made.digest, entities=tuple(f"gpu{n}" for n in range(8)), samples=1,
            crc32=checksum(values, wide), values=values, wide=wide,
        )  # fmt: skip
        assert encode(frame)
        yield join([frame], compiled)
