"""What a coordinator weighed at a failure and how its prediction fared: read from events, kept with the recovery.

A decision that cannot be read is left out: the recovery itself is told by the plan, and is never lost over it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from service.kit.schemas import Input, JsonNumber, check_text

MAX_OPTIONS = 64
MAX_WAYS = 4
MAX_PARTS = 16
MAX_STAGES = 4096

Word = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(check_text)]
Sentence = Annotated[str, Field(max_length=4000), AfterValidator(check_text)]
Seconds = Annotated[float, Field(ge=0, le=1e12), JsonNumber]


class _Heard(Input, extra="ignore"):
    """A coordinator that is newer than the service may say more."""


class WeighedOption(_Heard):
    """One way of recovering, or a sequence of two, as it was priced at the failure."""

    ways: Annotated[list[Word], Field(min_length=1, max_length=MAX_WAYS)]
    feasible: bool
    executable: bool
    """A running job carries it out."""
    reason: Sentence
    expected_s: Seconds | None
    """Lost seconds of the job at its full rate."""
    gpu_seconds: Seconds | None
    rate: Annotated[float, Field(ge=0, le=1), JsonNumber] | None
    """Of the job until the worker is back, against the healthy one."""
    parts: Annotated[dict[Word, Seconds], Field(max_length=MAX_PARTS)]


class Weighed(_Heard):
    """All options at a failure, best first."""

    chosen: Annotated[list[Word], Field(max_length=MAX_WAYS)] | None
    """What the job would choose of what it carries out; what it did may have been fixed by an option."""
    explanation: Sentence
    fault: Word
    lost: Annotated[list[Annotated[int, Field(ge=0), JsonNumber]], Field(max_length=MAX_STAGES)]
    """Workers lost of each stage."""
    options: Annotated[list[WeighedOption], Field(max_length=MAX_OPTIONS)]


class Fared(_Heard):
    """What was predicted and what it took, both from the failure to the first step that committed."""

    way: Word
    predicted_s: Seconds
    measured_s: Seconds
    regret_s: Seconds


def weighed(data: dict[str, Any]) -> dict[str, Any] | None:
    """The decision in a ``plan_chosen`` event's data, as it is stored; None where there is none that can be read."""
    try:
        return Weighed.model_validate(data.get("decision")).model_dump(mode="json")
    except ValidationError:
        return None


def fared(data: dict[str, Any]) -> Fared | None:
    """The outcome in a ``recovered`` event's data; None where there is none that can be read."""
    try:
        return Fared.model_validate(data.get("outcome"))
    except ValidationError:
        return None
