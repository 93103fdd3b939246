"""The ring holds the last minutes, forgets what is older, and never shows old data as new."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.frame import Axis, Frame, checksum
from mainstay.probes.signals import WIDE_MISSING, Catalog, SignalSource, catalog
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.frame_batch import FrameBatch, join
from mainstay.service.telemetry.ring import TelemetryRing

CPU = "cpu_utilization_ratio"
READ = "disk_read_bytes_total"
HOST = compile_catalog(Catalog((CPU, "load_1m"), (READ,)))
BOTH = compile_catalog(catalog(SignalSource.HOST, SignalSource.GPU))
T0 = 1_000_000


def host_frame(
    t0: int,
    cpu: list[float],
    total: list[int] | None = None,
    *,
    node: str = "n1",
    dt: float = 1.0,
    device: str = "host",
) -> FrameBatch:
    narrow = np.array([[cpu, [1.0] * len(cpu)]], "<f4")
    wide = np.array([[total or list(range(len(cpu)))]], "<i8")
    frame = Frame(
        version=1, subject=node, axis=Axis.TIME, stream="s", sequence=1, t0=float(t0), dt=dt,
        catalog=HOST.catalog.digest, entities=(device,), samples=len(cpu),
        crc32=checksum(narrow.tobytes(), wide.tobytes()), values=narrow.tobytes(), wide=wide.tobytes(),
    )  # fmt: skip
    return join([frame], HOST)


def cpu(ring: TelemetryRing, start: int, stop: int, node: str = "n1") -> list[float]:
    window = ring.window(SignalSource.HOST, start, stop, signals=[CPU], columns=[(node, "host")])
    return window.values[:, 0, 0].tolist()


def test_what_is_written_is_read() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1, 0.2, 0.3]))
    assert cpu(ring, T0 - 1, T0 + 4) == pytest.approx([np.nan, 0.1, 0.2, 0.3, np.nan], nan_ok=True)
    assert ring.head(SignalSource.HOST) == T0 + 2
    assert ring.head(SignalSource.GPU) is None
    assert ring.columns(SignalSource.HOST) == (("n1", "host"),)


def test_counters_stand_as_rates() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0, 0], [100, 300]))
    ring.write(host_frame(T0 + 2, [0, 0], [600, 600]))
    window = ring.window(SignalSource.HOST, T0, T0 + 4, signals=[READ])
    assert window.values[:, 0, 0].tolist() == pytest.approx([np.nan, 200, 300, 0], nan_ok=True)


def test_the_past_is_overwritten_not_mixed() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1] * 60))
    ring.write(host_frame(T0 + 90, [0.9]))
    assert cpu(ring, T0 + 30, T0 + 31) == pytest.approx([np.nan], nan_ok=True), "the slot now holds a later second"
    assert cpu(ring, T0 + 31, T0 + 33) == pytest.approx([0.1, 0.1])
    assert cpu(ring, T0 + 89, T0 + 91) == pytest.approx([np.nan, 0.9], nan_ok=True)


def test_late_data_does_not_overwrite_newer_seconds() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0 + 60, [0.9]))
    ring.write(host_frame(T0, [0.1, 0.2]))
    assert cpu(ring, T0 + 60, T0 + 61) == pytest.approx([0.9])
    assert cpu(ring, T0 + 1, T0 + 2) == pytest.approx([0.2]), "still within the ring"


def test_a_cleared_second_is_unknown_for_everyone() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1], node="n1"))
    ring.write(host_frame(T0 + 60, [0.2], node="n2"))
    assert cpu(ring, T0 + 60, T0 + 61, "n1") == pytest.approx([np.nan], nan_ok=True)


def test_missing_samples_do_not_erase_known_ones() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.5]))
    ring.write(host_frame(T0, [np.nan]))
    assert cpu(ring, T0, T0 + 1) == pytest.approx([0.5])


def test_several_samples_in_a_second_leave_the_last_known() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1, 0.2, np.nan, 0.4], dt=0.25))
    assert cpu(ring, T0, T0 + 1) == pytest.approx([0.4])


def test_columns_grow_and_keep_their_history() -> None:
    ring = TelemetryRing(60)
    for number in range(40):
        ring.write(host_frame(T0, [number / 100], node=f"n{number}"))
    assert len(ring.columns(SignalSource.HOST)) == 40
    assert cpu(ring, T0, T0 + 1, "n7") == pytest.approx([0.07])


def test_columns_that_grow_while_seconds_are_held_read_as_one() -> None:
    ring = TelemetryRing(60, grow=3)
    for number in range(8):
        ring.write(host_frame(T0, [number / 10], node=f"n{number}"))
    window = ring.window(SignalSource.HOST, T0, T0 + 1, signals=[CPU])
    assert window.values[0, 0].tolist() == pytest.approx([n / 10 for n in range(8)])
    picked = ring.window(SignalSource.HOST, T0, T0 + 1, signals=[CPU], columns=[("n7", "host"), ("n0", "host")])
    assert picked.values[0, 0].tolist() == pytest.approx([0.7, 0.0])


def test_the_columns_of_the_gone_are_given_to_the_new() -> None:
    ring = TelemetryRing(60, grow=16)
    for number in range(16):
        ring.write(host_frame(T0, [0.5, 0.5], [1, 2], node=f"old{number}"))
    columns = ring._rings[SignalSource.HOST].index.capacity
    for number in range(16):
        ring.write(host_frame(T0 + 100, [0.25, 0.25], [10, 20], node=f"new{number}"))
    assert {node for node, _ in ring.columns(SignalSource.HOST)} == {f"new{n}" for n in range(16)}
    assert ring._rings[SignalSource.HOST].index.capacity == columns == 16
    window = ring.window(SignalSource.HOST, T0 + 100, T0 + 102, signals=[READ], columns=[("new3", "host")])
    assert window.values[:, 0, 0].tolist() == pytest.approx([np.nan, 10], nan_ok=True), "no rate from another's total"


@pytest.mark.parametrize("grow", [2, 256])
def test_a_node_with_several_devices(grow: int) -> None:
    made = BOTH.catalog
    ring = TelemetryRing(60, grow=grow)
    for step in range(2):
        narrow = np.full((5, len(made.narrow), 1), np.nan, "<f4")
        narrow[:, made.narrow.index("gpu_power_watts"), 0] = [300, 301, 302, 303, 304]
        wide = np.full((5, len(made.wide), 1), 100 * step, "<i8")
        frame = Frame(
            version=1, subject="n1", axis=Axis.TIME, stream="s", sequence=1, t0=float(T0 + step), dt=1.0,
            catalog=made.digest, entities=tuple(f"gpu{i}" for i in range(5)), samples=1, crc32=0,
            values=narrow.tobytes(), wide=wide.tobytes(),
        )  # fmt: skip
        ring.write(join([frame], BOTH))
    window = ring.window(SignalSource.GPU, T0 + 1, T0 + 2, signals=["gpu_power_watts", "gpu_pcie_replay_total"])
    assert window.values[0].tolist() == [[300, 301, 302, 303, 304], [100] * 5]


def test_host_and_gpu_part_into_their_rings() -> None:
    made = BOTH.catalog
    narrow = np.full((3, len(made.narrow), 1), np.nan, "<f4")
    narrow[0, made.narrow.index(CPU)] = 0.5
    narrow[1:, made.narrow.index("gpu_power_watts"), 0] = [300, 310]
    wide = np.full((3, len(made.wide), 1), 7, "<i8")
    frame = Frame(
        version=1, subject="n1", axis=Axis.TIME, stream="s", sequence=1, t0=float(T0), dt=1.0, catalog=made.digest,
        entities=("host", "gpu0", "gpu1"), samples=1, crc32=0, values=narrow.tobytes(), wide=wide.tobytes(),
    )  # fmt: skip
    ring = TelemetryRing(60)
    ring.write(join([frame], BOTH))
    gpu = ring.window(SignalSource.GPU, T0, T0 + 1, signals=["gpu_power_watts"])
    assert gpu.columns == (("n1", "gpu0"), ("n1", "gpu1"))
    assert gpu.values[0, 0].tolist() == [300, 310]
    assert cpu(ring, T0, T0 + 1) == pytest.approx([0.5])


def test_a_window_is_a_copy() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.5]))
    window = ring.window(SignalSource.HOST, T0, T0 + 1)
    window.values[:] = 9
    assert cpu(ring, T0, T0 + 1) == pytest.approx([0.5])


def test_a_window_longer_than_the_ring_is_its_newest_part() -> None:
    ring = TelemetryRing(60)
    window = ring.window(SignalSource.HOST, 0, T0)
    assert (window.start, len(window.values)) == (T0 - 60, 60)
    with pytest.raises(ValueError, match="nonsense"):
        ring.window(SignalSource.HOST, T0, T0 + 1, signals=["nonsense"])


def test_a_node_that_invents_devices_does_not_fill_memory() -> None:
    ring = TelemetryRing(60)
    for number in range(600):
        ring.write(host_frame(T0, [0.5], device=f"gpu{number}"))
    assert len(ring.columns(SignalSource.GPU)) <= 257


def test_a_node_whose_devices_are_replaced_again_and_again_is_kept_for_good() -> None:
    ring = TelemetryRing(60, grow=1)
    for number in range(300):
        ring.write(host_frame(T0 + 100 * number, [0.5], device=f"gpu{number}"))
    assert ring.columns(SignalSource.GPU) == (("n1", "gpu299"),)


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 1)), min_size=1, max_size=40))
def test_the_ring_agrees_with_a_plain_dictionary(writes: list[tuple[int, float]]) -> None:
    ring, known = TelemetryRing(60), {}
    for offset, value in writes:
        ring.write(host_frame(T0 + offset, [value]))
        known[offset] = value
        known = {at: value for at, value in known.items() if at > max(known) - 60}
    for start in range(0, 201, 60):
        stop = min(start + 60, 201)
        expected = [known.get(offset, np.nan) for offset in range(start, stop)]
        assert cpu(ring, T0 + start, T0 + stop) == pytest.approx(expected, nan_ok=True)


def raw_gpu_frame(t0: int, values: dict[str, list[float]], *, node: str = "n1") -> Frame:
    """One GPU with the given gauges."""
    made, samples = BOTH.catalog, len(next(iter(values.values())))
    narrow = np.full((1, len(made.narrow), samples), np.nan, "<f4")
    for name, series in values.items():
        narrow[0, made.narrow.index(name)] = series
    wide = np.full((1, len(made.wide), samples), WIDE_MISSING, "<i8")
    return Frame(
        version=1, subject=node, axis=Axis.TIME, stream="s", sequence=1, t0=float(t0), dt=1.0, catalog=made.digest,
        entities=("gpu0",), samples=samples, crc32=0, values=narrow.tobytes(), wide=wide.tobytes(),
    )  # fmt: skip


def gpu_frame(t0: int, values: dict[str, list[float]], *, node: str = "n1") -> FrameBatch:
    return join([raw_gpu_frame(t0, values, node=node)], BOTH)


SLOW = "gpu_power_limit_watts"


def test_a_slow_signal_is_read_in_its_second_and_only_there() -> None:
    ring, start = TelemetryRing(60), T0 // 10 * 10
    ring.write(gpu_frame(start + 3, {SLOW: [500.0], "gpu_power_watts": [400.0]}))
    ring.write(gpu_frame(start + 4, {SLOW: [np.nan], "gpu_power_watts": [401.0]}))
    ring.write(gpu_frame(start + 13, {SLOW: [510.0], "gpu_power_watts": [402.0]}))
    window = ring.window(SignalSource.GPU, start, start + 20, signals=[SLOW, "gpu_power_watts"])
    known = {
        int(second): values
        for second, *values in zip(range(20), *window.values[:, :, 0].T, strict=True)
        if values[1] > 0
    }
    assert {second: watts for second, (_, watts) in known.items()} == {3: 400, 4: 401, 13: 402}
    assert {second: limit for second, (limit, _) in known.items() if limit > 0} == {3: 500, 13: 510}
    assert ring.newest(SignalSource.GPU, SLOW, start - 10, start + 20).values.tolist() == [510]


def test_of_several_slow_readings_in_a_period_the_last_stays() -> None:
    ring, start = TelemetryRing(60), T0 // 10 * 10
    ring.write(gpu_frame(start + 2, {SLOW: [500.0, 510.0]}))
    ring.write(gpu_frame(start + 1, {SLOW: [1.0]}))
    window = ring.window(SignalSource.GPU, start, start + 10, signals=[SLOW])
    assert np.nan_to_num(window.values[:, 0, 0]).tolist() == [0, 0, 0, 510, 0, 0, 0, 0, 0, 0]


def test_a_large_fleet_keeps_fewer_seconds_within_its_budget() -> None:
    ring = TelemetryRing(900, budget=2**22)
    for number in range(64):
        ring.write(gpu_frame(T0, {"gpu_power_watts": [300.0] * 200}, node=f"n{number}"))
    assert 150 < ring.depth < 160
    assert ring.nbytes <= 1.1 * 2**22
    window = ring.window(SignalSource.GPU, T0, T0 + 200, signals=["gpu_power_watts"])
    assert window.values[-ring.depth :, 0].min() == 300


def test_frames_of_a_batch_that_begin_in_different_seconds() -> None:
    ring = TelemetryRing(60)
    frames = [raw_gpu_frame(T0 + n % 3, {"gpu_power_watts": [300.0 + n]}, node=f"n{n}") for n in range(9)]
    ring.write(join(frames, BOTH))
    window = ring.window(SignalSource.GPU, T0, T0 + 3, signals=["gpu_power_watts"])
    assert [node for node, _ in window.columns] == [f"n{n}" for n in range(9)]
    for n in range(9):
        expected = [300 + n if second == n % 3 else np.nan for second in range(3)]
        assert window.values[:, 0, n].tolist() == pytest.approx(expected, nan_ok=True)


def newest(ring: TelemetryRing, start: int, stop: int, **more: int) -> dict[str, float]:
    """The newest load of each node that has one."""
    found = ring.newest(SignalSource.HOST, CPU, start, stop, **more)
    values = zip(found.columns, found.values.tolist(), strict=True)
    return {node: pytest.approx(value) for (node, _), value in values if not np.isnan(value)}


def totals(ring: TelemetryRing, signal: str, since: int) -> list[int]:
    return ring.totals(SignalSource.HOST, signal, since).values.tolist()


def test_the_last_known_values() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1, 0.2, np.nan, np.nan], [100, 300, 300, 700]))
    ring.write(host_frame(T0, [0.9], [5], node="n2"))
    assert newest(ring, T0 - 6, T0 + 4) == {"n1": 0.2, "n2": 0.9}
    assert totals(ring, READ, T0 - 6) == [700, 5]
    assert totals(ring, READ, T0 + 1) == [700, WIDE_MISSING]
    assert totals(ring, "oom_kills_total", T0 - 6) == [WIDE_MISSING, WIDE_MISSING]


def test_the_last_known_values_reach_back_as_far_as_asked_and_no_further() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1] + [np.nan] * 9))
    assert newest(ring, T0, T0 + 10) == {"n1": 0.1}
    assert newest(ring, T0 + 1, T0 + 10) == {}


def test_who_fell_silent_has_no_value_nor_what_lies_a_ring_back() -> None:
    ring = TelemetryRing(60)
    ring.write(host_frame(T0, [0.1]))
    ring.write(host_frame(T0 + 50, [0.5], node="n2"))
    assert newest(ring, T0 - 149, T0 + 51) == {"n1": 0.1, "n2": 0.5}
    assert newest(ring, T0 - 149, T0 + 51, active_since=T0 + 6) == {"n2": 0.5}
    assert ring.newest_seconds(SignalSource.HOST).values.tolist() == [T0, T0 + 50]
    ring.write(host_frame(T0 + 120, [np.nan], node="n2"))
    assert newest(ring, T0 - 79, T0 + 121) == {}
    assert ring.newest_seconds(SignalSource.GPU).columns == ()
