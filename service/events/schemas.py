"""Events on the wire. Whatever would poison the judge (NaN, unbounded text, foreign ids) stops here, by name."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from probes.words import EventKind
from service.incidents.plans import read_plan
from service.kit.schemas import Count, Input, JsonObject, Name, Output, UnixSeconds

MAX_EVENTS = 500
MAX_RANK = 1_000_000
EVENT_ID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


class EventIn(Input):
    id: Annotated[str, Field(pattern=EVENT_ID_PATTERN, description="UUIDv7, made where it happened")]
    time: UnixSeconds
    kind: EventKind
    node: Name | None = None
    device: Name | None = None
    job: Name | None = None
    rank: Annotated[int, Field(ge=0, le=MAX_RANK)] | None = None
    generation: Count | None = None
    data: JsonObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _plan_is_one(self) -> Self:
        # The judge must be able to read what was acknowledged.
        if self.kind is EventKind.PLAN_CHOSEN:
            read_plan(self.data)
        return self


class EventBatch(Input):
    items: Annotated[list[EventIn], Field(max_length=MAX_EVENTS)]


class EventsAccepted(Output):
    accepted: int
    duplicates: int


class EventRead(Output):
    id: str
    time: float
    kind: EventKind
    node: str | None
    device: str | None
    job: str | None
    rank: int | None
    generation: int | None
    data: dict[str, Any]
    received_at: float
