"""Loud degraded state: a failure is reported when it begins and when it ends."""

from __future__ import annotations

import logging
from collections import UserDict

logger = logging.getLogger("mainstay.agent")


class Degradations(UserDict[str, str]):
    """Subject -> what is wrong with it. A subject is logged when it comes and when it goes, not at each new wording."""

    def __setitem__(self, subject: str, words: str) -> None:
        if subject not in self.data:
            logger.error("DEGRADED %s: %s", subject, words)
        self.data[subject] = words

    def __delitem__(self, subject: str) -> None:
        del self.data[subject]
        logger.warning("%s works again", subject)

    def report(self, subject: str, problem: str) -> None:
        """``problem`` is what is wrong with ``subject`` now; empty: it works."""
        if problem:
            self[subject] = problem
        else:
            self.pop(subject, None)

    def clear(self) -> None:
        """Forget all, without a word: what was degraded is gone itself."""
        self.data.clear()
