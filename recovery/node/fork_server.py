"""The fork server: one process that has imported torch and forks workers from itself.

Importing torch and its optimizers costs about five seconds and 200 MB for each process; a fork of one that has done it
costs milliseconds and shares the memory. This is safe because the fork server has a single thread and never touches a
device, runs no backward pass and opens no connection. A child is forked twice, so that it belongs to the launcher,
which waits for it and whose death ends it.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
from importlib import import_module
from typing import Final, NamedTuple

import msgspec

from mainstay.recovery.node.process_control import die_with_parent, wait_for_parent

_MAX_BYTES: Final = 256 * 1024


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Launcher to fork server: fork a child of this role.

    Descriptors come with it: its stdout, its stderr and, for a store or check, its socket.
    """

    number: int
    role: str
    """``worker``, ``store``, or ``check``."""
    environment: dict[str, str]


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """Fork server to launcher: the child's pid. Number 0 says that the fork server itself is warm."""

    number: int
    pid: int


_requests = msgspec.msgpack.Decoder(ForkRequest)
decode_reply = msgspec.msgpack.Decoder(ForkReply).decode
encode = msgspec.msgpack.Encoder().encode


class _Order(NamedTuple):
    request: ForkRequest
    descriptors: list[int]


def main() -> int:
    """Run ``python -m mainstay.recovery.node.fork_server FD LAUNCHER_PID [MODULE…]`` until its socket closes."""
    launcher = int(sys.argv[2])
    die_with_parent(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    preload(sys.argv[3:])
    control.send(encode(ForkReply(number=0, pid=os.getpid())))
    order = _serve(control, launcher)
    if order is None:
        return 0
    control.close()  # from here on: in a child
    return _become(order)


def preload(modules: list[str]) -> None:
    """Import what a rank needs and take the first optimizer step, which imports as much again as torch itself.

    Raises:
        ImportError: one of ``modules``, which the user asked for, is not there.
    """
    import torch  # noqa: PLC0415 - not before the parent is known to live
    import torch.distributed  # noqa: PLC0415

    import mainstay.recovery.sdk.protected  # noqa: PLC0415

    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(4)
    optimizer.step()
    optimizer.zero_grad()
    assert mainstay.recovery.sdk.protected is not None
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # what is here stays: children need not copy its pages only to look at it


def _serve(control: socket.socket, launcher: int) -> _Order | None:
    """Fork for each request. Returns an order in each child, None in the fork server when the launcher has gone."""
    while True:
        body, descriptors, _, _ = socket.recv_fds(control, _MAX_BYTES, 3)
        if not body:
            return None
        request = _requests.decode(body)
        pid = _fork_twice(launcher)
        if pid == 0:
            return _Order(request, list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(encode(ForkReply(number=request.number, pid=pid)))


def _fork_twice(launcher: int) -> int:
    """0 in the grandchild, which by then belongs to the launcher; its pid in the caller."""
    read_fd, write_fd = os.pipe()
    middle = os.fork()
    if middle == 0:
        child = os.fork()
        if child == 0:
            os.close(read_fd)
            os.close(write_fd)
            wait_for_parent(launcher)
            die_with_parent(launcher)
            return 0
        os.write(write_fd, child.to_bytes(4, "little"))
        os._exit(0)
    os.close(write_fd)
    pid = int.from_bytes(os.read(read_fd, 4), "little")
    os.close(read_fd)
    os.waitpid(middle, 0)
    return pid


def _become(order: _Order) -> int:
    os.setpgid(0, 0)  # Ctrl-C in the terminal is the launcher's business
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (1, 2):
        os.dup2(order.descriptors[number - 1], number)
        os.close(order.descriptors[number - 1])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    os.environ.update(order.request.environment)
    _forget_shared_randomness()
    if order.request.role == "store":
        from mainstay.recovery.node import store  # noqa: PLC0415 - only one child needs it

        return store.serve(order.descriptors[2])
    if order.request.role == "check":
        from mainstay.recovery.node import node_check_process  # noqa: PLC0415 - likewise

        return node_check_process.serve(order.descriptors[2])
    from mainstay.recovery.node import worker  # noqa: PLC0415 - needs torch

    return worker.serve()


def _forget_shared_randomness() -> None:
    """Forked processes would otherwise draw the same "random" numbers."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


if __name__ == "__main__":
    sys.exit(main())
