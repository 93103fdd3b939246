"""``python -m mainstay.recovery.agent``."""

from __future__ import annotations

import sys

from mainstay.recovery.agent.server import main

if __name__ == "__main__":
    sys.exit(main())
