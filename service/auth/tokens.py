"""Secrets and who they stand for.

A token is ``mst_<kind>_<43 random characters>``; the database keeps its sha256 and never the token. A sign-in code,
``mst_code_…``, works once and stands for a token that appears nowhere. A node credential may write only its own node's
data, a job token with a job only that job's, a relay token frames of its racks' nodes. Unknown, expired and revoked are
all 401.
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
    ACT = "act"
    ADMIN = "admin"


IMPLIED: Final[dict[Scope, frozenset[Scope]]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.REPORT: frozenset({Scope.REPORT, Scope.READ}),
    Scope.ACT: frozenset({Scope.ACT, Scope.READ}),
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
    """The identity of the caller and its scopes."""

    token_id: str
    kind: TokenKind
    name: str
    scopes: frozenset[Scope]
    node: str | None = None
    job: str | None = None
    expires_at: float | None = None
    racks: frozenset[str] = frozenset()
    """Of a relay: whose nodes' frames it may carry."""

    def may(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[held] for held in self.scopes)

    def require(self, scope: Scope) -> None:
        """Raise ``ScopeMissingError`` without ``scope``."""
        if not self.may(scope):
            raise ScopeMissingError(f"this needs the scope {scope.value!r}; your token has {_listed(self.scopes)}")

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
        """A token bound to a job writes only that job; a node credential alone writes no job."""
        self.require(Scope.REPORT)
        bound_elsewhere = self.job is not None and self.job != job
        if (bound_elsewhere or self.kind in {TokenKind.NODE, TokenKind.RELAY}) and not self.may(Scope.ADMIN):
            raise NotYourJobError(f"this token may not write data of job {job!r}")


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

    def forget(self, tokens: Collection[str]) -> None:
        """Forget the tokens with these ids, and the sessions opened with them."""
        with self._lock:
            self._epoch += 1
            known = [key for key, (_, principal) in self._entries.items() if principal.token_id in tokens]
            for key in known:
                del self._entries[key]
