"""``/v1/simulations``: what would a job keep of its time, if nodes failed so and it recovered so?"""

from __future__ import annotations

from fastapi import APIRouter

from mainstay.recovery.simulate.scenario import POLICIES
from mainstay.service.auth.guard import Reader
from mainstay.service.common.openapi import problems
from mainstay.service.simulation import schemas, service
from mainstay.service.simulation.schemas import RecoveryPolicyList, RecoveryPolicyRead, SimulationIn, SimulationRead

router = APIRouter(prefix="/v1", tags=["planning"])


@router.post("/simulations", operation_id="run_simulation", responses=problems(503))
def run_simulation(body: SimulationIn, _: Reader) -> SimulationRead:
    """Compare recovery policies over simulated failures. This stores nothing and affects no job.

    The same request gives the same response. All policies face the same failures.
    """
    return schemas.read(service.answer(body))


@router.get("/simulation-policies", operation_id="list_simulation_policies")
def list_simulation_policies(_: Reader) -> RecoveryPolicyList:
    """List the policies that ``POST /v1/simulations`` compares, with their default costs."""
    return RecoveryPolicyList(items=[RecoveryPolicyRead.model_validate(policy) for policy in POLICIES.values()])
