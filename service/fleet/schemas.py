"""What the fleet routes take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, Strict, field_validator, model_validator

from mainstay.probes.core_types import HOST_DEVICE, HealthState, Severity, Verdict
from mainstay.probes.identity import MAX_SWITCHES
from mainstay.service.common.schemas import (
    Bytes,
    Count,
    Input,
    JsonNumber,
    Lenient,
    Name,
    Output,
    ShortText,
    Text,
    UnixSeconds,
    fields_of,
    is_newer_kind,
)
from mainstay.service.fleet.directory import FleetDevice
from mainstay.service.fleet.lifecycle import Owner
from mainstay.service.jobs.schemas import JobRequestRead
from mainstay.service.telemetry.check import MAX_DEVICES

DeviceKind = Literal["host", "gpu", "nic"]
SignalName = Annotated[str, Field(max_length=128)]
FactName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
HardwareId = Annotated[ShortText, Field(min_length=1, max_length=128)]


Facts = Annotated[dict[FactName, ShortText], Field(max_length=64)]
"""What stays the same until the next boot: PCI address, driver, firmware, slot."""


class DeviceReport(Lenient):
    id: Name
    index: Count
    kind: DeviceKind
    model: ShortText
    serial: HardwareId | None
    uuid: HardwareId | None
    memory_bytes: Bytes | None
    facts: Facts = Field(default_factory=dict)


class CatalogReport(Lenient):
    narrow: list[SignalName] = Field(max_length=512)
    wide: list[SignalName] = Field(max_length=512)


class NodeReportCreate(Lenient):
    """The report of a node at its start and after each change."""

    hostname: ShortText
    os: ShortText
    kernel: ShortText
    version: Annotated[ShortText, Field(max_length=64)]
    boot_id: Annotated[ShortText, Field(max_length=64)]
    cohort: ShortText
    cpu_count: Count
    memory_bytes: Bytes
    devices: list[DeviceReport] = Field(max_length=MAX_DEVICES)
    catalog: CatalogReport
    started_at: UnixSeconds
    rack: ShortText = ""
    switches: Annotated[list[Name], Field(max_length=MAX_SWITCHES)] = Field(default_factory=list)
    """The network switches above it, nearest first."""
    power_domain: ShortText = ""
    """The PDU, busway, or UPS that feeds it."""
    booted_at: UnixSeconds | None = None

    @field_validator("devices", mode="before")
    @classmethod
    def _set_aside_newer_kinds(cls, devices: Any) -> Any:
        if not isinstance(devices, list):
            return devices
        return [d for d in devices if not (isinstance(d, dict) and is_newer_kind(d.get("kind"), get_args(DeviceKind)))]

    @model_validator(mode="after")
    def _check_devices(self) -> NodeReportCreate:
        ids = [device.id for device in self.devices]
        if len(set(ids)) != len(ids):
            raise ValueError("a device id stands twice in the report")
        if len(set(self.switches)) != len(self.switches):
            raise ValueError("a switch stands twice in the report")
        wrong = [d.id for d in self.devices if (d.id == HOST_DEVICE) != (d.kind == "host")]
        if wrong:
            raise ValueError(f"device {wrong[0]!r}: the id {HOST_DEVICE!r} and the kind 'host' belong together")
        return self


@fields_of(FleetDevice)
class DeviceRead(Output):
    pass


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
    rack: str
    switches: list[str]
    """The network switches above it, nearest first; empty when not reported."""
    power_domain: str
    """The PDU, busway, or UPS that feeds it; empty when not reported."""
    booted_at: float | None
    started_at: float | None
    last_seen_at: float | None
    first_seen_at: float
    age_seconds: float | None
    """Seconds since the node last reported."""
    jobs: list[str]
    open_incidents: int
    last_verdict: Verdict | None
    """None: never validated."""
    last_validation_at: float | None
    owner: Owner
    """Who decided the state."""
    actor: str
    state_since: float
    state_version: int


class FacetRead(Output):
    value: str
    count: int


class NodeFacetsRead(Output):
    """How many nodes each value would show, with the other conditions as they are; values without nodes are absent."""

    state: list[FacetRead]
    rack: list[FacetRead]
    cohort: list[FacetRead]
    job: list[FacetRead]


class DrainRead(NodeRead):
    """A drained node, and what happens to the work on it."""

    requests: list[JobRequestRead]
    """One a job that has ranks here, with ``mode: migrate``; the job's page follows each."""


class TransitionRead(Output):
    """One transition of a node."""

    id: str
    node: str
    time: float
    from_state: HealthState
    to_state: HealthState
    owner: Owner
    actor: str
    reason: str
    incident: str | None


Reason = Annotated[Text, Field(min_length=1, pattern=r"\S")]
DeadlineSeconds = Annotated[float, Field(gt=0, le=31_536_000), JsonNumber]


class MoveBody(Input):
    """The reason of an operator for a transition.

    With ``expected_version``, it happens only if ``state_version`` still has this value.
    """

    reason: Reason
    expected_version: Count | None = None


class DrainOptions(Input):
    """How nodes are drained."""

    deadline_seconds: DeadlineSeconds | None = None
    """The node is quarantined after so long even if work is left on it."""
    external: Annotated[bool, Strict()] = False
    """Another system drained it; nothing here undoes that."""
    mode: Literal["wait", "migrate"] = "wait"
    """``migrate``: running jobs are advised to move their ranks to standbys on other nodes first."""


class DrainBody(DrainOptions, MoveBody):
    """The drain of one node."""


class ValidateOptions(Input):
    """How nodes are validated."""

    suite: Literal["quick", "standard", "deep"] | None = None
    """Default: the site's usual suite, or a stronger one where the current verdict requires it."""


class ValidateBody(ValidateOptions, MoveBody):
    """The validation of one node."""


class DeviceLocationRead(Output):
    node: str
    first_seen_at: float
    last_seen_at: float
    present: bool


class DeviceDetail(Output):
    """One piece of hardware, at all its locations."""

    device: DeviceRead
    hardware: str | None
    locations: list[DeviceLocationRead]
    findings_active: int
    findings_total: int


HistoryKind = Literal["finding", "event", "move", "transition", "verdict", "remediation"]


class HistoryEntry(Output):
    time: float
    kind: HistoryKind
    node: str
    severity: Severity | None
    title: str
    text: str
    ref: str | None


class HeatmapLayoutRead(Output):
    """The stable order of the fleet, in columns. A snapshot has one byte per slot.

    The slots of ``nodes[0]`` come first, one per device of its shape, then those of ``nodes[1]``.
    """

    version: str
    nodes: list[str]
    rack_of: list[int]
    """[node] index into ``racks``."""
    switch_of: list[int]
    power_domain_of: list[int]
    cohort_of: list[int]
    shape_of: list[int]
    """[node] index into ``shapes``."""
    racks: list[str]
    """Empty text: not reported."""
    switches: list[str]
    """The nearest of each node."""
    power_domains: list[str]
    cohorts: list[str]
    shapes: list[list[str]]
    """Devices that have a slot, in order: ``host`` is the node itself, the others are GPUs."""


class FleetJobsRead(Output):
    """Which job runs on each node; of several, the first by ID."""

    layout: str
    """Version of the layout whose nodes these are."""
    jobs: list[str]
    """Empty text: no job."""
    job_of: list[int]
    """[node] index into ``jobs``."""


class FleetDeviceFindingsRead(Output):
    """The most severe finding about each device that counts against its node, sparse, in columns."""

    layout: str
    """Version of the layout whose slots these are."""
    slots: list[int]
    """Index of the device's byte in a snapshot; devices without a slot, such as ports, are absent."""
    severities: list[Severity]
    """One for each of ``slots``: warning or critical."""
    kinds: list[str]
    """``FindingKind`` of each."""


class FleetHistoryRead(Output):
    """How many nodes were in each state, and how many incidents opened, in buckets of one width."""

    since: float
    until: float
    """Unix seconds."""
    known_since: float
    """States are known from this time on, in Unix seconds; buckets that end before it have no nodes."""
    times: list[float]
    """[bucket] its end in Unix seconds."""
    states: dict[HealthState, list[int]]
    """State → [bucket] nodes at its end."""
    incidents: list[int]
    """[bucket] incidents that opened in it."""
