"""The store: one tiny process that holds torch's TCPStore, so that no trainer's death takes the rendezvous with it."""

from __future__ import annotations

import signal
import socket
from functools import partial


def serve(listener_fd: int) -> int:
    """Serve on a bound, listening socket until SIGTERM. Clients that connected earlier are waiting in its backlog."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - the fork server has imported it already

    with socket.socket(fileno=listener_fd) as listener:
        host, port = listener.getsockname()[:2]
        listener.detach()
    serving = partial(TCPStore, host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener_fd)
    try:
        store = serving()
    except NotImplementedError:  # torch 2.6: only its legacy server can take over a socket
        store = serving(use_libuv=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pause()
    del store  # it serves as long as it is referred to
    return 0
