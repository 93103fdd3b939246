"""Secrets and who they stand for.

A token is ``mst_<kind>_<43 random characters>``; the database keeps its sha256 and never the token. A sign-in code,
``mst_code_…``, works once and stands for a token that appears nowhere. A node credential may write only its own node's
data, a job token with a job only that job's, a relay token frames of its racks' nodes. A token of a user may do what
its scopes and the user's role both allow. Unknown, expired and revoked are all 401.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mainstay.service.common.problem import ForbiddenError

MAX_CACHED: Final = 50_000
CODE_PREFIX: Final = "mst_code_"


class Scope(StrEnum):
    READ = "read"
    REPORT = "report"
    RESPOND = "respond"
    """Take over and comment on incidents, and silence notifications."""
    ACT = "act"
    ADMIN = "admin"


IMPLIED: Final[dict[Scope, frozenset[Scope]]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.REPORT: frozenset({Scope.REPORT, Scope.READ}),
    Scope.RESPOND: frozenset({Scope.RESPOND, Scope.READ}),
    Scope.ACT: frozenset({Scope.ACT, Scope.RESPOND, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}


class TokenKind(StrEnum):
    ADMIN = "admin"
    USER = "user"
    NODE = "node"
    JOB = "job"
    JOIN = "join"
    RELAY = "relay"


ALL_RACKS: Final = "*"
"""In the place of rack names: every node, with a rack or without. No rack can have this name."""


class NotYourNodeError(ForbiddenError):
    slug, title = "wrong-node", "Not your node"


class NotYourRackError(ForbiddenError):
    slug, title = "wrong-rack", "Not your rack"


class NotYourJobError(ForbiddenError):
    slug, title = "wrong-job", "Not your job"


class ScopeMissingError(ForbiddenError):
    slug, title = "scope-missing", "Scope missing"


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of the caller, and what it may do where."""

    token_id: str
    kind: TokenKind
    name: str
    """Of the user, else of the token."""
    scopes: frozenset[Scope]
    """What it may do in the whole fleet."""
    node: str | None = None
    job: str | None = None
    """The only job that a job token is for."""
    expires_at: float | None = None
    racks: frozenset[str] = frozenset()
    """Of a relay: whose nodes' frames it may carry."""
    jobs: tuple[str, ...] = ()
    """IDs of the jobs for which it has ``job_scopes`` too; one that ends in ``*`` stands for all that begin so."""
    job_scopes: frozenset[Scope] = frozenset()
    user_id: str | None = None
    """Id of the user."""

    def may(self, scope: Scope) -> bool:
        """Whether it has ``scope`` in the whole fleet."""
        return implies(self.scopes, scope)

    def may_somewhere(self, scope: Scope) -> bool:
        """Whether it has ``scope`` in the whole fleet or for jobs of its own."""
        return self.may(scope) or implies(self.job_scopes, scope)

    def may_for_job(self, job: str, scope: Scope) -> bool:
        """Whether it has ``scope`` for this job."""
        return self.may(scope) or (implies(self.job_scopes, scope) and matches(job, self.jobs))

    @property
    def seen_jobs(self) -> tuple[str, ...] | None:
        """The jobs that it may read, as in ``jobs``; None for all."""
        return None if self.may(Scope.READ) else self.jobs

    def require(self, scope: Scope) -> None:
        """Raise ``ScopeMissingError`` without ``scope``; whom a report is about, its route checks."""
        if not (self.may_somewhere(scope) if scope is Scope.REPORT else self.may(scope)):
            raise self.missing(scope)

    def missing(self, scope: Scope) -> ScopeMissingError:
        held = _listed(self.scopes)
        if self.job_scopes:
            held = f"{_listed(self.job_scopes)} for {', '.join(self.jobs) or 'no job'}, and {held} for the fleet"
        return ScopeMissingError(f"this needs the scope {scope.value!r}; you have {held}")

    def require_node(self, node: str) -> None:
        """Only a node itself, or an admin, writes a node's data."""
        self.require(Scope.REPORT)
        if self.node != node and not self.may(Scope.ADMIN):
            raise NotYourNodeError(f"this token may not write data of node {node!r}")

    def carries(self, rack: str | None) -> bool:
        """Whether it may carry the frames of nodes in ``rack``."""
        is_relay = self.kind is TokenKind.RELAY and bool(self.racks & {rack or "", ALL_RACKS})
        return is_relay or self.may(Scope.ADMIN)

    def require_relayed(self, node: str, rack: str | None) -> None:
        """Only a relay of a node's rack, or an admin, carries the node's frames; a node may stand in no rack.

        Raises:
            NotYourRackError: the token is no relay's, or a relay's of other racks.
        """
        if not self.carries(rack):
            raise NotYourRackError(f"this token may not carry frames of node {node!r} in rack {rack!r}")

    def require_job(self, job: str) -> None:
        """A token bound to a job or a team writes only its jobs; a node credential alone writes no job."""
        self.require(Scope.REPORT)
        bound_elsewhere = not self.may_for_job(job, Scope.REPORT)
        if (bound_elsewhere or self.kind in {TokenKind.NODE, TokenKind.RELAY}) and not self.may(Scope.ADMIN):
            raise NotYourJobError(f"this token may not write data of job {job!r}")


def implies(scopes: Collection[Scope], scope: Scope) -> bool:
    """Whether one of ``scopes`` contains ``scope``."""
    return any(scope in IMPLIED[held] for held in scopes)


def matches(job: str, patterns: Collection[str]) -> bool:
    """Whether the id of a job is one of ``patterns``, or begins as one that ends in ``*``."""
    return any(job.startswith(one[:-1]) if one.endswith("*") else job == one for one in patterns)


def _listed(scopes: frozenset[Scope]) -> str:
    return ", ".join(sorted(scopes)) or "none"


def make_secret(kind: TokenKind) -> str:
    return f"mst_{kind.value}_{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def make_code() -> str:
    """96 random bits, for a code that works once within minutes: a link with it fits on a line of a terminal."""
    return f"{CODE_PREFIX}{secrets.token_urlsafe(12)}"


def code_digest(code: str) -> str:
    """As stored among the sessions: no cookie has a digest of this form, so a code is never taken for one."""
    return f"code:{digest(code)[:59]}"


SESSION_SECONDS: Final = 5.0
"""How long a browser's session may outlive its end in another process."""


@dataclass
class TokenCache:
    """Digest of a secret → principal, for a while: the frame route must not ask the database each time.

    A revocation takes effect at once in this process, and in others at the next iteration of the loop in
    ``mainstay.service.auth.loops``. Only what was revoked is forgotten: ten thousand daemons whose tokens were
    forgotten would all ask the database within the next second.
    """

    seconds: float
    monotonic: Callable[[], float]
    _entries: dict[str, tuple[float, Principal]] = field(default_factory=dict, init=False, repr=False)
    _uses: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _epoch: int = field(default=0, init=False)

    @property
    def epoch(self) -> int:
        """Changes when something is forgotten; take it before asking the database."""
        return self._epoch

    def get(self, key: str) -> Principal | None:
        entry = self._entries.get(key)
        if entry is None or entry[0] < self.monotonic():
            return None
        return entry[1]

    def put(self, key: str, principal: Principal, epoch: int, *, session: bool = False) -> None:
        """Remember, unless a revocation came between the look-up and now; a browser's session for seconds only."""
        seconds = min(self.seconds, SESSION_SECONDS) if session else self.seconds
        with self._lock:
            if epoch != self._epoch:
                return
            if len(self._entries) >= MAX_CACHED:
                self._entries.clear()
            self._entries[key] = (self.monotonic() + seconds, principal)

    def note_use(self, principal: Principal, now: float) -> None:
        """Note that a token was used now (Unix seconds); what daemons send each second is not noted."""
        if principal.kind not in {TokenKind.NODE, TokenKind.RELAY}:
            self._uses[principal.token_id] = now

    def drain_uses(self) -> dict[str, float]:
        """Id of a token → its last use (Unix seconds), for those used since the last call."""
        with self._lock:
            uses, self._uses = self._uses, {}
        return uses

    def forget(self, tokens: Collection[str]) -> None:
        """Forget the tokens with these ids, and the sessions opened with them."""
        with self._lock:
            self._epoch += 1
            known = [key for key, (_, principal) in self._entries.items() if principal.token_id in tokens]
            for key in known:
                del self._entries[key]
