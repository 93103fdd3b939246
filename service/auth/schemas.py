"""What the auth routes take and give. A secret is shown once, in the answer that made it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mainstay.service.auth.tokens import Scope, TokenKind
from mainstay.service.common.schemas import Input, JsonNumber, Lenient, Name, Output, ShortText

Secret = Annotated[ShortText, Field(min_length=1)]


class SignIn(Input):
    """``token`` is an access token, or the code of a sign-in link."""

    token: Secret


class SignInCode(Output):
    """A code that signs a browser in once, until ``expires_at`` (Unix seconds)."""

    code: str
    expires_at: float


class Me(Output):
    """Who is asking."""

    subject: str
    scopes: list[Scope]
    kind: TokenKind
    racks: list[str] | None
    """Of a relay: the racks whose nodes' frames it may carry. Of a node: its rack, empty for none."""


class TokenCreate(Input):
    """A new token.

    ``node`` binds a join token to one node name, ``job`` a job token to one job, ``racks`` a relay token to racks. A
    job token without ``job`` is made only with ``any_job``: it may write the data of every job.
    """

    name: Annotated[ShortText, Field(min_length=1)]
    kind: Literal[TokenKind.USER, TokenKind.JOIN, TokenKind.JOB, TokenKind.RELAY] = TokenKind.USER
    scopes: list[Scope] = Field(default_factory=list, max_length=4)
    node: Name | None = None
    job: Name | None = None
    any_job: bool = False
    racks: list[Name | Literal["*"]] = Field(default_factory=list, max_length=1024)
    """Of a relay: the racks whose nodes' frames it may carry; ``*`` stands for all."""
    expires_in: Annotated[float, Field(gt=0, le=10 * 365 * 86_400), JsonNumber] | None = None
    """Seconds; null is for ever (join tokens: the configured default)."""


class TokenRead(Output):
    id: str
    name: str
    kind: TokenKind
    prefix: str
    scopes: list[Scope]
    node: str | None
    job: str | None
    racks: list[str] | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class TokenCreated(TokenRead):
    token: str
    """The secret, shown this once."""


class EnrollmentCreate(Lenient):
    name: Name


class EnrollmentRead(Output):
    node: str
    token: str
    """The node's credential, shown this once."""
