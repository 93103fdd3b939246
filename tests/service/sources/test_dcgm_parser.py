"""Both generations of names and labels give the same signals; unknown values are absent."""

from __future__ import annotations

import math
import time

import pytest

from mainstay.probes.frame import decode
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource, catalog
from mainstay.service.sources.dcgm.changes import ScrapeState, events
from mainstay.service.sources.dcgm.fields import BY_NAME, FIELDS, is_blank
from mainstay.service.sources.dcgm.frames import device_ids, frame, report
from mainstay.service.sources.dcgm.parser import ReadingError, ScrapedGpu, read
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.check import check
from tests.service.sources.exporter import UUIDS, exposition, new_labels, new_text, old_labels, old_text

SHARED = {
    "gpu_temperature_celsius": 47.0, "gpu_memory_temperature_celsius": 58.0, "gpu_power_watts": 345.25,
    "gpu_energy_millijoules_total": 91234567890.0, "gpu_sm_clock_hertz": 1.98e9, "gpu_utilization_ratio": 0.87,
    "gpu_memory_used_bytes": 80000 * 2.0**20, "gpu_pcie_replay_total": 3.0, "gpu_remap_failed": 0.0,
    "gpu_remapped_rows_corrected_total": 2.0, "gpu_remapped_rows_uncorrected_total": 1.0,
}  # fmt: skip


def cards(text: str, *, percent: bool = False) -> list[ScrapedGpu]:
    return read(text, percent=percent)[0]


@pytest.mark.parametrize("text", [old_text(), new_text()], ids=["old", "4.6"])
def test_both_generations_say_the_same(text: str) -> None:
    found = cards(text)
    assert [(card.host, card.uuid, card.index) for card in found] == [("dgx-07", UUIDS[0], 0), ("dgx-07", UUIDS[1], 1)]
    for card in found:
        assert {signal: card.values.get(signal) for signal in SHARED} == pytest.approx(SHARED)
        assert card.last_xid == 0


def test_the_newer_fields_are_read_too() -> None:
    card = cards(new_text())[0]
    assert card.values["gpu_recovery_action"] == 0
    assert card.values["gpu_throttle_power_brake_nanoseconds_total"] == 5e9
    assert card.values["gpu_nvlink_recoveries_total"] == 505
    assert card.values["gpu_temperature_margin_celsius"] == 31
    assert card.memory_bytes == 183359 * 2**20
    assert card.model == "NVIDIA B200"


def test_the_table_names_known_signals_and_no_field_twice() -> None:
    assert all(SIGNALS[field.signal].source is SignalSource.GPU for field in FIELDS)
    assert len(BY_NAME) == sum(1 if field.old == field.new else 2 for field in FIELDS)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        (old_text(GPU_UTIL=87), 0.87), (old_text(GPU_UTIL=1), 0.01), (old_text(GPU_UTIL=0.5), 0.5),
        (old_text(GPU_UTIL=0), 0.0), (new_text(GPU_UTIL_RATIO=1), 1.0), (new_text(GPU_UTIL_RATIO=100), 1.0),
        (new_text(GPU_UTIL_RATIO=0.01), 0.01),
    ],
)  # fmt: skip
def test_utilization_is_told_by_its_values(text: str, ratio: float) -> None:
    assert cards(text)[0].values["gpu_utilization_ratio"] == pytest.approx(ratio)


def test_a_target_that_once_counted_in_percent_goes_on_to() -> None:
    assert read(new_text(GPU_UTIL_RATIO=55), percent=False)[1] is True
    card = cards(new_text(GPU_UTIL_RATIO=1), percent=True)[0]
    assert card.values["gpu_utilization_ratio"] == pytest.approx(0.01)


@pytest.mark.parametrize("blank", ["NaN", "9223372036854775792", "140737488355328", "2147483632", "-5000"])
def test_what_is_not_known_is_absent_and_never_zero(blank: str) -> None:
    card = cards(old_text(GPU_TEMP=blank))[0]
    assert "gpu_temperature_celsius" not in card.values
    assert "gpu_power_watts" in card.values
    assert blank == "-5000" or is_blank(float(blank))


def test_infinity_does_not_spoil_a_frame() -> None:
    card = cards(old_text(POWER_USAGE="+Inf", TOTAL_ENERGY_CONSUMPTION="-3"))[0]
    assert not {"gpu_power_watts", "gpu_energy_millijoules_total"} & set(card.values)


def test_instances_of_a_split_card_count_only_where_the_card_does_not_speak() -> None:
    lines = []
    for instance, used in ((1, 100), (2, 200)):
        label = old_labels(0) + f',GPU_I_PROFILE="3g.40gb",GPU_I_ID="{instance}"'
        lines += [
            f"DCGM_FI_DEV_FB_USED{{{label}}} {used}",
            f"DCGM_FI_DEV_GPU_TEMP{{{label}}} 50",
            f"DCGM_FI_DEV_GPU_UTIL{{{label}}} {used}",
            f"DCGM_FI_DEV_POWER_USAGE{{{label}}} 1",
        ]
    lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{old_labels(0)}}} 300")
    card = cards("\n".join(lines) + "\n")[0]
    assert card.values["gpu_memory_used_bytes"] == 300 * 2**20
    assert card.values["gpu_temperature_celsius"] == 50
    assert card.values["gpu_power_watts"] == 300
    assert "gpu_utilization_ratio" not in card.values


@pytest.mark.parametrize(
    "lines",
    [
        [f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L{n}{{{old_labels(0)}}} {n}" for n in range(18)],
        [f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_L{n}_TOTAL{{{new_labels(0)}}} {n}" for n in range(18)],
        [
            f'DCGM_FI_DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL{{nvlink="{n}",gpu_uuid="{UUIDS[0]}",hostname="h"}} {n}'
            for n in range(18)
        ],
    ],
    ids=["old", "4.6", "link entities"],
)
def test_links_are_summed(lines: list[str]) -> None:
    assert cards("\n".join(lines) + "\n")[0].values["gpu_nvlink_replays_total"] == sum(range(18))


def test_a_total_is_preferred_to_its_links() -> None:
    text = f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{{{old_labels(0)}}} 9\n"
    text += f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0{{{old_labels(0)}}} 4\n"
    assert cards(text)[0].values["gpu_nvlink_replays_total"] == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>login</html>",
        "up 1\n",
        "DCGM_FI_DEV_GPU_TEMP 4\n",
        "DCGM_FI_DEV_GPU_TEMP{gpu=",
        "x{ 1",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"',
        "\x00\x01\n",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ReadingError):
        read(text, percent=False)


def test_lines_that_are_not_wanted_cost_next_to_nothing() -> None:
    other = "\n".join(f'container_cpu{{pod="{n}"}} 1' for n in range(200_000)) + "\n"
    began = time.process_time()
    assert len(cards(other + old_text())) == 2
    assert time.process_time() - began < 2.0, "parsed, they would take some seven seconds"


def test_a_frame_of_a_scrape_passes_the_check_of_every_frame() -> None:
    found = cards(old_text())
    made = decode(frame("dgx-07", found, stream="dcgm-1", sequence=4, time=1_700_000_000.5))
    samples = check(made, compile_catalog(catalog(SignalSource.GPU)))
    assert (made.subject, made.sequence, made.entities) == ("dgx-07", 4, ("gpu0", "gpu1"))
    names, wide = samples.compiled.catalog.narrow, samples.compiled.catalog.wide
    assert samples.narrow[0, names.index("gpu_temperature_celsius"), 0] == 47
    assert math.isnan(samples.narrow[0, names.index("gpu_recovery_action"), 0])
    assert samples.wide[1, wide.index("gpu_energy_millijoules_total"), 0] == 91234567890
    assert samples.wide[1, wide.index("gpu_pcie_fatal_errors_total"), 0] == WIDE_MISSING


def test_the_report_is_one_that_a_node_could_send() -> None:
    said = report(cards(old_text()), host="dgx-07", since=1_700_000_000.0)
    assert [(d.id, d.uuid, d.kind) for d in said.devices] == [("gpu0", UUIDS[0], "gpu"), ("gpu1", UUIDS[1], "gpu")]
    assert said.devices[0].facts == {"pci": "00000000:17:00.0", "driver": "550.90.07"}
    assert said.cohort == "2x-NVIDIA-H100-80GB-HBM3"


def test_cards_without_an_index_are_numbered_by_place() -> None:
    assert device_ids([ScrapedGpu("h", "a", index=3), ScrapedGpu("h", "b", index=3)]) == ("gpu0", "gpu1")
    assert device_ids([ScrapedGpu("h", "a", index=3), ScrapedGpu("h", "b", index=1)]) == ("gpu3", "gpu1")


def after(texts: list[str]) -> list[tuple[str, str | None, object]]:
    """Events after each of several scrapes of one target."""
    memory, told = ScrapeState(), []
    for second, text in enumerate(texts):
        found = cards(text)
        told += events("dgx-07", found, memory, time=1_700_000_000.0 + second)
        memory = ScrapeState.from_stored(memory.as_json())
        memory.keep(["dgx-07"], found, time=0.0)
    return [(e.kind.value, e.device, e.data.get("code", e.data.get("codes"))) for e in told]


def test_the_xid_gauge_alone_never_makes_an_xid() -> None:
    texts = [old_text(XID_ERRORS=79), old_text(XID_ERRORS=79), old_text(XID_ERRORS=48), old_text(XID_ERRORS=48)]
    told = after(texts)
    assert told == [("health_report", "gpu0", ["48"]), ("health_report", "gpu1", ["48"])]


def test_information_is_marked_as_such() -> None:
    memory = ScrapeState(xids={UUIDS[0]: 31})
    (told, *_) = events("n", cards(old_text(XID_ERRORS=48)), memory, time=1.0)
    assert told.data["severity"] == "info"
    assert told.data["fatal"] is False
    assert told.data["recommended_action"] == "none"


def test_a_gauge_that_goes_back_to_zero_says_nothing() -> None:
    assert after([old_text(XID_ERRORS=79), old_text(XID_ERRORS=0), old_text(XID_ERRORS="NaN")]) == []


def with_count(count: float, code: int = 94) -> str:
    name = "DCGM_EXP_XID_ERRORS_COUNT"
    window = f'{{{old_labels(0)},xid="{code}",window_size_in_ms="300000"}}'
    return old_text(XID_ERRORS=code) + f"# TYPE {name} gauge\n{name}{window} {count}\n"


def test_a_rising_count_is_an_xid_once() -> None:
    told = after([with_count(2), with_count(2), with_count(3), with_count(3), with_count(0), with_count(1)])
    assert told == [("xid", "gpu0", 94), ("xid", "gpu0", 94)]


def test_the_same_scrape_told_twice_is_the_same_event() -> None:
    memory = ScrapeState(counts={UUIDS[0]: {"94": 0.0}})
    first, again = (events("n", cards(with_count(1)), memory, time=5.0) for _ in range(2))
    assert [event.id for event in first] == [event.id for event in again]
    assert exposition(old_labels, {}) == "\n"
