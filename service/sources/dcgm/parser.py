"""Parser from the text of a dcgm-exporter to the values of each GPU, in our units. Unknown values are absent, not zero.

Labels are taken as the exporter's versions write them: ``Hostname`` or ``hostname``, ``UUID``, ``uuid`` or (links)
``gpu_uuid``, ``modelName`` or ``model_name``. Instances of a split card (``GPU_I_ID``) count only where the card itself
does not have the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from mainstay.probes.signals import SIGNALS
from mainstay.service.sources.dcgm.fields import (
    BY_NAME,
    FIELDS,
    MEMORY_TOTAL,
    MIB,
    UTILIZATION,
    XID_COUNT,
    XID_GAUGE,
    Field,
    Split,
    is_blank,
    plain_name,
)
from mainstay.service.telemetry.check import MAX_DEVICES

MAX_LABEL: Final = 128
_HOST: Final = ("Hostname", "hostname")
_UUID: Final = ("UUID", "uuid", "gpu_uuid")
_MODEL: Final = ("modelName", "model_name")
_WANTED: Final = frozenset({*BY_NAME, *XID_GAUGE, MEMORY_TOTAL})
_DRIVER: Final = ("DCGM_FI_DRIVER_VERSION", "driver_version")


class ReadingError(ValueError):
    """The text is not what a dcgm-exporter sends; the message says why."""


@dataclass
class ScrapedGpu:
    """One GPU of one scrape."""

    host: str
    uuid: str
    index: int | None = None
    model: str = ""
    pci: str = ""
    driver: str = ""
    values: dict[str, float] = field(default_factory=dict)
    """Signal → value in our unit, inside the signal's limits."""
    memory_bytes: int | None = None
    last_xid: int | None = None
    """The gauge: which XID was the last, however long ago."""
    xid_counts: dict[int, float] = field(default_factory=dict)
    """XID → times in the exporter's sliding window."""


@dataclass
class _Raw:
    """What the lines said about one card before it is put together."""

    card: ScrapedGpu
    whole: dict[int, float] = field(default_factory=dict)
    """Row of the field table → the card's own value; links summed."""
    old_utilization: bool = False
    instances: dict[int, list[float]] = field(default_factory=dict)


def read(text: str, *, percent: bool) -> tuple[list[ScrapedGpu], bool]:
    """Return the GPUs in the text, and how they count utilization.

    Args:
        text: one scrape.
        percent: an earlier scrape of the same target showed utilization above one.

    Returns:
        The GPUs, and whether this or an earlier scrape showed utilization above one.

    Raises:
        ReadingError: not Prometheus text, no GPU in it, or too many.
    """
    found: dict[tuple[str, str], _Raw] = {}
    for sample in _samples(text):
        uuid = _label(sample, _UUID)
        if uuid:
            key = (_label(sample, _HOST), uuid)
            if key not in found and len(found) >= MAX_DEVICES:
                raise ReadingError(f"more than {MAX_DEVICES} GPUs")
            _take(found.setdefault(key, _Raw(ScrapedGpu(*key))), sample)
    if not any(raw.whole or raw.instances for raw in found.values()):
        raise ReadingError("no GPU metric that is known here: is it a dcgm-exporter?")
    utilization = [(raw.old_utilization, value) for raw in found.values() for value in _utilization(raw)]
    percent = percent or any(value > 1.0 for _, value in utilization)
    for raw in found.values():
        _put_together(raw, percent=percent or _looks_like_percent(utilization))
    return [raw.card for raw in found.values()], percent


def _utilization(raw: _Raw) -> tuple[float, ...]:
    row = BY_NAME[UTILIZATION.new]
    return (raw.whole[row],) if row in raw.whole else ()


def _looks_like_percent(values: Sequence[tuple[bool, float]]) -> bool:
    """None is above one. Percent come as whole numbers and under the old name, so 0.5 is a ratio, and so is a new 1."""
    return all(old for old, _ in values) and not any(0.0 < value < 1.0 for _, value in values)


def _samples(text: str) -> Iterable[Sample]:
    """Samples of the fields that are known here. Other lines are not parsed: that is most of the cost of a scrape."""
    lines = [line for line in text.split("\n") if _is_known(line)]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            yield from family.samples
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        # The parser names its own faults by ValueError, and trips over some texts otherwise.
        raise ReadingError(f"not Prometheus text: {str(error)[:120]}") from error


def _is_known(line: str) -> bool:
    metric = line.split("{", 1)[0].strip()
    return metric == XID_COUNT or plain_name(metric) in _WANTED


def _label(sample: Sample, names: Iterable[str]) -> str:
    return next((sample.labels[name] for name in names if sample.labels.get(name)), "")[:MAX_LABEL]


def _take(raw: _Raw, sample: Sample) -> None:
    _identify(raw.card, sample)
    if sample.name == XID_COUNT:
        code = sample.labels.get("xid", "")
        if code.isdecimal() and len(code) <= 6 and not is_blank(sample.value):
            raw.card.xid_counts[int(code)] = sample.value
        return
    name = plain_name(sample.name)
    if name is None or is_blank(sample.value):
        return
    if name in XID_GAUGE and 0 <= sample.value < 1e6:
        raw.card.last_xid = int(sample.value)
    elif name == MEMORY_TOTAL and not sample.labels.get("GPU_I_ID"):
        raw.card.memory_bytes = int(sample.value * MIB)
    row = BY_NAME.get(name)
    if row is None:
        return
    raw.old_utilization |= name == UTILIZATION.old
    if sample.labels.get("GPU_I_ID"):
        raw.instances.setdefault(row, []).append(sample.value)
    elif "_L*" in name or sample.labels.get("nvlink"):
        raw.whole[row] = raw.whole.get(row, 0.0) + sample.value
    else:
        raw.whole[row] = sample.value


def _identify(card: ScrapedGpu, sample: Sample) -> None:
    index = sample.labels.get("gpu", "")
    if card.index is None and index.isdecimal() and len(index) <= 4:
        card.index = int(index)
    card.model = card.model or _label(sample, _MODEL)
    card.pci = card.pci or _label(sample, ("pci_bus_id",))
    card.driver = card.driver or _label(sample, _DRIVER)


def _put_together(raw: _Raw, *, percent: bool) -> None:
    card = raw.card
    for row, what in enumerate(FIELDS):
        if what.signal in card.values:
            continue  # a preferred field of the same signal was there
        value = raw.whole.get(row)
        if value is None:
            value = _of_instances(what, raw.instances.get(row, []))
        if value is None:
            continue
        scale = 0.01 if what is UTILIZATION and percent else what.scale
        _keep(card, what.signal, value * scale)


def _of_instances(what: Field, values: list[float]) -> float | None:
    if not values or what.split is Split.NOTHING:
        return None
    return sum(values) if what.split is Split.SUM else max(values)


def _keep(card: ScrapedGpu, signal: str, value: float) -> None:
    limits = SIGNALS[signal]
    if limits.low <= value <= limits.high and value < 2.0**63:
        card.values[signal] = value
