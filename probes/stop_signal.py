"""An orderly end at SIGTERM and SIGINT."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable


def stop_at_signal(stop: Callable[[], object]) -> None:
    """Call ``stop`` on a thread of its own at each SIGTERM and SIGINT. Call this in the main thread.

    A handler interrupts the main thread anywhere, and itself at a second signal: ``Event.set`` in it waits for ever if
    the same thread is inside the event. ``threading.Thread`` takes a lock too; the function below does not.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _thread.start_new_thread(stop, ()) and None)
