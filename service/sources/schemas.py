"""What the routes of other monitors take and give.

These schemas ignore unknown fields: the formats of other systems grow. Types are checked strictly, so that
a wrong one is named instead of guessed at.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)

from mainstay.service.common.outgoing_request import check_url
from mainstay.service.common.schemas import Input, JsonNumber, Lenient, Name, Output, check_text
from mainstay.service.sources.dcgm.fetch import MAX_URL

MAX_EVENTS = 500
MAX_STATES = 1000
_RFC3339 = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$", re.ASCII)
_YEAR_9999 = 253_402_300_799


def read_time(text: str) -> float:
    """Unix seconds of an RFC 3339 text (up to nine decimals).

    Raises:
        ValueError: it is none, or lies before 1970.
    """
    found = _RFC3339.match(text)
    if found is None:
        raise ValueError("not a time in RFC 3339, like 2026-11-21T03:00:00.5Z")
    whole, fraction, zone = found.groups()
    seconds = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).astimezone(UTC).timestamp()
    if not 0 <= seconds < _YEAR_9999:
        raise ValueError("a time before 1970 or after 9999")
    return seconds + float(fraction or 0)


def _check_time(text: str) -> str:
    read_time(text)
    return text


LongText = Annotated[StrictStr, Field(max_length=4096), AfterValidator(check_text)]
Word = Annotated[StrictStr, Field(max_length=200), AfterValidator(check_text)]
Rfc3339 = Annotated[StrictStr, Field(max_length=64), AfterValidator(_check_time)]
EnumValue = Word | Annotated[StrictInt, Field(ge=0, lt=2**31)]
"""A protobuf enumeration in JSON: its name or its number."""


# NVSentinel


class ProtoTime(Lenient):
    """A protobuf timestamp as its fields."""

    seconds: Annotated[StrictInt, Field(ge=0, lt=_YEAR_9999)]
    nanos: Annotated[StrictInt, Field(ge=0, lt=1_000_000_000)] = 0


class ImpactedEntity(Lenient):
    entityType: Word  # noqa: N815 - their name
    entityValue: Word  # noqa: N815


class HealthEvent(Lenient):
    """NVSentinel's HealthEvent in the JSON format of protobuf. Fields with default values may be omitted."""

    agent: Word = ""
    componentClass: Word = ""  # noqa: N815
    checkName: Annotated[Word, Field(min_length=1)]  # noqa: N815
    isFatal: StrictBool = False  # noqa: N815
    isHealthy: StrictBool = False  # noqa: N815
    message: LongText = ""
    recommendedAction: EnumValue = 0  # noqa: N815
    errorCode: Annotated[list[Word], Field(max_length=64)] = Field(default_factory=list)  # noqa: N815
    entitiesImpacted: Annotated[list[ImpactedEntity], Field(max_length=256)] = Field(default_factory=list)  # noqa: N815
    metadata: Annotated[dict[Word, LongText], Field(max_length=64)] = Field(default_factory=dict)
    generatedTimestamp: Rfc3339 | ProtoTime  # noqa: N815
    nodeName: Name  # noqa: N815
    processingStrategy: EnumValue = 0  # noqa: N815
    customRecommendedAction: Word = ""  # noqa: N815
    id: Word = ""

    @property
    def time(self) -> float:
        """Unix seconds."""
        told = self.generatedTimestamp
        return read_time(told) if isinstance(told, str) else told.seconds + told.nanos / 1e9


class HealthEvents(Lenient):
    """Several at once."""

    events: Annotated[list[HealthEvent], Field(max_length=MAX_EVENTS)]


def _shape(body: Any) -> str:
    return "events" if isinstance(body, dict) and "events" in body else "event"


OneOrMoreEvents = Annotated[
    Annotated[HealthEvent, Tag("event")] | Annotated[HealthEvents, Tag("events")], Discriminator(_shape)
]


# gpud


class SuggestedActions(Lenient):
    description: LongText | None = None
    repair_actions: Annotated[list[Word], Field(max_length=16)] | None = None


class GpudState(Lenient):
    """One state of one component."""

    time: Rfc3339 | None = None
    name: Word = ""
    health: Literal["Healthy", "Degraded", "Unhealthy", "Initializing"]
    reason: LongText | None = None
    error: LongText | None = None
    suggested_actions: SuggestedActions | None = None
    extra_info: Annotated[dict[Word, LongText], Field(max_length=256)] | None = None


class GpudComponent(Lenient):
    """One element of gpud's ``GET /v1/states``."""

    component: Annotated[Word, Field(min_length=1)]
    states: Annotated[list[GpudState], Field(max_length=64)]


GpudStates = Annotated[list[GpudComponent], Field(max_length=MAX_STATES)]


class IngestResult(Output):
    """The number of items that became events, and of those that changed nothing."""

    accepted: int
    duplicates: int


# dcgm-exporter


def _check_target(url: str) -> str:
    check_url(url)
    return url


class DcgmTargetCreate(Input):
    url: Annotated[StrictStr, Field(min_length=8, max_length=MAX_URL), AfterValidator(_check_target)]
    """http(s); /metrics where it names no path."""
    node: Name | None = None
    """Whose values these are; null: the exporter's host label says."""
    interval_seconds: Annotated[float, Field(ge=1, le=30), JsonNumber] = 15.0
    """At most 30: what is older than 45 seconds is not shown."""
    enabled: StrictBool = True


class DcgmTargetRead(Output):
    id: str
    url: str
    node: str | None
    interval_seconds: float
    enabled: bool
    last_scrape_at: float | None
    """When a scrape last went well."""
    last_error: str | None
    """Why the latest scrape failed; null when it went well."""
    samples: int
    """Values stored from it so far."""
