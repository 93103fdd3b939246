"""Simulations on request, bounded so that no request blocks the service for the others."""

from __future__ import annotations

import threading
from typing import Final

from mainstay.recovery.simulate.report import Report, simulate
from mainstay.recovery.simulate.scenario import Scenario, ScenarioError, expected_failures
from mainstay.service.common.problem import ProblemField, UnavailableError, UnprocessableError
from mainstay.service.simulation.schemas import SimulationIn, scenario

MAX_FAILURES: Final = 500_000
"""Of all runs together: 2.7 microseconds each, so that no answer takes much longer than a second of one core."""
AT_ONCE: Final = 2
"""Simulations in one process; they share the interpreter with everything else that it does."""

_room: Final = threading.BoundedSemaphore(AT_ONCE)


class InvalidScenarioError(UnprocessableError):
    slug, title = "invalid-scenario", "No such job can be simulated"


class SimulationInProgressError(UnavailableError):
    slug, title = "simulation-in-progress", "Other simulations are under way"


def answer(body: SimulationIn) -> Report:
    """Simulate; blocks the thread that asks.

    Raises:
        BadScenarioError: fields that do not go together, or more work than one question may ask for.
        BusySimulatingError: as many as may run already do.
    """
    asked = _checked(body)
    if not _room.acquire(blocking=False):
        raise SimulationInProgressError(
            f"{AT_ONCE} simulations are under way; try again in a moment", headers={"Retry-After": "1"}
        )
    try:
        return simulate(asked)
    finally:
        _room.release()


def _checked(body: SimulationIn) -> Scenario:
    try:
        asked = scenario(body)
    except ScenarioError as error:
        field = {"sweep_values": ("sweep", "values"), "sweep_over": ("sweep", "over")}.get(error.field, (error.field,))
        raise _bad(error.what, *field) from error
    expected = expected_failures(asked)
    if expected > MAX_FAILURES:
        what = (
            f"{expected:,.0f} failures are to be followed (seeds x policies x values of the sweep x failures of one "
            f"run), at most {MAX_FAILURES:,} can be: ask for fewer seeds or days"
        )
        raise _bad(what, "seeds")
    return asked


def _bad(what: str, *field: str) -> InvalidScenarioError:
    fault = ProblemField(loc=["body", *field], msg=what)
    return InvalidScenarioError(f"{'.'.join(('body', *field))}: {what}", errors=[fault])
