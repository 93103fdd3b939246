"""What the fleet routes take and give."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from probes.words import HOST_DEVICE, HealthState, Verdict
from service.kit.schemas import Bytes, Count, Input, Name, Output, ShortText, UnixSeconds
from service.telemetry.check import MAX_DEVICES

SignalName = Annotated[str, Field(max_length=128)]
HardwareId = Annotated[ShortText, Field(min_length=1, max_length=128)]


class DeviceReport(Input):
    id: Name
    index: Count
    kind: Literal["host", "gpu"]
    model: ShortText
    serial: HardwareId | None
    uuid: HardwareId | None
    memory_bytes: Bytes | None


class CatalogueReport(Input):
    narrow: list[SignalName] = Field(max_length=512)
    wide: list[SignalName] = Field(max_length=512)


class NodeReport(Input):
    """What a node says about itself when it starts and when something about it changes."""

    hostname: ShortText
    os: ShortText
    kernel: ShortText
    version: Annotated[ShortText, Field(max_length=64)]
    boot_id: Annotated[ShortText, Field(max_length=64)]
    cohort: ShortText
    cpu_count: Count
    memory_bytes: Bytes
    devices: list[DeviceReport] = Field(max_length=MAX_DEVICES)
    catalogue: CatalogueReport
    started_at: UnixSeconds

    @model_validator(mode="after")
    def _check_devices(self) -> NodeReport:
        ids = [device.id for device in self.devices]
        if len(set(ids)) != len(ids):
            raise ValueError("a device id stands twice in the report")
        wrong = [d.id for d in self.devices if (d.id == HOST_DEVICE) != (d.kind == "host")]
        if wrong:
            raise ValueError(f"device {wrong[0]!r}: the id {HOST_DEVICE!r} and the kind 'host' belong together")
        return self


class DeviceRead(Output):
    id: str
    node: str
    index: int
    kind: str
    model: str
    serial: str | None
    uuid: str | None
    memory_bytes: int | None
    present: bool
    """In the node's latest report."""
    moved_from: str | None
    """Node where the same hardware was seen before."""


class NodeRead(Output):
    name: str
    state: HealthState
    state_reason: str
    hostname: str
    os: str
    kernel: str
    version: str
    boot_id: str
    cohort: str
    cpu_count: int
    memory_bytes: int
    devices: list[DeviceRead]
    started_at: float | None
    last_seen_at: float | None
    first_seen_at: float
    age_seconds: float | None
    """Seconds since the node last spoke."""
    jobs: list[str]
    open_incidents: int
    last_verdict: Verdict | None
    last_validation_at: float | None


class SlotRead(Output):
    slot: int
    node: str
    device: str
    kind: str


class LayoutRead(Output):
    """The stable order of the fleet: a snapshot has one byte a slot."""

    version: str
    slots: list[SlotRead]
