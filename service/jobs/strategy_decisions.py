"""Strategies that a coordinator evaluated at a failure, and their accuracy: read from events, kept with the recovery.

A decision that cannot be read is left out: the plan describes the recovery, which is never lost over it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from mainstay.service.common.schemas import JsonNumber, Lenient, check_text

MAX_OPTIONS = 64
MAX_WAYS = 4
MAX_PARTS = 16
MAX_STAGES = 4096

Word = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(check_text)]
Sentence = Annotated[str, Field(max_length=4000), AfterValidator(check_text)]
Seconds = Annotated[float, Field(ge=0, le=1e12), JsonNumber]


class StrategyEvaluationOption(Lenient):
    """One recovery strategy, or a sequence of two, with its estimated cost at the failure."""

    strategies: Annotated[list[Word], Field(min_length=1, max_length=MAX_WAYS)]
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


class StrategyEvaluation(Lenient):
    """All options for one failure, best first."""

    chosen: Annotated[list[Word], Field(max_length=MAX_WAYS)] | None
    """What the job would choose of what it carries out; what it did may have been fixed by an option."""
    explanation: Sentence
    fault: Word
    lost: Annotated[list[Annotated[int, Field(ge=0), JsonNumber]], Field(max_length=MAX_STAGES)]
    """Workers lost of each stage."""
    options: Annotated[list[StrategyEvaluationOption], Field(max_length=MAX_OPTIONS)]


class PredictionResult(Lenient):
    """What was predicted and what it took, both from the failure to the first step that committed."""

    strategy: Word
    predicted_s: Seconds
    measured_s: Seconds
    excess_cost_s: Seconds


def weighed(data: dict[str, Any]) -> dict[str, Any] | None:
    """The decision in a ``recovery_planned`` event's data, as it is stored; None where none can be read."""
    try:
        return StrategyEvaluation.model_validate(data.get("decision")).model_dump(mode="json")
    except ValidationError:
        return None


def accuracy(data: dict[str, Any]) -> PredictionResult | None:
    """The outcome in a ``recovery_completed`` event's data; None where there is none that can be read."""
    try:
        return PredictionResult.model_validate(data.get("outcome"))
    except ValidationError:
        return None
