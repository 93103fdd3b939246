"""The store: one tiny process that holds torch's TCPStore, so that no trainer's death takes the rendezvous with it."""

from __future__ import annotations

import signal
import socket


def serve(listener_fd: int) -> int:
    """Serve on a bound, listening socket until SIGTERM. Clients that connected earlier are waiting in its backlog."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - the nursery has imported it already

    with socket.socket(fileno=listener_fd) as listener:
        host, port = listener.getsockname()[:2]
        listener.detach()
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pause()
    del store  # it serves as long as it is referred to
    return 0
