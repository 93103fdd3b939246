"""``/v1/policies/xid``: the meaning of error codes on this site, with tests before activation."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Final

from fastapi import APIRouter
from sqlalchemy import select

from mainstay.service.auth.guard import Actor, Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, WriteSession, Writing, after_commit
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import UnavailableError
from mainstay.service.services import Services, ServicesDep
from mainstay.service.xid_policies import service
from mainstay.service.xid_policies.models import PolicyShadowRow, PolicyVersionRow
from mainstay.service.xid_policies.schemas import (
    OverridesIn,
    PolicyChange,
    PolicyRead,
    PolicyTestRead,
    PolicyTestRequest,
    PolicyVersionRead,
    ShadowVerdictRead,
    TallyRead,
    VersionChoice,
)

router = APIRouter(tags=["policies"], prefix="/v1/policies/xid")
_TRYING: Final = threading.Lock()
"""A try-out takes seconds of one core: one at a time in a process."""


class PolicyTestRunningError(UnavailableError):
    slug, title = "policy-test-running", "Another try-out is running"


class PolicyVersionPage(Page[PolicyVersionRead]):
    """Versions, newest first."""


class ShadowPage(Page[ShadowVerdictRead]):
    """Differences between the findings of the shadow and of the active policy, newest first."""


@router.get("", operation_id="get_xid_policy")
def get_policy(_: Reader, session: Reading) -> PolicyRead:
    """The active policy and its shadow."""
    return service.read(session)


@router.put("/overrides", operation_id="put_xid_overrides", responses=problems(409))
def put_overrides(
    body: OverridesIn, principal: Actor, session: Writing, services: ServicesDep, now: Now
) -> PolicyVersionRead:
    """Store the overrides of a site as a new version: as a draft, as the shadow, or as the active version."""
    row = service.store(session, body, actor=principal.name, now=now)
    _wake(session, services)
    return PolicyVersionRead.model_validate(row)


@router.post(":activate", operation_id="activate_xid_policy", responses=problems(404, 409))
def activate(
    body: VersionChoice, principal: Actor, session: Writing, services: ServicesDep, now: Now
) -> PolicyVersionRead:
    """Activate a version within seconds. It also evaluates active findings again."""
    row = service.activate(session, body, actor=principal.name, now=now)
    _wake(session, services)
    return PolicyVersionRead.model_validate(row)


@router.post(":retire", operation_id="retire_xid_policy", responses=problems(404, 409))
def retire(
    body: VersionChoice, principal: Actor, session: Writing, services: ServicesDep, now: Now
) -> PolicyVersionRead:
    """Retire a version. Without an active version, the built-in policy is in force."""
    row = service.retire(session, body, actor=principal.name, now=now)
    _wake(session, services)
    return PolicyVersionRead.model_validate(row)


@router.get("/versions", operation_id="list_xid_policy_versions")
def list_versions(_: Reader, session: Reading, page: Paging) -> PolicyVersionPage:
    """Every version, newest first: by whom, when, and why."""
    rows, cursor = paginate(session, select(PolicyVersionRow), keys=(PolicyVersionRow.version,), page=page)
    return PolicyVersionPage(items=[PolicyVersionRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.get("/shadow", operation_id="list_xid_shadow")
def list_shadow(_: Reader, session: Reading, page: Paging) -> ShadowPage:
    """Differences between the shadow and the active policy, newest first; the last 5,000 are kept."""
    rows, cursor = paginate(
        session, select(PolicyShadowRow), keys=(PolicyShadowRow.time, PolicyShadowRow.id), page=page
    )
    return ShadowPage(items=[ShadowVerdictRead.model_validate(row) for row in rows], next_cursor=cursor)


@router.post(":test", operation_id="test_xid_policy", responses=problems(503))
def compare_overrides(body: PolicyTestRequest, _: Actor, session: Reading, now: Now) -> PolicyTestRead:
    """Test overrides on the newest 10,000 stored events; this activates nothing."""
    if not _TRYING.acquire(blocking=False):
        raise PolicyTestRunningError("another policy test is running: retry in 5 s", headers={"Retry-After": "5"})
    try:
        found, events, truncated = service.compare_overrides(session, body, now=now)
    finally:
        _TRYING.release()
    until = now if body.until is None else body.until
    since = until - service.TRIED_SECONDS if body.since is None else body.since
    return PolicyTestRead(
        events=found.events,
        since=events[0].time if truncated else since,
        until=until,
        truncated=truncated,
        before=TallyRead.model_validate(found.before),
        after=TallyRead.model_validate(found.after),
        changes=[PolicyChange.model_validate(asdict(change)) for change in found.changes],
        changes_total=found.changed,
    )


def _wake(session: WriteSession, services: Services) -> None:
    after_commit(session, lambda: services.wakers.wake("detection"))
