"""Fan-out of changes to the watchers of this process."""

from __future__ import annotations


class ChangeHub:
    """Placeholder shape; filled by the stream feature."""
