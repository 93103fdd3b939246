"""Sign-in links: the URL under which the dashboard exchanges a one-time code for a session."""

from __future__ import annotations


def sign_in_link(base_url: str, code: str) -> str:
    """Where the dashboard exchanges the code; a fragment reaches no server and no log."""
    return f"{base_url.rstrip('/')}/sign-in#code={code}"
