"""A coordinator's plan as JSON: read and checked in one place, for the API and for the detection loop."""

from __future__ import annotations

from typing import Any

import msgspec

from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import build_decoders
from mainstay.recovery.recovery_plan import RecoveryPlan

build_decoders(RecoveryPlan)


class PlanError(ValueError):
    """It is not a plan; the message names the field."""


def read_plan(data: dict[str, Any]) -> RecoveryPlan:
    """The plan in a ``recovery_planned`` event's data.

    Raises:
        PlanError: it is missing or not one.
    """
    try:
        plan = msgspec.convert(data.get("plan"), RecoveryPlan)
        validate_name(plan.id, "plan id")
        validate_name(plan.job, "plan job")
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise PlanError(f"{where.strip('`').replace('$', 'plan', 1) or 'plan'}: {what}") from error
    except ValueError as error:
        raise PlanError(str(error)) from error
    return plan
