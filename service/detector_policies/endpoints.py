"""``/v1/detector-policies``: every detector, and what its findings may do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading
from mainstay.service.common.openapi import problems
from mainstay.service.common.schemas import Name
from mainstay.service.detector_policies import service
from mainstay.service.detector_policies.schemas import DetectorList, DetectorPolicyRead, DetectorPolicyUpdate
from mainstay.service.operation import Acting
from mainstay.service.services import ServicesDep

router = APIRouter(tags=["policies"], prefix="/v1/detector-policies")


@router.get("", operation_id="list_detector_policies")
def list_policies(
    _: Reader, session: Reading, services: ServicesDep, now: Now, *, changed: bool = False
) -> DetectorList:
    """Every detector with its limits, its status, its findings of the last 30 days, and its policy.

    ``changed`` selects the detectors that have a policy of their own.
    """
    return service.list_detectors(session, services.accounts, services.settings.remediation, now, changed=changed)


@router.put("/{name}", operation_id="put_detector_policy", responses=problems(404, 409))
def put_policy(
    detector: Annotated[Name, Path(alias="name")], body: DetectorPolicyUpdate, acting: Acting
) -> DetectorPolicyRead:
    """Replace the policy of a detector. It holds for findings and proposals from now on.

    Findings that exist keep their incidents. When a detector no longer only records, its active findings open the
    incidents that they have not opened yet.
    """
    row = service.update_policy(acting.session, detector, body, actor=acting.principal.name, now=acting.now)
    acting.wake("detection")
    return acting.remember(DetectorPolicyRead.model_validate(row))
