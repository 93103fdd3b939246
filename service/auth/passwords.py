"""Passwords of local users: scrypt with the parameters that OWASP recommends (N = 2^15, r = 8, p = 3: 32 MiB).

https://cheatsheetseries.owasp.org/cheatsheets/Password_Storage_Cheat_Sheet.html
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

SHORTEST: Final = 15
"""Characters, as NIST SP 800-63B-4 (3.1.1.2) requires of a password that is the only factor."""
LONGEST: Final = 200
_N, _R, _P = 2**15, 8, 3
_MEMORY: Final = 64 * 1024 * 1024


def hash_password(password: str, *, salt: bytes | None = None) -> str:
    """``scrypt$SALT$DIGEST``, both in Base64."""
    salt = secrets.token_bytes(16) if salt is None else salt
    secret = password.encode("utf-8", "surrogatepass")
    digest = hashlib.scrypt(secret, salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY, dklen=32)
    return "$".join(("scrypt", *(base64.b64encode(part).decode() for part in (salt, digest))))


_NOBODY: Final = f"scrypt${'A' * 22}==${'A' * 43}="


def check_password(password: str, stored: str | None) -> bool:
    """Whether ``stored`` is the hash of ``password``; takes as long where there is none, which tells nothing."""
    salt = base64.b64decode((stored or _NOBODY).split("$")[1])
    return hmac.compare_digest(hash_password(password, salt=salt), stored or _NOBODY) and stored is not None
