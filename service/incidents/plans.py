"""A coordinator's plan as JSON: read and checked in one place, for the API and for the detection loop."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from mainstay.probes.core_types import validate_name
from mainstay.recovery.recovery_plan import RecoveryPlan

PLAN: Final = TypeAdapter(RecoveryPlan)


class PlanError(ValueError):
    """It is not a plan; the message names the field."""


def read_plan(data: dict[str, Any]) -> RecoveryPlan:
    """The plan in a ``recovery_planned`` event's data.

    Raises:
        PlanError: it is missing or not one.
    """
    try:
        plan = PLAN.validate_python(data.get("plan"))
        validate_name(plan.id, "plan id")
        validate_name(plan.job, "plan job")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("plan", *first["loc"]))
        raise PlanError(f"{where}: {first['msg']}") from error
    except ValueError as error:
        raise PlanError(str(error)) from error
    return plan
