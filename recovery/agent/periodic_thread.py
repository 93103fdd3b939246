"""A thread that takes turns: it sleeps until the time is up or it is kicked; an error of one turn is not its last."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import Final

_NICE: Final = 5
"""Behind the trainers; ahead of what is niced to the end."""

logger = logging.getLogger("mainstay.agent")


class PeriodicThread(ABC):
    nice = _NICE

    def __init__(self, name: str) -> None:
        self._kick = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> float:
        """Do what is to be done; seconds until the next turn unless kicked before."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._kick.set()

    def stop(self) -> None:
        """End after the turn under way."""
        self._stop = True
        self._kick.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        self._be_nice()
        pause = 0.0
        while True:
            self._kick.wait(pause)
            self._kick.clear()
            if self._stop:
                return
            try:
                pause = self.run_once()
            except Exception:  # boundary: a background thread lives as long as its agent
                logger.exception("%s failed; it continues", self._thread.name)
                pause = 1.0

    def _be_nice(self) -> None:
        """On Linux niceness belongs to the thread."""
        with_id = threading.get_native_id()
        try:
            os.setpriority(os.PRIO_PROCESS, with_id, self.nice)
        except OSError:
            logger.info("could not lower the priority of a background thread")
