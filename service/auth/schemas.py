"""What the auth routes take and give. A secret is shown once, in the answer that made it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from mainstay.probes.core_types import validate_name
from mainstay.service.auth import passwords
from mainstay.service.auth.roles import UserRole
from mainstay.service.auth.tokens import Scope, TokenKind
from mainstay.service.auth.users import SignInMethod
from mainstay.service.common.schemas import Input, JsonNumber, Lenient, Name, Output, ShortText

Secret = Annotated[ShortText, Field(min_length=1)]
UserName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$")]
"""Of a person: a name or an e-mail address."""


class SignIn(Input):
    """``token`` (an access token, or the code of a sign-in link), or ``name`` and ``password`` of a local user."""

    token: Secret | None = None
    name: UserName | None = None
    password: Secret | None = None

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if (self.token is None) is (self.name is None) or (self.name is None) is not (self.password is None):
            raise ValueError("give a token, or a name and a password")
        return self


class SignInCode(Output):
    """A code that signs a browser in once, until ``expires_at`` (Unix seconds)."""

    code: str
    expires_at: float


class Me(Output):
    """Who is asking."""

    subject: str
    display_name: str
    scopes: list[Scope]
    """In the whole fleet."""
    job_scopes: list[Scope]
    """For the jobs of ``jobs`` only."""
    jobs: list[str]
    """IDs of jobs; one that ends in ``*`` stands for all that begin so."""
    kind: TokenKind
    user: str | None
    """Name of the user, if a person asks."""
    sign_in: SignInMethod | None
    """How the user signed in."""
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
    team: Name | None = None
    """The scopes hold for the jobs of this team only; of a job token: it may write these jobs."""
    personal: bool = False
    """It stands for the user who creates it, and may never do more. Without it, only an admin creates tokens."""
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
    team: str | None
    user: str | None
    """Name of the user whom it stands for."""
    last_used_at: float | None
    """Within a minute; null for tokens of nodes."""
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


class SessionRead(Output):
    """One signed-in browser."""

    id: str
    user: str
    sign_in: SignInMethod
    address: str | None
    created_at: float
    expires_at: float
    last_used_at: float | None
    is_current: bool
    """It is the one that asks."""


class PasswordChange(Input):
    """A password of the user who asks; ``current_password`` is the one that it replaces."""

    current_password: Secret
    password: Secret


class _Access(Input):
    role: UserRole | None = None
    """What the user may do in the whole fleet; null: nothing."""
    teams: list[Name] = Field(default_factory=list, max_length=100)
    team_role: UserRole | None = None
    """What the user may do with the jobs of ``teams``."""


class UserCreate(_Access):
    """A local user. Without a password, the user cannot sign in before one is set."""

    name: UserName
    display_name: ShortText = ""
    password: Annotated[ShortText, Field(min_length=passwords.SHORTEST)] | None = None


class UserAccess(_Access):
    """What a user may do from now on; replaces what the user may do now."""


class UserPassword(Input):
    """A password that an admin sets; it ends the sessions of the user."""

    password: Annotated[ShortText, Field(min_length=passwords.SHORTEST)]


class UserRead(Output):
    name: str
    display_name: str
    role: UserRole | None
    teams: list[str]
    team_role: UserRole | None
    issuer: str | None
    """OpenID Connect provider that vouches for the user; null for a local user."""
    has_password: bool
    created_at: float
    disabled_at: float | None
    signed_in_at: float | None


def _check_job(text: str) -> str:
    validate_name(text.removesuffix("*") or "x", "a job")
    return text


JobPattern = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_job)]


class TeamIn(Input):
    """The jobs of a team, and the groups at the OpenID Connect provider whose members belong to it."""

    jobs: list[JobPattern] = Field(max_length=200)
    """IDs of jobs; one that ends in ``*`` stands for all that begin so."""
    groups: list[Annotated[ShortText, Field(min_length=1)]] = Field(default_factory=list, max_length=100)


class TeamRead(Output):
    name: str
    jobs: list[str]
    groups: list[str]


class SignInOptions(Output):
    """How people can sign in here."""

    openid: str | None
    """Name of the OpenID Connect provider; null without one."""
    users: bool
    """Whether there are local users."""
