"""A coordinator's plan as JSON: read and checked in one place, for the route and for the judge."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from probes.words import check_name
from recovery.plan import Plan

PLAN: Final = TypeAdapter(Plan)


class PlanError(ValueError):
    """It is not a plan; the message names the field."""


def read_plan(data: dict[str, Any]) -> Plan:
    """The plan in a ``plan_chosen`` event's data.

    Raises:
        PlanError: it is missing or not one.
    """
    try:
        plan = PLAN.validate_python(data.get("plan"))
        check_name(plan.id, "plan id")
        check_name(plan.job, "plan job")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("plan", *first["loc"]))
        raise PlanError(f"{where}: {first['msg']}") from error
    except ValueError as error:
        raise PlanError(str(error)) from error
    return plan
