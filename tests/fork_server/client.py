"""Stands where ``python`` would: has the warm process run the same words, ends as they end, and takes them with it.

``python -IS client.py SOCKET [-u] (-m MODULE | SCRIPT) [WORD…]`` needs nothing but the standard library, so that it
starts in milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MAX_BYTES = 4096


def start_process(
    path: str, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> tuple[socket.socket, int]:
    """Run ``words`` with stdin, stdout and stderr of ``descriptors``; return the connection and the process id.

    The connection reports the end of the process. Closing the socket kills it.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(path)
    request = {"words": list(words), "environment": dict(environment), "directory": str(Path.cwd())}
    socket.send_fds(line, [json.dumps(request).encode()], list(descriptors))
    return line, int(receive_message(line)["pid"])


def receive_message(line: socket.socket) -> dict[str, Any]:
    """Return the next message of the warm process.

    Raises:
        ConnectionError: it is gone.
    """
    body = line.recv(_MAX_BYTES)
    if not body:
        raise ConnectionError("the warm process is gone")
    found: dict[str, Any] = json.loads(body)
    return found


def main() -> None:
    line, pid = start_process(sys.argv[1], sys.argv[2:], os.environ, (0, 1, 2))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: os.kill(pid, got))
    code = int(receive_message(line)["code"])
    if code >= 0:
        sys.exit(code)
    signal.signal(-code, signal.SIG_DFL) if -code not in {signal.SIGKILL, signal.SIGSTOP} else None
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
