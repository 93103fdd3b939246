"""``/v1/plans:simulate``: what would a job keep of its time, if nodes failed so and it recovered so?"""

from __future__ import annotations

from fastapi import APIRouter

from recovery.simulate.scenario import POLICIES
from service.auth.guard import Reader
from service.kit.openapi import problems
from service.planning import schemas, service
from service.planning.schemas import RecoveryPolicyList, RecoveryPolicyRead, SimulationIn, SimulationRead

router = APIRouter(tags=["planning"])


@router.post("/plans:simulate", operation_id="simulate_plans", responses=problems(503))
def simulate_plans(body: SimulationIn, _: Reader) -> SimulationRead:
    """Compare policies of recovery over simulated failures; nothing is stored, and nothing happens to any job.

    The same question gives the same answer. All policies meet the same failures.
    """
    return schemas.read(service.answer(body))


@router.get("/plans:policies", operation_id="list_recovery_policies")
def list_recovery_policies(_: Reader) -> RecoveryPolicyList:
    """The policies that ``plans:simulate`` compares, with what they cost if nothing else is said."""
    return RecoveryPolicyList(items=[RecoveryPolicyRead.model_validate(policy) for policy in POLICIES.values()])
