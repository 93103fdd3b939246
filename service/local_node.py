"""This machine's own probe as a child of ``mainstay up``: started with a fresh credential, restarted when it dies."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstay.probes.identity import default_name
from mainstay.service.auth import repository
from mainstay.service.auth.service import NewToken, create_token, write_secret
from mainstay.service.auth.tokens import TokenKind
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
_RESTART_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 5.0


@dataclass
class LocalNode:
    """The child process."""

    command: list[str]
    log_file: Path
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _started_at: float = field(default=0.0, init=False, repr=False)

    def ensure_running(self) -> None:
        """Start the child, or start it again when it has ended and some time has passed."""
        if self._child is not None and self._child.poll() is None:
            return
        if time.monotonic() - self._started_at < _RESTART_SECONDS and self._child is not None:
            return
        if self._child is not None:
            _log.warning("the node daemon ended with code %s; starting it again", self._child.returncode)
        self._started_at = time.monotonic()
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


@contextmanager
def own_node(services: Services, base_url: str) -> Iterator[None]:
    """This machine's node daemon for as long as the block lasts."""
    directory = services.settings.data_dir / "node"
    name = default_name()
    token_file = directory / "own-token"
    write_secret(token_file, _credential(services, name))
    options = ["--service", base_url, "--name", name, "--token-file", str(token_file), "--data-dir", str(directory)]
    command = [*_dies_with_us(), sys.executable, "-m", "mainstay", "node", *options]
    child = LocalNode(command, directory / "node.log")
    watch = Loop("own-node", _LOOK_SECONDS, child.ensure_running)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
        child.stop()


def _credential(services: Services, name: str) -> str:
    """A fresh credential at every start: same machine and same user, so no proof is needed."""
    now = services.clock.now()
    with services.database.session() as session:
        repository.revoke_node_tokens(session, name, now)
        new = NewToken(name=f"node {name}", kind=TokenKind.NODE, node=name)
        return create_token(session, new, now=now)[1]


def _dies_with_us() -> list[str]:
    """Should we be killed, the kernel ends the child too, where util-linux can arrange that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
