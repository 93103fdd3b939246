"""The warm process: imports once and forks each requested program. It has one thread, as the fork server has."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bench.lib_job import descendants
from mainstay.recovery.node import child_processes, fork_server
from mainstay.recovery.node.process_control import ChildProcess, die_with_parent
from mainstay.recovery.node.worker_output import OutputPump, OutputTail

_MAX_BYTES = 1 << 20
_LAUNCHER = ["-m", "mainstay", "run"]
_FORK_SERVER = ["-m", "mainstay.recovery.node.fork_server"]
_LISTENS = "00010000"
"""The kernel's flags of a socket that takes connections."""


@dataclass(frozen=True)
class Order:
    """What a client asks for."""

    words: list[str]
    environment: dict[str, str]
    directory: str
    descriptors: list[int]


@dataclass(frozen=True)
class Running:
    """A process that a client asked for."""

    pid: int
    pidfd: int
    line: socket.socket


@dataclass
class Server:
    """Forks for each request until its own parent has gone; a client that goes takes its process with it."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    running: list[Running] = field(default_factory=list)

    def serve(self) -> Order | None:
        """An order, in each process that is to fulfil it; None in the server when it is over."""
        self.selector.register(0, selectors.EVENT_READ, None)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select():
                if isinstance(key.data, Running):
                    self._ended(key.data, killed=key.fileobj is key.data.line)
                elif key.fd == 0:
                    return self._close()
                elif (order := self._begin()) is not None:
                    return order

    def _begin(self) -> Order | None:
        line, _ = self.listener.accept()
        body, descriptors, _, _ = socket.recv_fds(line, _MAX_BYTES, 3)
        if len(descriptors) < 3:  # it has gone already
            line.close()
            return None
        pid = os.fork()
        if pid == 0:
            line.close()
            self._forget()
            return Order(**json.loads(body), descriptors=list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        running = Running(pid, os.pidfd_open(pid), line)
        self.running.append(running)
        self._tell(running, {"pid": pid})
        self.selector.register(running.pidfd, selectors.EVENT_READ, running)
        self.selector.register(line, selectors.EVENT_READ, running)
        return None

    def _ended(self, running: Running, *, killed: bool) -> None:
        if running not in self.running:  # both of its descriptors were ready
            return
        if killed:
            signal.pidfd_send_signal(running.pidfd, signal.SIGKILL)
        _, status = os.waitpid(running.pid, 0)
        self._tell(running, {"code": os.waitstatus_to_exitcode(status)})
        self._drop(running)

    @staticmethod
    def _tell(running: Running, what: dict[str, Any]) -> None:
        try:
            running.line.send(json.dumps(what).encode())
        except OSError:  # the client is gone
            return

    def _drop(self, running: Running) -> None:
        self.running.remove(running)
        for thing in (running.pidfd, running.line):
            self.selector.unregister(thing)
        os.close(running.pidfd)
        running.line.close()

    def _close(self) -> None:
        for running in [*self.running]:
            self._ended(running, killed=True)

    def _forget(self) -> None:
        """In a child: what belongs to the server alone."""
        self.selector.close()
        self.listener.close()
        for running in self.running:
            os.close(running.pidfd)
            running.line.close()


def become(order: Order) -> None:
    """The rest of a process that was started with these words."""
    for number, descriptor in enumerate(order.descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    fork_server._forget_shared_randomness()
    words = order.words
    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        words = words[1:]
    if words[: len(_LAUNCHER)] == _LAUNCHER:
        ForkServerAtHand().stand_in()
    module = words[0] == "-m"
    sys.argv = words[1:] if module else words
    sys.path[0] = order.directory if module else str(Path(words[0]).parent.resolve())
    sys.path[1:1] = filter(None, order.environment.get("PYTHONPATH", "").split(os.pathsep))
    if module:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # it is imported: that is the point
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


class ForkServerAtHand:
    """A launcher's fork server, forked before the launcher has threads, in the place of an interpreter that it
    starts."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        launcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            os.setpgid(0, 0)
            die_with_parent(launcher)
            _become_fork_server(theirs)
        theirs.close()

    def stand_in(self) -> None:
        """From now on ``child_processes.start`` uses this fork server; it starts every other program as before."""
        start = child_processes.start

        def start_child(arguments: list[str], tail: OutputTail, pump: OutputPump, **how: Any) -> ChildProcess:
            if arguments[:2] != _FORK_SERVER:
                return start(arguments, tail, pump, **how)
            with pump.open(tail) as (out, err):
                order = {"words": arguments[1:], "environment": dict(how["environment"])}
                socket.send_fds(self._ours, [json.dumps(order).encode()], [out, err, *how["pass_fds"]])
            self._ours.close()
            return ChildProcess(self._pid)

        child_processes.start = start_child


def _become_fork_server(control: socket.socket) -> None:
    body, (out, err, line), _, _ = socket.recv_fds(control, _MAX_BYTES, 3)
    control.close()
    order = json.loads(body)
    for number, descriptor in ((1, out), (2, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(order["environment"])
    sys.argv = [order["words"][0], str(line), *order["words"][2:]]
    _wait_for_agent(os.getppid())
    end_after(lambda: sys.exit(fork_server.main()))


def _wait_for_agent(launcher: int, seconds: float = 60.0) -> None:
    """Wait for the launcher's agent: a real fork server imports for seconds; ranks that start earlier are
    unprotected."""
    deadline = time.monotonic() + seconds
    sockets: set[str] = set()
    while time.monotonic() < deadline:
        sockets = sockets or _sockets_of_agents(launcher)
        open_ones = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
        if any(words[-1] in sockets and words[3] == _LISTENS for words in open_ones):
            return
        time.sleep(0.05)


def _sockets_of_agents(launcher: int) -> set[str]:
    """Where the launcher's agents are to listen. It reads all of /proc: ask no more often than needed."""
    agents = [words.split() for words in descendants(launcher).values() if "mainstay.recovery.agent" in words]
    return {words[words.index("--socket") + 1] for words in agents if "--socket" in words}


def end_after(program: Callable[[], object]) -> NoReturn:
    """End as the interpreter does after ``program``, but for the tear-down of modules and memory, unless it raises.

    That alone is half a second of a core for each fork of a process that has imported torch: it writes to, and so
    copies, most of the memory that a fork shares.
    """
    code: object = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, str):  # the interpreter prints it
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def warm(modules: list[str]) -> None:
    """Import them; with ``torch`` among them as much as a fork server does.

    Raises:
        RuntimeError: one of them starts threads, which a fork would lack.
    """
    if "torch" in modules:
        fork_server.preload(modules)
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    if (threads := len([*Path("/proc/self/task").iterdir()])) != 1:
        raise RuntimeError(f"{threads} threads run after importing {', '.join(modules)}")


def main() -> None:
    """``python -m tests.fork_server.server SOCKET MODULE…``, until stdin closes. A line on stdout says that it is
    warm."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        warm(sys.argv[2:])
        print("warm", flush=True)
        order = Server(listener).serve()
    if order is not None:
        end_after(lambda: become(order))


if __name__ == "__main__":
    main()
