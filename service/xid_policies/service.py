"""Versions of the XID policy: stored, tried beside the live one, made active, retired. All by compare-and-set.

Invariant: at most one version is active and at most one a shadow; a version's text never changes; who changed what and
why stands beside it. Without an active version the built-in policy judges. A version that was accepted and that a later
program version cannot read is not used: the built-in policy applies, and the log reports it.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

from sqlalchemy.exc import IntegrityError

from mainstay.detectors.policy import load as loading
from mainstay.detectors.policy.comparison import Comparison, compare
from mainstay.detectors.policy.model import XidPolicy
from mainstay.detectors.policy.toml_reader import PolicyError
from mainstay.probes.core_types import Event
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.common.problem import ConflictError, NotFoundError, UnprocessableError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.xid_policies import repository
from mainstay.service.xid_policies.models import PolicyVersionRow, VersionMode
from mainstay.service.xid_policies.schemas import (
    OverridesIn,
    PolicyRead,
    PolicyRule,
    PolicyTestRequest,
    ShadowRead,
    VersionChoice,
)

_log: Final = logging.getLogger(__name__)
TRIED_EVENTS: Final = 10_000
"""Events that one try-out replays: six seconds of one core, and weeks of a large fleet's errors."""
TRIED_SECONDS: Final = 7 * 86_400.0
SHOWN_CHANGES: Final = 500


class InvalidPolicyError(UnprocessableError):
    slug, title = "invalid-policy", "Bad policy"


class UnknownVersionError(NotFoundError):
    slug, title = "unknown-policy-version", "Unknown policy version"


class VersionChangedError(ConflictError):
    slug, title = "policy-version-changed", "Policy version changed"


@lru_cache(maxsize=8)
def _load(overrides: str) -> XidPolicy:
    return loading.load(overrides)


def parse(overrides: str) -> XidPolicy:
    """The policy with these overrides.

    Raises:
        BadPolicyError: names table, key and fault.
    """
    try:
        return _load(overrides)
    except PolicyError as error:
        raise InvalidPolicyError(str(error)) from error


def effective(row: PolicyVersionRow | None) -> XidPolicy | None:
    """The policy of a stored version; None when there is none or this program cannot read it."""
    if row is None:
        return None
    try:
        return _load(row.overrides)
    except PolicyError as error:
        _log.error("policy version %d cannot be used: %s", row.version, error)
        return None


def store(session: WriteSession, said: OverridesIn, *, actor: str, now: float) -> PolicyVersionRow:
    """A new version.

    Raises:
        BadPolicyError: the overrides cannot be used.
        VersionChangedError: another request put another version into the same place at the same time.
    """
    policy = parse(said.overrides)
    mode = VersionMode(said.mode)
    row = PolicyVersionRow(
        mode=VersionMode.DRAFT.value,
        overrides=said.overrides,
        digest=policy.digest,
        created_at=now,
        actor=actor,
        reason=said.reason,
        changed_at=now,
        changed_by=actor,
        changed_reason=said.reason,
    )
    session.add(row)
    session.flush()
    if mode is not VersionMode.DRAFT:
        _put(session, row, mode, actor=actor, reason=said.reason, now=now)
    return row


def activate(session: WriteSession, said: VersionChoice, *, actor: str, now: float) -> PolicyVersionRow:
    """Activate a version and retire the one before it.

    Raises:
        UnknownVersionError: there is no such version.
        VersionChangedError: it is active already, or another request came first.
        BadPolicyError: this program cannot read it.
    """
    row = _require(session, said.version)
    if row.mode == VersionMode.ACTIVE:
        raise VersionChangedError(f"version {row.version} is active already")
    parse(row.overrides)
    _put(session, row, VersionMode.ACTIVE, actor=actor, reason=said.reason, now=now)
    return row


def retire(session: WriteSession, said: VersionChoice, *, actor: str, now: float) -> PolicyVersionRow:
    """Retire a version, also as a shadow.

    Raises:
        UnknownVersionError: there is no such version.
        VersionChangedError: it is retired already, or another request came first.
    """
    row = _require(session, said.version)
    if row.mode == VersionMode.RETIRED:
        raise VersionChangedError(f"version {row.version} is retired already")
    _move(session, row, VersionMode.RETIRED, actor=actor, reason=said.reason, now=now)
    return row


def compare_overrides(
    session: AnySession, said: PolicyTestRequest, *, now: float
) -> tuple[Comparison, list[Event], bool]:
    """Replay stored events under the live policy and under the overrides; nothing is switched on.

    Raises:
        BadPolicyError: the overrides cannot be used.
    """
    after = parse(said.overrides)
    before = effective(repository.in_mode(session, VersionMode.ACTIVE)) or loading.builtin()
    until = now if said.until is None else said.until
    since = until - TRIED_SECONDS if said.since is None else said.since
    events, truncated = repository.latest_events(session, since=since, until=until, limit=TRIED_EVENTS)
    return compare(before, after, events, limit=SHOWN_CHANGES), events, truncated


def read(session: AnySession) -> PolicyRead:
    """The active policy and its shadow."""
    active, shadow = (repository.in_mode(session, mode) for mode in (VersionMode.ACTIVE, VersionMode.SHADOW))
    policy = effective(active)
    version = active.version if active is not None and policy is not None else None
    live = policy or loading.builtin()
    rules = [
        PolicyRule(
            family=rule.family,
            code=rule.code,
            title=rule.title,
            group=rule.group.value,
            severity=rule.ruling.severity,
            recommended_action=rule.ruling.recommended_action,
            repeat=rule.repeat_text,
            note=rule.note,
            overridden=rule.overridden,
        )
        for rule in sorted(live.rules.values(), key=lambda r: (r.family is not r.family.XID, r.code or 0))
        if rule.code is not None
    ]
    return PolicyRead(
        digest=live.digest,
        version=version,
        mode="builtin" if version is None else "active",
        shadow=None if shadow is None else ShadowRead.model_validate(shadow),
        rules=rules,
    )


def _require(session: WriteSession, version: int) -> PolicyVersionRow:
    return require_row(session, PolicyVersionRow, version, UnknownVersionError(f"there is no policy version {version}"))


def _put(
    session: WriteSession, row: PolicyVersionRow, mode: VersionMode, *, actor: str, reason: str, now: float
) -> None:
    """Into a place that only one has: whoever has it leaves first."""
    other = repository.in_mode(session, mode)
    if other is not None:
        # What never judged may still be tried again; what judged has had its time.
        to = VersionMode.DRAFT if mode is VersionMode.SHADOW else VersionMode.RETIRED
        _move(session, other, to, actor=actor, reason=f"version {row.version} took its place", now=now)
    _move(session, row, mode, actor=actor, reason=reason, now=now)


def _move(
    session: WriteSession, row: PolicyVersionRow, to: VersionMode, *, actor: str, reason: str, now: float
) -> None:
    was = VersionMode(row.mode)
    changes = {"mode": to.value, "changed_at": now, "changed_by": actor, "changed_reason": reason}
    try:
        moved = compare_and_set(session, row, PolicyVersionRow.mode == was.value, reread=False, **changes)
    except IntegrityError as error:
        raise VersionChangedError(f"another version became {to} at the same time") from error
    if not moved:
        raise VersionChangedError(f"version {row.version} is not {was} any more")
