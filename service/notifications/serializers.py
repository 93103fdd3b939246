"""The configuration as answered: with what is known of each receiver."""

from __future__ import annotations

from collections.abc import Iterator

from mainstay.service.common.db import AnySession
from mainstay.service.notifications import config, repository
from mainstay.service.notifications.receivers.base import DeliveryError, ReceiverConfig
from mainstay.service.notifications.routes import NotificationConfig, Route
from mainstay.service.notifications.schemas import NotificationConfigRead, ReceiverRead, RouteRead
from mainstay.service.notifications.secrets import SecretDirectory
from mainstay.service.settings import Settings


def read_config(session: AnySession, settings: Settings) -> NotificationConfigRead:
    """The configuration in force; empty where there is none, or this program cannot read it."""
    row = repository.newest_config(session)
    known = config.current(session) or NotificationConfig()
    secrets = SecretDirectory(settings.secrets_dir)
    return NotificationConfigRead(
        version=0 if row is None else row.version,
        text="" if row is None else row.text,
        actor="" if row is None else row.actor,
        created_at=None if row is None else row.created_at,
        receivers=[_receiver(session, name, made, secrets) for name, made in known.receivers.items()],
        routes=[_route(route) for route in known.routes],
        report=known.report.describe() if known.report else None,
        secrets_dir=str(settings.secrets_dir),
        dashboard_url=settings.dashboard_url,
    )


def _receiver(session: AnySession, name: str, receiver: ReceiverConfig, secrets: SecretDirectory) -> ReceiverRead:
    waiting, error = repository.pending(session, name)
    return ReceiverRead(
        name=name,
        kind=str(receiver.model_dump()["kind"]),
        missing_secrets=[secret for secret in _secrets_of(receiver) if not _is_there(secrets, secret)],
        last_delivered_at=repository.last_delivered(session, name),
        pending=waiting,
        error=error,
    )


def _secrets_of(receiver: ReceiverConfig) -> Iterator[str]:
    for key, value in receiver.model_dump().items():
        if key.endswith("_secret") and value is not None:
            yield str(value)


def _is_there(secrets: SecretDirectory, name: str) -> bool:
    try:
        secrets.read(name)
    except DeliveryError:
        return False
    return True


def _route(route: Route) -> RouteRead:
    return RouteRead(
        name=route.name,
        receivers=list(route.receivers),
        min_severity=route.min_severity,
        conditions=list(_conditions(route)),
        hours=route.hours,
        timezone=route.timezone,
        group_by=list(route.group_by),
        repeat_minutes=route.repeat_minutes,
        escalate_minutes=route.escalate_minutes,
        escalate_to=list(route.escalate_to),
        proceeds=route.proceed,
    )


def _conditions(route: Route) -> Iterator[str]:
    if route.needs_operator is not None:
        yield "needs an operator" if route.needs_operator else "needs no operator"
    lists = {
        "kind": route.kinds, "cause": route.causes, "node": route.nodes,
        "rack": route.racks, "cohort": route.cohorts, "job": route.jobs,
    }  # fmt: skip
    for label, values in lists.items():
        if values:
            yield f"{label} {', '.join(sorted(map(str, values)))}"
