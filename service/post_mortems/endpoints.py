"""Post-mortems of incidents, and links that show one without signing in until they expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fastapi import APIRouter, Depends, Path, Response

from mainstay.service.auth.endpoints import limit_attempts
from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import AnySession, Reading
from mainstay.service.common.openapi import PUBLIC, problems
from mainstay.service.common.schemas import Name
from mainstay.service.common.signed_links import SignedLink, sign, verify
from mainstay.service.common.time_texts import iso_time
from mainstay.service.incidents import serializers, service
from mainstay.service.notifications import config
from mainstay.service.operation import Acting
from mainstay.service.post_mortems.markdown import to_markdown
from mainstay.service.post_mortems.post_mortem import build
from mainstay.service.post_mortems.repository import read_sources
from mainstay.service.post_mortems.schemas import PostMortemRead, ShareCreate, ShareRead, ShareToken
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["incidents"])
Id = Annotated[Name, Path(alias="id")]


@dataclass(frozen=True, kw_only=True)
class ShareLink(SignedLink):
    """Shows the post-mortem of one incident."""

    purpose: ClassVar[str] = "share"
    incident: str


@router.get("/incidents/{id}/post-mortem", operation_id="get_post_mortem")  # noqa: FAST003 - Id is its alias
def get_post_mortem(incident_id: Id, _: Reader, session: Reading, now: Now) -> PostMortemRead:
    """What happened, where, what it cost, and what was decided; null: not known."""
    return _read(session, incident_id, now)


@router.get(
    "/incidents/{id}/post-mortem.md",  # noqa: FAST003 - Id is its alias
    operation_id="get_post_mortem_markdown",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}},
)
def get_post_mortem_markdown(incident_id: Id, _: Reader, session: Reading, services: ServicesDep, now: Now) -> Response:
    """The same as Markdown to download, with an empty table of follow-up actions."""
    text = to_markdown(_read(session, incident_id, now), f"{services.settings.dashboard_url}/incidents/{incident_id}")
    headers = {"Content-Disposition": f'attachment; filename="post-mortem-{incident_id}.md"'}
    return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)


@router.post("/incidents/{id}:share", operation_id="share_incident")  # noqa: FAST003 - Id is its alias
def share_incident(incident_id: Id, body: ShareCreate, acting: Acting) -> ShareRead:
    """Make a link that shows the post-mortem without signing in until it expires; the timeline records it."""
    session, actor = acting.session, acting.principal.name
    row = service.require(session, incident_id)
    link = ShareLink(incident=row.id, expires_at=int(acting.now) + body.expires_in)
    token = sign(link, config.make_link_key(session))
    service.add_timeline_entry(
        session, row, time=acting.now, kind="shared", data={"actor": actor, "expires_at": link.expires_at},
        text=f"{actor} made a link to the post-mortem, valid until {iso_time(link.expires_at)}.",
    )  # fmt: skip
    url = f"{acting.services.settings.dashboard_url}/shared#{token}"
    return acting.remember(ShareRead(url=url, expires_at=link.expires_at))


@router.post(
    "/shared-incidents",
    operation_id="get_shared_incident",
    responses=problems(403, 404, 429),
    openapi_extra=PUBLIC,
)
def get_shared_incident(
    body: ShareToken,
    address: Annotated[str, Depends(limit_attempts)],
    session: Reading,
    services: ServicesDep,
    now: Now,
) -> PostMortemRead:
    """The post-mortem that a link shows."""
    link = verify(ShareLink, body.token, config.link_key(session), now)
    services.sign_ins.return_attempt(address)
    return _read(session, link.incident, now)


def _read(session: AnySession, incident_id: str, now: float) -> PostMortemRead:
    row = service.require(session, incident_id)
    return build(serializers.serialize_detail(session, row), read_sources(session, row), now)
